"""The stacks of an encoder-decoder model, each pruned alone, and the areas under their curves.

References
----------
Michel et al. 2019, arXiv:1905.10650, section 4 (encoder, decoder and cross-attention apart).
"""

from __future__ import annotations

import dataclasses
from itertools import permutations
from typing import NamedTuple

import numpy as np

from headscope.errors import InputError
from headscope.measures.accumulator import Array
from headscope.measures.areas import area_weights, bootstrap_interval, draws_interval
from headscope.models.loading import LoadedModel
from headscope.pipeline.known_roles import KnownRoles
from headscope.pipeline.progress import Progress
from headscope.pipeline.prune.curves import Inputs, Outcome, Swept, run
from headscope.pipeline.prune.options import PruneOptions
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


def run_apart(inputs: Inputs, options: PruneOptions, progress: Progress) -> Apart:
    """Prune each stack of a model alone; nothing where there is only one, or heads were named."""
    loaded = inputs.loaded
    if len(loaded.stacks) < 2 or options.manual:
        return Apart()
    found = {stack: _one(inputs, loaded.only(stack), options, progress) for stack in loaded.stacks}
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


def _one(inputs: Inputs, view: LoadedModel, options: PruneOptions, progress: Progress) -> Outcome:
    """Prune one stack; the model that may be kept is one of all stacks together."""
    plain = dataclasses.replace(options, save=None, save_dense=None, benchmark=False)
    roles = KnownRoles({})
    return run(dataclasses.replace(inputs, loaded=view, roles=roles), plain, progress)


def _result(view: LoadedModel, outcome: Outcome) -> StackResult:
    return StackResult(
        stack=view.stacks[0],
        n_heads=sum(site.n_heads for site in view.sites),
        curves=outcome.curves,
        scores=outcome.scores,
        ablation=outcome.ablation,
        kept_alone=outcome.kept_alone,
    )


def _areas(swept: Swept) -> Array:
    """Return the area in every resample or draw."""
    areas: Array = area_weights(swept.shares) @ swept.values
    return areas


def _interval(values: Array, swept: Swept) -> tuple[float, float]:
    return draws_interval(values) if swept.random else bootstrap_interval(values)


def _area(stack: str, swept: Swept) -> Area:
    value = float(area_weights(swept.shares) @ np.asarray(swept.means))
    return Area(stack, swept.method, swept.repair, value, _interval(_areas(swept), swept))


def _gap(stack: str, other: str, a: Swept, b: Swept) -> AreaGap:
    means = np.asarray(area_weights(a.shares) @ np.asarray(a.means))
    difference = float(means - area_weights(b.shares) @ np.asarray(b.means))
    ci = _interval(_areas(a) - _areas(b), a)
    return AreaGap(stack, other, a.method, a.repair, difference, ci)
