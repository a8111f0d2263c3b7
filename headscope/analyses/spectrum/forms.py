"""Cheap stand-ins for full attention: what each keeps of a head's output at what cost.

With P the pattern of a head (n x n, after the softmax) and z = P v, a form of size k or w gives
another z':

============================  ===================================================================
``truncated``                 P_k v: P cut to its k largest singular values
``bound``                     z_k: z itself cut to its k largest singular values
``random``                    P R^T R v, R (k, n) with entries N(0, 1/k): Linformer's theorem 1
``pooled``                    softmax(q (E k)^T scale) E v, E the mean over n/k neighbours
``window``                    full attention to the w keys around the query
``window+global``             and to and from the special tokens
``window+global+random``      and from each block of queries to a few random blocks of keys
``random-keys``               control: as many keys as ``window``, but anywhere
``uniform``                   control: the mean of v, whatever the query; cost 0
============================  ===================================================================

The forms obey the model's mask. No form sees a key that the model may not see: where no query sees
a later key, a window ends at its query. A bias that the model adds to the scores of pairs of
positions is added here, too. ``pooled`` has means of keys in place of positions, so it is measured
only where the scores are ``q k^T scale`` and nothing else.

The error is ``||z' - z||_F / ||z||_F``: 0 for a perfect stand-in, 1 for zeros in place of outputs.
Whatever projects K and V to k rows gives a z' of rank k at most, so its error is at least that of
``bound`` (Eckart & Young 1936), which is 0 from k = d_head on. ``truncated`` is the best
approximation of rank k of P, not of P v: it is no bound. Both need P or z themselves, and so does
``random``; ``pooled`` and the windows need not. What is drawn at random is drawn several times.

:meth:`CheapForms.attend` puts a form in place of attention; :meth:`CheapForms.errors` compares all
forms with full attention, head by head. Layers are numbered by their ``row``, their place among all
measured layers. A mask is a boolean tensor, True where a query may see a key; or a floating-point
one that is added to the scores, with very negative numbers where it may not, and a bias elsewhere.
A *sparse* form keeps some keys for each query; :meth:`CheapForms.keep` says which.

References
----------
Wang et al. 2020, Linformer, arXiv:2006.04768, theorem 1 and section 4; Beltagy et al. 2020,
Longformer, arXiv:2004.05150; Zaheer et al. 2020, BigBird, arXiv:2007.14062, section 2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.spectrum.matrix_pool import MatrixPool, right_vectors
from headscope.attention import Mask, stream_attention, with_bias
from headscope.core.accumulator import Array, numpy
from headscope.core.activations import visible

#: Forms that keep some of the n x n weights.
SPARSE = ("window", "window+global", "window+global+random", "random-keys")
FORMS = ("truncated", "bound", "random", "pooled", *SPARSE, "uniform")
CONTROLS = ("random-keys", "uniform")
RANDOM = ("random", "window+global+random", "random-keys")  # Forms in which something is drawn
PLAIN_ONLY = ("pooled",)  # Forms that need scores of ``q k^T scale`` and nothing else
DRAWS = 5  # Draws of each random form
RANDOM_BLOCKS = 3  # Random key blocks of each query block (BigBird's base setting)
_BLOCKS = 32  # Blocks that a sequence is cut into for the random blocks


class CheapForms:
    """Every cheap form at every size, for sequences of one length."""

    def __init__(
        self,
        length: int,
        special: tuple[int, ...],
        seed: int,
        pool: MatrixPool,
        masks: Mapping[int, Mask] | None = None,
        softcaps: Mapping[int, float | None] | None = None,
    ) -> None:
        """Prepare the forms that a model's masks allow.

        ``special`` are the positions of special tokens, the first position where there are none;
        ``pool`` decomposes matrices on all cores. ``masks`` has the mask of every layer for a
        sequence without padding; None where there is no model, and so no mask. ``softcaps`` has
        what bounds the scores of every layer.
        """
        self.length = length
        self.special = special or (0,)
        self.pool = pool
        self._seed = seed
        self._softcaps = softcaps or {}

        # What the masks forbid, and whether they add to the scores of what they do not forbid.
        masks = masks or {}
        self._layers = list(masks)
        self._all_keys = torch.ones(length, length, dtype=torch.bool)
        #: Which keys each query may see, (n, n): of the layers where these are not all keys.
        self._seen: dict[int, Tensor] = {}
        has_bias = False
        for layer, mask in masks.items():
            if mask is None:
                continue
            seen = visible(mask)  # boolean, [1, heads or 1, n, n]
            if mask.dtype != torch.bool and bool(mask.masked_fill(~seen, 0.0).any()):
                has_bias = True
            if not seen.all():
                # All heads of a layer see the same keys, so the first stands for all.
                self._seen[layer] = seen.flatten(0, -3)[0].cpu()

        #: Forms that this model's scores rule out.
        self.left_out = PLAIN_ONLY if has_bias or self._seen else ()
        #: Sizes k or w at which the forms are measured: n/32, n/16, ..., n/2.
        divisors = (32, 16, 8, 4, 2)
        self.sizes = sorted({length // divisor for divisor in divisors if length >= divisor})
        #: What is measured: every (form, size), such as ("window", 16); ``uniform`` has size 0.
        self.points: list[tuple[str, int]] = []
        for form in FORMS:
            if form not in (*self.left_out, "uniform"):
                self.points += [(form, size) for size in self.sizes]
        self.points.append(("uniform", 0))
        # ``keep`` is :meth:`_keep` with a cache. It has room for one layer, whose chunks all ask
        # for the same kept keys; the next layer asks for others.
        n_of_layer = sum(self.draws(form) for form in SPARSE) * len(self.sizes)
        self.keep = functools.lru_cache(n_of_layer)(self._keep)

    def draws(self, form: str) -> int:
        """Return how often a form is drawn: once where nothing in it is random."""
        return DRAWS if form in RANDOM else 1

    def cost(self, form: str, size: int) -> float:
        """Return the fraction of the n^2 scores that a form computes, mean of layers and draws."""
        if form not in SPARSE:
            return size / self.length
        # Where all layers see every key, they differ by chance alone, and one stands for all.
        kept_keys = []
        layers = self._layers if self._seen else [0]
        for layer in layers:
            kept_keys += [self.keep(form, size, layer, draw) for draw in range(self.draws(form))]
        return float(torch.stack(kept_keys).double().mean())

    def attend(
        self,
        form: str,
        size: int,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float | None,
        draw: int = 0,
        mask: Mask = None,
    ) -> Tensor:
        """Compute z' of one form, at one size.

        ``draw`` says which of several draws; ``mask`` is None where the model has none. Shapes:
        ``q``, ``k``, ``v`` and the result (sequences, heads, n, d_head).
        """
        softcap = self._softcaps.get(layer)
        if form in SPARSE:
            keep = self.keep(form, size, layer, draw).to(q.device)
            # ``keep`` leaves out what the mask forbids; a bias that the mask adds stays.
            bias = None if mask is None or mask.dtype == torch.bool else mask
            return stream_attention(
                q, k, v, mask=with_bias(keep, bias), scale=scale, softcap=softcap
            )
        if form == "random":
            R = self.projection(size, layer, draw).to(v)
            return stream_attention(q, k, R.T @ (R @ v), mask=mask, scale=scale, softcap=softcap)
        if form == "pooled":
            # E: n = 6 and size 3 -> segments [0, 0, 1, 1, 2, 2], each averaged by a row of E.
            segment = torch.arange(self.length) * size // self.length
            in_segment = segment == torch.arange(size)[:, None]  # (size, n)
            E = _means_of(in_segment).to(v)
            return stream_attention(q, E @ k, E @ v, scale=scale, softcap=softcap)
        if form == "uniform":
            seen = self._seen.get(layer, self._all_keys)
            return _means_of(seen).to(v) @ v

        # The other two need P, or z, of full attention, which comes in chunks.
        approximation = torch.empty_like(v)

        def approximate(rows: slice, heads: slice, pattern: Tensor, z: Tensor) -> None:
            """Note P_k v, or z_k, of some sequences and heads of full attention."""
            if form == "truncated":
                (z_of_form,) = low_rank(pattern, v[rows, heads], [size], self.pool)
            else:
                assert form == "bound"
                (z_of_form,) = low_rank(z, None, [size], self.pool)
            approximation[rows, heads] = z_of_form

        stream_attention(q, k, v, mask=mask, scale=scale, softcap=softcap, visit=approximate)
        return approximation

    def errors(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pattern: Tensor,
        z: Tensor,
        scale: float | None,
        mask: Mask = None,
    ) -> tuple[Array, Array]:
        """Compare every form with z, on some sequences and heads of a layer.

        ``q``, ``k``, ``v`` and z are (sequences, heads, n, d_head), ``pattern`` (sequences, heads,
        n, n); ``scale`` is 1 / sqrt(d_head) if None. Returns two arrays (sequences, DRAWS, heads,
        points): the relative error of every form, and the *mass*, the share of the pattern that
        lies on the keys which a sparse form keeps (NaN for other forms). A form in which nothing is
        random has the same numbers for every draw.
        """
        error = np.full((len(q), DRAWS, q.shape[1], len(self.points)), np.nan)
        mass = error.copy()
        z_by_size = {  # one decomposition serves all sizes
            "truncated": low_rank(pattern, v, self.sizes, self.pool),
            "bound": low_rank(z, None, self.sizes, self.pool),
        }
        norm = torch.linalg.vector_norm(z.cpu().double(), dim=(-2, -1))  # (sequences, heads)
        norm = norm.clamp_min(1e-300)  # so that nothing is divided by 0
        for point, (form, size) in enumerate(self.points):
            n_draws = self.draws(form)
            for draw in range(n_draws):
                if form in z_by_size:
                    z_of_form = z_by_size[form][self.sizes.index(size)]
                else:
                    z_of_form = self.attend(
                        form, size, layer, q=q, k=k, v=v, scale=scale, draw=draw, mask=mask
                    )
                # A form that is drawn once has its numbers at every draw.
                same_draws = slice(draw, draw + 1) if n_draws > 1 else slice(None)
                gap = torch.linalg.vector_norm((z_of_form - z).cpu().double(), dim=(-2, -1))
                error[:, same_draws, :, point] = numpy(gap / norm)[:, None]  # [sequences, 1, heads]
                if form in SPARSE:
                    keep = self.keep(form, size, layer, draw).to(pattern.device)
                    kept_mass = (pattern * keep).cpu().double().sum(-1).mean(-1)
                    mass[:, same_draws, :, point] = numpy(kept_mass)[:, None]
        return error, mass

    def _keep(self, form: str, size: int, layer: int, draw: int = 0) -> Tensor:
        """Return which keys each query keeps in a sparse form, boolean (queries n, keys n)."""
        length = self.length
        seen = self._seen.get(layer, self._all_keys)
        generator = draw_generator(self._seed, layer, size, draw)
        if form == "random-keys":
            return _lowest(torch.rand(length, length, generator=generator), seen, size)

        # The window: ``size`` keys around the query, or before it where no later key is seen.
        n_after = 0 if looks_back(seen) else (size - 1) // 2
        n_before = size - 1 - n_after
        position = torch.arange(length)
        distance_back = position[:, None] - position  # how far key j lies before query i
        keep = (distance_back <= n_before) & (distance_back >= -n_after)
        if "global" in form:
            keep[:, self.special] = True
            keep[self.special, :] = True
        if "random" in form:  # blocks of keys for each block of queries
            block = position // max(1, length // _BLOCKS)  # the block of each position
            n_blocks = int(block[-1]) + 1
            in_block = (block == torch.arange(n_blocks)[:, None]).double()  # (n_blocks, n)
            # A block of keys can be chosen if any of its keys is seen by any query of the block.
            seen_blocks = in_block @ seen.double() @ in_block.T > 0  # (n_blocks, n_blocks)
            order = torch.rand(n_blocks, n_blocks, generator=generator)
            chosen_blocks = _lowest(order, seen_blocks, RANDOM_BLOCKS)
            keep |= chosen_blocks[block][:, block]  # each block's entry for its positions: (n, n)
        return keep & seen

    def projection(self, size: int, layer: int, draw: int) -> Tensor:
        """Draw R of ``random``, (size, n), with entries N(0, 1 / size)."""
        generator = draw_generator(self._seed, layer, size, draw)
        return torch.randn(size, self.length, generator=generator) / math.sqrt(size)


# --- what a sparse form keeps, and means ----------------------------------------------------------


def _lowest(order: Tensor, seen: Tensor, count: int) -> Tensor:
    """Choose in each row the ``count`` lowest numbers in [0, 1), of those that are ``seen``.

    The lowest two of [0.7, 0.1, 0.4, 0.2], all seen but the last: [False, True, True, False].
    """
    # The indices that sort the sorting indices are each number's place in its row: [3, 0, 2, 1].
    place_in_row = order.masked_fill(~seen, 1.0).argsort(-1).argsort(-1)
    return (place_in_row < count) & seen


def _means_of(chosen: Tensor) -> Tensor:
    """Return the weights of the mean over what each row chooses: [1, 0, 1, 0] -> [.5, 0, .5, 0]."""
    return chosen.double() / chosen.sum(-1, keepdim=True)


# --- draws, masks and low rank --------------------------------------------------------------------


def draw_generator(seed: int, row: int, number: int, draw: int) -> torch.Generator:
    """Return the generator of one draw in one layer.

    ``row`` is the layer's place among all measured ones; ``number`` tells kinds of draws in a layer
    apart (here the size of the form). Multiplied by primes, each combination has its own seed.
    """
    mixed = (seed % 2**32 * 4099 + row) * 4099 + number
    return torch.Generator().manual_seed((mixed * 61 + draw) % 2**63)


def without_padding(mask: Mask) -> Mask:
    """Return a mask, or None if it forbids nothing and adds nothing."""
    if mask is None:
        return None
    allows = mask if mask.dtype == torch.bool else mask == 0
    return None if bool(allows.all()) else mask


def looks_back(seen: Tensor) -> bool:
    """Whether no query sees a later key; ``seen`` is (n, n)."""
    return not bool(seen.triu(1).any())


def low_rank(matrix: Tensor, v: Tensor | None, sizes: list[int], pool: MatrixPool) -> list[Tensor]:
    """Return M_k v for each k of ``sizes``; without ``v``, M_k itself.

    M_k = M W_k W_k^T is the best approximation of rank k of M (Eckart & Young 1936), with W_k its k
    leading right singular vectors, computed in float64 on the CPU. From M's number of columns on it
    is M.

    Shapes: ``matrix`` (..., n, m), ``v`` (..., m, d_head); returns (..., n, d_head or m) each, in
    the matrix's dtype and device.
    """
    vectors = torch.from_numpy(pool(right_vectors, matrix))  # W, (..., m, m)
    M_W = matrix.cpu().double() @ vectors  # (..., n, m)
    W_v = vectors.mT  # (..., m, d_head or m)
    if v is not None:
        W_v = vectors.mT @ v.cpu().double()
    approximations = []
    for k in sizes:
        if v is None and k >= matrix.shape[-1]:
            approximations.append(matrix)
        else:
            approximations.append((M_W[..., :k] @ W_v[..., :k, :]).to(matrix))
    return approximations
