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

from headscope.core.errors import InputError
from headscope.measures.accumulator import Array
from headscope.measures.areas import (
    area_weights,
    bootstrap_interval,
    draws_interval,
    inner_range,
)
from headscope.models.loaded import LoadedModel
from headscope.pipeline.prune.curves import Inputs, Outcome, Swept, run
from headscope.pipeline.prune.options import PruneOptions
from headscope.pipeline.prune.setting_up import planned
from headscope.pipeline.prune.steps import Steps
from headscope.results.prune import Area, AreaGap, StackResult


def chosen_stack(loaded: LoadedModel, stack: str | None, task: str) -> LoadedModel:
    """Return the view of the stack that heads are removed from.

    Left open, it is every stack that the task runs.

    Raises
    ------
    InputError
        If the model has no such stack, or the task does not run it.
    """
    whole = loaded.whole or loaded
    if stack is None:
        stack = "all" if task == "seq2seq" or not whole.encoder_decoder else "encoder"
    if whole.encoder_decoder and task != "seq2seq" and stack != "encoder":
        raise InputError(
            f"The task {task} runs the encoder of {loaded.name} only; choose the stack encoder, or "
            "the task seq2seq with pairs of source and target."
        )
    return whole.only(stack)


class Apart(NamedTuple):
    """What pruning every stack alone found."""

    stacks: tuple[StackResult, ...] = ()
    areas: tuple[Area, ...] = ()
    gaps: tuple[AreaGap, ...] = ()


def runs_of(loaded: LoadedModel, options: PruneOptions) -> list[tuple[str, Counter[str]]]:
    """List the steps of the joint run and of those of each stack alone, in this order, by name."""
    alone = [(s, planned(loaded.only(s), _plain(options))) for s in _apart(loaded, options)]
    return [("", planned(loaded, options)), *alone]


def run_apart(inputs: Inputs, options: PruneOptions, steps: Steps) -> Apart:
    """Prune each stack of a model alone; nothing where there is only one, or heads were named."""
    loaded, found = inputs.loaded, dict[str, Outcome]()
    for stack in _apart(loaded, options):
        steps.begin()
        found[stack] = run(_view(inputs, stack), _plain(options), steps)
    return Apart(
        tuple(_result(loaded.only(stack), outcome) for stack, outcome in found.items()),
        *areas_of({stack: outcome.swept for stack, outcome in found.items()}),
    )


def areas_of(swept: dict[str, tuple[Swept, ...]]) -> tuple[tuple[Area, ...], tuple[AreaGap, ...]]:
    """Return the areas under the whole curves of every stack, and the gaps between stacks.

    Inner areas go from the first to the last head removed, over the shares that the curves of one
    method have in common in all stacks, so that they can be compared.
    """
    by_name: dict[tuple[str, str], dict[str, Swept]] = {}
    for stack, curves in swept.items():
        for curve in curves:
            by_name.setdefault(curve.name, {})[stack] = curve
    areas, gaps = [], []
    for curves_of in by_name.values():
        inner = inner_range(curve.shares for curve in curves_of.values())
        areas += [_area(stack, curve, inner) for stack, curve in curves_of.items()]
        gaps += [
            _gap(stack, other, curves_of[stack], curves_of[other], inner)
            for stack, other in permutations(curves_of, 2)
        ]
    return tuple(areas), tuple(gaps)


def _apart(loaded: LoadedModel, options: PruneOptions) -> tuple[str, ...]:
    """List the stacks that are pruned alone besides."""
    stacks = loaded.stacks
    joint_only = options.manual or options.max_drop is not None
    return () if len(stacks) < 2 or joint_only else stacks


def _plain(options: PruneOptions) -> PruneOptions:
    """Leave out what is done once with all stacks: keeping a model, and the single heads."""
    return dataclasses.replace(
        options,
        save=None,
        save_dense=None,
        standalone=False,
        export=None,
        quantize=None,
        benchmark=False,
        ablation=False,
    )


def _view(inputs: Inputs, stack: str) -> Inputs:
    """Leave only one stack's heads to be removed, with the roles that they have."""
    view = inputs.loaded.only(stack)
    row_of = {(site.stack, site.layer): site.row for site in view.sites}
    by_place = {}
    for (row, head), found in inputs.roles.by_place.items():
        site = inputs.loaded.sites[row]
        if site.stack == stack:
            by_place[row_of[stack, site.layer], head] = found
    roles = dataclasses.replace(inputs.roles, by_place=by_place)
    return dataclasses.replace(inputs, loaded=view, roles=roles)


def _result(view: LoadedModel, outcome: Outcome) -> StackResult:
    return StackResult(
        stack=view.stacks[0],
        n_heads=sum(site.n_heads for site in view.sites),
        curves=outcome.curves,
        scores=outcome.scores,
        even=outcome.even,
    )


Between = tuple[float, float] | None


def _areas(swept: Swept, between: Between) -> Array:
    """Return the area in every resample or draw."""
    areas: Array = area_weights(swept.shares, between) @ swept.values
    return areas


def _value(swept: Swept, between: Between) -> float:
    return float(area_weights(swept.shares, between) @ np.asarray(swept.means))


def _interval(values: Array, swept: Swept) -> tuple[float, float]:
    return draws_interval(values) if swept.random else bootstrap_interval(values)


def _area(stack: str, swept: Swept, inner: Between) -> Area:
    area = Area(
        stack,
        swept.method,
        swept.repair,
        _value(swept, None),
        _interval(_areas(swept, None), swept),
    )
    if inner is None:
        return area
    ci = _interval(_areas(swept, inner), swept)
    return dataclasses.replace(area, inner=_value(swept, inner), inner_ci=ci)


def _gap(stack: str, other: str, a: Swept, b: Swept, inner: Between) -> AreaGap:
    def gap(between: Between) -> tuple[float, tuple[float, float]]:
        values = _areas(a, between) - _areas(b, between)
        return _value(a, between) - _value(b, between), _interval(values, a)

    of_inner = (None, None) if inner is None else gap(inner)
    return AreaGap(stack, other, a.method, a.repair, *gap(None), *of_inner)
