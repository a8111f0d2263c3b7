"""From a task's name and a file to a :class:`Task`: reading, tokenising, checking."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from headscope.core.errors import InputError
from headscope.data.examples import (
    Examples,
    read_labelled,
    read_pairs,
    read_texts,
    read_translations,
)
from headscope.models.loaded import LoadedModel
from headscope.models.task_heads import ends_of, missing_task_head
from headscope.tasks.base import Task
from headscope.tasks.encoder_tasks import Classification, Fidelity, MaskedLM, Similarity
from headscope.tasks.seq2seq import Seq2Seq

#: Every task by name.
TASKS: dict[str, type[Fidelity | MaskedLM | Classification | Similarity | Seq2Seq]] = {
    kind.name: kind for kind in (Fidelity, MaskedLM, Classification, Similarity, Seq2Seq)
}
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
    return TASKS[name](examples, loaded, seed, limit)


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


def _check_name(name: str) -> None:
    if name not in TASKS:
        raise InputError(f"There is no task {name!r}; choose {', '.join(TASKS)}.")
