"""Pruned models of a search: each made and measured once, judged on one half of the examples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headscope.core.errors import InputError
from headscope.data.halving import halve, sentences_of, shared_sentences
from headscope.measures.accumulator import Array
from headscope.measures.metrics import RESAMPLES, Outputs
from headscope.measures.paired_change import Change, paired_change
from headscope.measures.rounding import above
from headscope.pipeline.prune.measuring import at
from headscope.pipeline.prune.options import FEWEST
from headscope.pipeline.prune.repairing import Repair, Repaired
from headscope.pipeline.prune.setting_up import Parts, layers_of
from headscope.pruning.method import Ranking
from headscope.results.max_drop import DropLook
from headscope.tasks.base import Task

#: Of intervals, unless several smaller numbers share it.
LEVEL = 0.95
#: Resamples of an interval of a higher level, whose ends lie farther out.
_RESAMPLES_FAR = 10 * RESAMPLES


@dataclass(frozen=True)
class Candidate:
    """One way to prune: an order of heads and a repair."""

    method: str
    repair: Repair
    ranking: Ranking


@dataclass(frozen=True)
class Tried:
    """One pruned model and what it puts out on all evaluation examples."""

    made: Repaired
    outputs: Outputs


@dataclass(frozen=True)
class Judged:
    """What a model loses on one half, and the upper end of that; ``allowed`` if it is small."""

    change: Change
    lost: float
    most_lost: float
    allowed: bool


@dataclass(frozen=True)
class Halves:
    """Two sets of places among the examples, and the sentences that stand in both."""

    choosing: Array
    confirming: Array
    shared: int

    def places(self, part: str) -> Array:
        """Return the places of the half that is called ``choosing`` or ``confirming``."""
        return self.choosing if part == "choosing" else self.confirming


def halves_of(task: Task, seed: int) -> Halves:
    """Split the examples of a task at random, no sentence on both sides where that can be."""
    sentences = [
        [text for row in rows for text in sentences_of(row)] for rows in task.rows_of_examples
    ]
    first, second = halve(sentences, seed)
    shared = shared_sentences(sentences, first, second)
    return Halves(np.array(first), np.array(second), shared)


def check_enough(task: Task) -> None:
    """Refuse a search on so few examples that its intervals would not hold.

    Raises
    ------
    InputError
        If there are fewer than :data:`headscope.pipeline.prune.options.FEWEST`.
    """
    if task.n_examples < FEWEST:
        raise InputError(
            f"{task.data.name} gives {task.n_examples} examples, and max_drop needs {FEWEST} or "
            "more (better hundreds): one half to choose on and one to confirm on."
        )


class Tries:
    """Makes, measures and judges the models of a search; a *number* is one of steps of heads.

    A step is one unit, or one unit of every layer where layers lose equally many.

    Parameters
    ----------
    parts : Parts
        Of the run.
    wanted : float
        The most that may be lost.
    """

    def __init__(self, parts: Parts, wanted: float) -> None:
        self._parts, self.wanted = parts, wanted
        self._task = parts.inputs.evaluation
        self.halves = halves_of(self._task, parts.options.seed)
        self.step = layers_of(parts.units, parts.options)
        #: The largest number that leaves a head.
        self.most = len(parts.units) // self.step - 1
        self.looks: list[DropLook] = []
        self._tried: dict[tuple[str, Repair, int], Tried] = {}
        self._judged: dict[tuple[str, Repair, int, str, float], Judged] = {}

    def model(self, candidate: Candidate, number: int) -> Tried:
        """Return a candidate's model that lost this number; made and measured once."""
        key = candidate.method, candidate.repair, number
        if key not in self._tried:
            removed = candidate.ranking.remove(number * self.step)
            made = self._parts.repaired(candidate.repair, removed)
            self._tried[key] = Tried(made, self._parts.measure.outputs(made, False))
            self._parts.steps.did("measured")
        return self._tried[key]

    def heads(self, candidate: Candidate, number: int) -> int:
        """Return how many heads that model lost."""
        return len(self._parts.units.heads(self.model(candidate, number).made.removed))

    def judge(self, candidate: Candidate, number: int, part: str, level: float = LEVEL) -> Judged:
        """Say what a model loses on one half of the examples; looked at once for each level."""
        key = candidate.method, candidate.repair, number, part, level
        if key not in self._judged:
            found = self._look(self.model(candidate, number).outputs, part, level)
            self._judged[key] = found
            self.looks.append(
                DropLook(
                    method=candidate.method,
                    repair=candidate.repair.value,
                    heads=self.heads(candidate, number),
                    part=part,
                    lost=found.lost,
                    most_lost=found.most_lost,
                    level=level,
                    allowed=found.allowed,
                )
            )
        return self._judged[key]

    def allowed(self, candidate: Candidate) -> Callable[[int], bool]:
        """Return the question whether a number is allowed on the choosing half."""
        return lambda number: self.judge(candidate, number, "choosing").allowed

    def _look(self, outputs: Outputs, part: str, level: float) -> Judged:
        places, task = self.halves.places(part), self._task
        change = paired_change(
            task.table[task.metric],
            at(self._parts.measure.full, places),
            at(outputs, places),
            level=level,
            seed=self._parts.options.seed,
            resamples=RESAMPLES if level == LEVEL else _RESAMPLES_FAR,
        )
        sign = 1 if task.higher_is_better else -1
        most_lost = change.most_lost(sign)
        allowed = not above(most_lost, self.wanted)
        return Judged(change, -sign * change.difference, most_lost, bool(allowed))

    def mend(self, judged: Judged) -> str:
        """Say what would help a model that is not allowed: more examples, or a larger bound."""
        room = self.wanted - judged.lost
        if room <= 0:
            return "give a larger max_drop"
        narrower = (judged.most_lost - judged.lost) / room
        needed = math.ceil(self._task.n_examples * narrower**2)
        return f"give about {_rounded(needed):,} examples in all, or a larger max_drop"


def _rounded(count: int) -> int:
    """Leave two digits of a number that is a guess, rounded up."""
    unit = int(10 ** max(0, len(str(count)) - 2))
    return -(-count // unit) * unit
