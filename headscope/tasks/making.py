"""From a task's name and a file to a :class:`Task`: reading, tokenising, checking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headscope.core.errors import InputError, nearest
from headscope.data.annotated import read_questions, read_tagged
from headscope.data.examples import (
    TASK_FILES,
    WINDOWED,
    Examples,
    read_labelled,
    read_pairs,
    read_texts,
    read_translations,
)
from headscope.data.queries import read_rerank, read_retrieval, with_candidates
from headscope.models.run.head_outputs import gives_one_score
from headscope.models.run.loaded import LoadedModel, ends_of
from headscope.models.run.task_heads import missing_task_head
from headscope.tasks.answering import QuestionAnswering
from headscope.tasks.base import Task
from headscope.tasks.labelled_tasks import Classification, PairScores, Similarity
from headscope.tasks.next_token import NextToken, NextTokenAccuracy
from headscope.tasks.ranking_tasks import Rerank, Retrieval
from headscope.tasks.seq2seq import Seq2Seq
from headscope.tasks.tagging import TokenClassification
from headscope.tasks.text_tasks import Fidelity, MaskedLM

_CLASSES: tuple[type[Task], ...] = (
    Fidelity,
    MaskedLM,
    NextToken,
    NextTokenAccuracy,
    Classification,
    Similarity,
    Retrieval,
    Rerank,
    TokenClassification,
    QuestionAnswering,
    Seq2Seq,
)
#: The class of every task, by the task's name.
TASKS = {kind.name: kind for kind in _CLASSES}
#: What reads the file of a task with labels; the others read plain text.
_READERS: dict[str, Callable[[str | Path], Examples]] = {
    "classification": read_labelled,
    "similarity": read_pairs,
    "retrieval": read_retrieval,
    "rerank": read_rerank,
    "token-classification": read_tagged,
    "question-answering": read_questions,
    "seq2seq": read_translations,
}


def read_examples(
    name: str, path: str | Path | Examples | None, limit: int | None = None, seed: int = 0
) -> Examples:
    """Read what a task is measured on; no model is needed yet.

    ``path`` is a file, or the examples themselves; None is the built-in sample, for tasks of plain
    text. With a limit examples are chosen at random (files are often sorted); of ``mlm`` and
    ``lm``, which read windows of running text, :func:`make_task` takes the first windows.
    """
    _check_name(name)
    check_two(limit)
    limit = None if name in WINDOWED else limit
    if isinstance(path, Examples):
        examples = path.draw(limit, seed)
    elif name in _READERS:
        if path is None:
            raise InputError(
                f"The task {name} needs a file with {TASK_FILES[name]}: the built-in sample has "
                "none."
            )
        examples = _READERS[name](path).draw(limit, seed)
    else:
        examples = read_texts(path, limit, seed)
    return with_candidates(examples) if name == "rerank" else examples


def check_two(limit: int | None) -> None:
    """Refuse a limit that leaves less than two examples."""
    if limit is not None and limit < 2:
        raise InputError(f"The limit is {limit}; a task needs two examples or more.")


def make_task(
    name: str, examples: Examples, loaded: LoadedModel, *, seed: int = 0, limit: int | None = None
) -> Task:
    """Tokenise examples for a model and check that it can do the task."""
    check_task(name, loaded)
    return task_class(name, loaded)(examples, loaded, seed, limit)


def task_class(name: str, loaded: LoadedModel) -> type[Task]:
    """Return the class of a task for a model.

    A cross-encoder, which reads both texts at once, has a class of its own for ``similarity``.
    """
    if name == "similarity" and gives_one_score(loaded):
        return PairScores
    return TASKS[name]


def check_task(name: str, loaded: LoadedModel) -> None:
    """Refuse a task that the model cannot do, before anything else is measured."""
    _check_name(name)
    if loaded.tokenizer is None:
        raise InputError(f"The task {name} needs the model's tokenizer; load it with it.")
    if name == "seq2seq":
        ends_of(loaded)  # raises where there is no decoder, whatever head the model has
    head = TASKS[name].head
    if head is not None and loaded.task_head != head:
        held = type(loaded.network).__name__
        raise missing_task_head(loaded.name, head, held, loaded.head_weights)
    if head not in (None, "seq2seq") and loaded.encoder_decoder:
        raise InputError(
            f"{loaded.name} is an encoder-decoder model; the task {name} needs an encoder with a "
            "head of its own."
        )
    if name == "retrieval" and gives_one_score(loaded):
        raise InputError(
            f"{loaded.name} is a cross-encoder: its head scores a query with one document and "
            "embeds nothing, so it cannot search all documents; choose the task rerank."
        )
    loaded.pooling.check()


def _check_name(name: str) -> None:
    if name not in TASKS:
        raise InputError(f"There is no task {name!r}; {nearest(name, TASKS, 'choose from')}")
