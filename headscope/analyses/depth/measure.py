r"""How much of the tokens' differences survives with depth: the residual, layer by layer.

A sequence's hidden states ``H`` (pos, d_model) are compared with the nearest matrix all of whose
rows are equal, ``1 mean(H)^T``::

    res(H) = H - 1 mean(H)^T                mean over positions
    ratio  = ||res(H)|| / ||H||             ||M|| = sqrt(max column abs-sum * max row abs-sum)

The ratio is 0 when every token has the same state (rank one), whatever that state is.

A layer is re-run without some of its parts. A *variant* names the parts that stay; attention is
always one of them. What a part protects after a number of layers is its effect on the residual as a
share of the full model's, window by window::

    removed  = (ratio(full) - ratio(full without the part)) / ratio(full)
    added    = (ratio(attention and the part) - ratio(attention)) / ratio(full)

The claim about the collapse is decided by trends, again window by window::

    of start   = ratio(l) / ratio(0)                        attention alone, attention with skip
    layernorm  = (ratio - ratio without LayerNorm) / ratio(0)               of attention alone
    gain       = ln(ratio(attention and feed-forward) / ratio(attention))
    step       = f(l) - f(l - 1),  f(l) = ratio(l) / ratio(l - 1)           of attention alone

A fall is at least exponential where no factor f exceeds the one before. Gains and steps of windows
that are no more than rounding are passed over.

References
----------
Dong, Cordonnier & Loukas 2021, arXiv:2103.03404.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from headscope.core.accumulator import Array
from headscope.core.widest import widest
from headscope.models.anatomy.blocks import Variant
from headscope.stats.metrics import RunningMoments
from headscope.stats.statistics import t_half_width

COLLAPSED = 0.01  # A variant has collapsed once its ratio is below this share of where it started.

VARIANTS = (
    Variant("attention", skip=False, ffn=False),
    Variant("attention+ffn", skip=False, ffn=True),
    Variant("attention+skip", skip=True, ffn=False),
    Variant("full", skip=True, ffn=True),
    Variant("full-without-layernorm", skip=True, ffn=True, layernorm=False),
    Variant("attention-without-layernorm", skip=False, ffn=False, layernorm=False),
)
_INDEX = {variant.name: i for i, variant in enumerate(VARIANTS)}


class Comparison(NamedTuple):
    """Two variants that differ in one part: what the part protects is the difference."""

    part: str
    way: str
    having: str
    lacking: str


COMPARISONS = (
    Comparison("skip", "removed", "full", "attention+ffn"),
    Comparison("ffn", "removed", "full", "attention+skip"),
    Comparison("layernorm", "removed", "full", "full-without-layernorm"),
    Comparison("skip", "added", "attention+skip", "attention"),
    Comparison("ffn", "added", "attention+ffn", "attention"),
    Comparison("layernorm", "added", "attention", "attention-without-layernorm"),
)
#: By name, in the order of :func:`_trends`.
TRENDS = ("attention_of_start", "skip_of_start", "layernorm_change", "ffn_gain", "step_change")


def composite_norm(matrix: Tensor) -> Tensor:
    """Return sqrt(max column abs-sum * max row abs-sum) of (..., rows, columns): (...)."""
    entries = matrix.abs()
    return (entries.sum(dim=-2).amax(dim=-1) * entries.sum(dim=-1).amax(dim=-1)).sqrt()


def residual_ratio(hidden: Tensor) -> Tensor:
    """Return how far the tokens of each sequence are from one common state, (batch,).

    Shapes: ``hidden`` (batch, pos, d_model).
    """
    hidden = widest(hidden)
    residual = hidden - hidden.mean(dim=-2, keepdim=True)
    return composite_norm(residual) / composite_norm(hidden)


@dataclass(frozen=True)
class Moments:
    """Mean, standard deviation and 95% interval of the mean (Student's t) over windows.

    NaN where undefined; no deviation and no interval from a single window.
    """

    mean: Array
    std: Array
    low: Array
    high: Array
    windows: Array  # How many count


class DepthSums(RunningMoments):
    """Mean and spread over windows of every variant's ratio, of shares and of trends.

    The rows are those of VARIANTS (ratios), COMPARISONS (shares) and TRENDS, the columns the points
    0 .. n_layers.
    """

    def __init__(self, n_layers: int, floor: float = 0.0) -> None:
        super().__init__((len(VARIANTS) + len(COMPARISONS) + len(TRENDS), n_layers + 1))
        self._floor = floor

    def update(self, ratios: Array) -> None:
        """Add a batch of windows; ``ratios`` (len(VARIANTS), n_layers + 1, windows)."""
        full = ratios[_INDEX["full"]]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            shares = np.stack(
                [(ratios[_INDEX[c.having]] - ratios[_INDEX[c.lacking]]) / full for c in COMPARISONS]
            )
            trends, counted = _trends(ratios, self._floor)
            always = np.ones((len(ratios) + len(shares), *full.shape), dtype=bool)
            values = np.concatenate([ratios, shares, trends])
            self.add(values, np.concatenate([always, counted]))

    def moments(self) -> tuple[Moments, Moments, Moments]:
        """Return the moments of ratios, shares and trends, each (rows, n_layers + 1)."""
        n, mean, std = self.counts, self.means(), self.std()
        # One window says nothing about the next: no standard deviation, no interval.
        half = np.where(n > 1, t_half_width(std / np.sqrt(np.maximum(n, 1)), n), np.nan)
        ends = (len(VARIANTS), len(VARIANTS) + len(COMPARISONS))
        parts = (np.split(a, ends) for a in (mean, std, mean - half, mean + half, n))
        ratios, shares, trends = (Moments(*arrays) for arrays in zip(*parts, strict=True))
        return ratios, shares, trends


def _trends(ratios: Array, floor: float) -> tuple[Array, Array]:
    """Return trends (len(TRENDS), n_layers + 1, windows), and which of them count."""
    names = ("attention", "attention+skip", "attention+ffn", "attention-without-layernorm")
    alone, skip, ffn, bare = (ratios[_INDEX[name]] for name in names)
    start = alone[:1]
    factor = alone[1:] / alone[:-1]
    step = np.full_like(alone, np.nan)
    step[2:] = factor[1:] - factor[:-1]
    least = max(floor, np.finfo(float).tiny)  # what is less is rounding, not a smaller ratio
    gain = np.log(np.maximum(ffn, least) / np.maximum(alone, least))
    trends = np.stack([alone / start, skip / start, (alone - bare) / start, gain, step])
    counted = np.ones(trends.shape, dtype=bool)
    counted[TRENDS.index("ffn_gain")] = np.maximum(alone, ffn) > floor
    steps = counted[TRENDS.index("step_change")]
    steps[:2] = False
    steps[2:] = (alone[2:] > floor) & (alone[1:-1] > floor)
    return trends, counted


def collapsed_after(ratios: Array) -> int | None:
    """Return after how many layers the ratio stays below 1% of its start; None if it never does.

    ``ratios`` (n_layers + 1,) are one variant's; the first is the embeddings'.
    """
    above = np.flatnonzero(~(ratios < COLLAPSED * ratios[0]))
    after = int(above[-1]) + 1
    return after if after < len(ratios) else None
