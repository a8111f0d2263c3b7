"""How many heads can go for a bounded loss: candidates are settled first, then tested.

What is settled on the calibration data, before an example of the evaluation data is looked at:

* the order of the heads, by every method that was asked for;
* which method and repair makes the models: the one whose outputs stay nearest to the unpruned
  model's, with half of the heads gone;
* the repairs themselves;
* the numbers of heads and their order (:func:`headscope.stats.confirm.ascending`).

Then the numbers are tested one after the other, each on all examples, up to the first that is not
confirmed (:mod:`headscope.stats.confirm` says why no correction is due). Examples that share a
sentence with what heads were chosen on are left out: on these the models are better than on others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from headscope.core.accumulator import Array
from headscope.core.errors import InputError
from headscope.core.rounding import tied
from headscope.data.token_rows import sentences_of
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.output_maps import replaced_outputs
from headscope.pruning.curves import Outcome, Version, scores_of
from headscope.pruning.measure import Pruner
from headscope.pruning.options import FEWEST, Repair
from headscope.pruning.ranking import Ranking, Repaired
from headscope.pruning.result import (
    CandidateDistance,
    Curve,
    DropPart,
    MaxDrop,
    RefusedNext,
    TestedCount,
    way,
)
from headscope.removal.metric_words import percent
from headscope.stats.confirm import (
    Judged,
    Stopped,
    ascending,
    examples_needed,
    judged,
    last_confirmed,
)
from headscope.tasks.base import Task

# --- what is tested on ----------------------------------------------------------------------------


def unseen_examples(task: Task, calibration: Task | None) -> Array:
    """Return the examples of a task that share no sentence with the calibration data, ascending."""
    if calibration is None:
        return np.arange(task.n_examples)
    seen: set[Hashable] = {text for row in calibration.rows for text in sentences_of(row)}
    seen.update(calibration.data.texts)  # some tasks name their sentences by text, not by tokens
    free = [seen.isdisjoint(texts) for texts in task.sentences]
    return np.flatnonzero(free)


def check_enough(task: Task, calibration: Task | None) -> Array:
    """Return :func:`unseen_examples`; refuse so few that intervals would not hold."""
    if task.n_examples < FEWEST:
        raise InputError(
            f"{task.data.name} gives {task.n_examples} examples, and max_drop needs {FEWEST} or "
            "more (better hundreds) to test on."
        )
    examples = unseen_examples(task, calibration)
    if len(examples) < FEWEST:
        raise InputError(
            f"Only {len(examples)} of the {task.n_examples:,} examples of {task.data.name} share "
            f"no sentence with the calibration data, and max_drop needs {FEWEST} or more to test "
            "on; give a calibration file with other sentences, or a smaller calibration_limit."
        )
    return examples


# --- settled beforehand ---------------------------------------------------------------------------


class Candidate(NamedTuple):
    """One way to prune: an order of heads and a repair."""

    method: str
    repair: Repair
    ranking: Ranking

    @property
    def name(self) -> str:
        """Method and repair: ``fisher + scale``."""
        return way(self.method, self.repair.value)


class Search:
    """Makes, measures and judges the models of a search, by the number of units that they lost.

    ``wanted`` is the most that may be lost, ``examples`` are those that are tested on.
    """

    def __init__(self, pruner: Pruner, wanted: float, examples: Array) -> None:
        self._pruner, self.wanted = pruner, wanted
        self.measure = pruner.measure.on(examples)
        #: The numbers that are tested, in this order; all leave a head.
        self.numbers = ascending(len(pruner.units))
        self.near: list[CandidateDistance] = []
        self.looks: list[TestedCount] = []
        self.judged: dict[int, Judged] = {}
        self._models: dict[tuple[str, Repair, int], Repaired] = {}

    def model(self, candidate: Candidate, number: int) -> Repaired:
        """Return a candidate's model that lost this number; made once."""
        key = candidate.method, candidate.repair, number
        if key not in self._models:
            removed = candidate.ranking.remove(number)
            self._models[key] = self._pruner.repaired(candidate.repair, removed)
        return self._models[key]

    def heads(self, candidate: Candidate, number: int) -> int:
        """Return how many heads that model lost."""
        return len(self._pruner.units.heads(candidate.ranking.remove(number)))

    def settle(self, candidates: list[Candidate]) -> Candidate:
        """Pick the candidate nearest to the unpruned model with half of the heads gone.

        Only calibration data are used, without their labels; ties go to the first, and a
        single candidate is not measured.
        """
        if len(candidates) == 1:
            return candidates[0]
        half, tell = self.numbers[len(self.numbers) // 2], self._pruner.tell
        for i, candidate in enumerate(candidates):
            tell("comparing ways to prune", i, len(candidates))
            distance = self._distance(self.model(candidate, half))
            names, heads = (candidate.method, candidate.repair.value), self.heads(candidate, half)
            self.near.append(CandidateDistance(*names, heads, distance))
        return candidates[int(tied([near.distance for near in self.near]).argmin())]

    def _distance(self, made: Repaired) -> float:
        """Return the mean squared distance to the unpruned model's outputs on calibration data."""
        pruner = self._pruner
        gates = torch.stack([made.gates[heads[0]] for heads in pruner.units.members])
        with replaced_outputs(pruner.loaded, made.maps):
            return pruner.context.distance(gates)

    # --- tested -----------------------------------------------------------------------------------

    def allowed(self, candidate: Candidate, number: int) -> bool:
        """Test one number."""
        tested, tell = len(self.looks), self._pruner.tell
        tell("removing heads", tested, max(len(self.numbers), tested + 1))
        change = self.measure.change_of(self.model(candidate, number))
        sign = 1 if self._pruner.evaluation.higher_is_better else -1
        self.judged[number] = result = judged(change, sign, self.wanted)
        self.looks.append(
            TestedCount(
                *(candidate.method, candidate.repair.value, self.heads(candidate, number)),
                lost=result.lost,
                most_lost=result.most_lost,
                level=change.level,
                allowed=result.allowed,
            )
        )
        return result.allowed

    def run(self, candidate: Candidate) -> Stopped:
        """Test the numbers in order; raise if already the first of them is refused."""
        stopped = last_confirmed(self.numbers, lambda number: self.allowed(candidate, number))
        if stopped.confirmed is not None:
            return stopped
        first, heads = self.judged[self.numbers[0]], self.looks[0].heads
        without = f"without {heads} {'head' if heads == 1 else 'heads'} ({candidate.name})"
        needed = examples_needed(first, self.wanted)
        advice = "" if needed is None else f"about {needed:,} examples, or "
        raise InputError(
            f"No head can go for a loss of at most {self.wanted:g}: {without} the loss is "
            f"{first.lost:.4g} on {first.change.examples:,} examples, and its "
            f"{percent(first.change.level)} interval reaches {first.most_lost:.4g}; give "
            f"{advice}a larger max_drop."
        )


# --- the run --------------------------------------------------------------------------------------


def find_most(
    pruner: Pruner,
    methods: Sequence[str],
    repairs: Sequence[Repair],
    wanted: float,
    examples: Array,
    *,
    normalise: bool | None,
    random: bool,
) -> Outcome:
    """Settle what is tested, test it on ``examples``, and describe the last confirmed model."""
    if (why := pruner.measure.degenerate()) is not None:
        raise InputError(
            f"The unpruned model {why}: what it loses with its heads says nothing about them, so "
            "max_drop cannot be used; give fractions to see the values."
        )
    if len(pruner.units) < 2:
        raise only_head(pruner.loaded)
    search = Search(pruner, wanted, examples)
    rankings = pruner.rankings(methods, normalise)
    candidate = search.settle(
        [Candidate(name, kind, rankings[name]) for name in methods for kind in repairs]
    )
    stopped = search.run(candidate)
    number = stopped.confirmed
    assert number is not None

    # All that follows is measured on the examples that were tested on.
    measure = search.measure
    pruner = dataclasses.replace(pruner, counts=(0, number), measure=measure)
    made, change = search.model(candidate, number), search.judged[number].change
    point = dataclasses.replace(
        measure.point(made), difference=change.estimate(), level=change.level
    )
    nothing = measure.point(pruner.repaired(candidate.repair, ()))
    curves = [Curve(candidate.method, candidate.repair.value, (nothing, point))]
    if random:
        points = tuple(pruner.random_point(count) for count in pruner.counts)
        curves.append(Curve("random", "none", points))
    one_more = None
    if stopped.refused is not None:
        next_made = search.model(candidate, stopped.refused)
        more = measure.point(next_made, all_metrics=False)
        assert more.value.value is not None
        assert more.difference is not None  # only random draws have none
        one_more = RefusedNext(
            heads=len(more.heads_removed),
            value=more.value.value,
            difference=more.difference,
            step=measure.change_of(next_made, made).estimate(),
        )
    max_drop = MaxDrop(
        wanted=search.wanted,
        count=search.heads(candidate, number),
        method=candidate.method,
        repair=candidate.repair.value,
        confirmed=DropPart(
            heads=search.heads(candidate, number),
            examples=change.examples,
            baseline=change.baseline,
            value=change.value,
            difference=change.estimate(),
            level=change.level,
        ),
        one_more=one_more,
        looks=tuple(search.looks),
        sequence=tuple(search.heads(candidate, each) for each in search.numbers),
        near=tuple(search.near),
        left_out=pruner.evaluation.n_examples - len(examples),
    )
    return Outcome(
        tuple(curves),
        (Version(candidate.method, candidate.repair, made, point, examples),),
        tuple(scores_of(*item, pruner.loaded, pruner.units) for item in rankings.items()),
        max_drop,
        measure,
    )


def only_head(loaded: LoadedModel) -> InputError:
    """Return the error for a model none of whose heads can go."""
    return InputError(
        f"{loaded.name} has one head only, and it must stay; prune a model with more heads."
    )
