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

from headscope.errors import InputError
from headscope.measures.accumulator import Array
from headscope.measures.areas import area_weights, bootstrap_interval, draws_interval
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
    swept = {stack: {s.name: s for s in outcome.swept} for stack, outcome in found.items()}
    return Apart(
        stacks=tuple(_result(loaded.only(stack), outcome) for stack, outcome in found.items()),
        areas=tuple(_area(stack, s) for stack, curves in swept.items() for s in curves.values()),
        gaps=tuple(
            _gap(stack, other, swept[stack][name], swept[other][name])
            for stack, other in permutations(swept, 2)
            for name in swept[stack]
            if name in swept[other]
        ),
    )


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


def _areas(swept: Swept) -> Array:
    """Return the area in every resample or draw."""
    areas: Array = area_weights(swept.shares) @ swept.values
    return areas


def _interval(values: Array, swept: Swept) -> tuple[float, float]:
    return draws_interval(values) if swept.random else bootstrap_interval(values)


def _area(stack: str, swept: Swept) -> Area:
    area = Area(stack, swept.method, swept.repair, *_value(swept))
    if len(swept.shares) < 3:
        return area
    inner = dataclasses.replace(
        swept, shares=swept.shares[:-1], means=swept.means[:-1], values=swept.values[:-1]
    )
    value, ci = _value(inner)
    return dataclasses.replace(area, inner=value, inner_ci=ci)


def _value(swept: Swept) -> tuple[float, tuple[float, float]]:
    value = float(area_weights(swept.shares) @ np.asarray(swept.means))
    return value, _interval(_areas(swept), swept)


def _gap(stack: str, other: str, a: Swept, b: Swept) -> AreaGap:
    means = np.asarray(area_weights(a.shares) @ np.asarray(a.means))
    difference = float(means - area_weights(b.shares) @ np.asarray(b.means))
    ci = _interval(_areas(a) - _areas(b), a)
    return AreaGap(stack, other, a.method, a.repair, difference, ci)
