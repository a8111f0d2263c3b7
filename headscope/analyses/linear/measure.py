r"""What every head loses in each linear form, and how alike its keys are, as sums over sentences.

With z what the head puts out and y what a form of :mod:`headscope.analyses.linear.forms` puts out
in its place, over all tokens of some sentences::

    error         ||y - z|| / ||z - mean z||
    scaled error  ||c y - z|| / ||z - mean z||        c = y . z / ||y||^2, the best scale

so 1 is no better than one constant output. :class:`LinearSums` keeps the products of each sentence,
not the outputs: :func:`form_errors` then makes the errors of any choice of sentences. What a head
attends with arrives as :class:`~headscope.models.run.formulas.HeadInputs`: q, k, v, mask and scale
of some heads of one attention module (a site), for one batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.linear.forms import FORMS_AND_EVEN, linear_attention
from headscope.analyses.linear.stored_keys import READOUTS, coherence, readout_errors, unit_keys
from headscope.attention import attention_pattern
from headscope.core.accumulator import Array, numpy
from headscope.core.activations import visible
from headscope.core.rounding import VARIANCE
from headscope.core.widest import exact, widest
from headscope.models.run.formulas import HeadInputs

FITS = ("error", "scaled")  # The two errors above.
#: Where the numbers of one batch and one site stand in arrays (sentences, heads, ...).
Cells = tuple[slice, Array]


class LinearSums:
    """What is measured of every head, sentence by sentence: arrays (sentences, heads, ...).

    Heads are counted through all sites: with two of 4 heads each, head 1 of the second is 5.

    Parameters
    ----------
    n_heads : mapping
        The number of heads of every site, by its row.
    masks : sequence of Tensor, (batch, pos)
        Which tokens of every batch are real; a row is a sentence.
    width : int or None
        The width of a head's z. None: only keys are measured, neither forms nor entropy.
    """

    def __init__(
        self, n_heads: Mapping[int, int], masks: Sequence[Tensor], width: int | None
    ) -> None:
        self.masks = [mask.bool() for mask in masks]
        self._keys_only = width is None

        # Where the sentences of each batch, and the heads of each site, stand in the arrays.
        n_sentences = 0
        self._first_sentence: list[int] = []  # By batch
        for mask in masks:
            self._first_sentence.append(n_sentences)
            n_sentences += len(mask)
        total_heads = 0
        self._first_head: dict[int, int] = {}  # By the row of the site
        for row, n_heads_of_site in n_heads.items():
            self._first_head[row] = total_heads
            total_heads += n_heads_of_site
        #: The row of each head's site, (heads,).
        self.rows = np.repeat(list(n_heads), list(n_heads.values()))

        shape = (n_sentences, total_heads)
        n_forms = len(FORMS_AND_EVEN)
        #: Real tokens of each sentence, (sentences,).
        tokens_by_batch = [numpy(mask.sum(-1)) for mask in self.masks]
        self.tokens: Array = np.concatenate(tokens_by_batch).astype(float)
        #: ||z||^2, and the sum of z over tokens.
        self.z_square: Array = np.zeros(shape)
        self.z_sum: Array = np.zeros((*shape, width or 0))
        #: ||y||^2 and y . z, by form in the order of FORMS_AND_EVEN.
        self.y_square: Array = np.zeros((*shape, n_forms))
        self.y_dot_z: Array = np.zeros((*shape, n_forms))
        #: Mean |cosine| of two keys, as they are and without the mean of the sentence's keys.
        self.coherence: Array = np.full(shape, np.nan)
        self.coherence_centred: Array = np.full(shape, np.nan)
        #: Errors of reading back, by readout in the order of READOUTS.
        self.stored: Array = np.full((*shape, len(READOUTS)), np.nan)
        #: Entropy of the pattern's rows, as a share of the largest possible; mean over queries.
        self.entropy: Array = np.full(shape, np.nan)

    def indices(self, inputs: HeadInputs) -> Array:
        """Return where the heads of ``inputs`` stand among the heads of all sites, (heads,)."""
        return np.array([self._first_head[inputs.site.row] + head for head in inputs.heads])

    def update(self, batch: int, inputs: HeadInputs, z: Tensor) -> None:
        """Measure what the heads of one site attend with in one batch, and what they put out.

        ``batch`` is the number of the batch, ``z`` (batch, heads, pos, d_head).
        """
        first = self._first_sentence[batch]
        sentences = slice(first, first + len(self.masks[batch]))
        cells = (sentences, self.indices(inputs))
        self._add_keys(cells, inputs, self.masks[batch])
        if not self._keys_only:
            self._add_forms(cells, inputs, self.masks[batch], z)
            self.entropy[cells] = numpy(pattern_entropy(inputs, self.masks[batch]))

    def _add_keys(self, cells: Cells, inputs: HeadInputs, real: Tensor) -> None:
        """Measure how alike the keys of each sentence are, and the errors of reading back."""
        # How alike they are.
        centred, _ = unit_keys(inputs.k, real, centred=True)
        self.coherence_centred[cells] = numpy(coherence(centred, real))
        unit, key_length = unit_keys(inputs.k, real, centred=False)
        self.coherence[cells] = numpy(coherence(unit, real))

        # Errors of reading back. A softmax as sharp as the head's own scores has their mean size:
        # the mean length of the keys, times that of the queries, times the scale.
        weight = exact(real[:, None])  # [batch, 1, pos]
        query_lengths = torch.linalg.vector_norm(exact(inputs.q), dim=-1)  # [batch, heads, pos]
        query_length = (query_lengths * weight).sum(-1) / weight.sum(-1)  # [batch, heads]
        own_beta = inputs.scale * key_length * query_length
        d_head = inputs.k.shape[-1]
        betas = {"softmax": d_head**0.5, "softmax-own": own_beta[..., None, None]}
        errors = readout_errors(unit, real, betas)
        for i, readout in enumerate(READOUTS):
            self.stored[(*cells, i)] = numpy(errors[readout])

    def _add_forms(self, cells: Cells, inputs: HeadInputs, real: Tensor, z: Tensor) -> None:
        """Measure the products of each form's output y and of z with themselves and each other."""
        weight = exact(real[:, None])[..., None]  # [batch, 1, pos, 1]
        z = exact(z) * weight
        self.z_square[cells] = numpy(z.square().sum((-2, -1)))
        self.z_sum[cells] = numpy(z.sum(-2))
        for i, form in enumerate(FORMS_AND_EVEN):
            y = linear_attention(
                form, inputs.q, inputs.k, inputs.v, scale=inputs.scale, mask=inputs.mask
            )
            y = exact(y) * weight
            self.y_dot_z[(*cells, i)] = numpy((y * z).sum((-2, -1)))
            self.y_square[(*cells, i)] = numpy(y.square().sum((-2, -1)))

    def scales(self) -> Array:
        """Return the best scale c of every form, (heads, forms); 0 for a form that is zero."""
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            scales = self.y_dot_z.sum(0) / self.y_square.sum(0)
        return np.where(np.isfinite(scales), scales, 0.0)

    def mean_z(self) -> Array:
        """Return the mean z of every head, (heads, width)."""
        return np.asarray(self.z_sum.sum(0) / self.tokens.sum())

    def errors(self) -> dict[str, tuple[Array, Array]]:
        """Return for each of FITS the errors of every form, of the whole text and for a jackknife.

        The errors of the whole text are (heads, forms). Those for the jackknife are (sentences,
        heads, forms): the text without that sentence, with the scales and means of the others.
        """
        sums = {
            "z_square": self.z_square,
            "z_sum": self.z_sum,
            "y_square": self.y_square,
            "y_dot_z": self.y_dot_z,
            "tokens": self.tokens,
        }
        totals = {name: np.asarray(values.sum(0)) for name, values in sums.items()}
        without_each = {name: totals[name] - sums[name] for name in sums}
        errors = form_errors(**totals)
        errors_without_each = form_errors(**without_each)
        return {fit: (errors[fit], errors_without_each[fit]) for fit in FITS}


def pattern_entropy(inputs: HeadInputs, real: Tensor) -> Tensor:
    """Return the entropy of the pattern's rows as a share of the largest they can have.

    A query that sees 4 keys can have log 4 at most. Mean over the real queries that see more than
    one key; returns (batch, heads).
    """
    pattern = widest(
        attention_pattern(
            inputs.q,
            inputs.k,
            scale=inputs.scale,
            softcap=inputs.softcap,
            mask=inputs.mask,
        )
    )
    entropy = torch.special.entr(pattern).sum(-1)  # [batch, heads, queries]
    seen = torch.ones_like(pattern)
    if inputs.mask is not None:
        seen = visible(inputs.mask).expand(pattern.shape)
    largest = widest(seen.sum(-1).clamp_min(1)).log()
    counted = (largest > 0) & real[:, None]
    share = torch.where(counted, entropy / largest.clamp_min(1e-9), 0.0)
    return share.sum(-1) / counted.sum(-1)


def form_errors(
    z_square: Array, z_sum: Array, y_square: Array, y_dot_z: Array, tokens: Array
) -> dict[str, Array]:
    """Return ``||c y - z|| / ||z - mean z||`` of every form, by FITS, from sums over tokens.

    The scale c is 1, or the best one. NaN where z never changes.

    Shapes: ``z_square`` (..., heads), ``z_sum`` (..., heads, width), ``y_square`` and ``y_dot_z``
    (..., heads, forms), ``tokens`` (...); returns (..., heads, forms) each.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        # ||z - mean z||^2 = ||z||^2 - ||sum z||^2 / tokens, [..., heads, 1].
        deviation = z_square - np.square(z_sum).sum(-1) / tokens[..., None]
        deviation = np.where(deviation > VARIANCE * z_square, deviation, np.nan)[..., None]

        def error(c: Array) -> Array:
            # ||c y - z||^2 = ||z||^2 - 2 c y . z + c^2 ||y||^2
            difference = z_square[..., None] - 2 * c * y_dot_z + np.square(c) * y_square
            return np.asarray(np.sqrt(np.clip(difference, 0.0, None) / deviation))

        best_scale = y_dot_z / y_square
        best_scale = np.where(np.isfinite(best_scale), best_scale, 0.0)
        return {"error": error(np.ones(1)), "scaled": error(best_scale)}
