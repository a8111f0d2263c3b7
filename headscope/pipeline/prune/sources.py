"""What heads are chosen on and what they are judged by: two tasks on two sets of examples."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headscope.core.errors import CorpusError, InputError
from headscope.data.examples import Examples, read_texts, sample_texts
from headscope.data.overlap import overlap
from headscope.models.loaded import LoadedModel
from headscope.pipeline.prune.options import PruneOptions
from headscope.tasks.base import Task
from headscope.tasks.making import check_two, make_task, read_examples, select

#: Files whose columns hold labels; anything else is text.
_TABLES = (".csv", ".tsv", ".jsonl")


@dataclass(frozen=True)
class Sources:
    """Examples to choose on and examples to measure on, read but not yet tokenised.

    Attributes
    ----------
    choices : PruneOptions
        What they were read for.
    data : Examples
        To measure on.
    calibration : Examples or None
        To choose on; None where nothing is chosen.
    calibration_task : str
        The task itself, or ``fidelity`` where the calibration file is plain text.
    warnings : tuple of str
        What makes the values too good.
    """

    choices: PruneOptions
    data: Examples
    calibration: Examples | None
    calibration_task: str
    warnings: tuple[str, ...] = ()

    def evaluation_for(self, loaded: LoadedModel) -> Task:
        """Tokenise what is measured on for a model."""
        choices = self.choices
        return make_task(choices.task, self.data, loaded, seed=choices.seed, limit=choices.limit)

    def calibration_for(self, loaded: LoadedModel) -> Task | None:
        """Tokenise what is chosen on for a model."""
        if self.calibration is None:
            return None
        # Other masks than those of the evaluation, should both hold the same text.
        return make_task(
            self.calibration_task,
            self.calibration,
            loaded,
            seed=self.choices.seed + 1,
            limit=self.choices.calibration_limit // 2,
        )


def open_sources(choices: PruneOptions) -> Sources:
    """Read both files and check that they can serve; without any, each is half of the sample.

    Raises
    ------
    InputError, CorpusError
        If a file cannot be read, or not as what the task and the methods need.
    """
    task, seed, wanted = choices.task, choices.seed, choices.needs_calibration
    if choices.data is None and choices.calibration is None and task in ("fidelity", "mlm"):
        evaluation, other = _halves(sample_texts(), seed)
        if choices.limit is not None and task != "mlm":
            check_two(choices.limit)
            evaluation = select(evaluation, range(min(choices.limit, len(evaluation))))
        chosen = pick(other, choices.calibration_limit, task, seed) if wanted else None
        return Sources(choices, evaluation, chosen, task)
    evaluation = read_examples(task, choices.data, choices.limit)
    if not wanted:
        return Sources(choices, evaluation, None, task)
    other, other_task = open_calibration(task, choices.calibration, choices.needing("labels"))
    chosen = pick(other, choices.calibration_limit, other_task, seed)
    return Sources(choices, evaluation, chosen, other_task, _shared(evaluation, chosen))


def pick(examples: Examples, limit: int, task: str, seed: int) -> Examples:
    """Draw examples at random, in their order; a pair counts as two sentences.

    The ``mlm`` task takes all of the text: its windows are limited instead.
    """
    size = limit // 2 if task == "similarity" else limit
    if task == "mlm" or len(examples) <= size:
        return examples
    return select(examples, sorted(random.Random(seed).sample(range(len(examples)), max(2, size))))


def open_calibration(
    task: str, path: str | Path | Examples | None, needs_labels: Sequence[str]
) -> tuple[Examples, str]:
    """Read calibration data; returns the task that they serve.

    Plain text serves tasks of sentences without labels, as ``fidelity``; methods that
    ``needs_labels`` then refuse. It does not serve ``seq2seq``: a decoder needs something to read.
    """
    if task == "seq2seq" and path is None:
        raise InputError(
            "The task seq2seq chooses heads on pairs of source and target: give a calibration file "
            "in the form of the data, with other pairs. Plain text cannot serve, and the built-in "
            "sample has no targets."
        )
    if isinstance(path, Examples):
        return path, task
    labelled = task in ("classification", "similarity")
    is_text = path is None or Path(path).suffix.lower() not in _TABLES
    if labelled and is_text:
        if needs_labels:
            raise InputError(
                f"{', '.join(needs_labels)} needs labelled calibration data; give a calibration "
                f"file (csv, tsv, jsonl) in the form of the {task} data, but not the evaluation "
                "file itself."
            )
        return read_texts(path), "fidelity"
    try:
        return read_examples(task, path), task
    except CorpusError as error:
        if "at least two" in str(error):
            raise CorpusError(f"calibration: {error}") from None
        raise


def _shared(evaluation: Examples, chosen: Examples) -> tuple[str, ...]:
    """Warn of sentences that are measured on and were looked at while choosing."""
    found = overlap(evaluation.texts, chosen.texts)
    if not found.shared:
        return ()
    return (
        f"{found.shared:,} of the {found.sentences:,} different sentences that the values are "
        f"measured on ({found.share:.1%}) are among those that heads were chosen on; to that "
        "extent the values are too good: take these sentences out of calibration or data.",
    )


def _halves(examples: Examples, seed: int) -> tuple[Examples, Examples]:
    """Split different texts into two disjoint halves at random."""
    texts = list(dict.fromkeys(examples.first))
    order = random.Random(seed).sample(range(len(texts)), len(texts))
    middle = len(texts) // 2

    def half(places: Sequence[int], which: str) -> Examples:
        first = tuple(texts[i] for i in sorted(places))
        return dataclasses.replace(examples, name=f"{examples.name}, {which}", first=first)

    return half(order[:middle], "one half"), half(order[middle:], "the other half")
