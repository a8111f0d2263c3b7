"""Cheap stand-ins for full attention: what each keeps of a head's output at what cost.

With P the pattern of a head and z = P v, a form of size k or w gives another z':

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

What a model adds to its scores stays where pairs of positions do, and no form sees a key that the
model may not see: a window that may not look ahead ends at its query.
``pooled`` has no pairs left, so it is measured only where the scores are ``q k^T scale`` and
nothing else.

The error is ``||z' - z||_F / ||z||_F``: 0 for a perfect stand-in, 1 for zeros in place of z.
Whatever projects K and V to k rows gives a z' of rank k at most, so its error is at least that of
``bound`` (Eckart & Young 1936), which is 0 from k = d_head on. ``truncated`` is the best
approximation of rank k of P, not of P v: it is no bound. Both need P or z themselves, and so does
``random``; ``pooled`` and the windows need not. What is drawn at random is drawn several times.

References
----------
Wang et al. 2020, Linformer, arXiv:2006.04768, theorem 1 and section 4; Beltagy et al. 2020,
Longformer, arXiv:2004.05150; Zaheer et al. 2020, BigBird, arXiv:2007.14062, section 2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.spectrum.measure import (
    MatrixPool,
    Structure,
    looks_back,
    right_vectors,
    without_padding,
)
from headscope.analyses.spectrum.result import CheapHead, CheapPoint, EfficientResult
from headscope.attention import Mask, attention_pattern, mask_of_chunk, stream_attention, with_bias
from headscope.core.accumulator import Array, numpy
from headscope.core.processes import joined_rows, share
from headscope.core.progress import Progress
from headscope.data.packing import Windows
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.pooling import cosine
from headscope.models.run.routing import Mechanism
from headscope.session.exchanged_heads import last_states
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import crossed_mean, finite

#: Forms that keep some of the n x n weights, controls, and all (four need n x k numbers).
SPARSE = ("window", "window+global", "window+global+random", "random-keys")
CONTROLS = ("random-keys", "uniform")
FORMS = ("truncated", "bound", "random", "pooled", *SPARSE, "uniform")
#: Forms of which something is drawn at random, and how often it is.
RANDOM = ("random", "window+global+random", "random-keys")
DRAWS = 5
PLAIN_ONLY = ("pooled",)  # Forms that need scores of ``q k^T scale`` and nothing else.
RANDOM_BLOCKS = 3  # Random key blocks of each query block (BigBird's base setting).
_BLOCKS = 32  # Blocks of a sequence.
#: Tokens that the cheap forms are measured on: 16 sequences of 128 or less, 4 of 512 or more.
TOKENS = 2048
_AT_ONCE = 4  # Sequences of one pass.


class CheapForms:
    """Every cheap form at every size, for sequences of one length."""

    def __init__(
        self,
        length: int,
        special: tuple[int, ...],
        seed: int,
        pool: MatrixPool,
        structure: Structure | None = None,
    ) -> None:
        self.length = length
        self.special = special or (0,)
        self.block = max(1, length // _BLOCKS)  # Tokens of a block
        self.pool = pool
        self._structure = structure or Structure()
        self._seed = seed % 2**32
        #: Sizes k or w at which the forms are measured: n/32, n/16, ..., n/2.
        self.sizes = sorted({length // d for d in (32, 16, 8, 4, 2) if length >= d})
        #: Forms that this model's scores rule out.
        self.left_out = () if self._structure.plain else PLAIN_ONLY
        forms = [form for form in FORMS[:-1] if form not in self.left_out]
        #: Every (form, size); ``uniform`` has size 0.
        self.points = [*((form, size) for form in forms for size in self.sizes), ("uniform", 0)]
        # The cache holds one layer's masks: each of its chunks needs them, the next layer others.
        masks = sum(self.draws(form) for form in SPARSE) * len(self.sizes)
        self._keep = functools.lru_cache(masks)(self._make_keep)

    def draws(self, form: str) -> int:
        """Return how often a form is drawn: once where nothing in it is random."""
        return DRAWS if form in RANDOM else 1

    def cost(self, form: str, size: int) -> float:
        """Return the fraction of the n^2 scores that a form computes, mean of layers and draws."""
        if form not in SPARSE:
            return size / self.length
        # Layers differ by chance alone, unless some may not see every key.
        layers = self._structure.layers if self._structure.seen else [0]
        draws = range(self.draws(form))
        kept = [self.keep(form, size, layer, draw) for layer in layers for draw in draws]
        return float(torch.stack(kept).double().mean())

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
        """Compute z' of one form.

        Shapes: ``q``, ``k``, ``v`` (rows, heads, n, d_head); returns (rows, heads, n, d_head).
        """
        if form in SPARSE:
            keep = self.keep(form, size, layer, draw).to(q.device)
            bias = None if mask is None or mask.dtype == torch.bool else mask
            return stream_attention(q, k, v, mask=with_bias(keep, bias), scale=scale)
        if form == "uniform":  # the mean of v over all keys, or over those that each query may see
            seen = self._structure.seen.get(layer)
            if seen is None:
                return v.mean(-2, keepdim=True).expand_as(v)
            return (seen.double() / seen.sum(-1, keepdim=True)).to(v) @ v
        if form == "bound":
            return truncated_output(stream_attention(q, k, v, mask=mask, scale=scale), [size])[0]
        if form == "random":
            projection = self._gaussian(size, layer, draw).to(v)
            return stream_attention(q, k, projection.T @ (projection @ v), mask=mask, scale=scale)
        if form == "pooled":  # averages n/size neighbours each
            segment = torch.arange(self.length) * size // self.length
            member = (segment == torch.arange(size)[:, None]).double()
            pooling = (member / member.sum(-1, keepdim=True)).to(v)
            return stream_attention(q, pooling @ k, pooling @ v, scale=scale)
        z = torch.empty_like(v)  # P_k v, one head's patterns at a time
        for h in range(q.shape[1]):
            part = None if mask is None else mask[:, h if mask.shape[1] > 1 else 0]
            pattern = attention_pattern(q[:, h], k[:, h], scale=scale, mask=part)
            z[:, h] = truncated_pattern(pattern, v[:, h], [size], self.pool)[0]
        return z

    def keep(self, form: str, size: int, layer: int, draw: int = 0) -> Tensor:
        """Return which keys each query keeps in a sparse form, boolean (n, n)."""
        if form not in RANDOM:
            # These differ between layers only where layers may see different keys.
            layer, draw = (layer if layer in self._structure.seen else -1), 0
        keep: Tensor = self._keep(form, size, layer, draw)
        return keep

    def _make_keep(self, form: str, size: int, layer: int, draw: int) -> Tensor:
        length, seen = self.length, self._structure.seen.get(layer)
        generator = self._generator(size, layer, draw)
        if form == "random-keys":
            return _drawn(torch.rand(length, length, generator=generator), seen, size)
        ahead = 0 if seen is not None and looks_back(seen) else (size - 1) // 2
        position = torch.arange(length)
        back = position[:, None] - position  # how far key j lies before query i
        keep = (back <= size - 1 - ahead) & (-back <= ahead)
        if "global" in form:
            keep[:, self.special] = True
            keep[self.special, :] = True
        if "random" in form:  # blocks of keys for each block of queries
            block = position // self.block
            n_blocks = int(block[-1]) + 1
            seen_blocks = None
            if seen is not None:  # whether any query of a block sees any key of another
                member = (block == torch.arange(n_blocks)[:, None]).double()
                seen_blocks = member @ seen.double() @ member.T > 0
            order = torch.rand(n_blocks, n_blocks, generator=generator)
            keep |= _drawn(order, seen_blocks, RANDOM_BLOCKS)[block][:, block]
        return keep if seen is None else keep & seen

    def _gaussian(self, size: int, layer: int, draw: int) -> Tensor:
        drawn = torch.randn(size, self.length, generator=self._generator(size, layer, draw))
        return drawn / math.sqrt(size)

    def _generator(self, size: int, layer: int, draw: int) -> torch.Generator:
        place = (self._seed * 4099 + layer) * 4099 + size
        return torch.Generator().manual_seed((place * 61 + draw) % 2**63)


def _drawn(order: Tensor, seen: Tensor | None, count: int) -> Tensor:
    """Choose in each row the ``count`` lowest numbers in [0, 1), of those that are ``seen``."""
    if seen is None:
        return order.argsort(-1).argsort(-1) < count
    return ((order + ~seen).argsort(-1).argsort(-1) < count) & seen


def truncated_pattern(
    pattern: Tensor, v: Tensor, sizes: list[int], pool: MatrixPool
) -> list[Tensor]:
    """Return P_k v for each k, with P_k = P W_k W_k^T and W_k the k leading right singular vectors.

    The singular vectors of P (..., n, n) are taken in float64, on the CPU; the results have the
    shape, dtype and device of v (..., n, d_head).
    """
    vectors = torch.from_numpy(pool.submit(right_vectors, pattern)().copy())
    left = pattern.cpu().double() @ vectors  # (..., n, n)
    right = vectors.mT @ v.cpu().double()  # (..., n, d_head)
    return [(left[..., :k] @ right[..., :k, :]).to(v) for k in sizes]


def truncated_output(z: Tensor, sizes: list[int]) -> list[Tensor]:
    """Return the best approximation of rank k of each z, (..., n, d_head), for each k.

    Nothing of rank k has a smaller error (Eckart & Young 1936); from k = d_head on it is z.
    """
    exact = z.cpu().double()
    _, vectors = torch.linalg.eigh(exact.mT @ exact)
    leading = vectors.flip(-1)
    return [
        (exact @ leading[..., :k] @ leading[..., :k].mT).to(z) if k < z.shape[-1] else z
        for k in sizes
    ]


class CheapErrors:
    """Each head's output error and kept mass, by sequence, draw, form and size."""

    def __init__(self, forms: CheapForms, sequences: int, n_layers: int, n_heads: int) -> None:
        self._forms = forms
        shape = (sequences, DRAWS, n_layers, n_heads, len(forms.points))
        self.error: Array = np.full(shape, np.nan)
        self.mass = self.error.copy()

    def update(
        self,
        layer: int,
        sequences: slice,
        heads: slice,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pattern: Tensor,
        z: Tensor,
        scale: float | None,
        mask: Mask = None,
    ) -> None:
        """Compare every form with z, on some sequences and some heads of a layer.

        The tensors are full attention's inputs, pattern and output, as :class:`.Activations` has
        them; ``scale`` is 1 / sqrt(d_head) if None. ``mask`` is that of the same part.
        """
        forms, sizes = self._forms, self._forms.sizes
        at_once = {
            "truncated": truncated_pattern(pattern, v, sizes, forms.pool),
            "bound": truncated_output(z, sizes),
        }
        norm = torch.linalg.vector_norm(z.cpu().double(), dim=(-2, -1)).clamp_min(1e-300)
        for i, (form, size) in enumerate(forms.points):
            draws = forms.draws(form)
            for draw in range(draws):
                if form in at_once:
                    ours = at_once[form][sizes.index(size)]
                else:
                    ours = forms.attend(form, size, layer, q, k, v, scale, draw, mask)
                place = (sequences, slice(draw, None if draws == 1 else draw + 1), layer, heads, i)
                gap = torch.linalg.vector_norm((ours - z).cpu().double(), dim=(-2, -1))
                self.error[place] = numpy(gap / norm)[:, None]
                if form in SPARSE:
                    keep = forms.keep(form, size, layer, draw).to(pattern.device)
                    mass = (pattern * keep).cpu().double().sum(-1).mean(-1)  # (rows, heads)
                    self.mass[place] = numpy(mass)[:, None]

    def over_heads(self, name: str) -> Array:
        """Mean over heads of ``error`` or ``mass``, (sequences, DRAWS, points)."""
        values: Array = getattr(self, name)
        there = ~np.isnan(self.error[0, 0, :, :, 0])
        return np.asarray(values[:, :, there].mean(axis=2))


#: A batch of this process: which of the sequences it holds, and their token ids.
Batch = tuple[Array, Tensor]


def measure_efficient(
    loaded: LoadedModel, windows: Windows, pool: MatrixPool, seed: int, progress: Progress
) -> EfficientResult:
    """Measure every cheap form at every size, per head and end to end, on some of the windows."""
    chosen = windows.spread(min(16, max(4, TOKENS // windows.length)))
    batches = [
        torch.from_numpy(windows.batch(part)).to(loaded.device)
        for part in np.array_split(chosen, -(-len(chosen) // _AT_ONCE))
    ]
    structure = Structure()

    def look(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        structure.note(site.row, mask)
        return stream_attention(q, k, v, mask=mask, scale=scale)

    _last_states(loaded, batches[0][:1], look)
    content = windows.content("encoder")
    special = (*range(content.start), *range(content.stop, windows.length))
    forms = CheapForms(windows.length, special, seed, pool, structure)
    errors = CheapErrors(forms, len(chosen), loaded.n_layers, loaded.n_heads)
    sequences = np.array_split(np.arange(len(chosen)), len(batches))
    mine = list(share(zip(sequences, batches, strict=True)))
    original = _measure_heads(loaded, mine, errors, progress)
    return EfficientResult(
        sequences=len(chosen),
        controls=CONTROLS,
        points=tuple(_points(loaded, mine, errors, forms, original, progress)),
        heads=tuple(_heads(loaded, forms, errors)),
        draws=DRAWS,
        left_out=forms.left_out,
    )


def _last_states(loaded: LoadedModel, ids: Tensor, mechanism: Mechanism) -> Tensor:
    """Return the last hidden state of a batch without padding, (batch, pos, d_model)."""
    padded = [(ids, torch.ones_like(ids))]
    return last_states(loaded, padded, mechanism, lambda hidden, _: hidden.cpu())[0]


def _measure_heads(
    loaded: LoadedModel, batches: list[Batch], errors: CheapErrors, progress: Progress
) -> list[Tensor]:
    """Run the unmodified model; measure the forms on the way; return its last states."""
    states: list[Tensor] = []
    for i, (at, ids) in enumerate(batches, start=1):
        states.append(_last_states(loaded, ids, _measuring(errors, int(at[0]))))
        progress("cheap forms, head by head", i, len(batches))
    index = [at for at, _ in batches]
    names = ("error", "mass") if batches else ()
    rows = {name: [getattr(errors, name)[at] for at in index] for name in names}
    joined = joined_rows("errors of cheap forms", index, rows, len(errors.error))
    errors.error, errors.mass = joined["error"], joined["mass"]
    return states


def _measuring(errors: CheapErrors, first: int) -> Mechanism:
    """Return unchanged attention that measures every form; the batch starts at ``first``."""

    def attend(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        own = without_padding(mask)

        def visit(rows: slice, heads: slice, pattern: Tensor, z: Tensor) -> None:
            at = (rows, heads)
            sequences = slice(first + rows.start, first + rows.stop)
            part = None if own is None else mask_of_chunk(own, rows, heads)
            tensors = (q[at], k[at], v[at], pattern, z)
            errors.update(site.row, sequences, heads, *tensors, scale, part)

        return stream_attention(q, k, v, mask=mask, scale=scale, visit=visit)

    return attend


def _replaced(forms: CheapForms, form: str, size: int, draw: int) -> Mechanism:
    """Return attention with every head in one cheap form; there is no padding to mask."""
    return lambda site, q, k, v, mask, scale: forms.attend(
        form, size, site.row, q, k, v, scale, draw, without_padding(mask)
    )


def _points(
    loaded: LoadedModel,
    batches: list[Batch],
    errors: CheapErrors,
    forms: CheapForms,
    original: list[Tensor],
    progress: Progress,
) -> Iterator[CheapPoint]:
    """Put every head into one form after the other, with each of its draws."""
    embed = loaded.pooling.embed
    error, mass = crossed_mean(errors.over_heads("error")), errors.over_heads("mass")
    for i, (form, size) in enumerate(forms.points):
        by_draw: list[Array] = []  # Cosines of each sequence's embedding.
        for draw in range(forms.draws(form)):
            attend = _replaced(forms, form, size, draw)
            cosines: list[Array] = []
            for (_, ids), theirs in zip(batches, original, strict=True):
                ours = _last_states(loaded, ids, attend)
                real = torch.ones(ours.shape[:2], device=ours.device)
                own = cosine(embed(ours, real), embed(theirs, real))
                # Rounding leaves some cosines of equal states a little above 1.
                cosines.append(numpy(own.double().clamp(-1.0, 1.0)))
            rows = {"cosine": cosines} if batches else {}
            index = [at for at, _ in batches]
            joined = joined_rows(f"fidelity of {form}", index, rows, len(errors.error))
            by_draw.append(joined["cosine"])
        fidelity = crossed_mean(np.stack(by_draw, axis=1))
        yield CheapPoint(
            form=form,
            size=size,
            cost=forms.cost(form, size),
            error=Estimate.around(float(error.mean[i]), finite(error.half_width[i])),
            mass=finite(mass[..., i].mean()),
            fidelity=Estimate.around(float(fidelity.mean), finite(float(fidelity.half_width))),
        )
        progress("cheap forms, all heads", i + 1, len(forms.points))


def _heads(loaded: LoadedModel, forms: CheapForms, errors: CheapErrors) -> Iterator[CheapHead]:
    error, mass = crossed_mean(errors.error), errors.mass.mean(axis=(0, 1))
    for site in loaded.sites:
        for row, head in enumerate(site.head_ids):
            for i, (form, size) in enumerate(forms.points):
                at = (site.row, row, i)
                yield CheapHead(
                    layer=site.layer,
                    head=head,
                    form=form,
                    size=size,
                    error=Estimate.around(float(error.mean[at]), finite(error.half_width[at])),
                    mass=finite(mass[at]),
                )
