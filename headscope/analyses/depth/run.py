"""``headscope depth``: the residual by layer, without and with each part of the layers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.depth.measure import (
    COMPARISONS,
    TRENDS,
    VARIANTS,
    DepthSums,
    collapsed_after,
    residual_ratio,
)
from headscope.analyses.depth.options import LARGE, WINDOWS, DepthOptions
from headscope.analyses.depth.result import (
    Curve,
    Decomposition,
    DepthControl,
    DepthCurves,
    DepthResult,
    Protection,
    Trend,
)
from headscope.core.accumulator import Array, numpy
from headscope.core.errors import ValidationFailedError
from headscope.core.progress import Progress
from headscope.core.serialise import SCHEMA
from headscope.core.widest import widest
from headscope.data.batches import BATCH_TOKENS
from headscope.data.corpus import as_plain
from headscope.data.packing import Windows, pack
from headscope.models.anatomy.blocks import OwnRun, norm_placement, own_run, run_variant
from headscope.models.anatomy.layers import Layer, take_apart
from headscope.models.certificate.certificate import TOLERANCES
from headscope.models.run.devices import DTYPES, widest_dtype
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.products import fast_products
from headscope.models.run.routing import Router
from headscope.models.run.side_by_side import side_by_side
from headscope.models.surgery.copies import cast, random_twin
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.stats.statistics import finite

BARE = "attention-without-layernorm"  # The one variant that has a field of its own in the result.


def run(model: Model, options: DepthOptions) -> DepthResult:
    """Measure how fast tokens become the same with depth, and what prevents it."""
    dtype, seed = options.dtype, options.seed
    source = as_plain(options.text).first(options.limit)
    usual = widest_dtype(options.device)
    loaded = open_model(model, dtype=dtype or usual, **options.loading)
    loaded = cast(loaded, dtype) if dtype else loaded
    need_tokenizer(loaded, "depth")
    loaded = loaded.only("encoder") if loaded.encoder_decoder else loaded
    windows = pack(source, loaded, options.length)
    validation = require_valid(loaded, options.validate)
    layers = take_apart(loaded).layers
    chosen = windows.spread(options.sequences or _windows(loaded))
    curves, gap = _measure(loaded, windows, chosen, options.tell, "model")
    result = DepthResult(
        **vars(curves),
        schema=SCHEMA,
        provenance=provenance(loaded, command=options.command, seed=seed, data=source),
        validation=validation,
        decomposition=Decomposition(gap, TOLERANCES[loaded.dtype]["hidden"]),
        layer_norm=norm_placement(layers),
        stack=loaded.stacks[0],
        layers=tuple(layer.sites[0].layer for layer in layers),
        length=options.length,
        sequences=len(chosen),
        available=len(windows),
        floor=_floor(loaded),
    )
    if not options.control:
        return result
    # Two models in float64 at a time would be the most memory that depth takes.
    twin = random_twin(loaded, seed, instead=isinstance(model, str | Path))
    del loaded, layers
    random, _ = _measure(twin, windows, chosen, options.tell, "control")
    return dataclasses.replace(result, control=DepthControl(**vars(random), seed=seed))


def _windows(loaded: LoadedModel) -> int:
    """Choose the windows that are measured by default: so many that it ends within a minute."""
    size = sum(parameter.numel() for parameter in loaded.model.parameters())
    return WINDOWS if size <= LARGE else WINDOWS // 4


def _floor(loaded: LoadedModel) -> float:
    """Return the ratio up to which rows differ only by the dtype's rounding."""
    return float(10 * torch.finfo(DTYPES[loaded.dtype]).eps)


def _measure(
    loaded: LoadedModel,
    windows: Windows,
    chosen: Array,
    progress: Progress,
    name: str,
) -> tuple[DepthCurves, float]:
    """Run the windows through every variant; also say how far the full one is from the model."""
    sums, worst, done = DepthSums(loaded.n_layers, _floor(loaded)), 0.0, 0
    at_once = max(1, BATCH_TOKENS // windows.length)
    batches = [chosen[start : start + at_once] for start in range(0, len(chosen), at_once)]

    @contextmanager
    def running(own: LoadedModel) -> Iterator[Callable[[Array], tuple[Array, float]]]:
        layers = take_apart(own).layers

        def run(batch: Array) -> tuple[Array, float]:
            input_ids = torch.from_numpy(windows.batch(batch)).to(own.device)
            return measure_ratios(own, layers, own_run(own, layers, input_ids))

        yield run

    found = side_by_side(loaded, batches, running)
    for batch, (ratios, gap) in zip(batches, found, strict=True):
        worst, done = max(worst, gap), done + len(batch)
        check_decomposition(loaded, worst)
        sums.update(ratios)
        progress(name, done, len(chosen))
    return _curves(sums), worst


def measure_ratios(
    loaded: LoadedModel, layers: Sequence[Layer], own: OwnRun
) -> tuple[Array, float]:
    """Return ratios (variants, n_layers + 1, windows), and how far "full" is from the model.

    That is the largest difference of any state, relative to the largest entry where it is above 1.
    """
    router = Router(loaded.sites, others=loaded.others)
    gap, ratios, shared = 0.0, list[list[Array]](), dict[bool, Tensor]()
    with torch.no_grad(), fast_products(loaded.model):
        for variant in VARIANTS:
            ratios.append([])
            for point, hidden in enumerate(run_variant(layers, router, own, variant, shared)):
                ratios[-1].append(numpy(residual_ratio(hidden)))
                if variant.name == "full":
                    exact = widest(own.states[point])
                    largest = (widest(hidden) - exact).abs().max() / exact.abs().max().clamp(min=1)
                    gap = max(gap, float(largest) if largest.isfinite() else math.inf)
    return np.array(ratios), gap


def check_decomposition(loaded: LoadedModel, gap: float) -> None:
    """Refuse a model whose layers, put together again, do not give its own hidden states."""
    tolerance = TOLERANCES[loaded.dtype]["hidden"]
    if not gap <= tolerance:
        raise ValidationFailedError(
            f"The layers of {loaded.name}, taken apart and put together again, do not give its own "
            f"hidden states (they differ by {gap:.1e}, tolerance {tolerance:.1e}), so nothing is "
            f"reported: this {loaded.family} layer has parts that headscope does not know."
        )


def _curves(sums: DepthSums) -> DepthCurves:
    ratios, shares, trends = sums.moments()
    names = [variant.name for variant in VARIANTS]
    means = dict(zip(names, map(_curve, ratios.mean), strict=True))
    stds = dict(zip(names, map(_curve, ratios.std), strict=True))
    after = dict(zip(names, map(collapsed_after, ratios.mean), strict=True))
    del after[BARE]
    return DepthCurves(
        attention_without_layernorm=means.pop(BARE),
        attention_without_layernorm_std=stds.pop(BARE),
        variants=means,
        std=stds,
        protected=tuple(
            Protection(
                *comparison,
                *(_curve(x[i]) for x in (shares.mean, shares.std, shares.low, shares.high)),
            )
            for i, comparison in enumerate(COMPARISONS)
        ),
        collapsed_after=after,
        trends={
            name: Trend(
                mean=_curve(trends.mean[i]),
                low=_curve(trends.low[i]),
                high=_curve(trends.high[i]),
                windows=tuple(trends.windows[i].tolist()),
            )
            for i, name in enumerate(TRENDS)
        },
    )


def _curve(values: Array) -> Curve:
    return tuple(map(finite, values))
