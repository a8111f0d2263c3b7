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

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import torch

from headscope.core.accumulator import Array
from headscope.core.errors import InputError
from headscope.core.rounding import tied
from headscope.data.token_rows import sentences_of
from headscope.models.surgery.output_maps import replaced_outputs
from headscope.pruning.curves import Outcome, Version, scores_of
from headscope.pruning.measure import Pruner
from headscope.pruning.options import Repair
from headscope.pruning.ranking import Ranking, Repaired
from headscope.pruning.result import CandidateDistance, Curve, MaxDrop, TestedCount, way
from headscope.show.cells import plural
from headscope.stats.confirm import (
    Judged,
    ascending,
    examples_needed,
    judged,
    last_confirmed,
    need_examples,
)
from headscope.stats.estimate import FEWEST_TESTED
from headscope.tasks.base import Task


def unseen_examples(task: Task, calibration: Task | None) -> Array:
    """Return the examples that share no sentence with the calibration data, ascending.

    Refuses so few that intervals would not hold.
    """
    need_examples(task.n_examples, task.data.name)
    seen = set[Hashable]()
    if calibration is not None:
        seen = {text for row in calibration.rows for text in sentences_of(row)}
        seen.update(calibration.data.texts)  # some tasks name their sentences by text, not tokens
    examples = np.flatnonzero([seen.isdisjoint(texts) for texts in task.sentences])
    if len(examples) < FEWEST_TESTED:
        raise InputError(
            f"Only {len(examples)} of the {task.n_examples:,} examples of {task.data.name} share "
            f"no sentence with the calibration data, and max_drop needs {FEWEST_TESTED} or more to "
            "test on; give a calibration file with other sentences, or a smaller calibration_limit."
        )
    return examples


Way = tuple[str, Repair]  # Method and repair


def settle(
    pruner: Pruner, rankings: Mapping[str, Ranking], ways: Sequence[Way], number: int
) -> tuple[Way, tuple[CandidateDistance, ...]]:
    """Pick the way whose model stays nearest to the unpruned one with ``number`` units gone.

    Only calibration data are used, without their labels; ties go to the first, and a single way is
    not measured.
    """
    near = list[CandidateDistance]()
    for i, (method, repair) in enumerate(ways if len(ways) > 1 else ()):
        pruner.tell("comparing ways to prune", i, len(ways))
        removed = rankings[method].remove(number)
        distance = distance_of(pruner, pruner.repaired(repair, removed))
        heads = len(pruner.units.heads(removed))
        near.append(CandidateDistance(method, repair.value, heads, distance))
    best = int(tied([each.distance for each in near]).argmin()) if near else 0
    return ways[best], tuple(near)


def distance_of(pruner: Pruner, made: Repaired) -> float:
    """Return the mean squared distance to the unpruned model's outputs on calibration data."""
    gates = torch.stack([made.gates[heads[0]] for heads in pruner.units.members])
    with replaced_outputs(pruner.loaded, made.maps):
        return pruner.context.distance(gates)


def search(
    pruner: Pruner, ranking: Ranking, by: Way, wanted: float
) -> tuple[int, Repaired, tuple[TestedCount, ...]]:
    """Test the numbers of units in order, and return the last confirmed, its model and all tests.

    ``wanted`` is the most that may be lost; ``pruner`` measures on the examples that are tested.
    Raises if already the first number is refused.
    """
    numbers = ascending(len(pruner.units))
    confirmed: list[Repaired] = []
    tests: list[Judged] = []
    counts: list[TestedCount] = []
    sign = 1 if pruner.evaluation.higher_is_better else -1
    method, repair = by

    def allowed(number: int) -> bool:
        pruner.tell("removing heads", len(tests), len(numbers))
        removed = ranking.remove(number)
        made = pruner.repaired(repair, removed)
        tested = judged(pruner.change(made), sign, wanted)
        if tested.allowed:  # a repaired model holds maps of every layer: only the last one stays
            confirmed[:] = [made]
            pruner.forget_others(made)
        heads = len(pruner.units.heads(removed))
        most_lost = tested.most_lost if math.isfinite(tested.most_lost) else None
        counts.append(TestedCount(heads, tested.lost, most_lost, tested.allowed))
        tests.append(tested)
        return tested.allowed

    number = last_confirmed(numbers, allowed).confirmed
    if number is not None:
        return number, confirmed[-1], tuple(counts)
    first = tests[0]
    heads = counts[0].heads
    removed = f"without {heads} {plural(heads, 'head')} ({way(method, repair.value)})"
    if counts[0].most_lost is None:
        raise InputError(
            f"No head can go for a loss of at most {wanted:g}: {removed} what is lost at most is "
            f"not known from {first.change.examples:,} examples, whose values do not vary or which "
            "are not independent; give more."
        )
    needed = examples_needed(first, wanted)
    advice = "" if needed is None else f"about {needed:,} examples, or "
    raise InputError(
        f"No head can go for a loss of at most {wanted:g}: {removed} the loss is {first.lost:.4g} "
        f"on {first.change.examples:,} examples, and its 95% interval reaches "
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
    numbers = ascending(len(pruner.units))
    if not numbers:
        raise InputError(
            f"{pruner.loaded.name} has one head only, and it must stay; prune a model with more "
            "heads."
        )
    pruner = pruner.on(examples)
    rankings = pruner.rankings(methods, normalise)
    ways = [(method, repair) for method in methods for repair in repairs]
    chosen, near = settle(pruner, rankings, ways, numbers[len(numbers) // 2])
    (method, repair) = chosen
    ranking = rankings[chosen[0]]
    number, made, counts = search(pruner, ranking, chosen, wanted)
    points = tuple(pruner.point(each) for each in (Repaired.bare(pruner.units, ()), made))
    curves = [Curve(method, repair.value, points)]
    if random:
        beside = tuple(pruner.random_point(count) for count in (0, number))
        curves.append(Curve("random", "none", beside))
    members = pruner.units.members
    if len({len(heads) for heads in members}) == 1:  # no set has to be found, which takes passes
        sequence = tuple(each * len(members[0]) for each in numbers)
    else:
        sequence = tuple(len(pruner.units.heads(ranking.remove(each))) for each in numbers)
    max_drop = MaxDrop(
        wanted,
        len(points[1].heads_removed),
        method,
        repair.value,
        counts,
        sequence,
        near,
        left_out=pruner.evaluation.n_examples - len(examples),
    )
    versions = (Version(method, repair, made, points[1]),)
    return Outcome(pruner, tuple(curves), versions, scores_of(pruner, rankings), max_drop)
