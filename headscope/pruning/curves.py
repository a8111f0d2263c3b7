"""One run over curves or named heads: rank, repair, measure, tabulate.

The tables of single heads are those of Michel et al. 2019, arXiv:1905.10650: each head removed
alone, and all heads of a layer but one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from headscope.errors import InputError
from headscope.measures.accumulator import Array
from headscope.measures.rounding import tied
from headscope.measures.statistics import adjust
from headscope.models.loaded import LoadedModel
from headscope.pipeline.known_roles import places
from headscope.pruning.measure import original_names
from headscope.pruning.methods import rank, without_roles
from headscope.pruning.options import MANUAL, PruneOptions, Repair
from headscope.pruning.ranking import EvenRanking, Ranking
from headscope.pruning.repair import Repaired
from headscope.pruning.setup import Inputs, Pruner, prepare
from headscope.pruning.steps import Steps, units_at_once
from headscope.results import HeadResult
from headscope.results.even import EvenPrice
from headscope.results.max_drop import MaxDrop
from headscope.results.points import Curve, Point
from headscope.results.prune import Baseline, HeadEffect, HeadScores
from headscope.results.roles import ROLES
from headscope.tasks.head_list import parse_heads
from headscope.tasks.units import Head, Units

#: False discovery rate of the tables of single heads.
Q = 0.05


@dataclass(frozen=True)
class Version:
    """One pruned model of a curve, and the point that it was measured as."""

    method: str
    repair: Repair
    made: Repaired
    point: Point
    examples: Array | None = None  # the evaluation examples that the point speaks of; None for all


@dataclass(frozen=True)
class Swept:
    """A whole curve with everything that is known of how its values vary together."""

    method: str
    repair: str
    shares: tuple[float, ...]  # of heads removed, from 0 to 1
    means: tuple[float, ...]  # the metric at each
    values: Array  # (points, resamples of the examples or draws of random heads)
    random: bool


@dataclass(frozen=True)
class Outcome:
    """What a run measured; most as :class:`headscope.results.PruneResult` has it."""

    baseline: Baseline
    curves: tuple[Curve, ...]
    scores: tuple[HeadScores, ...]
    ablation: tuple[HeadEffect, ...]
    kept_alone: tuple[HeadEffect, ...]
    degenerate: str | None  # why the values mean nothing, if they do not
    versions: tuple[Version, ...]  # the candidates, should a model be kept
    swept: tuple[Swept, ...] = ()  # the curves that run from no head removed to all
    even: tuple[EvenPrice, ...] = ()
    max_drop: MaxDrop | None = None


def run_curves(inputs: Inputs, options: PruneOptions, steps: Steps) -> Outcome:
    """Remove more and more heads by every method, or those that were named."""
    pruner = prepare(inputs, options, steps)
    curves, versions = list[Curve](), list[Version]()
    scores, even = list[HeadScores](), list[EvenPrice]()
    rankings = pruner.rankings()
    for name in options.method_names:
        if name not in rankings:
            curves.append(random_curve(pruner))
            continue
        for kind in options.repair_kinds:
            points = []
            for count in pruner.counts:
                made = pruner.repaired(kind, rankings[name].remove(count))
                points.append(pruner.point(made))
                version = Version(name, kind, made, points[-1])
                if options.keeps and count:
                    versions.append(version)
                if 0 < count < len(pruner.units):
                    even += even_prices(pruner, rankings[name], version)
            curves.append(Curve(name, kind.value, tuple(points)))
        scores.append(scores_of(name, rankings[name], inputs.loaded, pruner.units))
    if options.manual:
        versions = _by_hand(pruner)
        curves = [Curve(MANUAL, v.repair.value, (v.point,)) for v in versions]
        if options.keep_roles:
            removed = len(versions[0].made.removed)
            curves.append(Curve("random", "none", (_random_point(pruner, removed),)))
    ablation, kept_alone = tables(pruner)
    return Outcome(
        baseline=pruner.measure.baseline(),
        curves=tuple(curves),
        scores=tuple(scores),
        ablation=ablation,
        kept_alone=kept_alone,
        degenerate=pruner.measure.degenerate(),
        versions=tuple(versions),
        swept=tuple(
            _swept(pruner, curve)
            for curve in curves
            if (curve.points[0].fraction, curve.points[-1].fraction) == (0.0, 1.0)
        ),
        even=tuple(even),
    )


def _swept(pruner: Pruner, curve: Curve) -> Swept:
    random, draws = curve.method == "random", pruner.options.draws
    # Where nothing or everything is removed, there is nothing to draw.
    rows = [
        np.full(draws, point.value)
        if random and not point.draws
        else pruner.measure.resamples(point)
        for point in curve.points
    ]
    shares = tuple(point.fraction for point in curve.points)
    means = tuple(point.value for point in curve.points)
    return Swept(curve.method, curve.repair, shares, means, np.stack(rows), random)


def random_curve(pruner: Pruner) -> Curve:
    """Measure as many random heads as the points of the other curves remove."""
    points = tuple(_random_point(pruner, count) for count in pruner.counts)
    return Curve("random", "none", points)


def _random_point(pruner: Pruner, count: int) -> Point:
    seed, made = pruner.options.seed, []
    for draw in range(seed, seed + pruner.options.draws):
        ranking = rank("random", dataclasses.replace(pruner.context, seed=draw))
        removed = pruner.evenly(ranking).remove(count)
        made.append((draw, pruner.repaired(Repair.none, removed)))
    return pruner.measure.random_point(made, partial(pruner.steps.did, "measured"))


def scores_of(name: str, ranking: Ranking, loaded: LoadedModel, units: Units) -> HeadScores:
    """Lay a ranking's values out as layers x heads."""
    grid: list[list[float]] = units.expand(ranking.values).tolist()
    heads = {head for members in units.members for head in members}
    rows = tuple(
        tuple(value if (layer, head) in heads else None for head, value in enumerate(row))
        for layer, row in enumerate(grid)
    )
    layers = tuple((site.stack, site.layer) for site in loaded.sites)
    return HeadScores(name, rows, ranking.passes, layers)


# --- named heads ----------------------------------------------------------------------------------


def _by_hand(pruner: Pruner) -> list[Version]:
    """Make and measure the model without the named heads, with each repair."""
    inputs, options = pruner.inputs, pruner.options
    roles, keep = inputs.roles.by_place, options.keep_roles or ()
    removed = units_by_hand(inputs.loaded, pruner.units, options.heads, roles, keep)
    made = [(kind, pruner.repaired(kind, removed)) for kind in options.repair_kinds]
    return [Version(MANUAL, kind, model, pruner.point(model)) for kind, model in made]


def units_by_hand(
    loaded: LoadedModel,
    units: Units,
    heads: str | None,
    roles: Mapping[Head, HeadResult],
    keep: Sequence[str],
) -> tuple[int, ...]:
    """Return the units that are removed by name, or because they have no role that is kept.

    ``heads`` are such as ``L0H1,L3H*``; without them those stay that have a role of ``keep``.
    """
    if heads is not None:
        names = parse_heads(heads, {(s.stack, s.layer): s.head_ids for s in loaded.sites})
        place_of = places(loaded)
        removed = {units.unit(place_of[name]) for name in names}
        what = f"heads {heads}"
    else:
        known = [role.key for role in ROLES]
        for name in keep:
            if name not in known:
                raise InputError(f"There is no role {name!r}; choose {', '.join(known)}.")
        if not roles:
            raise InputError("keep_roles needs to know what the heads do; roles must not be False.")
        removed = set(without_roles(units, roles, set(keep)))
        what = f"keep_roles {','.join(keep)}"
    if len(removed) == len(units):
        raise InputError(
            f"{what} would remove every head of {loaded.name}; at least one must stay."
        )
    if not removed:
        raise InputError(f"{what} removes nothing: every head has one of these roles.")
    return tuple(sorted(removed))


# --- layers that lose equally many heads ----------------------------------------------------------


def even_prices(pruner: Pruner, ranking: Ranking, version: Version) -> tuple[EvenPrice, ...]:
    """Measure the model that may take as many heads from any layer, beside the even ``version``."""
    if not isinstance(ranking, EvenRanking):
        return ()
    made, point = version.made, version.point
    count = len(made.removed)
    free = ranking.free.remove(count)
    # The same heads: the same model, repaired the same way.
    other = point
    if free != made.removed:
        other = pruner.point(pruner.repaired(version.repair, free))
    price = EvenPrice(
        method=version.method,
        repair=version.repair.value,
        per_layer=count // units_at_once(pruner.units, pruner.options),
        heads=len(point.heads_removed),
        value=point.value,
        uneven=other.value,
        difference=point.value - other.value,
        ci=None if other is point else pruner.measure.change(other, point).ci,
    )
    return (price,)


# --- tables of single heads -----------------------------------------------------------------------


def tables(pruner: Pruner) -> tuple[tuple[HeadEffect, ...], tuple[HeadEffect, ...]]:
    """Make the tables of single heads, where they are wanted."""
    if not pruner.options.tables:
        return (), ()
    units, measure, loaded = pruner.units, pruner.measure, pruner.inputs.loaded
    alone = []
    for unit in range(len(units)):
        alone.append(measure.point(Repaired.bare(units, [unit]), all_metrics=False))
        pruner.steps.did("alone")
    kept, names = [], []
    for layer in sorted(set(units.layers.tolist())):
        of_layer = (units.layers == layer).nonzero().flatten().tolist()
        qualities = []
        for unit in of_layer:
            gates = units.expand(units.gates([other for other in of_layer if other != unit]))
            what = ["kept alone", list(loaded.stacks), unit]
            quality = partial(pruner.context.calibration.quality, gates)
            qualities.append(pruner.inputs.findings.number(what, quality))
            pruner.steps.did("kept alone")
        best = of_layer[int(tied(qualities).argmax())]  # on the calibration data
        others = Repaired.bare(units, [unit for unit in of_layer if unit != best])
        kept.append(measure.point(others, all_metrics=False))
        names.append(original_names(loaded, units.members[best])[0])
    return _effects([point.heads_removed[0] for point in alone], alone), _effects(names, kept)


def _effects(names: Sequence[tuple[Any, ...]], points: Sequence[Point]) -> tuple[HeadEffect, ...]:
    """Put points into a table, p-values adjusted over all of them.

    A model that is the full one differs with p = 1.
    """
    p_values = np.array([1.0 if point.p_value is None else point.p_value for point in points])
    rows = zip(names, points, p_values.tolist(), adjust(p_values).tolist(), strict=True)
    effects = []
    for (*stack, layer, head), point, p_value, adjusted in rows:
        assert point.difference is not None  # only random draws have none
        effects.append(
            HeadEffect(
                layer,
                head,
                stack=stack[0] if stack else "encoder",
                value=point.value,
                ci=point.ci,
                difference=point.difference,
                difference_ci=point.difference_ci,
                p_value=p_value,
                p_adjusted=adjusted,
                significant=adjusted < Q,
            )
        )
    return tuple(effects)
