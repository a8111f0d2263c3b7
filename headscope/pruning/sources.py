"""What ``prune`` reads: examples to choose heads on, and others to measure what is left on."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headscope.data.examples import Examples, sample_texts, without_shared
from headscope.models.run.loaded import LoadedModel
from headscope.tasks.base import Task
from headscope.tasks.calibration import open_calibration, pick
from headscope.tasks.making import check_two, make_task, read_examples


@dataclass(frozen=True)
class Sources:
    """Examples to choose on and examples to measure on, read but not yet tokenised."""

    task: str
    data: Examples  # to measure on
    calibration: Examples | None  # to choose on; None where nothing is chosen
    calibration_task: str  # ``fidelity`` where the calibration file is plain text
    limit: int | None  # Examples to measure on, and sentences to choose on
    calibration_limit: int
    seed: int
    warnings: tuple[str, ...] = ()
    dropped: int = 0  # Calibration examples that shared a sentence with the data

    def evaluation_for(self, loaded: LoadedModel) -> Task:
        """Tokenise what is measured on for a model."""
        return make_task(self.task, self.data, loaded, seed=self.seed, limit=self.limit)

    def calibration_for(self, loaded: LoadedModel) -> Task | None:
        """Tokenise what is chosen on, with other masks: both may hold the same text."""
        if self.calibration is None:
            return None
        limit = self.calibration_limit // 2
        task = self.calibration_task
        return make_task(task, self.calibration, loaded, seed=self.seed + 1, limit=limit)


def open_sources(
    task: str,
    data: str | Path | Examples | None,
    calibration: str | Path | Examples | None,
    *,
    limit: int | None,
    calibration_limit: int,
    seed: int,
    needs_calibration: bool = True,
    needs_labels: Sequence[str] = (),
    tested_unseen: bool = False,
) -> Sources:
    """Read both files and check that they can serve; without any, each is half of the sample.

    ``needs_labels`` names the methods that need labels to choose heads; ``tested_unseen`` says that
    what is measured leaves out every example with a sentence that heads were chosen on.
    """
    made = partial(Sources, task, limit=limit, calibration_limit=calibration_limit, seed=seed)
    if data is None and calibration is None and task in ("fidelity", "mlm"):
        sample = sample_texts()
        texts = list(dict.fromkeys(sample.first))
        order = random.Random(seed).sample(range(len(texts)), len(texts))
        evaluation, other = (
            dataclasses.replace(
                sample, name=f"{sample.name}, {which}", first=tuple(texts[i] for i in sorted(lines))
            )
            for which, lines in (
                ("one half", order[: len(texts) // 2]),
                ("the other half", order[len(texts) // 2 :]),
            )
        )
        if task != "mlm":
            check_two(limit)
            evaluation = evaluation.draw(limit, seed)
        chosen = pick(other, calibration_limit, task, seed) if needs_calibration else None
        return made(evaluation, chosen, task)
    evaluation = read_examples(task, data, limit, seed)
    if not needs_calibration:
        return made(evaluation, None, task)
    other, other_task = open_calibration(task, calibration, needs_labels)
    unshared = without_shared(other, evaluation)
    warnings: tuple[str, ...] = ()
    shared = (
        f"{unshared.shared:,} of the {unshared.sentences:,} different sentences that the values "
        f"are measured on are in {other.name} too"
    )
    if unshared.same:
        extent = "so heads are chosen on what they are measured on, and the values are too good"
        if tested_unseen:
            extent = "the tests leave out every example with a sentence that heads were chosen on"
        warnings = (
            f"{shared}, and without them less than two examples are left to choose on: {extent}; "
            "better give calibration data with other sentences.",
        )
    elif unshared.shared:
        warnings = (
            f"{shared}; its {unshared.dropped:,} examples with such a sentence are left out, and "
            f"heads are chosen among the other {len(unshared.examples):,}.",
        )
    chosen = pick(unshared.examples, calibration_limit, other_task, seed)
    return made(evaluation, chosen, other_task, warnings=warnings, dropped=unshared.dropped)
