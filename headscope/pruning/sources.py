"""The two sets of data of a run: heads are chosen on one, and models are measured on the other.

Heads are chosen on the calibration data; the data proper are what models are measured on.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import NamedTuple

from headscope.data.examples import WINDOWED, Examples, sample_texts
from headscope.data.labels import read_alike
from headscope.data.unshared import Unshared, without_shared
from headscope.tasks.calibration import open_calibration, pick
from headscope.tasks.making import read_examples


class Sources(NamedTuple):
    """Examples to choose on and examples to measure on, read but not yet tokenised."""

    data: Examples  # to measure on
    calibration: Examples | None  # to choose on; None where nothing is chosen
    calibration_task: str  # ``fidelity`` where the calibration file is plain text
    warnings: tuple[str, ...] = ()
    dropped: int = 0  # Calibration examples that shared a sentence with the data


def open_sources(
    task: str,
    data: str | Path | Examples | None,
    calibration: str | Path | Examples | None,
    *,
    limit: int | None,
    calibration_limit: int,
    seed: int,
    needs_calibration: bool = True,
    needs_labels: tuple[str, ...] = (),
    tested_unseen: bool = False,
) -> Sources:
    """Read both files and check that they can serve; without any, each is half of the sample.

    Calibration examples that share a sentence with the data are left out. At most ``limit``
    examples of the data are read, ``calibration_limit`` of the calibration data. ``needs_labels``
    names the methods that need labels to choose heads; ``tested_unseen`` says that what is measured
    leaves out every example with a sentence that heads were chosen on.
    """
    # Without files: the built-in sample, which has no labels.
    if data is None and calibration is None and task in ("fidelity", *WINDOWED):
        first_half, second_half = _halves_of_the_sample(seed)
        evaluation = read_examples(task, first_half, limit, seed)
        chosen_on = None
        if needs_calibration:
            chosen_on = pick(second_half, calibration_limit, task, seed)
        return Sources(evaluation, chosen_on, task)

    # The files, or for one of them what the task takes by default.
    evaluation = read_examples(task, data, limit, seed)
    if not needs_calibration:
        return Sources(evaluation, None, task)
    candidates, calibration_task = open_calibration(task, calibration, needs_labels)
    if calibration_task == task:
        # Which labels there are is known from both files together.
        evaluation, candidates = read_alike(evaluation, candidates)
    unshared = without_shared(candidates, evaluation)
    return Sources(
        data=evaluation,
        calibration=pick(unshared.examples, calibration_limit, calibration_task, seed),
        calibration_task=calibration_task,
        warnings=_warnings(unshared, candidates.name, tested_unseen),
        dropped=unshared.dropped,
    )


def _halves_of_the_sample(seed: int) -> tuple[Examples, Examples]:
    """Split the different sentences of the built-in sample at random, each half in their order."""
    sample = sample_texts()
    texts = list(dict.fromkeys(sample.first))
    order = random.Random(seed).sample(range(len(texts)), len(texts))
    middle = len(texts) // 2

    def half(name: str, lines: list[int]) -> Examples:
        sentences = tuple(texts[line] for line in sorted(lines))
        return dataclasses.replace(sample, name=f"{sample.name}, {name}", first=sentences)

    return half("one half", order[:middle]), half("the other half", order[middle:])


def _warnings(unshared: Unshared, name: str, tested_unseen: bool) -> tuple[str, ...]:
    """Say how many sentences the calibration data ``name`` share with the evaluation data.

    ``unshared.same`` is true where nothing was left out, since too few would have been left.
    """
    shared = (
        f"{unshared.shared:,} of the {unshared.sentences:,} different sentences that the values "
        f"are measured on are in {name} too"
    )
    if unshared.same:
        consequence = (
            "so heads are chosen on what they are measured on, and the values are too good"
        )
        if tested_unseen:
            consequence = (
                "the tests leave out every example with a sentence that heads were chosen on"
            )
        return (
            f"{shared}, and without them less than two examples are left to choose on: "
            f"{consequence}; better give calibration data with other sentences.",
        )
    if unshared.shared:
        return (
            f"{shared}; its {unshared.dropped:,} examples with such a sentence are left out, and "
            f"heads are chosen among the other {len(unshared.examples):,}.",
        )
    return ()
