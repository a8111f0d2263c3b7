"""From ratios to curves: means over windows, what each part of a layer protects, and trends.

A *ratio* says how different the tokens of a window still are after a layer, in one variant of the
model (:mod:`~headscope.analyses.depth.measure`). Ratios of a variant are (n_layers + 1, windows);
point 0 are the embeddings. All that follows is computed window by window, and then averaged.

What a part protects after a number of layers is its effect on the ratio as a share of the full
model's ratio::

    removed  = (ratio(full) - ratio(full without the part)) / ratio(full)
    added    = (ratio(attention and the part) - ratio(attention)) / ratio(full)

The claim that attention alone collapses is decided by trends::

    of start   = ratio(l) / ratio(0)                        attention alone, attention with skip
    layernorm  = (ratio - ratio without LayerNorm) / ratio(0)               of attention alone
    gain       = ln(ratio(attention and feed-forward) / ratio(attention))
    step       = f(l) - f(l - 1),  f(l) = ratio(l) / ratio(l - 1)           of attention alone

A fall is at least exponential where no factor f exceeds the one before. Gains and steps of windows
that are no more than rounding are passed over.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headscope.analyses.depth.measure import VARIANTS
from headscope.analyses.depth.result import Curve, DepthCurves, Protection, Trend
from headscope.core.accumulator import Array
from headscope.stats.statistics import finite, t_half_width

COLLAPSED = 0.01  # A variant has collapsed once its ratio is below this share of where it started.
#: Names of the variants whose curves are shown: all but the last, attention without LayerNorm
_SHOWN = [variant.name for variant in VARIANTS[:-1]]


class Comparison(NamedTuple):
    """Two variants that differ in one part: what the part protects is the difference."""

    part: str
    way: str  # ``removed`` from the full model, or ``added`` to attention
    having: str  # The variant that has the part
    lacking: str  # The one that lacks it


COMPARISONS = (
    Comparison("skip", "removed", "full", "attention+ffn"),
    Comparison("ffn", "removed", "full", "attention+skip"),
    Comparison("layernorm", "removed", "full", "full-without-layernorm"),
    Comparison("skip", "added", "attention+skip", "attention"),
    Comparison("ffn", "added", "attention+ffn", "attention"),
    Comparison("layernorm", "added", "attention", "attention-without-layernorm"),
)


def curves_of(ratios: Array, floor: float) -> DepthCurves:
    """Average ratios (variants, n_layers + 1, windows), shares and trends over windows.

    With standard deviations and 95% intervals (Student's t). ``floor`` is the ratio up to which
    tokens differ only by the rounding of the dtype.
    """
    by_name = {variant.name: ratios[i] for i, variant in enumerate(VARIANTS)}
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio_means = {name: _over_windows(values) for name, values in by_name.items()}
        protected = []
        for comparison in COMPARISONS:
            difference = by_name[comparison.having] - by_name[comparison.lacking]
            means = _over_windows(difference / by_name["full"])
            protected.append(
                Protection(
                    part=comparison.part,
                    way=comparison.way,
                    having=comparison.having,
                    lacking=comparison.lacking,
                    mean=means.mean,
                    std=means.std,
                    low=means.low,
                    high=means.high,
                )
            )
        trends = {}
        for name, (values, counted) in _trends(by_name, floor).items():
            means = _over_windows(values, counted)
            trends[name] = Trend(means.mean, means.low, means.high, means.windows)
        collapsed = {name: collapsed_after(by_name[name].mean(axis=-1)) for name in _SHOWN}
    without_layernorm = ratio_means["attention-without-layernorm"]
    return DepthCurves(
        variants={name: ratio_means[name].mean for name in _SHOWN},
        std={name: ratio_means[name].std for name in _SHOWN},
        attention_without_layernorm=without_layernorm.mean,
        attention_without_layernorm_std=without_layernorm.std,
        protected=tuple(protected),
        collapsed_after=collapsed,
        trends=trends,
    )


class _Means(NamedTuple):
    """Means over windows at every point; None where there is none."""

    mean: Curve
    std: Curve
    low: Curve  # 95% interval of the mean
    high: Curve
    windows: tuple[int, ...]  # How many count at each point


def _over_windows(values: Array, counted: Array | None = None) -> _Means:
    """Average (n_layers + 1, windows) over the windows, or over those that count."""
    if counted is None:
        counted = np.ones(values.shape, dtype=bool)
    n = counted.sum(axis=-1)  # [n_layers + 1]: windows that count
    mean = np.where(counted, values, 0.0).sum(axis=-1) / n
    squares = np.where(counted, values - mean[..., None], 0.0) ** 2
    std = np.where(n > 1, np.sqrt(squares.sum(axis=-1) / (n - 1)), np.nan)
    half_width = t_half_width(std / np.sqrt(n), n)
    return _Means(
        mean=tuple(map(finite, mean)),
        std=tuple(map(finite, std)),
        low=tuple(map(finite, mean - half_width)),
        high=tuple(map(finite, mean + half_width)),
        windows=tuple(n.tolist()),
    )


def _trends(ratios: dict[str, Array], floor: float) -> dict[str, tuple[Array, Array]]:
    """Return every trend (n_layers + 1, windows), and where it counts: True or False.

    ``ratios`` are by name of the variant; what is no more than ``floor`` is rounding.
    """
    alone = ratios["attention"]
    with_ffn = ratios["attention+ffn"]
    without_layernorm = ratios["attention-without-layernorm"]
    always = np.ones(alone.shape, dtype=bool)

    least = max(floor, np.finfo(float).tiny)  # what is less is rounding, not a smaller ratio
    gain = np.log(np.maximum(with_ffn, least) / np.maximum(alone, least))
    gain_counts = np.maximum(alone, with_ffn) > floor

    # The factor of each layer minus that of the layer before; the first layer has none before it.
    factors = alone[1:] / alone[:-1]
    step = np.full_like(alone, np.nan)
    step[2:] = np.diff(factors, axis=0)  # points 2 and later: f(2) - f(1), ...
    step_counts = np.zeros(alone.shape, dtype=bool)
    step_counts[2:] = (alone[2:] > floor) & (alone[1:-1] > floor)
    return {
        "attention_of_start": (alone / alone[:1], always),
        "skip_of_start": (ratios["attention+skip"] / alone[:1], always),
        "layernorm_change": ((alone - without_layernorm) / alone[:1], always),
        "ffn_gain": (gain, gain_counts),
        "step_change": (step, step_counts),
    }


def collapsed_after(ratios: Array) -> int | None:
    """Return after how many layers the ratio stays below 1% of its start; None if it never does.

    ``ratios`` (n_layers + 1,) are one variant's; the first is the embeddings'.
    """
    not_below = np.flatnonzero(~(ratios < COLLAPSED * ratios[0]))  # NaN is not below
    after = int(not_below[-1]) + 1
    return after if after < len(ratios) else None
