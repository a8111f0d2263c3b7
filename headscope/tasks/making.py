"""From a task's name and a file to a :class:`Task`: reading, tokenising, checking."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headscope.core.errors import CorpusError, InputError
from headscope.data.examples import (
    Examples,
    class_ids,
    read_labelled,
    read_pairs,
    read_texts,
    read_translations,
)
from headscope.data.token_rows import Row, encode_rows, mask_row, window_rows
from headscope.models.loaded import LoadedModel
from headscope.models.task_heads import ends_of, missing_task_head
from headscope.tasks.base import Task
from headscope.tasks.encoder_tasks import Classification, Fidelity, MaskedLM, Similarity, classes_of
from headscope.tasks.seq2seq import seq2seq_task

#: Tokens of a window of the ``mlm`` task, special tokens included, and windows unless limited.
MLM_WINDOW, MLM_WINDOWS = 64, 256
#: What WikiText and Penn Treebank write in place of a rare word: no text, so nothing to predict.
_TAKEN_OUT = "<unk>"
#: Tasks that need a file: what it holds, and how it is read.
_NEEDS_FILE: dict[str, tuple[str, Callable[[str | Path, int | None], Examples]]] = {
    "classification": ("labels", read_labelled),
    "similarity": ("labels", read_pairs),
    "seq2seq": ("sources and targets", read_translations),
}


def read_examples(
    name: str, path: str | Path | Examples | None, limit: int | None = None
) -> Examples:
    """Read what a task is measured on; no model is needed yet."""
    _check_name(name)
    check_two(limit)
    if isinstance(path, Examples):
        return select(path, range(min(len(path), limit or len(path))))
    if name in _NEEDS_FILE:
        what, read = _NEEDS_FILE[name]
        if path is None:
            raise InputError(
                f"The task {name} needs a file with {what}: the built-in sample has none."
            )
        return read(path, limit)
    return read_texts(path, None if name == "mlm" else limit)


def check_two(limit: int | None) -> None:
    """Refuse a limit that leaves less than two examples."""
    if limit is not None and limit < 2:
        raise InputError(f"The limit is {limit}; a task needs two examples or more.")


def select(examples: Examples, rows: Iterable[int]) -> Examples:
    """Return some examples, with everything that is known of each."""
    rows = tuple(rows)
    columns: dict[str, Any] = {
        name: tuple(column[i] for i in rows)
        for name in ("first", "second", "labels", "scores", "lines")
        if (column := getattr(examples, name))
    }
    return dataclasses.replace(examples, **columns)


def make_task(
    name: str, examples: Examples, loaded: LoadedModel, *, seed: int = 0, limit: int | None = None
) -> Task:
    """Tokenise examples for a model and check that it can do the task."""
    check_task(name, loaded)
    return TASKS[name].make(examples, loaded, seed, limit)


def check_task(name: str, loaded: LoadedModel) -> None:
    """Refuse a task that the model cannot do, before anything else is measured."""
    _check_name(name)
    if loaded.tokenizer is None:
        raise InputError(f"The task {name} needs the model's tokenizer; load it with it.")
    if name == "seq2seq":
        ends_of(loaded)  # an encoder has no targets, whatever head it has
    if name in ("mlm", "classification", "seq2seq") and loaded.task_head != name:
        raise missing_task_head(loaded.name, name, type(loaded.network).__name__)
    loaded.pooling.check()


def _fidelity(examples: Examples, loaded: LoadedModel, seed: int, limit: int | None) -> Task:
    texts = examples.texts
    # With a head it is the head's outputs that count, and its texts have no prompt.
    prompt = "" if loaded.task_head else loaded.pooling.prompt
    rows, kept = _encode(loaded, [prompt + text for text in texts])
    rows = [_masked(row, loaded, seed) for row in rows] if loaded.task_head == "mlm" else rows
    task = Fidelity(examples, loaded, rows, len(texts) - len(kept))
    task.notes = () if loaded.task_head else tuple(_notes(loaded, rows))
    return task


def _mlm(examples: Examples, loaded: LoadedModel, seed: int, limit: int | None) -> Task:
    length, count = min(MLM_WINDOW, loaded.max_length), limit or MLM_WINDOWS
    lines = [line.replace(_TAKEN_OUT, " ") for line in examples.first]
    rows = window_rows(loaded, lines, length=length, count=count)
    if len(rows) < 2:
        raise CorpusError(
            f"{examples.name} has not enough text for two windows of {length} tokens; give more."
        )
    return MaskedLM(examples, loaded, [_masked(row, loaded, seed) for row in rows], 0)


def _classification(examples: Examples, loaded: LoadedModel, seed: int, limit: int | None) -> Task:
    labels = class_ids(examples, classes_of(loaded))
    rows, kept = _encode(loaded, examples.first, examples.second)
    skipped = len(examples) - len(kept)
    return Classification(examples, loaded, rows, skipped, [labels[i] for i in kept])


def _similarity(examples: Examples, loaded: LoadedModel, seed: int, limit: int | None) -> Task:
    texts = examples.texts
    rows, kept = _encode(loaded, [loaded.pooling.prompt + text for text in texts])
    row_of = {texts[i]: row.index for i, row in zip(kept, rows, strict=True)}
    pairs, gold = [], []
    both = zip(examples.first, examples.second or (), examples.scores or (), strict=True)
    for first, second, score in both:
        if first in row_of and second in row_of:
            pairs.append((row_of[first], row_of[second]))
            gold.append(score)
    skipped = len(examples) - len(pairs)
    if len(set(gold)) < 2:
        raise CorpusError(
            f"{examples.name}: {skipped} of {len(examples)} pairs are longer than the model's "
            "limit, and the rest have no two different scores."
        )
    task = Similarity(examples, loaded, rows, skipped, np.array(pairs), np.array(gold))
    task.notes = tuple(_notes(loaded, rows))
    return task


@dataclass(frozen=True)
class TaskInfo:
    """One task."""

    #: From examples, the model, a seed and a limit to a :class:`Task`.
    make: Callable[[Examples, LoadedModel, int, int | None], Task]
    words: str  # What it measures, and what it needs, on one line.


#: Every task by name.
TASKS: dict[str, TaskInfo] = {
    "fidelity": TaskInfo(
        _fidelity, "cosine of embeddings (or KL of outputs) to the whole model's own; any text"
    ),
    "mlm": TaskInfo(_mlm, "loss at masked tokens; any text, and a model with that head"),
    "classification": TaskInfo(
        _classification, "accuracy; labelled sentences or pairs, and a model with that head"
    ),
    "similarity": TaskInfo(
        _similarity, "Spearman correlation of cosines with people's scores; scored pairs"
    ),
    "seq2seq": TaskInfo(
        seq2seq_task, "accuracy of target tokens; sources with targets, and an encoder-decoder"
    ),
}


def _check_name(name: str) -> None:
    if name not in TASKS:
        raise InputError(f"There is no task {name!r}; choose {', '.join(TASKS)}.")


def _encode(
    loaded: LoadedModel, first: Sequence[str], second: Sequence[str] | None = None
) -> tuple[list[Row], list[int]]:
    """Tokenise texts; return rows numbered from 0, and the places of those that fit the model."""
    encoded = encode_rows(loaded, first, second)
    kept = [row for row in encoded if row is not None]
    if len(kept) < 2:
        raise CorpusError(
            f"{len(kept)} of {len(first)} texts fit the model's limit of {loaded.max_length} "
            "tokens; give shorter ones (nothing is ever cut)."
        )
    rows = [dataclasses.replace(row, index=i) for i, row in enumerate(kept)]
    return rows, [row.index for row in kept]


def _notes(loaded: LoadedModel, rows: Sequence[Row]) -> Iterator[str]:
    """Say where texts are read otherwise than a user of the model may expect."""
    prompt, limit = loaded.pooling.prompt, loaded.pooling.max_length
    if prompt:
        yield f"Every text is read after the default prompt of the model's folder, {prompt!r}."
    longer = 0 if limit is None else sum(len(row) > limit for row in rows)
    if longer:
        yield (
            f"{longer:,} of {len(rows):,} texts are longer than the {limit} tokens at which "
            "SentenceTransformer cuts the texts of this model; here they are read whole."
        )


def _masked(row: Row, loaded: LoadedModel, seed: int) -> Row:
    mask_id = getattr(loaded.tokenizer, "mask_token_id", None)
    if mask_id is None:
        raise InputError(f"The tokenizer of {loaded.name} has no mask token; mlm needs one.")
    return mask_row(row, int(mask_id), seed)
