"""How many heads can go for a bounded loss: candidates are settled first, then tested.

Heads go in units: one head, or heads that can only go together. A way to prune is a method, which
ranks the units, and a repair of what is left. What is settled on the calibration data, before an
example of the evaluation data is looked at:

* the order of the heads, by every method that was asked for;
* which method and repair makes the models: the one whose outputs stay nearest to the unpruned
  model's, with half of the heads gone;
* the repairs themselves;
* the numbers of units and their order (:func:`headscope.stats.confirm.ascending`).

Then the numbers are tested one after the other, each on all examples, up to the first that is not
confirmed (:mod:`headscope.stats.confirm` says why no correction is due). Examples that share a
sentence with what heads were chosen on are left out: on these the models are better than on others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

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
from headscope.pruning.result import CandidateDistance, Curve, MaxDrop, TestedCount
from headscope.pruning.result import way as way_name
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

Way = tuple[str, Repair]  # Method and repair


class Confirmed(NamedTuple):
    """The last number of units that was confirmed, and how."""

    units: int
    model: Repaired  # The pruned model without so many units
    tests: tuple[TestedCount, ...]  # Every test, up to the first refusal


def unseen_examples(task: Task, calibration: Task | None) -> Array:
    """Return the indices of examples that share no sentence with the calibration data, ascending.

    Refuses so few that intervals would not hold.
    """
    need_examples(task.n_examples, task.data.name)
    # Sentences as tokens and as texts: tasks name those of their examples one way or the other.
    seen: set[Hashable] = set()
    if calibration is not None:
        for row in calibration.rows:
            seen.update(sentences_of(row))
        seen.update(calibration.data.texts)
    examples = np.flatnonzero([seen.isdisjoint(sentences) for sentences in task.sentences])
    if len(examples) < FEWEST_TESTED:
        raise InputError(
            f"Only {len(examples)} of the {task.n_examples:,} examples of {task.data.name} share "
            f"no sentence with the calibration data, and max_drop needs {FEWEST_TESTED} or more to "
            "test on; give a calibration file with other sentences, or a smaller calibration_limit."
        )
    return examples


def prune_within_loss(
    pruner: Pruner,
    *,
    methods: Sequence[str],
    repairs: Sequence[Repair],
    allowed_loss: float,
    examples: Array,
    random: bool,
) -> Outcome:
    """Remove as many heads as are confirmed to cost at most ``allowed_loss``.

    Tests and all that is described are measured on ``examples``, by their indices. ``random`` adds
    a curve of as many random heads.
    """
    numbers = _numbers_to_test(pruner)

    # Settle the order of the heads, and the way to prune, without the examples.
    pruner = pruner.measuring_on(examples)
    rankings = pruner.rankings(methods)
    ways = list(itertools.product(methods, repairs))
    middle_number = numbers[len(numbers) // 2]
    way, distances = settle(pruner, rankings, ways, middle_number)
    method, repair = way
    ranking = rankings[method]

    # Test the numbers of heads on the examples.
    confirmed = search(pruner, ranking, way, allowed_loss)

    # Describe the confirmed model beside the whole one, and beside as many random heads.
    full_point = pruner.point(Repaired.bare(pruner.units, ()))
    point = pruner.point(confirmed.model)
    curves = [Curve(method, repair.value, (full_point, point))]
    if random:
        random_points = tuple(pruner.random_point(count) for count in (0, confirmed.units))
        curves.append(Curve("random", "none", random_points))
    max_drop = MaxDrop(
        wanted=allowed_loss,
        count=len(point.heads_removed),
        method=method,
        repair=repair.value,
        looks=confirmed.tests,
        sequence=_heads_by_number(pruner, ranking, numbers),
        near=distances,
        left_out=pruner.evaluation.n_examples - len(examples),
    )
    return Outcome(
        pruner,
        curves=tuple(curves),
        versions=(Version(method, repair, confirmed.model, point),),
        scores=scores_of(pruner, rankings),
        max_drop=max_drop,
    )


def _numbers_to_test(pruner: Pruner) -> tuple[int, ...]:
    """Return the numbers of units in the order of the tests; refuse a model with none to lose."""
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
    return numbers


def settle(
    pruner: Pruner, rankings: Mapping[str, Ranking], ways: Sequence[Way], number: int
) -> tuple[Way, tuple[CandidateDistance, ...]]:
    """Pick the way whose model stays nearest to the unpruned one with ``number`` units gone.

    Only calibration data are used, without their labels; ties go to the first, and a single way is
    not measured.
    """
    if len(ways) == 1:
        return ways[0], ()
    distances = []
    for i, (method, repair) in enumerate(ways):
        pruner.tell("comparing ways to prune", i, len(ways))
        removed = rankings[method].remove(number)
        distance = distance_of(pruner, pruner.repaired(repair, removed))
        n_heads = len(pruner.units.heads(removed))
        distances.append(CandidateDistance(method, repair.value, n_heads, distance))
    nearest = int(tied([candidate.distance for candidate in distances]).argmin())
    return ways[nearest], tuple(distances)


def distance_of(pruner: Pruner, pruned: Repaired) -> float:
    """Return the mean squared distance to the unpruned model's outputs on calibration data."""
    # All heads of a unit have the same gate.
    unit_gates = torch.stack([pruned.gates[heads[0]] for heads in pruner.units.members])
    with replaced_outputs(pruner.loaded, pruned.maps):
        return pruner.context.distance(unit_gates)


def search(pruner: Pruner, ranking: Ranking, way: Way, allowed_loss: float) -> Confirmed:
    """Test the numbers of units in order, up to the first that is refused.

    ``pruner`` measures on the examples to test on.

    Raises
    ------
    InputError
        If already the first number is refused.
    """
    numbers = ascending(len(pruner.units))
    sign = 1 if pruner.evaluation.higher_is_better else -1
    _, repair = way
    judgements: list[Judged] = []  # What each model loses, and whether that is allowed
    tests: list[TestedCount] = []
    last_model: Repaired | None = None

    def test(number: int) -> bool:
        """Make the model without so many units, measure it, and say whether its loss is allowed."""
        nonlocal last_model
        pruner.tell("removing heads", len(tests), len(numbers))
        removed = ranking.remove(number)
        pruned = pruner.repaired(repair, removed)
        judgement = judged(pruner.change(pruned), sign, allowed_loss)
        if judgement.allowed:
            # A repaired model holds maps of every layer, so only the last one is kept in memory.
            last_model = pruned
            pruner.forget_all_but(pruned)
        judgements.append(judgement)
        tests.append(
            TestedCount(
                heads=len(pruner.units.heads(removed)),
                lost=judgement.lost,
                most_lost=judgement.most_lost if math.isfinite(judgement.most_lost) else None,
                allowed=judgement.allowed,
            )
        )
        return judgement.allowed

    number = last_confirmed(numbers, test).confirmed
    if number is None or last_model is None:
        raise InputError(_nothing_confirmed(tests[0], judgements[0], way, allowed_loss))
    return Confirmed(number, last_model, tuple(tests))


def _nothing_confirmed(test: TestedCount, judgement: Judged, way: Way, allowed_loss: float) -> str:
    """Say why already the first number was refused, and what would help."""
    method, repair = way
    n_examples = judgement.change.examples
    heads = f"{test.heads} {plural(test.heads, 'head')}"
    start = (
        f"No head can go for a loss of at most {allowed_loss:g}: "
        f"without {heads} ({way_name(method, repair.value)})"
    )
    if test.most_lost is None:
        return (
            f"{start} what is lost at most is not known from {n_examples:,} examples, whose values "
            "do not vary or which are not independent; give more."
        )
    needed = examples_needed(judgement, allowed_loss)
    advice = "" if needed is None else f"about {needed:,} examples, or "
    return (
        f"{start} the loss is {judgement.lost:.4g} on {n_examples:,} examples, and its 95% "
        f"interval reaches {judgement.most_lost:.4g}; give {advice}a larger max_drop."
    )


def _heads_by_number(pruner: Pruner, ranking: Ranking, numbers: Sequence[int]) -> tuple[int, ...]:
    """Return how many heads go with each number of units: as many, where a unit is one head."""
    sizes = {len(heads) for heads in pruner.units.members}
    if len(sizes) == 1:
        # Which units go does not matter: to find that out may take passes over the data.
        heads_of_unit = min(sizes)
        return tuple(number * heads_of_unit for number in numbers)
    return tuple(len(pruner.units.heads(ranking.remove(number))) for number in numbers)
