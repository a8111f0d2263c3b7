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
    """Sums over windows of every variant's ratio at every point, and of what each part protects.

    Parameters
    ----------
    n_layers : int

    Attributes
    ----------
    ratios, ratios_squared : array of float, (len(VARIANTS), n_layers + 1)
    shares, shares_squared : array of float, (len(COMPARISONS), n_layers + 1)
    windows : int array, ()
    """

    _sums = ("ratios", "ratios_squared", "shares", "shares_squared", "windows")

    def __init__(self, n_layers: int) -> None:
        self.ratios = np.zeros((len(VARIANTS), n_layers + 1))
        self.ratios_squared = np.zeros_like(self.ratios)
        self.shares = np.zeros((len(COMPARISONS), n_layers + 1))
        self.shares_squared = np.zeros_like(self.shares)
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
        self.ratios += ratios.sum(axis=-1)
        self.ratios_squared += np.square(ratios).sum(axis=-1)
        self.shares += shares.sum(axis=-1)
        self.shares_squared += np.square(shares).sum(axis=-1)
        self.windows = self.windows + ratios.shape[-1]

    def ratio_moments(self) -> Moments:
        """Moments of the ratios, each array (len(VARIANTS), n_layers + 1)."""
        return self._moments(self.ratios, self.ratios_squared)

    def share_moments(self) -> Moments:
        """Moments of the shares, each array (len(COMPARISONS), n_layers + 1)."""
        return self._moments(self.shares, self.shares_squared)

    def _moments(self, sums: Array, squares: Array) -> Moments:
        n = float(self.windows)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = sums / n
            # One window says nothing about the next: no standard deviation, no interval.
            freedom = n - 1 if n > 1 else np.nan
            std = np.sqrt(np.clip(squares - n * mean**2, 0.0, None) / freedom)
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
