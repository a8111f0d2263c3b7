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

References
----------
Schlag, Irie & Schmidhuber 2021, arXiv:2102.11174, section 3; Katharopoulos et al. 2020,
arXiv:2006.16236, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.analyses.linear.stored_keys import STORED, coherence, readout_errors, unit_keys
from headscope.attention import Mask, attention_pattern
from headscope.core.accumulator import Array, numpy
from headscope.core.activations import visible
from headscope.core.rounding import EPS, VARIANCE
from headscope.core.widest import exact, widest
from headscope.models.run.formulas import HeadInputs
from headscope.models.run.pooling import wide

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
    "elu",
    "elu-normalised",
    "relu",
    "relu-normalised",
    "exp",
    "exp-normalised",
)
EVEN = "even"  # The baseline: the mean of the values that a query may see.
FORMS_AND_EVEN = (*FORMS, EVEN)
#: Forms whose output is an average of values. The sums of the others grow with the sentence, or are
#: divided by weights that may cancel, so that a few long lines decide their errors.
AVERAGES = (*(form for form in FORMS if form.endswith(_NORMALISED)), EVEN)
FITS = ("error", "scaled")  # Errors of the form as it is, and with the best scale.


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
        cancelled = total.abs() <= 16 * EPS * weights.abs().sum(-1, keepdim=True)
        weights = torch.where(cancelled, 0.0, weights / torch.where(cancelled, 1.0, total))
    return weights @ v.to(weights)


#: Indices of some sentences and heads.
Cells = tuple[slice, Array]


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
        #: The first sentence of every batch.
        *self._first_sentence, n_sentences = np.cumsum([0, *map(len, masks)]).tolist()
        *first_heads, total_heads = np.cumsum([0, *n_heads.values()]).tolist()
        #: Each site's first head, by its row.
        self._first_head = dict(zip(n_heads, first_heads, strict=True))
        self.rows = np.repeat([*n_heads], [*n_heads.values()])  # (heads,): each head's site.
        shape = (n_sentences, total_heads)
        n_forms = len(FORMS_AND_EVEN)
        #: (sentences,): Real tokens.
        self.tokens: Array = np.concatenate([numpy(mask.sum(-1)) for mask in self.masks]) * 1.0
        #: ||z||^2, and the sum of z over tokens.
        self.z_square: Array = np.zeros(shape)
        self.z_sum: Array = np.zeros((*shape, width))
        #: ||y||^2 and y . z, by form in the order of :data:`FORMS_AND_EVEN`.
        self.y_square: Array = np.zeros((*shape, n_forms))
        self.product: Array = np.zeros((*shape, n_forms))
        self.coherence: Array = np.full(shape, np.nan)  # Of the keys as they are,
        self.coherence_centred: Array = np.full(shape, np.nan)  # and without their mean.
        self.stored: Array = np.full((*shape, len(STORED)), np.nan)  # Errors of reading back.
        #: Of the pattern's rows, as a share of the largest possible; mean over queries.
        self.entropy: Array = np.full(shape, np.nan)

    def indices(self, inputs: HeadInputs) -> Array:
        """Return the indices of some heads of a site among those of all sites."""
        return np.array([self._first_head[inputs.site.row] + head for head in inputs.heads])

    def update(self, batch: int, inputs: HeadInputs, z: Tensor) -> None:
        """Add a batch of one site, by its number; z (batch, heads, pos, d_head) of all heads."""
        first = self._first_sentence[batch]
        sentences = slice(first, first + len(self.masks[batch]))
        cells = (sentences, self.indices(inputs))
        self._add_keys(cells, inputs, self.masks[batch])
        if self.width:
            self._add_forms(cells, inputs, self.masks[batch], z)
            self.entropy[cells] = numpy(pattern_entropy(inputs, self.masks[batch]))

    def _add_keys(self, cells: Cells, inputs: HeadInputs, real: Tensor) -> None:
        """Add how alike the keys of each sentence are, and the errors of reading back by them."""
        centred, _ = unit_keys(inputs.k, real, centred=True)
        self.coherence_centred[cells] = numpy(coherence(centred, real))
        unit, key_length = unit_keys(inputs.k, real, centred=False)
        self.coherence[cells] = numpy(coherence(unit, real))

        weight = exact(real[:, None])
        query_lengths = torch.linalg.vector_norm(exact(inputs.q), dim=-1)
        query_length = (query_lengths * weight).sum(-1) / weight.sum(-1)
        d_head = inputs.k.shape[-1]
        betas = {
            "softmax": d_head**0.5,
            "softmax-own": (inputs.scale * key_length * query_length)[..., None, None],
        }
        errors = readout_errors(unit, real, betas)
        for i, readout in enumerate(STORED):
            self.stored[(*cells, i)] = numpy(errors[readout])

    def _add_forms(self, cells: Cells, inputs: HeadInputs, real: Tensor, z: Tensor) -> None:
        """Add the products of each form's output y and of z with themselves and each other."""
        weight = exact(real[:, None])[..., None]
        z = exact(z) * weight
        self.z_square[cells] = numpy(z.square().sum((-2, -1)))
        self.z_sum[cells] = numpy(z.sum(-2))
        for i, form in enumerate(FORMS_AND_EVEN):
            y = linear_attention(
                form, inputs.q, inputs.k, inputs.v, scale=inputs.scale, mask=inputs.mask
            )
            y = exact(y) * weight
            self.product[(*cells, i)] = numpy((y * z).sum((-2, -1)))
            self.y_square[(*cells, i)] = numpy(y.square().sum((-2, -1)))

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
        sums = {
            "z_square": self.z_square,
            "z_sum": self.z_sum,
            "y_square": self.y_square,
            "product": self.product,
            "tokens": self.tokens,
        }
        totals = {name: np.asarray(values.sum(0)) for name, values in sums.items()}
        of_all = form_errors(**totals)
        without_each = form_errors(**{name: totals[name] - sums[name] for name in sums})
        return {fit: (of_all[fit], without_each[fit]) for fit in FITS}


def pattern_entropy(inputs: HeadInputs, real: Tensor) -> Tensor:
    """Return the entropy of the pattern's rows as a share of the largest they can have.

    Mean over the real queries that see more than one key; returns (batch, heads).
    """
    pattern = widest(attention_pattern(inputs.q, inputs.k, scale=inputs.scale, mask=inputs.mask))
    entropy = torch.special.entr(pattern).sum(-1)
    seen = torch.ones_like(pattern)
    if inputs.mask is not None:
        seen = visible(inputs.mask).expand(pattern.shape)
    largest = widest(seen.sum(-1).clamp_min(1)).log()
    counted = (largest > 0) & real[:, None]
    share = torch.where(counted, entropy / largest.clamp_min(1e-9), 0.0)
    return share.sum(-1) / counted.sum(-1)


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
