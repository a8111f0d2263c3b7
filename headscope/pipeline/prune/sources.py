"""What heads are chosen on and what they are judged by: two tasks on two sets of examples."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.data.examples import Examples, read_texts, sample_texts
from headscope.data.overlap import overlap
from headscope.errors import CorpusError, InputError
from headscope.models.loading import LoadedModel
from headscope.pipeline.tasks import Task, make_task, read_examples

__all__ = ["CALIBRATION_LIMIT", "Sources", "open_calibration", "open_sources", "pick"]

#: Sentences that heads are chosen on, unless the user says otherwise.
CALIBRATION_LIMIT = 1024
#: Files whose columns hold labels; anything else is text.
_TABLES = (".csv", ".tsv", ".jsonl")


@dataclass(frozen=True)
class Sources:
    """Examples to choose on and examples to measure on, read but not yet tokenised.

    Attributes
    ----------
    task : str
    data : Examples
    calibration : Examples or None
    calibration_task : str
        The task itself, or ``fidelity`` where the calibration file is plain text.
    warnings : tuple of str
    """

    task: str
    data: Examples
    calibration: Examples | None
    calibration_task: str
    calibration_limit: int
    limit: int | None
    warnings: tuple[str, ...] = ()

    def tasks(self, loaded: LoadedModel, seed: int) -> tuple[Task, Task | None]:
        """Tokenise both for a model: (evaluation, calibration)."""
        evaluation = make_task(self.task, self.data, loaded, seed=seed, limit=self.limit)
        if self.calibration is None:
            return evaluation, None
        # Other masks than those of the evaluation, should both hold the same text.
        calibration = make_task(
            self.calibration_task,
            self.calibration,
            loaded,
            seed=seed + 1,
            limit=self.calibration_limit // 2,
        )
        return evaluation, calibration


def open_sources(
    task: str,
    data: str | Path | None,
    calibration: str | Path | None,
    *,
    needs_calibration: bool,
    needs_labels: Sequence[str],
    limit: int | None,
    calibration_limit: int,
    seed: int,
) -> Sources:
    """Read both files and check that they can serve.

    Parameters
    ----------
    task : str
    data, calibration : path or None
        None is the built-in sample; if both are, each gets half of it.
    needs_calibration : bool
        Whether anything is chosen or repaired at all.
    needs_labels : sequence of str
        The methods of this run that cannot do without labels.
    limit, calibration_limit : int
        Examples to measure on; sentences to choose on, drawn at random.
    seed : int

    Raises
    ------
    InputError, CorpusError
    """
    if calibration_limit < 2:
        raise InputError(
            f"--calibration-limit {calibration_limit}: give 2 or more (1024 is usual)."
        )
    if data is None and calibration is None and task in ("fidelity", "mlm"):
        first, second = _halves(sample_texts(), seed)
        evaluation = first if limit is None or task == "mlm" else _first(first, limit)
        chosen = pick(second, calibration_limit, task, seed) if needs_calibration else None
        return Sources(task, evaluation, chosen, task, calibration_limit, limit)
    evaluation = read_examples(task, data, limit)
    if not needs_calibration:
        return Sources(task, evaluation, None, task, calibration_limit, limit)
    other, other_task = open_calibration(task, calibration, needs_labels)
    chosen = pick(other, calibration_limit, other_task, seed)
    return Sources(
        task, evaluation, chosen, other_task, calibration_limit, limit, _shared(evaluation, chosen)
    )


def pick(examples: Examples, limit: int, task: str, seed: int) -> Examples:
    """Draw examples at random, in their order; a pair counts as two sentences.

    The ``mlm`` task takes all of the text: its windows are limited instead.
    """
    size = limit // 2 if task == "similarity" else limit
    if task == "mlm" or len(examples) <= size:
        return examples
    places = sorted(random.Random(seed).sample(range(len(examples)), max(2, size)))
    return _at(examples, places)


def open_calibration(
    task: str, path: str | Path | None, needs_labels: Sequence[str]
) -> tuple[Examples, str]:
    """Read calibration data; returns the task that they serve.

    Plain text serves any task without labels, as ``fidelity``; methods that ``needs_labels`` then
    refuse.
    """
    labelled = task in ("classification", "similarity")
    is_text = path is None or Path(path).suffix.lower() not in _TABLES
    if labelled and is_text:
        if needs_labels:
            raise InputError(
                f"{', '.join(needs_labels)} needs labelled calibration data; give "
                f"--calibration FILE.csv (tsv, jsonl) in the form of the {task} data, but not the "
                "evaluation file itself."
            )
        return read_texts(path), "fidelity"
    try:
        return read_examples(task, path), task
    except CorpusError as error:
        if "at least two" in str(error):
            raise CorpusError(f"--calibration: {error}") from None
        raise


def _shared(evaluation: Examples, chosen: Examples) -> tuple[str, ...]:
    """Warn of sentences that are measured on and were looked at while choosing."""
    found = overlap(evaluation.texts, chosen.texts)
    if not found.shared:
        return ()
    return (
        f"{found.shared:,} of the {found.sentences:,} different sentences that the values are "
        f"measured on ({found.share:.1%}) are among those that heads were chosen on; to that "
        "extent the values are too good: take these sentences out of --calibration or --data.",
    )


def _halves(examples: Examples, seed: int) -> tuple[Examples, Examples]:
    """Split different texts into two disjoint halves at random."""
    texts = list(dict.fromkeys(examples.first))
    order = random.Random(seed).sample(range(len(texts)), len(texts))
    middle = len(texts) // 2
    halves = []
    for places, which in ((order[:middle], "one half"), (order[middle:], "the other half")):
        first = tuple(texts[i] for i in sorted(places))
        halves.append(dataclasses.replace(examples, name=f"{examples.name}, {which}", first=first))
    return halves[0], halves[1]


def _first(examples: Examples, limit: int) -> Examples:
    if limit < 2:
        raise InputError(f"The limit is {limit}; a task needs two examples or more.")
    return _at(examples, range(min(limit, len(examples))))


def _at(examples: Examples, places: Sequence[int]) -> Examples:
    columns: dict[str, Any] = {
        name: tuple(column[i] for i in places)
        for name in ("first", "second", "labels", "scores", "lines")
        if (column := getattr(examples, name))
    }
    return dataclasses.replace(examples, **columns)
