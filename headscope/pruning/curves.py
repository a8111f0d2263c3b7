"""Runs that prune along curves, and heads that are removed by hand.

What is removed is a *unit*: a head, or heads of several layers that can only go together. A
:class:`Ranking` says which units go, for every count; ``pruner.repaired(repair, units)`` makes a
pruned model of them, a :class:`Repaired`, and ``pruner.point(model)`` measures it as a
:class:`Point` of a :class:`Curve`. A ``Head`` here is (row, index): the place of its layer among
``loaded.sites``, and its index among the heads that the layer has now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headscope.analyses.classify.known_roles import places
from headscope.analyses.classify.result import HeadResult
from headscope.analyses.classify.roles import ROLES
from headscope.core.errors import InputError
from headscope.models.run.loaded import LoadedModel
from headscope.pruning.measure import Pruner
from headscope.pruning.options import MANUAL, Repair
from headscope.pruning.ranking import Ranking, Repaired
from headscope.pruning.result import Curve, HeadScores, MaxDrop, Point
from headscope.tasks.units import Head, Units, parse_heads, units_of


@dataclass(frozen=True)
class Version:
    """One pruned model of a curve, and the point that it was measured as."""

    method: str
    repair: Repair
    model: Repaired
    point: Point


class Outcome(NamedTuple):
    """The measured curves, and the models of which one may be saved."""

    pruner: Pruner  # Set to the examples that the curves were measured on
    curves: tuple[Curve, ...]
    versions: tuple[Version, ...]  # The models that may be saved: never random heads
    scores: tuple[HeadScores, ...] = ()
    max_drop: MaxDrop | None = None  # How a number of heads was found for a bounded loss


def run_curves(
    pruner: Pruner,
    *,
    rankings: Mapping[str, Ranking],
    repairs: Sequence[Repair],
    counts: Sequence[int],
    random: bool,
) -> Outcome:
    """Remove so many units, for each of ``counts``, by every ranking with every repair.

    ``rankings`` go by the name of their method; with ``random`` there is a curve of units drawn at
    random, too.
    """
    curves: list[Curve] = []
    versions: list[Version] = []
    n_curves = len(rankings) * len(repairs) + (1 if random else 0)

    def tell(points_of_curve: int) -> None:
        """Tell the user how many points of all curves are done."""
        points_done = len(curves) * len(counts) + points_of_curve
        pruner.tell("removing heads", points_done, n_curves * len(counts))

    for method, ranking in rankings.items():
        for repair in repairs:
            points: list[Point] = []
            for count in counts:
                tell(len(points))
                pruned = pruner.repaired(repair, ranking.remove(count))
                point = pruner.point(pruned)
                points.append(point)
                if count:  # the model itself is no pruned model that could be saved
                    versions.append(Version(method, repair, pruned, point))
            curves.append(Curve(method, repair.value, tuple(points)))
    if random:
        random_points: list[Point] = []
        for count in counts:
            tell(len(random_points))
            random_points.append(pruner.random_point(count))
        curves.append(Curve("random", "none", tuple(random_points)))
    return Outcome(pruner, tuple(curves), tuple(versions), scores_of(pruner, rankings))


def scores_of(pruner: Pruner, rankings: Mapping[str, Ranking]) -> tuple[HeadScores, ...]:
    """Lay the scores of methods out as layers x heads.

    Of layers with 2 and 3 heads: ((0.1, 0.4, None), (0.2, 0.9, 0.3)). The "method" of heads that
    the user named (``MANUAL``) has no scores.
    """
    sites = pruner.loaded.sites
    layers = tuple((site.stack, site.layer) for site in sites)
    scores = []
    for method, ranking in rankings.items():
        if method == MANUAL:
            continue
        grid: list[list[float | None]] = pruner.units.expand(ranking.values).tolist()
        for site, row in zip(sites, grid, strict=True):
            n_missing = len(row) - site.n_heads  # the grid is as wide as the largest layer
            row[site.n_heads :] = [None] * n_missing
        scores.append(HeadScores(method, tuple(map(tuple, grid)), layers))
    return tuple(scores)


# --- heads that are removed by hand ---------------------------------------------------------------


def units_by_name(loaded: LoadedModel, heads: str) -> tuple[int, ...]:
    """Return the units of heads that are written as ``L0H1,L3H*``, by their original numbers."""
    units = units_of(loaded)
    present = {(site.stack, site.layer): site.head_ids for site in loaded.sites}
    head_by_name = places(loaded)  # original (stack, layer, head) -> (row, index)
    removed = {units.unit(head_by_name[name]) for name in parse_heads(heads, present)}
    _check_some_stay(loaded, units, removed, f"heads {heads}")
    return tuple(sorted(removed))


def units_without_roles(
    loaded: LoadedModel, roles: Mapping[Head, HeadResult], roles_to_keep: Sequence[str]
) -> tuple[int, ...]:
    """Return the units none of whose heads has one of ``roles_to_keep``: they are to be removed.

    ``roles`` has what was found out about each head, its roles among it.
    """
    # Refuse names that are no role.
    known_names = [role.key for role in ROLES]
    for result in roles.values():
        known_names += result.roles  # also those that the user's labelled pairs name
    known_names = list(dict.fromkeys(known_names))  # each once, in this order
    for name in roles_to_keep:
        if name not in known_names:
            raise InputError(f"There is no role {name!r}; choose {', '.join(known_names)}.")

    units = units_of(loaded)
    heads_that_stay = {
        head for head, result in roles.items() if set(result.roles) & set(roles_to_keep)
    }
    removed = {
        unit
        for unit, heads_of_unit in enumerate(units.members)
        if heads_that_stay.isdisjoint(heads_of_unit)
    }
    _check_some_stay(loaded, units, removed, f"keep_roles {','.join(roles_to_keep)}")
    return tuple(sorted(removed))


def _check_some_stay(loaded: LoadedModel, units: Units, removed: set[int], option: str) -> None:
    """Refuse to remove every head, or none; ``option`` begins the error: "heads L0H1"."""
    if len(removed) == len(units):
        raise InputError(
            f"{option} would remove every head of {loaded.name}; at least one must stay."
        )
    if not removed:
        raise InputError(f"{option} would remove no head of {loaded.name}; choose others.")
