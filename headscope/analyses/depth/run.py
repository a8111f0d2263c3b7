"""``headscope depth``: the residual by layer, without and with each part of the layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
from headscope.analyses.depth.options import DepthOptions
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
from headscope.core.serialise import SCHEMA
from headscope.core.widest import widest
from headscope.data.batches import BATCH_TOKENS
from headscope.data.corpus import as_plain
from headscope.data.packing import Windows, pack
from headscope.models.blocks import Block, find_blocks, norm_placement, own_states, run_variant
from headscope.models.certificate import TOLERANCES
from headscope.models.copies import cast, random_twin
from headscope.models.loaded import LoadedModel
from headscope.models.loading import DTYPES, widest_dtype
from headscope.models.products import fast_products
from headscope.models.routing import Router
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.progress import Progress
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid

BARE = "attention-without-layernorm"  # The one variant that has a field of its own in the result.


@dataclass(frozen=True)
class _Pass:
    """What every pass over the text shares."""

    windows: Windows
    chosen: Array
    progress: Progress


def run(model: Model, options: DepthOptions) -> DepthResult:
    """Say how fast tokens become alike with depth, and which part of the layers prevents it."""
    dtype, seed = options.dtype, options.seed
    source = as_plain(options.text)
    usual = widest_dtype(options.device)
    loaded = open_model(model, dtype=dtype or usual, **options.loading)
    loaded = cast(loaded, dtype) if dtype else loaded
    need_tokenizer(loaded, "depth")
    windows = pack(source, loaded, options.length)
    validation = require_valid(loaded, options.validate)
    blocks = find_blocks(loaded)
    shared = _Pass(windows, windows.spread(options.sequences), options.tell)
    sums, proof = _measure(loaded, blocks, shared, "model")
    return DepthResult(
        **_curves(sums),
        schema=SCHEMA,
        provenance=provenance(loaded, command=options.command, seed=seed, data=source),
        validation=validation,
        decomposition=proof,
        layer_norm=norm_placement(blocks),
        length=options.length,
        sequences=len(shared.chosen),
        available=len(windows),
        floor=_floor(loaded),
        control=_control(loaded, shared, seed) if options.control else None,
    )


def _floor(loaded: LoadedModel) -> float:
    """Ratios up to this are what the dtype's rounding leaves of equal rows."""
    return float(10 * torch.finfo(DTYPES[loaded.dtype]).eps)


def _control(loaded: LoadedModel, run: _Pass, seed: int) -> DepthControl:
    twin = random_twin(loaded, seed)
    sums, _ = _measure(twin, find_blocks(twin), run, "control")
    return DepthControl(**_curves(sums), seed=seed)


# --- the pass -----------------------------------------------------------------------------------


def _measure(
    loaded: LoadedModel, blocks: Sequence[Block], run: _Pass, name: str
) -> tuple[DepthSums, Decomposition]:
    """Run every window through the model as it is, and through every variant of its layers."""
    sums, worst = DepthSums(len(blocks), _floor(loaded)), 0.0
    at_once = max(1, BATCH_TOKENS // run.windows.length)
    for start in range(0, len(run.chosen), at_once):
        chosen = run.chosen[start : start + at_once]
        input_ids = torch.from_numpy(run.windows.batch(chosen)).to(loaded.device)
        own = own_states(loaded, blocks, input_ids)
        ratios, gap = _ratios(loaded, blocks, own)
        worst = max(worst, gap)
        _check_rebuilt(loaded, worst)
        sums.update(ratios)
        run.progress(name, start + len(chosen), len(run.chosen))
    return sums, Decomposition(worst, TOLERANCES[loaded.dtype]["hidden"])


def _ratios(
    loaded: LoadedModel, blocks: Sequence[Block], own: Sequence[Tensor]
) -> tuple[Array, float]:
    """Ratios (variants, n_layers + 1, windows), and how far the full variant is from the model."""
    router = Router(loaded.sites, others=loaded.others)
    gap, ratios = 0.0, []
    with torch.no_grad(), fast_products(loaded.model):
        for variant in VARIANTS:
            by_point = []
            for point, hidden in enumerate(run_variant(blocks, router, own[0], variant)):
                by_point.append(numpy(residual_ratio(hidden)))
                if variant.name == "full":
                    gap = max(gap, _gap(hidden, own[point]))
            ratios.append(by_point)
    return np.array(ratios), gap


def _gap(ours: Tensor, own: Tensor) -> float:
    """Largest difference, relative to the largest entry where that is above 1."""
    gap = float((widest(ours) - widest(own)).abs().max() / widest(own).abs().max().clamp(min=1))
    return gap if math.isfinite(gap) else math.inf


# --- sums to values -----------------------------------------------------------------------------


def _curves(sums: DepthSums) -> dict[str, Any]:
    """Return the fields of :class:`DepthCurves`."""
    ratios = sums.ratio_moments()
    means = {v.name: _curve(row) for v, row in zip(VARIANTS, ratios.mean, strict=True)}
    stds = {v.name: _curve(row) for v, row in zip(VARIANTS, ratios.std, strict=True)}
    m = sums.share_moments()
    fields = DepthCurves(
        attention_without_layernorm=means.pop(BARE),
        attention_without_layernorm_std=stds.pop(BARE),
        variants=means,
        std=stds,
        protected=(
            tuple(
                Protection(
                    *(c.part, c.way, c.having, c.lacking),
                    *(_curve(values[i]) for values in (m.mean, m.std, m.low, m.high)),
                )
                for i, c in enumerate(COMPARISONS)
            )
        ),
        collapsed_after={
            v.name: collapsed_after(row)
            for v, row in zip(VARIANTS, ratios.mean, strict=True)
            if v.name != BARE
        },
        trends=_trends(sums),
    )
    return vars(fields)


def _trends(sums: DepthSums) -> dict[str, Trend]:
    m = sums.trend_moments()
    curves = [[_curve(row) for row in rows] for rows in (m.mean, m.low, m.high)]
    windows = [tuple(row.tolist()) for row in m.windows]
    return {name: Trend(*found) for name, *found in zip(TRENDS, *curves, windows, strict=True)}


def _curve(values: Array) -> Curve:
    return tuple(float(value) if np.isfinite(value) else None for value in values)


def _check_rebuilt(loaded: LoadedModel, gap: float) -> None:
    tolerance = TOLERANCES[loaded.dtype]["hidden"]
    if not gap <= tolerance:
        raise ValidationFailedError(
            f"The layers of {loaded.name}, taken apart and put together again, do not give its own "
            f"hidden states (they differ by {gap:.1e}, tolerance {tolerance:.1e}), so nothing is "
            f"reported: this {loaded.family} layer has parts that headscope does not know."
        )
