r"""Linear forms of attention: a feature map in place of the softmax.

With phi a feature map and s the scale of the model's scores::

    y_i = sum_j v_j (phi(k_j sqrt(s)) . phi(q_i sqrt(s)))          over the keys that i may see
    y_i / (sum_j phi(k_j sqrt(s)) . phi(q_i sqrt(s)))              normalised

so that with phi(x) = x the weights are the model's own scores. What is summed over j does not
depend on the query, so a head could keep ``sum_j phi(k_j) v_j^T``, d_head x d_head numbers however
long the text is: its fast weights. A bias that a model adds to its scores has no place in such a
sum and is left out.

====================  ==========================================================================
``linear``            phi(x) = x: the softmax removed; weights may be negative, so not normalised
``first-order``       phi(x) = (1, x), normalised: weights 1 + s k_j . q_i, which is what a
                      softmax of small scores is; they may be negative, and their sum as well
``elu``               phi(x) = elu(x) + 1
``relu``              phi(x) = max(x, 0)
``exp``               phi(x) = exp(x), entry by entry
``elu-normalised``    these last three divided by the sum of the weights, as a softmax is
====================  ==========================================================================

N unit keys k_i of d dimensions store values v_i in ``sum_i v_i k_i^T``; v^ is what a readout gives
for a key, and the error is the mean of ``0.5 ||v - v^||^2``: 0.5 if nothing is read back.

=================  =============================================================================
``scaled-sum``     the sum of fast weights times the key, with the best single scale
``least-squares``  the best linear readout
``softmax``        attention to the stored keys, ``softmax(beta k_i . k_j)``
=================  =============================================================================

References
----------
Schlag, Irie & Schmidhuber 2021, arXiv:2102.11174, sections 3 and 4; Katharopoulos et al. 2020,
arXiv:2006.16236, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import stdtr
from torch import Tensor
from torch.nn import functional as F

from headscope.analyses.linear.result import KeyMemory
from headscope.attention import Mask, attention_pattern
from headscope.core.accumulator import Array, numpy
from headscope.core.activations import visible
from headscope.core.rounding import EPS, ROUNDING, VARIANCE, tied
from headscope.core.widest import exact, widest
from headscope.models.run.intervene import HeadInputs
from headscope.models.run.pooling import wide
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.statistics import crossed_mean, t_half_width

FIRST_ORDER = "first-order"  # The form that is normalised though its weights may be negative.
#: Feature maps by name.
FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    FIRST_ORDER: lambda x: torch.cat([torch.ones_like(x[..., :1]), x], -1),
    "elu": lambda x: F.elu(x) + 1,
    "relu": torch.relu,
    "exp": torch.exp,
}
_NORMALISED = "-normalised"
#: Every form: the softmax removed, its first order, each other map without and with normalisation.
FORMS = (
    "linear",
    FIRST_ORDER,
    *(f"{name}{end}" for name in ("elu", "relu", "exp") for end in ("", _NORMALISED)),
)
EVEN = "even"  # The baseline: the mean of the values that a query may see.
EVERY = (*FORMS, EVEN)
#: Forms whose output is an average of values. The sums of the others grow with the sentence, or are
#: divided by weights that may cancel, so that a few long lines decide their errors.
AVERAGES = (*(form for form in FORMS if form.endswith(_NORMALISED)), EVEN)
FITS = ("error", "scaled")  # Errors of the form as it is, and with the best scale.
#: Readouts of a sentence's own keys: the last softmax is as sharp as the head's own scores, its
#: beta the mean length of keys times that of queries times the scale.
STORED = ("scaled-sum", "least-squares", "softmax", "softmax-own")


def linear_attention(
    form: str, q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Mask = None
) -> Tensor:
    """Compute z of a linear form, in single precision at least.

    Shapes: ``q`` (..., query_pos, d_head), ``k``, ``v`` (..., key_pos, d_head); returns (...,
    query_pos, d_head).
    """
    if form == EVEN:
        weights = wide(q).new_ones(*q.shape[:-1], k.shape[-2])
    else:
        feature = FEATURES[form.removesuffix(_NORMALISED)]
        root = math.sqrt(scale)
        weights = feature(wide(q) * root) @ feature(wide(k) * root).transpose(-2, -1)
    if mask is not None:
        weights = weights * visible(mask).to(weights)
    if form in (EVEN, FIRST_ORDER) or form.endswith(_NORMALISED):
        total = weights.sum(-1, keepdim=True)
        # Weights of both signs may cancel: nothing is divided by a sum that is only rounding.
        none = total.abs() <= 16 * EPS * weights.abs().sum(-1, keepdim=True)
        weights = torch.where(none, 0.0, weights / torch.where(none, 1.0, total))
    return weights @ v.to(weights)


class LinearSums:
    """What is measured of every head, sentence by sentence: arrays (sentences, heads, ...).

    Heads are counted through all sites. With a ``width`` of 0 only their keys are measured.

    Parameters
    ----------
    n_heads : mapping
        The number of heads of every site, by its row.
    masks : sequence of Tensor, (batch, pos)
        Which tokens of every batch are real; a row is a sentence.
    width : int
        The width of a head's z.
    """

    def __init__(self, n_heads: Mapping[int, int], masks: Sequence[Tensor], width: int) -> None:
        self.masks = [mask.bool() for mask in masks]
        self.width = width
        *self._starts, sentences = np.cumsum([0, *map(len, masks)]).tolist()
        *first, total = np.cumsum([0, *n_heads.values()]).tolist()
        self._first = dict(zip(n_heads, first, strict=True))  # Each site's first head, by its row.
        self.rows = np.repeat([*n_heads], [*n_heads.values()])  # (heads,): each head's site.
        shape = (sentences, total)
        forms = len(EVERY)
        #: (sentences,): Real tokens.
        self.tokens: Array = np.concatenate([numpy(mask.sum(-1)) for mask in self.masks]) * 1.0
        #: ||z||^2, and the sum of z over tokens.
        self.z_square: Array = np.zeros(shape)
        self.z_sum: Array = np.zeros((*shape, width))
        #: ||y||^2 and y . z, by form in the order of :data:`EVERY`.
        self.y_square: Array = np.zeros((*shape, forms))
        self.product: Array = np.zeros((*shape, forms))
        self.coherence: Array = np.full(shape, np.nan)  # Of the keys as they are,
        self.coherence_centred: Array = np.full(shape, np.nan)  # and without their mean.
        self.stored: Array = np.full((*shape, len(STORED)), np.nan)  # Errors of reading back.
        #: Of the pattern's rows, as a share of the largest possible; mean over queries.
        self.entropy: Array = np.full(shape, np.nan)

    def numbers(self, inputs: HeadInputs) -> Array:
        """Return the numbers of some heads of a site among those of all sites."""
        return np.array([self._first[inputs.site.row] + head for head in inputs.heads])

    def update(self, batch: int, inputs: HeadInputs, z: Tensor) -> None:
        """Add a batch of one site, by its number; z (batch, heads, pos, d_head) of all heads."""
        q = inputs.q
        k = inputs.k
        v = inputs.v
        mask = inputs.mask
        scale = inputs.scale
        real = self.masks[batch]
        start = self._starts[batch]
        here = (slice(start, start + len(real)), self.numbers(inputs))
        weight = exact(real[:, None])
        lengths = (torch.linalg.vector_norm(exact(q), dim=-1) * weight).sum(-1) / weight.sum(-1)
        centred, _ = unit_keys(k, real, centred=True)
        self.coherence_centred[here] = numpy(coherence(centred, real))
        unit, length = unit_keys(k, real, centred=False)
        self.coherence[here] = numpy(coherence(unit, real))
        sharpness = {"softmax-own": (scale * length * lengths)[..., None, None]}
        errors = readout_errors(unit, real, k.shape[-1] ** 0.5, **sharpness)
        for i, name in enumerate(STORED):
            self.stored[(*here, i)] = numpy(errors[name])
        if not self.width:
            return
        weight = weight[..., None]
        real_z = exact(z) * weight
        self.z_square[here] = numpy(real_z.square().sum((-2, -1)))
        self.z_sum[here] = numpy(real_z.sum(-2))
        for i, form in enumerate(EVERY):
            y = exact(linear_attention(form, q, k, v, scale=scale, mask=mask)) * weight
            self.product[(*here, i)] = numpy((y * real_z).sum((-2, -1)))
            self.y_square[(*here, i)] = numpy(y.square().sum((-2, -1)))
        pattern = widest(attention_pattern(q, k, scale=scale, mask=mask))
        entropy = torch.special.entr(pattern).sum(-1)
        seen = torch.ones_like(pattern) if mask is None else visible(mask).expand(pattern.shape)
        most = widest(seen.sum(-1).clamp_min(1)).log()
        counted = (most > 0) & real[:, None]
        share = torch.where(counted, entropy / most.clamp_min(1e-9), 0.0)
        self.entropy[here] = numpy(share.sum(-1) / counted.sum(-1))

    def scales(self) -> Array:
        """Return the best scale c of every form, (heads, forms); 0 for a form that is zero."""
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            scales = self.product.sum(0) / self.y_square.sum(0)
        return np.where(np.isfinite(scales), scales, 0.0)

    def mean(self) -> Array:
        """Return the mean z of every head, (heads, width)."""
        return np.asarray(self.z_sum.sum(0) / self.tokens.sum())

    def errors(self) -> dict[str, tuple[Array, Array]]:
        """Return the errors of every form, by :data:`FITS`: of all, and without each sentence.

        Scales and means are those of the sentences that are left.

        Shapes: returns (heads, forms) and (sentences, heads, forms).
        """
        sums = (self.z_square, self.z_sum, self.y_square, self.product, self.tokens)
        totals = [np.asarray(values.sum(0)) for values in sums]
        whole = form_errors(*totals)
        parts = zip(totals, sums, strict=True)
        without_each = form_errors(*(total - values for total, values in parts))
        return {fit: (whole[fit], without_each[fit]) for fit in FITS}


def form_errors(
    z_square: Array, z_sum: Array, y_square: Array, product: Array, tokens: Array
) -> dict[str, Array]:
    """Return ||y - z|| / ||z - mean z|| of every form, by :data:`FITS`, from sums over sentences.

    NaN where z never changes. Shapes: ``z_square`` (..., heads), ``z_sum`` (..., heads, width),
    ``y_square`` and ``product`` (..., heads, forms), ``tokens`` (...).
    """
    errors = {}
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        spread = z_square - np.square(z_sum).sum(-1) / tokens[..., None]
        spread = np.where(spread > VARIANCE * z_square, spread, np.nan)[..., None]
        best = product / y_square
        best = np.where(np.isfinite(best), best, 0.0)
        for fit, scale in zip(FITS, (np.ones(1), best), strict=True):
            square = z_square[..., None] - 2 * scale * product + np.square(scale) * y_square
            errors[fit] = np.sqrt(np.clip(square, 0.0, None) / spread)
    return errors


# --- values stored under keys ---------------------------------------------------------------------

TIMES = (0.5, 1, 2, 4, 8)  # Numbers of keys, as multiples of their width.
STRETCHES = 8  # Stretches of keys, at most.


def unit_keys(keys: Tensor, real: Tensor, *, centred: bool) -> tuple[Tensor, Tensor]:
    """Return the directions of the keys of each sentence and head, and their mean length.

    Shapes: ``keys`` (batch, heads, pos, d_head), ``real`` (batch, pos); returns (batch, heads, pos,
    d_head), (batch, heads).
    """
    weight = exact(real[:, None, :, None])
    count = weight.sum(-2, keepdim=True)
    keys = exact(keys) * weight
    least = ROUNDING * torch.linalg.vector_norm(keys, dim=-1).amax(-1)[..., None, None]
    if centred:
        keys = (keys - keys.sum(-2, keepdim=True) / count) * weight
    lengths = torch.linalg.vector_norm(keys, dim=-1, keepdim=True)
    unit = torch.where(lengths > least, F.normalize(keys, dim=-1, eps=1e-300), 0.0)
    return unit, lengths.sum((-2, -1)) / count[..., 0, 0]


def coherence(unit: Tensor, real: Tensor) -> Tensor:
    """Return the mean |cosine| of two different keys, (batch, heads), from 0 to 1.

    0 orthogonal, about sqrt(2 / (pi d)) for random directions, 1 on one line; NaN for a single key.
    """
    n = exact(real.sum(-1))[:, None]
    gram = unit @ unit.mT
    off = gram.abs().sum((-2, -1)) - gram.diagonal(dim1=-2, dim2=-1).abs().sum(-1)
    return off / (n * (n - 1))


def readout_errors(
    unit: Tensor, real: Tensor, beta: float, **betas: Tensor | float
) -> dict[str, Tensor]:
    """Return the error of every readout on given keys, in expectation over the values.

    ``betas`` adds further softmax readouts by name. Shapes: ``unit`` (batch, heads, pos, d_head),
    ``real`` (batch, pos), each of ``betas`` (batch, heads, 1, 1); returns (batch, heads).
    """
    n = exact(real.sum(-1))[:, None]
    gram = unit @ unit.mT
    moments = unit.mT @ unit
    # The smaller of the two has the same non-zero eigenvalues, so the same rank.
    smaller = gram if gram.shape[-1] <= moments.shape[-1] else moments
    rank = torch.linalg.matrix_rank(smaller, hermitian=True, rtol=VARIANCE).double()
    real = real.to(unit.device)
    pairs = (real[:, :, None] & real[:, None, :])[:, None]
    identity = torch.diag_embed(exact(real[:, None]))
    lowest = torch.finfo(gram.dtype).min

    def missed(beta: Tensor | float) -> Tensor:
        answers = torch.softmax((beta * gram).masked_fill(~pairs, lowest), dim=-1)
        answers = answers * pairs  # rows of padding have nothing to see
        return (identity - answers).square().sum((-2, -1))

    # Keys of length zero store nothing, so nothing is read back for them.
    stored = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    best = stored.square() / gram.square().sum((-2, -1)).clamp_min(1e-300)
    return {
        "scaled-sum": 0.5 * (1 - best / n),
        "least-squares": 0.5 * (1 - rank / n),
        **{name: 0.5 * missed(at) / n for name, at in {"softmax": beta, **betas}.items()},
    }


def closed_form(readout: str, keys: int, width: int) -> float | None:
    """Return the expected error for N random unit keys in d dimensions; None if there is none."""
    forms = {
        "scaled-sum": 0.5 * (keys - 1) / (keys - 1 + width),
        "least-squares": 0.5 * max(0.0, 1 - width / keys),
    }
    return forms.get(readout)


def key_memory(keys: Sequence[Tensor], width: int) -> Iterator[KeyMemory]:
    """Measure every readout of N keys of the model, as they follow in the text.

    ``keys`` are those of every site, each (tokens, heads, width). Numbers of keys that the text has
    no stretch of are left out.
    """
    for n in (round(times * width) for times in TIMES):
        stretches = min(STRETCHES, len(keys[0]) // n) if keys and n > 1 else 0
        if stretches == 0:
            continue
        real = torch.ones(1, n, dtype=torch.bool)
        by_site = []
        for site_keys in keys:
            # One stretch after the other: the tables (heads, n, n) of all of them are large.
            parts = torch.split(site_keys[: stretches * n].transpose(0, 1), n, dim=1)
            units = (unit_keys(part[None], real, centred=False)[0] for part in parts)
            errors = [readout_errors(unit, real, width**0.5) for unit in units]
            by_site.append({name: torch.cat([e[name] for e in errors]) for name in errors[0]})
        for readout in by_site[0]:
            values = torch.cat([errors[readout] for errors in by_site], dim=1).mean(1).numpy()
            error = crossed_mean(values[:, None]).estimate()  # Student's t over the stretches
            yield KeyMemory(readout, n, width, error, closed_form(readout, n, width), stretches)


# --- correlations of heads ------------------------------------------------------------------------

#: Fewer layers than this give no interval, fewer heads no correlation of a layer.
LAYERS = 4
HEADS = 4


class Correlated(NamedTuple):
    """A correlation within layers."""

    estimate: Estimate  # tanh of the mean z, and of the ends of its interval
    p: float | None = None  # Two-sided, by the same t; None where there is no interval.
    layers: int = 0  # How many count.


def correlate(
    x: Array, y: Array, layer: Array, *, ranks: bool, fixed: Array | None = None
) -> Correlated:
    """Correlate two numbers of heads within their layers, holding ``fixed`` constant.

    Shapes: ``x``, ``y``, ``layer``, ``fixed`` (heads,).
    """
    known = np.isfinite(x) & np.isfinite(y) & (True if fixed is None else np.isfinite(fixed))
    by_layer = []
    heads = []
    for number in np.unique(layer):
        here = known & (layer == number)
        sides = [x[here], y[here], *([] if fixed is None else [fixed[here]])]
        r = _correlation(sides, ranks) if here.sum() >= HEADS else np.nan
        if np.isfinite(r):
            by_layer.append(r)
            heads.append(int(here.sum()))
    if not by_layer:
        return Correlated(UNKNOWN)
    n = len(by_layer)
    size = np.array(heads, dtype=float)
    # Few heads can be ranked alike by chance: 1 counts as half of Spearman's smallest step less.
    most = 1 - 6 / (size**3 - size)
    z = np.arctanh(np.clip(by_layer, -most, most))
    mean = float(z.mean())
    if n < LAYERS:
        return Correlated(Estimate(float(np.tanh(mean))), layers=n)
    error = float(z.std(ddof=1)) / np.sqrt(n)
    if error <= ROUNDING * abs(mean):  # all layers equal: use the spread of independent heads
        error = float(np.sqrt((1 / np.maximum(size - 3, 1)).sum())) / n
    half = float(t_half_width(error, n, LAYERS))
    p = 2 * float(stdtr(n - 1, -abs(mean) / error)) if error else 1.0
    return Correlated(Estimate(*np.tanh([mean, mean - half, mean + half]).tolist()), p, n)


def _correlation(sides: list[Array], ranks: bool) -> float:
    """Correlate the first two numbers of one layer; NaN where one is constant."""
    if any(np.ptp(side) <= ROUNDING * np.abs(side).max() for side in sides[:2]):
        return np.nan
    # Heads that are equal on paper get equal ranks.
    x, y, *fixed = (_ranks(tied(side)) if ranks else side for side in sides)
    design = np.stack([np.ones(len(x)), *fixed], axis=1)
    left = []
    for side in (x, y):
        rest = side - design @ np.linalg.lstsq(design, side, rcond=None)[0]
        # A side that the fit explains fully leaves only rounding, whose correlation means nothing.
        if np.linalg.norm(rest) <= ROUNDING * np.linalg.norm(side):
            return np.nan
        left.append(rest / np.linalg.norm(rest))
    return float(left[0] @ left[1])


def _ranks(values: Array) -> Array:
    """Rank values from 1; equal ones get the mean of their ranks."""
    ordered = np.sort(values)  # scipy.stats, which has this too, takes half a second to load
    before = np.searchsorted(ordered, values)
    upto = np.searchsorted(ordered, values, "right")
    return np.asarray((before + upto + 1) / 2)
