"""Which heads go: by a method's ranking for every fraction, or as the user says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from headscope.core.errors import InputError
from headscope.models.loaded import LoadedModel
from headscope.pruning.by_role import keep_roles
from headscope.pruning.head_list import parse_heads
from headscope.pruning.method import Given, Ranking
from headscope.pruning.methods import METHODS, rank
from headscope.pruning.units import Units
from headscope.results import HeadResult
from headscope.results.prune import HeadScores
from headscope.results.roles import ROLES
from headscope.session.known_roles import places


def fractions_of(step: float, chosen: Sequence[float] | None) -> tuple[float, ...]:
    """List the fractions of a curve: 0, step, ... 1; or 0 and those that were chosen.

    Raises
    ------
    InputError
        If one is not within 0 and 1.
    """
    for fraction in chosen or ():
        if not 0.0 <= fraction <= 1.0:
            raise InputError(f"The fraction {fraction:g} is not between 0 and 1.")
    if chosen:
        return tuple(sorted({0.0, *chosen}))
    if not 0.01 <= step <= 1.0:
        raise InputError(f"The step {step:g} is not between 0.01 and 1 (0.1 is usual).")
    count = int(1.0 / step + 1e-9)
    return tuple(sorted({*(round(i * step, 10) for i in range(count + 1)), 1.0}))


def count_for(fraction: float, size: int) -> int:
    """Return the number of units that a fraction of ``size`` is, to the nearest."""
    return int(fraction * size + 0.5)


def random_rankings(given: Given, draws: int) -> list[tuple[int, Ranking]]:
    """Draw several random orders: (seed, ranking)."""
    seeds = range(given.seed, given.seed + draws)
    return [(seed, rank("random", dataclasses.replace(given, seed=seed))) for seed in seeds]


def scores_of(name: str, ranking: Ranking, loaded: LoadedModel, units: Units) -> HeadScores:
    """Lay a ranking's values out as layers x heads."""
    grid: list[list[float]] = units.expand(ranking.values).tolist()
    there = {place for heads in units.members for place in heads}
    rows = tuple(
        tuple(value if (layer, head) in there else None for head, value in enumerate(row))
        for layer, row in enumerate(grid)
    )
    layers = tuple((site.stack, site.layer) for site in loaded.sites)
    return HeadScores(name, rows, ranking.passes, layers)


def by_hand(
    loaded: LoadedModel,
    units: Units,
    spec: str | None,
    roles: Mapping[tuple[int, int], HeadResult],
    keep: Sequence[str],
) -> tuple[int, ...]:
    """Return the units that are removed by name, or because they have no role that is kept.

    ``spec`` names heads, such as ``L0H1,L3H*``; without it those stay that have a role of ``keep``.

    Raises
    ------
    InputError
        If there is no such head or role, or nothing or everything would go.
    """
    if spec is not None:
        names = parse_heads(spec, {(s.stack, s.layer): s.head_ids for s in loaded.sites})
        place_of = places(loaded)
        removed = {units.unit(place_of[name]) for name in names}
        what = f"heads {spec}"
    else:
        _check_roles(keep, roles)
        removed = set(keep_roles(units, roles, set(keep)))
        what = f"keep_roles {','.join(keep)}"
    if len(removed) == len(units):
        raise InputError(
            f"{what} would remove every head of {loaded.name}; at least one must stay."
        )
    if not removed:
        raise InputError(f"{what} removes nothing: every head has one of these roles.")
    return tuple(sorted(removed))


def _check_roles(keep: Sequence[str], roles: Mapping[tuple[int, int], HeadResult]) -> None:
    known = [role.key for role in ROLES]
    for name in keep:
        if name not in known:
            raise InputError(f"There is no role {name!r}; choose {', '.join(known)}.")
    if not roles:
        raise InputError("keep_roles needs to know what the heads do; roles must not be False.")


def needs(methods: Sequence[str], what: str) -> list[str]:
    """List the methods that need ``labels`` or ``roles``."""
    return [name for name in methods if getattr(METHODS[name], f"needs_{what}")]
