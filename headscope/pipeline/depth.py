"""``headscope depth``: the residual by layer, without and with each part of the layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.core.errors import InputError, ValidationFailedError
from headscope.core.widest import widest
from headscope.data.batches import BATCH_TOKENS
from headscope.data.packing import Windows, pack
from headscope.data.plain import PlainText, as_plain
from headscope.measures.accumulator import Array, numpy
from headscope.measures.depth import (
    COMPARISONS,
    TRENDS,
    VARIANTS,
    DepthSums,
    collapsed_after,
    residual_ratio,
)
from headscope.models.blocks import Block, find_blocks, norm_placement, own_states, run_variant
from headscope.models.certificate import TOLERANCES
from headscope.models.copies import cast, random_twin
from headscope.models.loaded import LoadedModel
from headscope.models.loading import DTYPES, widest_dtype
from headscope.models.products import fast_products
from headscope.models.routing import Router
from headscope.pipeline.validate import require_valid
from headscope.results.depth import (
    Curve,
    Decomposition,
    DepthControl,
    DepthCurves,
    DepthResult,
    Protection,
    Trend,
)
from headscope.results.serialise import SCHEMA
from headscope.session.opening import Model, need_tokenizer, open_model, public_function
from headscope.session.parameters import check_seed
from headscope.session.progress import Progress, silent
from headscope.session.provenance import provenance

__all__ = ["WIDEST_DTYPE", "depth"]

#: Windows measured unless told otherwise: the standard error of a ratio is then below 0.01.
SEQUENCES = 32
#: A report computes this section in the widest type of the device, whatever the others are computed
#: in: attention alone falls below what float32 can show.
WIDEST_DTYPE = True
#: The one variant that has a field of its own in the result.
BARE = "attention-without-layernorm"


@dataclass(frozen=True)
class _Pass:
    """What every pass over the text shares."""

    windows: Windows
    chosen: Array
    progress: Progress


@public_function
def depth(
    model: Model,
    text: str | Path | PlainText | None = None,
    *,
    length: int = 128,
    sequences: int = SEQUENCES,
    control: bool = True,
    dtype: str | None = None,
    validate: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    command: str = "headscope.depth",
    **options: Any,
) -> DepthResult:
    """Say how fast tokens become alike with depth, and which part of the layers prevents it.

    Every layer is re-run on its own: attention alone, with the feed-forward network, with the skip
    connection, whole, and whole without LayerNorm.

    Parameters
    ----------
    model : str, path, LoadedModel
        ``demo``, a folder, a hub id, or what :func:`headscope.load` returned.
    text : path, optional
        UTF-8 text; None for the built-in sample.
    length : int
        Tokens of a window, special tokens included.
    sequences : int
        Windows to measure, spread evenly over the text; all of them where it has fewer.
    control : bool
        Measure the same architecture with random weights too.
    dtype : str, optional
        What to compute in; without it float64 for a name or folder (float32 on a device without
        float64), and the type of a model that is in memory already.
    seed : int
        For the random weights of the control.
    validate, progress, command, **options
        As :func:`headscope.classify` takes them.

    Returns
    -------
    DepthResult
        Frozen raw values; ``.to_frame()`` gives pandas.

    Raises
    ------
    InputError
        For a model, text or option that cannot be used.
    UnsupportedModelError
        If the layers cannot be taken apart.
    ValidationFailedError
        If our attention, or the layers put together again, do not equal the model's.

    Examples
    --------
    >>> import headscope
    >>> result = headscope.depth("demo", sequences=4, control=False)
    >>> result.layer_norm, len(result.variants["full"])
    ('post', 7)
    """
    if sequences < 1:
        raise InputError(f"sequences is {sequences}; give 1 window or more.")
    check_seed(seed)
    source = as_plain(text)
    usual = widest_dtype(options.get("device", "auto"))
    loaded = open_model(model, dtype=dtype or usual, **options)
    loaded = cast(loaded, dtype) if dtype else loaded
    need_tokenizer(loaded, "depth")
    windows = pack(source, loaded, length)
    validation = require_valid(loaded, validate)
    blocks = find_blocks(loaded)
    run = _Pass(windows, windows.spread(sequences), progress or silent)
    sums, proof = _measure(loaded, blocks, run, "model")
    return DepthResult(
        **_curves(sums),
        schema=SCHEMA,
        provenance=provenance(loaded, command=command, seed=seed, data=source),
        validation=validation,
        decomposition=proof,
        layer_norm=norm_placement(blocks),
        length=length,
        sequences=len(run.chosen),
        available=len(windows),
        floor=_floor(loaded),
        control=_control(loaded, run, seed) if control else None,
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
