"""Cheap stand-ins for full attention: what each keeps of a head's output at what cost.

With P the pattern of a head and z = P v, a form of size k or w gives another z':

============================  ===================================================================
``best``                      P_k v, P_k the best approximation of rank k (truncated SVD)
``random``                    P R^T R v, R (k, n) with entries N(0, 1/k): Linformer's theorem 1
``pooled``                    softmax(q (E k)^T scale) E v, E the mean over n/k neighbours
``window``                    full attention to the w keys around the query
``window+global``             and to and from the special tokens
``window+global+random``      and from each block of queries to a few random blocks of keys
``random-keys``               control: as many keys as ``window``, but anywhere
``uniform``                   control: the mean of v, whatever the query; cost 0
============================  ===================================================================

The error is ``||z' - z||_F / ||z||_F``: 0 for a perfect stand-in, 1 for zeros in place of z.
``best`` and ``random`` are bounds: both need P itself. ``pooled`` and the windows need not.

References
----------
Wang et al. 2020, Linformer, arXiv:2006.04768, theorem 1 and section 4; Beltagy et al. 2020,
Longformer, arXiv:2004.05150; Zaheer et al. 2020, BigBird, arXiv:2007.14062, section 2.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from headscope.attention import attention_pattern, stream_attention
from headscope.measures.accumulator import Accumulator, Array, numpy
from headscope.measures.lapack import MatrixPool, right_vectors
from headscope.measures.statistics import standard_error

__all__ = ["CONTROLS", "FORMS", "RANDOM_BLOCKS", "CheapForms", "CheapSums", "best_rank"]

#: Forms that need n x k numbers, forms that keep some of the n x n weights, and controls.
PROJECTED = ("best", "random", "pooled")
SPARSE = ("window", "window+global", "window+global+random", "random-keys")
CONTROLS = ("random-keys", "uniform")
FORMS = (*PROJECTED, *SPARSE, "uniform")
#: Random key blocks of each query block (BigBird's base setting).
RANDOM_BLOCKS = 3
#: Blocks of a sequence.
_BLOCKS = 32


class CheapForms:
    """Every cheap form at every size, for sequences of one length.

    Parameters
    ----------
    length : int
        n.
    special : tuple of int
        Positions of the special tokens, which serve as global ones; the first token if none.
    seed : int
        Of the random projections, keys and blocks; they differ between layers.
    pool : MatrixPool
        For the best rank-k approximation.
    """

    def __init__(self, length: int, special: tuple[int, ...], seed: int, pool: MatrixPool) -> None:
        self.length = length
        self.special = special or (0,)
        self.block = max(1, length // _BLOCKS)
        self._seed = seed % 2**32
        self.pool = pool
        # One layer's masks: every chunk of a layer needs them again, the next layer others.
        self._keep = functools.lru_cache(len(SPARSE) * len(self.sizes))(self._make_keep)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes k or w at which the forms are measured: n/32, n/16, ..., n/2."""
        return tuple(sorted({self.length // d for d in (32, 16, 8, 4, 2) if self.length >= d}))

    @property
    def points(self) -> list[tuple[str, int]]:
        """Return every (form, size); ``uniform`` has size 0."""
        swept = [(form, size) for form in FORMS[:-1] for size in self.sizes]
        return [*swept, ("uniform", 0)]

    def cost(self, form: str, size: int) -> float:
        """Return the fraction of the n^2 scores that a form computes."""
        if form in SPARSE:
            return float(self.keep(form, size, 0).double().mean())
        return size / self.length

    def attend(
        self, form: str, size: int, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None
    ) -> Tensor:
        """Return z' (rows, heads, n, d_head) of a form from q, k, v of the same shape."""
        if form in SPARSE:
            keep = self.keep(form, size, layer).to(q.device)
            return stream_attention(q, k, v, mask=keep, scale=scale)
        if form == "uniform":
            return v.mean(-2, keepdim=True).expand_as(v)
        if form == "random":
            projection = self._gaussian(size, layer).to(v)
            return stream_attention(q, k, projection.T @ (projection @ v), scale=scale)
        if form == "pooled":
            pooling = self._pooling(size).to(v)
            return stream_attention(q, pooling @ k, pooling @ v, scale=scale)
        heads = [
            best_rank(attention_pattern(q[:, h], k[:, h], scale=scale), v[:, h], [size], self.pool)
            for h in range(q.shape[1])
        ]
        return torch.stack([head[0] for head in heads], dim=1) if heads else torch.empty_like(v)

    def keep(self, form: str, size: int, layer: int) -> Tensor:
        """Return which keys each query keeps in a sparse form, boolean (n, n)."""
        # Only forms with random keys differ between layers.
        keep: Tensor = self._keep(form, size, layer if "random" in form else 0)
        return keep

    def _make_keep(self, form: str, size: int, layer: int) -> Tensor:
        if form == "random-keys":
            order = torch.rand(self.length, self.length, generator=self._generator(size, layer))
            return order.argsort(-1).argsort(-1) < size
        position = torch.arange(self.length)
        back = position[:, None] - position  # how far key j lies before query i
        keep = (back <= size // 2) & (-back <= (size - 1) // 2)
        if "global" in form:
            keep[:, self.special] = True
            keep[self.special, :] = True
        if "random" in form:
            keep |= self._random_blocks(size, layer)
        return keep

    def _random_blocks(self, size: int, layer: int) -> Tensor:
        block = torch.arange(self.length) // self.block
        n_blocks = int(block[-1]) + 1
        order = torch.rand(n_blocks, n_blocks, generator=self._generator(size, layer))
        chosen = order.argsort(-1).argsort(-1) < RANDOM_BLOCKS
        spread: Tensor = chosen[block][:, block]
        return spread

    def _gaussian(self, size: int, layer: int) -> Tensor:
        drawn = torch.randn(size, self.length, generator=self._generator(size, layer))
        return drawn / math.sqrt(size)

    def _pooling(self, size: int) -> Tensor:
        """Average n/size neighbours each: (size, n), rows sum to 1."""
        segment = torch.arange(self.length) * size // self.length
        member = (segment == torch.arange(size)[:, None]).double()
        pooling: Tensor = member / member.sum(-1, keepdim=True)
        return pooling

    def _generator(self, size: int, layer: int) -> torch.Generator:
        return torch.Generator().manual_seed((self._seed * 4099 + layer) * 4099 + size)


def best_rank(pattern: Tensor, v: Tensor, sizes: list[int], pool: MatrixPool) -> list[Tensor]:
    """Return P_k v for each k, with P_k = P W_k W_k^T and W_k the k leading right singular vectors.

    Parameters
    ----------
    pattern : Tensor, (..., n, n)
    v : Tensor, (..., n, d_head)
    sizes : list of int
    pool : MatrixPool
    """
    vectors = torch.from_numpy(pool.map(right_vectors, pattern).copy())
    left = pattern.cpu().double() @ vectors  # (..., n, n)
    right = vectors.mT @ v.cpu().double()  # (..., n, d_head)
    return [(left[..., :k] @ right[..., :k, :]).to(v) for k in sizes]


class CheapSums(Accumulator):
    """Sums over sequences of each head's output error and kept mass, by form and size.

    Parameters
    ----------
    forms : CheapForms
    n_layers, n_heads : int

    Attributes
    ----------
    count : array of int, (n_layers, n_heads)
    error, squares, mass : array of float, (n_layers, n_heads, points)
        Sums of the relative error of z, of its square, and of the mass on kept keys (NaN for forms
        that keep none as they are).
    """

    _sums = ("count", "error", "squares", "mass")

    def __init__(self, forms: CheapForms, n_layers: int, n_heads: int) -> None:
        self._forms = forms
        shape = (n_layers, n_heads, len(forms.points))
        self.count: Array = np.zeros(shape[:2], dtype=np.int64)
        self.error: Array = np.zeros(shape)
        self.squares: Array = np.zeros(shape)
        self.mass: Array = np.zeros(shape)

    def update(
        self,
        layer: int,
        heads: slice,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pattern: Tensor,
        z: Tensor,
        scale: float | None,
    ) -> None:
        """Add some sequences of some heads: every form against z; all (rows, heads, n, ...)."""
        best = dict(
            zip(
                self._forms.sizes,
                best_rank(pattern, v, list(self._forms.sizes), self._forms.pool),
                strict=True,
            )
        )
        self.count[layer, heads] += len(z)
        size_of_z = torch.linalg.vector_norm(z.cpu().double(), dim=(-2, -1)).clamp_min(1e-300)
        for i, (form, size) in enumerate(self._forms.points):
            ours = (
                best[size]
                if form == "best"
                else self._forms.attend(form, size, layer, q, k, v, scale)
            )
            gap = torch.linalg.vector_norm((ours - z).cpu().double(), dim=(-2, -1))
            error = numpy(gap / size_of_z)  # (rows, heads)
            self.error[layer, heads, i] += error.sum(0)
            self.squares[layer, heads, i] += (error**2).sum(0)
            self.mass[layer, heads, i] += self._kept(form, size, layer, pattern)

    def _kept(self, form: str, size: int, layer: int, pattern: Tensor) -> Array | float:
        """Sum over sequences of the mass on kept keys, (heads,)."""
        if form not in SPARSE:
            return float("nan")
        keep = self._forms.keep(form, size, layer).to(pattern.device)
        return numpy((pattern * keep).cpu().double().sum(-1).mean(-1).sum(0))

    def means(self, name: str) -> Array:
        """Mean over sequences of ``error`` or ``mass``; NaN where there is none."""
        with np.errstate(invalid="ignore"):
            mean: Array = getattr(self, name) / self.count[..., None]
        return mean

    def standard_errors(self) -> Array:
        """Standard error of the mean error; NaN for one sequence."""
        return standard_error(self.error, self.squares, self.count[..., None])
