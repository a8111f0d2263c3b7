"""How well a recorded pattern agrees with softmax(q k^T * scale) of its own recorded q and k.

Two measures, because each sees what the other cannot. The *error* of a row is its L1 distance,
which is the mean absolute error in units of 1/n: it sees anything that moves attention. The *scale*
is the factor on ``q k^T`` that fits the recorded pattern best: in a broad head a wrong scale moves
less attention than half precision rounds away, but it moves all of it in one direction, and over
thousands of entries that direction shows.

Written without the functions of :mod:`headscope.attention`, which are under test.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from headscope.core.widest import widest

#: Fewest rows and columns, in effect, for which a standard error means anything.
MIN_ROWS = 16
#: Query rows compared in a sequence, evenly spread: more would cost more and show nothing new.
QUERIES = 128


class Scale(NamedTuple):
    """A factor on the scores and its standard error.

    Errors are taken to be shared along rows and along columns: where all queries of a head are much
    alike, so is what rounding does to each of their rows.
    """

    value: float
    error: float

    def beyond(self, limit: float) -> bool:
        """Whether it differs from 1 by more than ``limit`` and five standard errors."""
        return not abs(self.value - 1) <= limit + 5 * self.error


@dataclass(frozen=True)
class ScaleSums:
    """Sums that a :class:`Scale` comes from; they add up over heads, layers and batches."""

    #: (n_heads, 5): with x the centred scores of a row, d the deviation of its centred log pattern
    #: from them and w the weights, ``X = sum w x^2`` and ``D = sum w x d`` of each row and each
    #: column: the sums of X and D over rows, and of X^2, X D and D^2 over rows and columns.
    sums: Tensor

    def __add__(self, other: ScaleSums) -> ScaleSums:
        return ScaleSums(self.sums + other.sums)

    def of_head(self, head: int) -> Scale | None:
        """Fit one head; None where too few rows say anything."""
        return _fit(self.sums[head])

    def joined(self) -> ScaleSums:
        """Return the sums of all heads as one head's, to be added over layers."""
        return ScaleSums(self.sums.sum(0, keepdim=True))

    def pooled(self) -> Scale | None:
        """Fit all heads together."""
        return _fit(self.sums.sum(0))


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
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
) -> Agreement:
    """Compare a recorded pattern with the one that its q and k give in float32 or better.

    ``pattern`` (batch, n_heads, query_pos, key_pos), ``q, k`` (batch, n_heads, pos, d_head),
    ``real`` (batch, query_pos), ``allowed`` (batch, query_pos, key_pos), ``bias`` (1 or batch,
    n_heads, query_pos, key_pos).
    """
    # Some of the queries, and the keys that they may see.
    step = math.ceil(q.shape[-2] / QUERIES)
    queries = real[:, ::step]
    if allowed is None:
        allowed = real[:, None, :].expand(-1, q.shape[-2], -1)
    keys = allowed[:, None, ::step]
    pattern = pattern[..., ::step, :]
    q = q[..., ::step, :]

    # The exact pattern.
    scores = _wide(q) @ _wide(k).transpose(-2, -1) * scale
    if bias is not None:
        scores = scores + _wide(bias[..., ::step, :])
    exact = scores.masked_fill(~keys, -torch.inf).softmax(dim=-1)
    exact = exact.masked_fill(~queries[:, None, :, None], 0.0)  # padding may see no key at all

    # How far the recorded one is from it.
    off = (pattern.to(exact.dtype) - exact).abs().sum(-1)  # (batch, n_heads, queries)
    error = _over_rows(off, queries)
    spread = _over_rows(1 + (exact * scores.abs()).sum(-1), queries)
    seen = queries[:, None, :, None] & keys
    rounding = error / (spread * torch.finfo(pattern.dtype).eps)
    return Agreement(error, rounding, _pattern_sums(pattern, scores, exact, seen))


def out_error(out: Tensor, z: Tensor, W_O: Tensor, b_O: Tensor | None, real: Tensor) -> float:
    """Return the mean |out - (z W_O + b_O)| of recorded half-precision z, in units of rounding.

    The unit is epsilon times the size of the sum if its terms were independent, so that terms which
    cancel are no false alarm.

    ``out`` (batch, pos, d_model), ``z`` (batch, pos, n_heads * d_head), ``W_O`` (n_heads * d_head,
    d_model), ``b_O`` (d_model,), ``real`` (batch, pos).
    """
    rows = _wide(z[real])
    W = _wide(W_O)
    b = W.new_zeros(()) if b_O is None else _wide(b_O)
    off = (_wide(out[real]) - (rows @ W + b)).abs().mean()
    size = (rows.square() @ W.square() + b.square()).sqrt().mean()
    unit = size * torch.finfo(out.dtype).eps
    return float(off / unit) if float(unit) else float(off)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _over_rows(values: Tensor, real: Tensor) -> Tensor:
    """Average over real positions: (batch, n_heads, pos) -> (n_heads,)."""
    return values.transpose(1, 2)[real].mean(0)


def _pattern_sums(pattern: Tensor, scores: Tensor, exact: Tensor, seen: Tensor) -> ScaleSums:
    """Return sums of the weighted least squares ``log pattern = scale * scores + row constant``.

    Weights are what rounding leaves: a score of size s is off by s epsilons, a pattern entry by
    one. Entries that are not normal numbers of the pattern's dtype are left out, and rows whose
    scores spread by less than they are rounded to: nothing of their slope is left.
    """
    precision = torch.finfo(pattern.dtype)
    usable = (exact > 4 * precision.tiny) & (pattern > 0) & seen
    weight = usable / (1 + scores.square())
    total = weight.sum(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)

    # x: the scores, centred in their row. d: how far the centred log pattern is from them.
    x = scores - (weight * scores).sum(-1, keepdim=True) / total
    log = pattern.to(scores.dtype).clamp_min(precision.tiny).log_()
    d = log.sub_((weight * log).sum(-1, keepdim=True) / total).sub_(x)

    # The sums of w x^2 and w x d, without rows whose scores hardly spread.
    weighted_x = weight.mul_(x)
    spreads = (weighted_x * x).sum(-1) >= usable.sum(-1) * precision.eps**2
    weighted_x *= spreads[..., None]
    return scale_sums(weighted_x * x, weighted_x * d)


def scale_sums(X: Tensor, D: Tensor) -> ScaleSums:
    """Sum ``w x^2`` and ``w x d`` of every entry, both (batch, n_heads, rows, columns)."""
    X_rows = _sums_by_head(X, axis=-1)
    D_rows = _sums_by_head(D, axis=-1)
    # (n_heads, all rows and all columns)
    X_lines = torch.cat([X_rows, _sums_by_head(X, axis=-2)], dim=1)
    D_lines = torch.cat([D_rows, _sums_by_head(D, axis=-2)], dim=1)
    totals = [
        X_rows.sum(1),
        D_rows.sum(1),
        X_lines.square().sum(1),
        (X_lines * D_lines).sum(1),
        D_lines.square().sum(1),
    ]
    return ScaleSums(torch.stack(totals, dim=1))


def _sums_by_head(entries: Tensor, axis: int) -> Tensor:
    """Sum (batch, n_heads, rows, columns) over an axis: (n_heads, batch * the other axis)."""
    return widest(entries.sum(axis)).transpose(0, 1).flatten(1)


def _fit(sums: Tensor) -> Scale | None:
    """Fit the factor that one row of :class:`ScaleSums` states, and its standard error."""
    X, D, XX, XD, DD = sums.tolist()
    if not (X > 0 and XX > 0 and X * X / XX >= MIN_ROWS):
        return None
    excess = D / X  # the slope of d over x: what the factor is beyond 1
    residual = max(0.0, DD - 2 * excess * XD + excess * excess * XX)
    return Scale(1 + excess, math.sqrt(residual) / X)


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
    (batch, n_heads, key_pos, d_v), ``real`` (batch, query_pos).
    """
    step = math.ceil(pattern.shape[-2] / QUERIES)
    wide = z.dtype if z.dtype == torch.float64 else torch.float32
    seen = real[:, None, ::step, None]
    P = pattern[..., ::step, :].to(wide)
    v = v.to(wide)
    exact = (P @ v).masked_fill(~seen, 0.0)
    off = z[..., ::step, :].to(wide).masked_fill(~seen, 0.0) - exact
    terms = (P.square() @ v.square()).sqrt().masked_fill(~seen, 0.0)
    size = (exact.abs() + terms).sum((0, 2, 3))
    unit = size * torch.finfo(z.dtype).eps
    gap = off.abs().sum((0, 2, 3))
    return ZAgreement(
        torch.where(unit > 0, gap / unit, gap), scale_sums(exact * exact, exact * off)
    )
