"""The stacks of an encoder-decoder model, each pruned alone, and the areas under their curves.

References
----------
Michel et al. 2019, arXiv:1905.10650, section 4 (encoder, decoder and cross-attention apart).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import permutations
from typing import NamedTuple

import numpy as np

from headscope.measures.accumulator import Array
from headscope.measures.areas import (
    area_weights,
    bootstrap_interval,
    draws_interval,
    inner_range,
)
from headscope.models.loaded import LoadedModel
from headscope.pruning.curves import Swept, run_curves
from headscope.pruning.options import PruneOptions
from headscope.pruning.setup import Inputs
from headscope.pruning.steps import Steps, running_steps
from headscope.results.prune import Area, AreaGap, StackResult


class Apart(NamedTuple):
    """Every stack pruned alone; nothing where there is only one, or heads were named."""

    stacks: tuple[StackResult, ...] = ()
    areas: tuple[Area, ...] = ()
    gaps: tuple[AreaGap, ...] = ()


def _apart(loaded: LoadedModel, options: PruneOptions) -> tuple[str, ...]:
    """List the stacks that are pruned alone besides."""
    stacks = loaded.stacks
    joint_only = options.manual or options.max_drop is not None
    return () if len(stacks) < 2 or joint_only else stacks


def steps_of_runs(loaded: LoadedModel, options: PruneOptions) -> list[tuple[str, Counter[str]]]:
    """List the steps of the joint run and of those of each stack alone, in this order, by name."""
    alone = options.of_one_stack()
    return [
        ("", running_steps(loaded, options)),
        *((stack, running_steps(loaded.only(stack), alone)) for stack in _apart(loaded, options)),
    ]


def run_apart(inputs: Inputs, options: PruneOptions, steps: Steps) -> Apart:
    """Prune each stack of a model alone, and compare the areas under their curves."""
    results, swept = [], {}
    for stack in _apart(inputs.loaded, options):
        steps.begin()
        view = inputs.loaded.only(stack)
        row_of = {(site.stack, site.layer): site.row for site in view.sites}
        by_place = {}
        for (row, head), roles in inputs.roles.by_place.items():
            site = inputs.loaded.sites[row]
            if site.stack == stack:
                by_place[row_of[stack, site.layer], head] = roles
        known = dataclasses.replace(inputs.roles, by_place=by_place)
        alone = dataclasses.replace(inputs, loaded=view, roles=known)
        outcome = run_curves(alone, options.of_one_stack(), steps)
        n_heads = sum(site.n_heads for site in view.sites)
        results.append(
            StackResult(stack, n_heads, outcome.curves, scores=outcome.scores, even=outcome.even)
        )
        swept[stack] = outcome.swept
    return Apart(tuple(results), *areas_of(swept))


def areas_of(swept: dict[str, tuple[Swept, ...]]) -> tuple[tuple[Area, ...], tuple[AreaGap, ...]]:
    """Return the areas under the whole curves of every stack, and the gaps between stacks.

    Inner areas go from the first to the last head removed, over the shares that the curves of one
    method have in common in all stacks, so that they can be compared.
    """
    by_name: dict[tuple[str, str], dict[str, Swept]] = {}
    for stack, curves in swept.items():
        for curve in curves:
            by_name.setdefault((curve.method, curve.repair), {})[stack] = curve
    areas, gaps = [], []
    for (method, repair), curves_of in by_name.items():
        inner = inner_range(curve.shares for curve in curves_of.values())

        def area(
            curve: Swept, other: Swept | None = None, inner: tuple[float, float] | None = inner
        ) -> tuple[float, tuple[float, float], float | None, tuple[float, float] | None]:
            whole = _area(curve, other, None)
            return (*whole, *((None, None) if inner is None else _area(curve, other, inner)))

        areas += [Area(stack, method, repair, *area(curve)) for stack, curve in curves_of.items()]
        gaps += [
            AreaGap(stack, other, method, repair, *area(curves_of[stack], curves_of[other]))
            for stack, other in permutations(curves_of, 2)
        ]
    return tuple(areas), tuple(gaps)


def _area(
    curve: Swept, other: Swept | None, between: tuple[float, float] | None
) -> tuple[float, tuple[float, float]]:
    """Return the area under a curve, less that under another, with its interval."""
    weights = area_weights(curve.shares, between)
    value, values = float(weights @ np.asarray(curve.means)), weights @ curve.values
    if other is not None:
        weights = area_weights(other.shares, between)
        value -= float(weights @ np.asarray(other.means))
        values = values - weights @ other.values
    interval = draws_interval if curve.random else bootstrap_interval
    drawn: Array = values
    return value, interval(drawn)
