"""The spectrum of attention patterns: what the largest singular values of a softmax matrix hold.

For the pattern P (n x n) of one head on one sequence, with singular values sigma_1 >= sigma_2 ...::

    share(k)    = sum_{i<=k} sigma_i   / sum_i sigma_i
    share_sq(k) = sum_{i<=k} sigma_i^2 / sum_i sigma_i^2

and means of both over sequences of exactly n tokens; a padded row would fake low rank. In names
``curve`` is share(1..n), and ``sq`` means of the squares sigma^2.

:class:`Spectrum` holds the sums over sequences, and :class:`PatternSpectra` adds to them while a
model runs. :func:`known_patterns` are the controls, which need no model.

References
----------
Wang et al. 2020, Linformer, arXiv:2006.04768, section 3 ("normalized cumulative singular value").
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from headscope.analyses.classify.rows import OFFSETS
from headscope.analyses.spectrum.matrix_pool import MatrixPool, singular_values
from headscope.analyses.spectrum.result import SpectrumControl
from headscope.core.accumulator import Accumulator, Array, numpy, zeros
from headscope.core.activations import Activations
from headscope.models.run.routing import SiteObserver
from headscope.stats.statistics import ratio, standard_error, t_half_width

DRAWS = 5  # Draws of random logits that are averaged; their shares differ in the third digit.


def shares(sigma: Array) -> Array:
    """Return the share that the k largest of descending values (..., n) hold, for k = 1..n.

    [3, 1] -> [0.75, 1]. It rises to exactly 1; all are 1 where every value is 0.
    """
    sums = np.cumsum(sigma, axis=-1)
    total = sums[..., -1:]
    nonzero_total = np.where(total > 0, total, 1.0)
    return np.where(total > 0, sums / nonzero_total, 1.0)


class Spectrum(Accumulator):
    """Sums over sequences of each head's curves, and of its attention to fixed offsets.

    An offset is the position of a key relative to its query: OFFSETS are -5 to 5 without 0.
    """

    def __init__(self, n_layers: int, n_heads: int, length: int) -> None:
        shape = (n_layers, n_heads, length)
        self.count: Array = np.zeros((n_layers, n_heads), dtype=np.int64)  # sequences
        # Sums over sequences of share(k) and of share_sq(k). Those that end in ``_squares`` are
        # sums of the same numbers squared, from which standard errors follow.
        self.curve, self.curve_squares, self.curve_sq, self.curve_sq_squares = zeros(4, *shape)
        self.offsets: Array = np.zeros((n_layers, n_heads, len(OFFSETS)))  # sums of mean weights

    def update(self, layer: int, heads: slice, sigma: Array, offsets: Array) -> None:
        """Add some sequences of some heads of a layer.

        ``sigma`` (sequences, heads, length) descends; ``offsets`` (sequences, heads, len(OFFSETS))
        is the mean weight at each offset.
        """
        curve = shares(sigma)
        curve_sq = shares(sigma**2)
        self.count[layer, heads] += len(sigma)
        self.curve[layer, heads] += curve.sum(0)
        self.curve_squares[layer, heads] += (curve**2).sum(0)
        self.curve_sq[layer, heads] += curve_sq.sum(0)
        self.curve_sq_squares[layer, heads] += (curve_sq**2).sum(0)
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
        total = getattr(self, name)
        squares = getattr(self, f"{name}_squares")
        return standard_error(total, squares, self.count[..., None])

    def half_widths(self, k: int, name: str = "curve") -> Array:
        """Half of the 95% interval (Student's t) of the share at k; (n_layers, n_heads).

        NaN where there is no head, infinite for a single sequence.
        """
        return t_half_width(self.standard_errors(name)[..., k - 1], self.count)

    def worst_half_width(self, k: int) -> float:
        """Widest of :meth:`half_widths` over all heads."""
        return float(np.nanmax(self.half_widths(k)))


class PatternSpectra(SiteObserver):
    """Adds what it observes of a running model to a :class:`Spectrum`, chunk by chunk.

    A chunk, an :class:`Activations`, has the patterns of some sequences and heads of a layer.
    ``content`` gives the query positions of a stack that are not special tokens; ``sums`` may be
    exchanged between batches.
    """

    def __init__(self, sums: Spectrum, pool: MatrixPool, content: Callable[[str], slice]) -> None:
        self.sums = sums
        self._pool = pool
        self._content = content

    def observe(self, site: Activations) -> None:
        """Decompose one chunk of patterns."""
        content = self._content(site.stack)
        first = content.start or 0  # a slice from the beginning has no start
        content_rows = site.pattern[..., content, :]  # (sequences, heads, content queries, keys)
        n_queries, n_keys = content_rows.shape[-2:]
        # The mean weight at each offset. Row i is the query at position first + i, and looks at
        # key first + i + offset: that is the diagonal number first + offset.
        means = []
        for offset in OFFSETS:
            diagonal = first + offset
            if -n_queries < diagonal < n_keys:
                means.append(content_rows.diagonal(diagonal, -2, -1).mean(-1))
            else:
                means.append(content_rows.new_zeros(content_rows.shape[:2]))
        offsets = numpy(torch.stack(means, dim=-1).cpu().double())
        sigma = self._pool(singular_values, site.pattern)
        self.sums.update(site.row, site.heads, sigma, offsets)


def known_patterns(
    length: int, seed: int, k: int, *, causal: bool = False
) -> dict[str, SpectrumControl]:
    """Return what the k largest singular values of each control pattern hold, by name.

    ``random-logits`` are softmax(N(0, 1)), drawn; the singular values of the others are known:
    ``uniform`` attention to all tokens, ``identity`` (each token to itself) and ``previous-token``.
    In a ``causal`` stack uniform attention and random logits are those over visible keys.
    """
    visible = np.tri(length) if causal else np.ones((length, length))
    uniform = np.eye(1, length)[0]  # rank one, where all tokens are visible
    if causal:
        uniform = singular_values(visible / visible.sum(axis=-1, keepdims=True))
    # The first two tokens both look at the first: one singular value of sqrt(2), and one of 0.
    previous = np.ones(length)
    previous[0] = np.sqrt(2.0)
    previous[-1] = 0.0
    generator = np.random.default_rng(seed % 2**64)
    drawn: list[Array] = []
    for _ in range(DRAWS):
        weights = np.exp(generator.standard_normal((length, length))) * visible
        drawn.append(singular_values(weights / weights.sum(axis=-1, keepdims=True)))
    spectra = {
        "uniform": [uniform],
        "identity": [np.ones(length)],
        "previous-token": [previous],
        "random-logits": drawn,
    }
    controls = {}
    for name, sigma in spectra.items():
        curves = shares(np.array(sigma))  # (draws, length)
        curve = curves.mean(axis=0)
        curve_sq = shares(np.square(sigma)).mean(axis=0)
        controls[name] = SpectrumControl(
            share_at_k=float(curve[k - 1]),
            share_sq_at_k=float(curve_sq[k - 1]),
            curve=tuple(curve.tolist()),
            curve_sq=tuple(curve_sq.tolist()),
            std=float(curves[:, k - 1].std(ddof=1)) if len(sigma) > 1 else None,
            draws=len(sigma),
        )
    return controls
