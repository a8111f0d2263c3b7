r"""How much of the tokens' differences survives with depth: the residual, layer by layer.

A sequence's hidden states ``H`` (pos, d_model) are compared with the nearest matrix all of whose
rows are equal, ``1 mean(H)^T``::

    res(H) = H - 1 mean(H)^T                mean over positions
    ratio  = ||res(H)|| / ||H||             ||M|| = sqrt(max column abs-sum * max row abs-sum)

The ratio is 0 when every token has the same state (rank one), whatever that state is.

A layer is re-run without some of its parts. A *variant* names the parts that stay; attention is
always one of them. What a part protects, after a number of layers, is the share of the full model's
residual that it makes the difference to, window by window::

    removed  = (ratio(full) - ratio(full without the part)) / ratio(full)
    added    = (ratio(attention and the part) - ratio(attention)) / ratio(full)

References
----------
Dong, Cordonnier & Loukas 2021, arXiv:2103.03404.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from torch import Tensor

from headscope.measures.accumulator import Accumulator, Array
from headscope.measures.statistics import normal_interval

__all__ = [
    "COMPARISONS",
    "VARIANTS",
    "Comparison",
    "DepthSums",
    "Moments",
    "Variant",
    "collapsed_after",
    "composite_norm",
    "residual_ratio",
]

#: A variant has collapsed once its ratio is below this share of where it started.
COLLAPSED = 0.01


@dataclass(frozen=True)
class Variant:
    """Which parts of a layer stay beside attention.

    Attributes
    ----------
    name : str
    skip : bool
        The skip connection around attention.
    ffn : bool
        The feed-forward sublayer, with its own skip connection and LayerNorm.
    layernorm : bool
        The LayerNorms of the sublayers that stay.
    """

    name: str
    skip: bool
    ffn: bool
    layernorm: bool = True


VARIANTS = (
    Variant("attention", skip=False, ffn=False),
    Variant("attention+ffn", skip=False, ffn=True),
    Variant("attention+skip", skip=True, ffn=False),
    Variant("full", skip=True, ffn=True),
    Variant("full-without-layernorm", skip=True, ffn=True, layernorm=False),
    Variant("attention-without-layernorm", skip=False, ffn=False, layernorm=False),
)
_INDEX = {variant.name: i for i, variant in enumerate(VARIANTS)}


@dataclass(frozen=True)
class Comparison:
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


def composite_norm(matrix: Tensor) -> Tensor:
    """Return sqrt(max column abs-sum * max row abs-sum) of (..., rows, columns): (...)."""
    entries = matrix.abs()
    by_column = entries.sum(dim=-2).amax(dim=-1)
    by_row = entries.sum(dim=-1).amax(dim=-1)
    return (by_column * by_row).sqrt()


def residual_ratio(hidden: Tensor) -> Tensor:
    """Return how far each sequence is from having the same state at every token.

    Parameters
    ----------
    hidden : Tensor, (batch, pos, d_model)
        Any dtype; the ratio is taken in float64.

    Returns
    -------
    Tensor of float64, (batch,), at least 0
        0 if all rows are equal; NaN for states that are all zero or not finite.

    Notes
    -----
    States computed in a dtype of precision eps cannot show a ratio below about eps: rows that
    should be equal then differ by rounding alone.
    """
    hidden = hidden.double()
    residual = hidden - hidden.mean(dim=-2, keepdim=True)
    return composite_norm(residual) / composite_norm(hidden)


@dataclass(frozen=True)
class Moments:
    """Mean, standard deviation and 95% interval of the mean over windows; NaN where undefined."""

    mean: Array
    std: Array
    low: Array
    high: Array


class DepthSums(Accumulator):
    """Mean and spread over windows of every variant's ratio, and of what each part protects.

    Kept as means and sums of squared deviations: plain sums of squares would drown the spread of a
    share that is 1 in every window but for its tenth digit.

    Parameters
    ----------
    n_layers : int

    Attributes
    ----------
    mean, squares : array of float, (len(VARIANTS) + len(COMPARISONS), n_layers + 1)
        Of the ratios, then of the shares; ``squares`` are summed squared deviations from the mean.
    windows : int array, ()

    References
    ----------
    Chan, Golub & LeVeque 1983, The American Statistician 37.
    """

    _sums = ("mean", "squares", "windows")

    def __init__(self, n_layers: int) -> None:
        self.mean = np.zeros((len(VARIANTS) + len(COMPARISONS), n_layers + 1))
        self.squares = np.zeros_like(self.mean)
        self.windows = np.zeros((), dtype=np.int64)

    def update(self, ratios: Array) -> None:
        """Add a batch of windows.

        Parameters
        ----------
        ratios : array of float, (len(VARIANTS), n_layers + 1, windows)
            Point 0 is the embeddings, point l the output of the l-th layer.
        """
        full = ratios[_INDEX["full"]]
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = np.stack(
                [(ratios[_INDEX[c.having]] - ratios[_INDEX[c.lacking]]) / full for c in COMPARISONS]
            )
            values = np.concatenate([ratios, shares])
            mean = values.mean(axis=-1)
            squares = np.square(values - mean[..., None]).sum(axis=-1)
        self._join(mean, squares, ratios.shape[-1])

    def merge(self, other: Self) -> None:
        """Add the windows of another accumulator of the same model."""
        self._join(other.mean, other.squares, int(other.windows))

    def _join(self, mean: Array, squares: Array, windows: int) -> None:
        before, after = int(self.windows), int(self.windows) + windows
        if windows == 0:
            return
        gap = mean - self.mean
        self.squares = self.squares + squares + gap**2 * (before * windows / after)
        self.mean = self.mean + gap * (windows / after)
        self.windows = np.array(after, dtype=np.int64)

    def ratio_moments(self) -> Moments:
        """Moments of the ratios, each array (len(VARIANTS), n_layers + 1)."""
        return self._moments(slice(None, len(VARIANTS)))

    def share_moments(self) -> Moments:
        """Moments of the shares, each array (len(COMPARISONS), n_layers + 1)."""
        return self._moments(slice(len(VARIANTS), None))

    def _moments(self, rows: slice) -> Moments:
        n = int(self.windows)
        mean = self.mean[rows]
        # One window says nothing about the next: no standard deviation, no interval.
        std = np.sqrt(self.squares[rows] / (n - 1)) if n > 1 else np.full_like(mean, np.nan)
        low, high = normal_interval(mean, std / np.sqrt(n))
        return Moments(mean, std, low, high)


def collapsed_after(ratios: Array) -> int | None:
    """Return after how many layers the ratio stays below 1% of its start; None if it never does.

    Parameters
    ----------
    ratios : array of float, (n_layers + 1,)
        One variant's ratios; the first is the embeddings'.
    """
    above = np.flatnonzero(~(ratios < COLLAPSED * ratios[0]))
    after = int(above[-1]) + 1
    return after if after < len(ratios) else None
