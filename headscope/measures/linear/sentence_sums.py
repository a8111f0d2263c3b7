r"""Sums over sentences from which every head's error and coherence are made.

With z the head's own output at the real tokens of a text, m its mean over all of them and y a
linear form's output::

    error  = ||y - z|| / ||z - m||                  1: no better than one constant
    scaled = min_c ||c y - z|| / ||z - m||          a mere wrong scale is not counted
    fitted = min_c,b ||c y + b - z|| / ||z - m||    nor a constant; never above 1

The norms run over all tokens of all sentences. For the intervals sentences are drawn anew, with
m, b and c as the whole text gives them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from headscope.attention import Mask, attention_pattern
from headscope.core.widest import exact, widest
from headscope.measures.accumulator import Array, numpy
from headscope.measures.linear.feature_maps import (
    EVEN,
    FORMS,
    coherence,
    linear_attention,
    readout_errors,
    unit_keys,
)
from headscope.measures.rounding import ROUNDING, VARIANCE, tied
from headscope.measures.statistics import t_half_width
from headscope.measures.visible import visible

EVERY = (*FORMS, EVEN)  # Forms, and the baseline beside them.
FITS = ("error", "scaled", "fitted")  # How an error is taken.
KINDS = ("raw", "centred")  # Keys as they are, and without their mean.
#: Readouts of a sentence's own keys: the last softmax is as sharp as the head's own scores, its
#: beta the mean length of keys times that of queries times the scale.
STORED = ("scaled-sum", "least-squares", "softmax", "softmax-own")


@dataclass
class LinearSums:
    """What the sentences of a text say of the heads of every site, sentence by sentence."""

    sentences: int
    keys_only: bool = False
    tokens: Array = field(init=False)  # (sentences,). Real tokens.
    by_row: dict[int, SiteSums] = field(default_factory=dict, init=False)  # By the site's row.

    def __post_init__(self) -> None:
        self.tokens = np.zeros(self.sentences)

    def update(
        self,
        row: int,
        first: int,
        real: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        z: Tensor,
        *,
        scale: float,
        mask: Mask,
    ) -> None:
        """Add a batch of one site.

        Shapes: ``real`` (batch, pos), ``q``, ``k``, ``v``, ``z`` (batch, heads, pos, d_head).
        """
        real = real.bool()
        here = slice(first, first + len(real))
        self.tokens[here] = numpy(real.sum(-1)).astype(float)
        if row not in self.by_row:
            self.by_row[row] = SiteSums.empty(self.sentences, q.shape[1], z.shape[-1])
        sums = self.by_row[row]
        self._keys(sums, here, real, q, k, scale)
        if self.keys_only:
            return
        weight = exact(real[:, None, :, None])
        own = exact(z) * weight
        sums.own[here], sums.own_sum[here] = numpy(own.square().sum((-2, -1))), numpy(own.sum(-2))
        for i, form in enumerate(EVERY):
            y = exact(linear_attention(form, q, k, v, scale=scale, mask=mask)) * weight
            sums.both[here, :, i] = numpy((y * own).sum((-2, -1)))
            sums.form[here, :, i] = numpy(y.square().sum((-2, -1)))
            sums.form_sum[here, :, i] = numpy(y.sum(-2))
        pattern = widest(attention_pattern(q, k, scale=scale, mask=mask))
        entropy = torch.special.entr(pattern).sum(-1)
        seen = torch.ones_like(pattern) if mask is None else visible(mask).expand(pattern.shape)
        most = widest(seen.sum(-1).clamp_min(1)).log()
        counted = (most > 0) & real[:, None]
        share = torch.where(counted, entropy / most.clamp_min(1e-9), 0.0)
        sums.entropy[here] = numpy(share.sum(-1) / counted.sum(-1))

    def _keys(
        self, sums: SiteSums, here: slice, real: Tensor, q: Tensor, k: Tensor, scale: float
    ) -> None:
        for i, kind in enumerate(KINDS):
            unit, length = unit_keys(k, real, centred=kind == "centred")
            sums.coherence[here, :, i] = numpy(coherence(unit, real))
            found = readout_errors(unit, real, k.shape[-1] ** 0.5)
            weight = exact(real[:, None])
            lengths: Tensor = torch.linalg.vector_norm(exact(q), dim=-1)
            sharp = scale * length * ((lengths * weight).sum(-1) / weight.sum(-1))
            own = readout_errors(unit, real, sharp[..., None, None])
            found["softmax-own"] = own["softmax"]
            for j, name in enumerate(STORED):
                sums.stored[here, :, i, j] = numpy(found[name])


@dataclass
class SiteSums:
    """Of one site, by sentence and head."""

    own: Array  # (sentences, heads). ||z||^2 and the sum of z over tokens.
    own_sum: Array
    #: (sentences, heads, forms). ||y||^2, y . z and the sum of y, in the order of :data:`EVERY`.
    form: Array
    both: Array
    form_sum: Array
    coherence: Array  # (sentences, heads, kinds). In the order of :data:`KINDS`.
    #: (sentences, heads, kinds, readouts). Errors of reading values back, in the order of
    #: :data:`STORED`.
    stored: Array
    #: (sentences, heads). Of the pattern's rows, as a share of the largest possible; mean over
    #: queries.
    entropy: Array

    @classmethod
    def empty(cls, sentences: int, heads: int, width: int) -> SiteSums:
        """Make room."""
        shape = (sentences, heads)
        return cls(
            own=np.zeros(shape),
            own_sum=np.zeros((*shape, width)),
            form=np.zeros((*shape, len(EVERY))),
            both=np.zeros((*shape, len(EVERY))),
            form_sum=np.zeros((*shape, len(EVERY), width)),
            coherence=np.full((*shape, len(KINDS)), np.nan),
            stored=np.full((*shape, len(KINDS), len(STORED)), np.nan),
            entropy=np.full(shape, np.nan),
        )

    def errors(self, tokens: Array, counts: Array) -> dict[str, Array]:
        """Return every error of every form, by :data:`FITS`, for each resample.

        Shapes: ``tokens`` (sentences,), ``counts`` (resamples, sentences); returns (resamples,
        heads, forms).
        """
        mean = self.mean(tokens)  # (heads, d_head)
        n = (counts @ tokens)[:, None, None]
        own, own_sum = _total(counts, self.own)[..., None], _total(counts, self.own_sum)[:, :, None]
        form, both = _total(counts, self.form), _total(counts, self.both)
        form_sum = _total(counts, self.form_sum)
        spread = own - 2 * (own_sum * mean[:, None]).sum(-1) + n * np.square(mean).sum(-1)[:, None]
        spread = np.where(spread > VARIANCE * own, spread, np.nan)
        found = {}
        for fit, (scale, offset) in self._fits(tokens).items():
            with np.errstate(invalid="ignore", over="ignore"):
                square = own - 2 * scale * both + np.square(scale) * form
                crossed = (offset * (scale[..., None] * form_sum - own_sum)).sum(-1)
                square = square + 2 * crossed + n * np.square(offset).sum(-1)
                found[fit] = np.sqrt(np.clip(square, 0.0, None) / spread)
        return found

    def _fits(self, tokens: Array) -> dict[str, tuple[Array, Array]]:
        """Return scale (heads, forms) and offset (heads, forms, d_head) of every fit, by name."""
        one, none = np.ones(self.form.shape[1:]), np.zeros(self.form_sum.shape[1:])
        n, own, form = tokens.sum(), self.own_sum.sum(0)[:, None], self.form_sum.sum(0)
        together = self.both.sum(0) - (form * own).sum(-1) / n
        varied = self.form.sum(0) - np.square(form).sum(-1) / n
        # A form that is constant, or zero, explains nothing: the best fit is without it.
        constant = varied <= VARIANCE * self.form.sum(0)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            scale = np.where(constant, 0.0, together / varied)
            scale = np.where(np.isfinite(scale), scale, 0.0)
            offset = (own - scale[..., None] * form) / n
        return {"error": (one, none), "scaled": (self.scales(), none), "fitted": (scale, offset)}

    def scales(self) -> Array:
        """Return the best scale c of every form, (heads, forms); 0 for a form that is zero."""
        form, both = self.form.sum(0), self.both.sum(0)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            found = both / form
        return np.where(np.isfinite(found), found, 0.0)

    def mean(self, tokens: Array) -> Array:
        """Return the mean z of every head, (heads, d_head)."""
        return np.asarray(self.own_sum.sum(0) / tokens.sum())


def _total(counts: Array, values: Array) -> Array:
    """Sum (sentences, ...) as often as each sentence was drawn: (resamples, ...)."""
    total: Array = counts @ values.reshape(len(values), -1)
    return total.reshape(len(counts), *values.shape[1:])


#: Fewer layers than this give no interval, fewer heads no correlation of a layer.
LAYERS, HEADS = 4, 4


@dataclass(frozen=True)
class Correlated:
    """A correlation within layers and its 95% interval."""

    #: tanh of the mean z, and of the ends of its interval; NaN where it is not defined.
    value: float
    low: float
    high: float
    p: float  # Two-sided, by the same t; NaN where there is no interval.
    layers: int  # How many count.


def correlate(
    x: Array, y: Array, layer: Array, *, ranks: bool, given: Array | None = None
) -> Correlated:
    """Correlate two numbers of the same heads within their layers.

    Shapes: ``x``, ``y`` (heads,), ``layer`` (heads,), ``given`` (heads,).
    """
    kept = np.isfinite(x) & np.isfinite(y) & (True if given is None else np.isfinite(given))
    found, heads = [], []
    for number in np.unique(layer):
        here = kept & (layer == number)
        sides = [x[here], y[here], *([] if given is None else [given[here]])]
        r = _correlation(sides, ranks) if here.sum() >= HEADS else np.nan
        if np.isfinite(r):
            found.append(r)
            heads.append(int(here.sum()))
    if not found:
        return Correlated(np.nan, np.nan, np.nan, np.nan, 0)
    n, size = len(found), np.array(heads, dtype=float)
    # Among n heads ranks agree by chance now and then: 1 counts as half a step of Spearman's less.
    most = 1 - 6 / (size**3 - size)
    z = np.arctanh(np.clip(found, -most, most))
    mean = float(z.mean())
    if n < LAYERS:
        return Correlated(float(np.tanh(mean)), np.nan, np.nan, np.nan, n)
    error = float(z.std(ddof=1)) / np.sqrt(n)
    if error <= ROUNDING * abs(mean):  # all at the bound: what independent heads would vary by
        error = float(np.sqrt((1 / np.maximum(size - 3, 1)).sum())) / n
    half = float(t_half_width(error, np.array(n)))
    p = 2 * float(stats.t.sf(abs(mean) / error, n - 1)) if error else 1.0
    low, high = np.tanh([mean - half, mean + half]).tolist()
    return Correlated(float(np.tanh(mean)), low, high, p, n)


def _correlation(sides: list[Array], ranks: bool) -> float:
    """Correlate the first two numbers of one layer; NaN where one is constant."""
    if any(np.ptp(side) <= ROUNDING * np.abs(side).max() for side in sides[:2]):
        return np.nan
    # Heads that are equal on paper get equal ranks.
    x, y, *given = (stats.rankdata(tied(side)) if ranks else side for side in sides)
    design = np.stack([np.ones(len(x)), *given], axis=1)
    left = []
    for side in (x, y):
        rest = side - design @ np.linalg.lstsq(design, side, rcond=None)[0]
        # What a fit explains to the last digit leaves rounding, which correlates with nothing.
        if np.linalg.norm(rest) <= ROUNDING * np.linalg.norm(side):
            return np.nan
        left.append(rest / np.linalg.norm(rest))
    return float(left[0] @ left[1])
