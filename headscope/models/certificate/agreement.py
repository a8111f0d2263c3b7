"""How well recorded tensors agree with the exact ones that their own recorded inputs give.

Three comparisons: a pattern with ``softmax(q k^T * scale)`` (:func:`agreement`), z with
``pattern v`` (:func:`z_agreement`), and a layer's output with ``z W_O + b_O`` (:func:`out_errors`).

Two measures, because each sees what the other cannot. The *error* of a row of the pattern is its L1
distance, which is the mean absolute error in units of 1/n: it sees anything that moves attention.
The *scale* is the factor on ``q k^T`` that fits the recorded pattern best: in a broad head a wrong
scale moves less attention than half precision rounds away, but it moves all of it in one direction,
and over thousands of entries that direction shows.

How the scale is fitted. If the pattern is ``softmax(c * scores)``, then ``log pattern`` is
``c * scores`` and a constant for each row. Both are centred in their row, which removes the
constant: ``x`` are the centred scores, and ``d`` is how far the centred log pattern is from them,
``(c - 1) x`` and rounding. With weights w, least squares give::

    squares  = sum of w x x      products = sum of w x d      c = 1 + products / squares

For the standard error, what rounding does is taken to be shared along a row and along a column:
where all queries of a head are much alike, so is what happens to each of their rows. So squares and
products are summed along each such *line*, and the error of c is the root of the sum over lines of
``(products of the line - (c - 1) * squares of the line)^2``, divided by ``squares``.

Written without the functions of :mod:`headscope.attention`, which are under test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from headscope.core.widest import wide, widest

#: Fewest lines, in effect, for which a standard error means anything.
MIN_LINES = 16
#: Query rows compared in a sequence, evenly spread: more would cost more and show nothing new.
QUERIES = 128


class Scale(NamedTuple):
    """A fitted factor and its standard error."""

    value: float
    error: float

    def beyond(self, limit: float) -> bool:
        """Whether it differs from 1 by more than ``limit`` and five standard errors, or is NaN."""
        return not abs(self.value - 1) <= limit + 5 * self.error


@dataclass(frozen=True)
class ScaleSums:
    """Sums that a :class:`Scale` is fitted from; they add up over heads, layers and batches.

    ``pooled`` fits the heads of a layer together; ``joined`` only adds them up, so that layers with
    other numbers of heads can be added to them.
    """

    #: (n_heads, 5): squares; products; and, of the lines, the sums of squares * squares, of
    #: squares * products and of products * products.
    sums: Tensor

    def __add__(self, other: ScaleSums) -> ScaleSums:
        return ScaleSums(self.sums + other.sums)

    def of_head(self, head: int) -> Scale | None:
        """Fit one head; None where too few lines say anything."""
        return _fit(self.sums[head])

    def joined(self) -> ScaleSums:
        """Return the sums of all heads as one head's, to be added over layers."""
        return ScaleSums(self.sums.sum(0, keepdim=True))

    def pooled(self) -> Scale | None:
        """Fit all heads together."""
        return _fit(self.sums.sum(0))


def _fit(sums: Tensor) -> Scale | None:
    """Fit the factor of one row of :class:`ScaleSums`; None where too few lines say anything."""
    squares, products, line_squares_2, line_mixed, line_products_2 = sums.tolist()
    if not (squares > 0 and line_squares_2 > 0):  # nothing to fit, or not finite
        return None
    lines_in_effect = squares * squares / line_squares_2  # their number, if all weighed the same
    if not lines_in_effect >= MIN_LINES:
        return None
    excess = products / squares
    residual = line_products_2 - 2 * excess * line_mixed + excess * excess * line_squares_2
    return Scale(value=1 + excess, error=math.sqrt(max(0.0, residual)) / squares)


def scale_sums(squares: Tensor, products: Tensor) -> ScaleSums:
    """Sum ``w x x`` and ``w x d`` of every entry, both (batch, n_heads, rows, columns)."""
    # (n_heads, all rows of all batches)
    row_squares = _sums_by_head(squares, axis=-1)
    row_products = _sums_by_head(products, axis=-1)
    # (n_heads, all rows and all columns)
    line_squares = torch.cat([row_squares, _sums_by_head(squares, axis=-2)], dim=1)
    line_products = torch.cat([row_products, _sums_by_head(products, axis=-2)], dim=1)
    totals = [
        row_squares.sum(1),
        row_products.sum(1),
        line_squares.square().sum(1),
        (line_squares * line_products).sum(1),
        line_products.square().sum(1),
    ]
    return ScaleSums(torch.stack(totals, dim=1))


def _sums_by_head(entries: Tensor, axis: int) -> Tensor:
    """Sum (batch, n_heads, rows, columns) over an axis: (n_heads, batch * the other axis)."""
    return widest(entries.sum(axis)).transpose(0, 1).flatten(1)


# --- patterns -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """A recorded pattern compared with the exact one."""

    error: Tensor  # (n_heads,): mean over rows of ``sum_j |pattern_ij - exact_ij|``
    #: (n_heads,): the same in units of what rounding explains: epsilon times ``1 + |score|``,
    #: averaged over the row by its pattern.
    rounding: Tensor
    scale: ScaleSums  # What the factor on the scores is fitted from


def agreement(
    pattern: Tensor,
    q: Tensor,
    k: Tensor,
    scale: float,
    real: Tensor,
    *,
    softcap: float | None = None,
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
) -> Agreement:
    """Compare a recorded pattern with the one that its q and k give in float32 or better.

    Parameters
    ----------
    pattern : Tensor, (batch, n_heads, query_pos, key_pos)
        What the run's softmax returned.
    q, k : Tensor, (batch, n_heads, pos, d_head)
        Queries and keys of the same run, as they were scored.
    scale : float
        What ``q k^T`` is multiplied by.
    real : Tensor, (batch, query_pos)
        Query positions that are no padding; others are not compared.
    softcap : float, optional
        The scaled scores s become ``softcap tanh(s / softcap)``.
    allowed : Tensor, (batch, query_pos, key_pos), optional
        Which keys each query may see; by default those at real positions.
    bias : Tensor, (1 or batch, n_heads, query_pos, key_pos), optional
        Added to the scaled scores.
    """
    # Some of the queries, and the keys that they may see.
    n_q = q.shape[-2]
    step = math.ceil(n_q / QUERIES)
    if allowed is None:
        allowed = real[:, None, :].expand(-1, n_q, -1)
    real_queries = real[:, ::step]
    keys = allowed[:, None, ::step]  # (batch, 1, queries, key_pos)
    pattern = pattern[..., ::step, :]
    q = q[..., ::step, :]

    # The exact pattern.
    scores = wide(q) @ wide(k).transpose(-2, -1) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + wide(bias[..., ::step, :])
    is_real = real_queries[:, None, :, None]  # (batch, 1, queries, 1)
    exact = scores.masked_fill(~keys, -torch.inf).softmax(dim=-1)
    exact = exact.masked_fill(~is_real, 0.0)  # padding may see no key at all

    # How far the recorded one is from it.
    row_error = (pattern.to(exact.dtype) - exact).abs().sum(-1)  # (batch, n_heads, queries)
    row_unit = 1 + (exact * scores.abs()).sum(-1)  # what rounding explains, in epsilons
    error = _mean_over_rows(row_error, real_queries)
    unit = _mean_over_rows(row_unit, real_queries) * torch.finfo(pattern.dtype).eps
    return Agreement(
        error=error,
        rounding=error / unit,
        scale=_pattern_sums(pattern, scores, exact, compared=is_real & keys),
    )


def _mean_over_rows(values: Tensor, real: Tensor) -> Tensor:
    """Average over real positions: (batch, n_heads, pos) -> (n_heads,)."""
    return values.transpose(1, 2)[real].mean(0)


def _pattern_sums(pattern: Tensor, scores: Tensor, exact: Tensor, compared: Tensor) -> ScaleSums:
    """Return the sums from which the factor on the scores is fitted.

    Weights are what rounding leaves: a score of size s is off by s epsilons, a pattern entry by
    one. Two things are left out: entries that are not normal numbers of the pattern's dtype, and
    rows whose scores differ by less than they are rounded to, so that nothing of a slope is left.

    All four are (batch, n_heads, queries, key_pos), or broadcast to it; ``compared`` is boolean.
    """
    precision = torch.finfo(pattern.dtype)
    usable = (exact > 4 * precision.tiny) & (pattern > 0) & compared
    weight = usable / (1 + scores.square())
    total = weight.sum(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)

    # x and d, as in the module's docstring. In place: these are the largest tensors here.
    x = scores - (weight * scores).sum(-1, keepdim=True) / total
    log = pattern.to(scores.dtype).clamp_min(precision.tiny).log_()
    d = log.sub_((weight * log).sum(-1, keepdim=True) / total).sub_(x)

    # w x x and w x d, without rows whose scores hardly differ.
    weighted_x = weight.mul_(x)
    differ = (weighted_x * x).sum(-1) >= usable.sum(-1) * precision.eps**2
    weighted_x *= differ[..., None]
    return scale_sums(squares=weighted_x * x, products=weighted_x * d)


# --- z and the output -----------------------------------------------------------------------------


@dataclass(frozen=True)
class ZAgreement:
    """Recorded z compared with the exact ones."""

    #: (n_heads,): mean ``|z - pattern v|`` in units of rounding: epsilon times the size of the
    #: result and of its terms, if these were independent.
    rounding: Tensor
    scale: ScaleSums  # What the factor on ``pattern v`` is fitted from


def z_agreement(z: Tensor, pattern: Tensor, v: Tensor, real: Tensor) -> ZAgreement:
    """Compare recorded z with the ones that pattern and values give in float32 or better.

    ``z`` (batch, n_heads, query_pos, d_v), ``pattern`` (batch, n_heads, query_pos, key_pos), ``v``
    (batch, n_heads, key_pos, d_v), ``real`` (batch, query_pos): query positions that are no
    padding.
    """
    step = math.ceil(pattern.shape[-2] / QUERIES)
    padding = ~real[:, None, ::step, None]  # (batch, 1, queries, 1)
    pattern = wide(pattern[..., ::step, :])
    v = wide(v)
    recorded = wide(z[..., ::step, :]).masked_fill(padding, 0.0)
    exact = (pattern @ v).masked_fill(padding, 0.0)
    difference = recorded - exact

    # The root of the sum of squared terms: their sum's size, if they were independent.
    size_of_terms = (pattern.square() @ v.square()).sqrt().masked_fill(padding, 0.0)
    size = (exact.abs() + size_of_terms).sum((0, 2, 3))  # (n_heads,)
    unit = size * torch.finfo(z.dtype).eps
    gap = difference.abs().sum((0, 2, 3))
    return ZAgreement(
        rounding=torch.where(unit > 0, gap / unit, gap),
        scale=scale_sums(squares=exact * exact, products=exact * difference),
    )


def out_errors(
    outs: Sequence[Tensor | None], z: Tensor, W_O: Tensor, b_O: Tensor | None, real: Tensor
) -> list[float | None]:
    """Return the mean |out - (z W_O + b_O)| of recorded half-precision z, in units of rounding.

    The unit is epsilon times the size of the sum if its terms were independent, so that terms which
    cancel are no false alarm.

    Each of ``outs`` is (batch, pos, d_model), or None where a program has none; ``z`` (batch, pos,
    n_heads * d_head), ``W_O`` (n_heads * d_head, d_model), ``b_O`` (d_model,), ``real`` (batch,
    pos): positions that are no padding.
    """
    real_z = wide(z[real])  # (real positions, n_heads * d_head)
    W = wide(W_O)
    b = W.new_zeros(()) if b_O is None else wide(b_O)
    exact = real_z @ W + b
    size = (real_z.square() @ W.square() + b.square()).sqrt().mean()
    errors: list[float | None] = []
    for out in outs:
        if out is None:
            errors.append(None)
            continue
        gap = (wide(out[real]) - exact).abs().mean()
        unit = size * torch.finfo(out.dtype).eps
        errors.append(float(gap / unit) if float(unit) else float(gap))
    return errors
