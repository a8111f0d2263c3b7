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
from headscope.pruning.result import CandidateDistance, Curve, MaxDrop, TestedCount, way
from headscope.stats.confirm import Judged, ascending, examples_needed, judged, last_confirmed
from headscope.tasks.base import Task


def unseen_examples(task: Task, calibration: Task | None) -> Array:
    """Return the examples that share no sentence with the calibration data, ascending.

    Refuses so few that intervals would not hold.
    """
    if task.n_examples < FEWEST:
        raise InputError(
            f"{task.data.name} gives {task.n_examples} examples, and max_drop needs {FEWEST} or "
            "more (better hundreds) to test on."
        )
    seen = set[Hashable]()
    if calibration is not None:
        seen = {text for row in calibration.rows for text in sentences_of(row)}
        seen.update(calibration.data.texts)  # some tasks name their sentences by text, not tokens
    examples = np.flatnonzero([seen.isdisjoint(texts) for texts in task.sentences])
    if len(examples) < FEWEST:
        raise InputError(
            f"Only {len(examples)} of the {task.n_examples:,} examples of {task.data.name} share "
            f"no sentence with the calibration data, and max_drop needs {FEWEST} or more to test "
            "on; give a calibration file with other sentences, or a smaller calibration_limit."
        )
    return examples


class Candidate(NamedTuple):
    """One way to prune: an order of heads and a repair."""

    method: str
    repair: Repair
    ranking: Ranking


class Search:
    """Makes and judges the models of a search, by the number of units that they lost.

    ``wanted`` is the most that may be lost; ``pruner`` measures on the examples that are tested.
    """

    def __init__(self, pruner: Pruner, wanted: float) -> None:
        self._pruner, self.wanted = pruner, wanted
        #: The numbers that are tested, in this order; all leave a head.
        self.numbers = ascending(len(pruner.units))
        self.near: list[CandidateDistance] = []
        self.looks: list[TestedCount] = []
        self.judged: dict[int, Judged] = {}
        self.models: dict[tuple[str, Repair, int], Repaired] = {}

    def model(self, candidate: Candidate, number: int) -> Repaired:
        """Return a candidate's model that lost this number; made once."""
        key = candidate.method, candidate.repair, number
        if key not in self.models:
            removed = candidate.ranking.remove(number)
            self.models[key] = self._pruner.repaired(candidate.repair, removed)
        return self.models[key]

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

    def allowed(self, candidate: Candidate, number: int) -> bool:
        """Test one number."""
        tested, tell = len(self.looks), self._pruner.tell
        tell("removing heads", tested, max(len(self.numbers), tested + 1))
        change = self._pruner.change(self.model(candidate, number))
        sign = 1 if self._pruner.evaluation.higher_is_better else -1
        self.judged[number] = found = judged(change, sign, self.wanted)
        names, heads = (candidate.method, candidate.repair.value), self.heads(candidate, number)
        self.looks.append(TestedCount(*names, heads, found.lost, found.most_lost, found.allowed))
        return found.allowed

    def run(self, candidate: Candidate) -> int:
        """Test the numbers in order, return the last confirmed; raise if there is none."""
        number = last_confirmed(self.numbers, lambda each: self.allowed(candidate, each)).confirmed
        if number is not None:
            return number
        first, heads = self.judged[self.numbers[0]], self.looks[0].heads
        name = way(candidate.method, candidate.repair.value)
        needed = examples_needed(first, self.wanted)
        advice = "" if needed is None else f"about {needed:,} examples, or "
        raise InputError(
            f"No head can go for a loss of at most {self.wanted:g}: without {heads} "
            f"{'head' if heads == 1 else 'heads'} ({name}) the loss is {first.lost:.4g} on "
            f"{first.change.examples:,} examples, and its 95% interval reaches "
            f"{first.most_lost:.4g}; give {advice}a larger max_drop."
        )


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
    """Settle what is tested, test it on ``examples``, and describe the last confirmed model.

    All that is described is measured on these examples.
    """
    if (why := pruner.evaluation.degenerate(pruner.full)) is not None:
        raise InputError(
            f"The unpruned model {why}: what it loses with its heads says nothing about them, so "
            "max_drop cannot be used; give fractions to see the values."
        )
    if len(pruner.units) < 2:
        raise only_head(pruner.loaded)
    pruner = pruner.on(examples)
    search = Search(pruner, wanted)
    rankings = pruner.rankings(methods, normalise)
    candidate = search.settle(
        [Candidate(name, kind, rankings[name]) for name in methods for kind in repairs]
    )
    number = search.run(candidate)
    made, (method, repair, _) = search.model(candidate, number), candidate
    point = pruner.point(made)
    curves = [Curve(method, repair.value, (pruner.point(pruner.repaired(repair, ())), point))]
    if random:
        points = tuple(pruner.random_point(count) for count in (0, number))
        curves.append(Curve("random", "none", points))
    max_drop = MaxDrop(
        *(search.wanted, search.heads(candidate, number), method, repair.value),
        looks=tuple(search.looks),
        sequence=tuple(search.heads(candidate, each) for each in search.numbers),
        near=tuple(search.near),
        left_out=pruner.evaluation.n_examples - len(examples),
    )
    scores = tuple(scores_of(*item, pruner.loaded, pruner.units) for item in rankings.items())
    versions = (Version(method, repair, made, point),)
    return Outcome(pruner, tuple(curves), versions, scores, max_drop)


def only_head(loaded: LoadedModel) -> InputError:
    """Return the error for a model none of whose heads can go."""
    return InputError(
        f"{loaded.name} has one head only, and it must stay; prune a model with more heads."
    )
