"""The spectrum of attention patterns: what the largest singular values of a softmax matrix hold.

For the pattern P (n x n) of one head on one sequence, with singular values sigma_1 >= sigma_2 ...::

    share(k)    = sum_{i<=k} sigma_i   / sum_i sigma_i
    share_sq(k) = sum_{i<=k} sigma_i^2 / sum_i sigma_i^2

and means of both over sequences of exactly n tokens; a padded row would fake low rank.

References
----------
Wang et al. 2020, Linformer, arXiv:2006.04768, section 3 ("normalized cumulative singular value").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from headscope.measures.accumulator import Accumulator, Array, numpy, zeros
from headscope.measures.activations import Activations
from headscope.measures.classify.rows import OFFSETS
from headscope.measures.spectrum.decompositions import MatrixPool, singular_values
from headscope.measures.statistics import ratio, standard_error, t_half_width


def shares(sigma: Array) -> Array:
    """Return the share that the k largest of descending values (..., n) hold, for k = 1..n.

    Rises to exactly 1; all 1 where every value is 0.
    """
    total = np.cumsum(sigma, axis=-1)
    whole = total[..., -1:]
    return np.where(whole > 0, total / np.where(whole > 0, whole, 1.0), 1.0)


class Spectrum(Accumulator):
    """Sums over sequences of each head's curves, and of its attention to fixed offsets.

    Parameters
    ----------
    n_layers, n_heads, length : int
        Layers, heads of the layer that has most, and tokens of a sequence.

    Attributes
    ----------
    count : array of int, (n_layers, n_heads)
        Sequences; 0 where a layer has fewer heads than others.
    curve, curve_squares : array of float, (n_layers, n_heads, length)
        Sum over sequences of share(k), and of its square.
    curve_sq, curve_sq_squares : array of float, (n_layers, n_heads, length)
        The same of share_sq(k).
    offsets : array of float, (n_layers, n_heads, len(OFFSETS))
        Sum over sequences of the mean weight P[i, i + r] over content queries i.
    """

    def __init__(self, n_layers: int, n_heads: int, length: int) -> None:
        shape = (n_layers, n_heads, length)
        self.count: Array = np.zeros((n_layers, n_heads), dtype=np.int64)
        self.curve, self.curve_squares, self.curve_sq, self.curve_sq_squares = zeros(4, *shape)
        self.offsets: Array = np.zeros((n_layers, n_heads, len(OFFSETS)))

    def update(self, layer: int, heads: slice, sigma: Array, offsets: Array) -> None:
        """Add some sequences of some heads of a layer.

        ``sigma`` (sequences, heads, length) descends; ``offsets`` (sequences, heads, len(OFFSETS))
        is the mean weight at each offset.
        """
        plain, squared = shares(sigma), shares(sigma**2)
        self.count[layer, heads] += len(sigma)
        self.curve[layer, heads] += plain.sum(0)
        self.curve_squares[layer, heads] += (plain**2).sum(0)
        self.curve_sq[layer, heads] += squared.sum(0)
        self.curve_sq_squares[layer, heads] += (squared**2).sum(0)
        self.offsets[layer, heads] += offsets.sum(0)

    @property
    def sequences(self) -> int:
        """Sequences measured."""
        return int(self.count.max(initial=0))

    def means(self, name: str = "curve") -> Array:
        """Mean over sequences of ``curve``, ``curve_sq`` or ``offsets``; NaN without a head."""
        return ratio(getattr(self, name), self.count[..., None])

    def standard_errors(self, name: str = "curve") -> Array:
        """Standard error of :meth:`means`, (n_layers, n_heads, length); NaN for one sequence."""
        total, squares = getattr(self, name), getattr(self, f"{name}_squares")
        return standard_error(total, squares, self.count[..., None])

    def half_widths(self, k: int) -> Array:
        """Half of the 95% interval (Student's t) of the share at k; (n_layers, n_heads).

        NaN where there is no head, infinite for a single sequence.
        """
        return t_half_width(self.standard_errors()[..., k - 1], self.count)

    def worst_half_width(self, k: int) -> float:
        """Return the widest of :meth:`half_widths` over all heads."""
        return float(np.nanmax(self.half_widths(k)))


class PatternSpectra:
    """The observer that feeds a :class:`Spectrum`; it holds a few patterns at a time.

    ``content`` says for a stack which of its query positions are not special tokens; :meth:`into`
    changes the sums that are added to.
    """

    def __init__(self, sums: Spectrum, pool: MatrixPool, content: Callable[[str], slice]) -> None:
        self._sums = sums
        self._pool = pool
        self._content = content
        self._waiting: deque[tuple[int, slice, Callable[[], Array], Array]] = deque()

    def into(self, sums: Spectrum) -> None:
        """Add what is observed from here on to other sums."""
        self._sums = sums

    def observe(self, site: Activations) -> None:
        """Start on one chunk of patterns; wait for the first when enough of them are under way."""
        if len(self._waiting) >= 2 * self._pool.workers:
            self._take()
        offsets = numpy(_offset_means(site, self._content(site.stack)))
        sigma = self._pool.submit(singular_values, site.pattern)
        self._waiting.append((site.row, site.heads, sigma, offsets))

    def finish(self, stack: str, layer: int) -> None:
        """Wait for the layer: the model's own threads and ours should not compete."""
        while self._waiting:
            self._take()

    def _take(self) -> None:
        layer, heads, sigma, offsets = self._waiting.popleft()
        self._sums.update(layer, heads, sigma(), offsets)


def _offset_means(site: Activations, content: slice) -> Tensor:
    """Mean of P[i, i + r] over content queries i: (rows, heads, len(OFFSETS))."""
    first = content.start or 0
    queries = site.pattern[..., content, :]
    n_queries, n_keys = queries.shape[-2:]
    means = [
        queries.diagonal(first + r, -2, -1).mean(-1)
        if -n_queries < first + r < n_keys
        else queries.new_zeros(queries.shape[:2])
        for r in OFFSETS
    ]
    return torch.stack(means, dim=-1).cpu().double()
