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
Schlag, Irie & Schmidhuber 2021, arXiv:2102.11174, sections 3 and 4; Katharopoulos et al. 2020,
arXiv:2006.16236, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.attention import Mask
from headscope.core.widest import exact
from headscope.measures.pooling import wide
from headscope.measures.rounding import EPS, ROUNDING, VARIANCE
from headscope.measures.visible import visible

__all__ = ["READOUTS", "closed_form", "coherence", "readout_errors", "simulate", "unit_keys"]

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
EVEN = "even"  # What is measured beside them: the mean of the values that a query may see.


def linear_attention(
    form: str, q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Mask = None
) -> Tensor:
    """Compute z of a linear form.

    Shapes: ``q`` (..., query_pos, d_head), ``k``, ``v`` (..., key_pos, d_head); returns (...,
    query_pos, d_head).
    """
    weights = _weights(form, q, k, scale)
    if mask is not None:
        weights = weights * visible(mask).to(weights)
    if form in (EVEN, FIRST_ORDER) or form.endswith(_NORMALISED):
        total = weights.sum(-1, keepdim=True)
        # Weights of both signs may cancel: a sum that is their rounding divides nothing.
        none = total.abs() <= 16 * EPS * weights.abs().sum(-1, keepdim=True)
        weights = torch.where(none, 0.0, weights / torch.where(none, 1.0, total))
    return (weights @ v.to(weights)).to(v)


def _weights(form: str, q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Weights before any mask, (..., query_pos, key_pos); in single precision at least."""
    q, k = wide(q), wide(k)
    if form == EVEN:
        return q.new_ones(*q.shape[:-1], k.shape[-2])
    feature, root = FEATURES[form.removesuffix(_NORMALISED)], math.sqrt(scale)
    return feature(q * root) @ feature(k * root).transpose(-2, -1)


READOUTS = ("sum", "scaled-sum", "least-squares", "softmax")


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


def readout_errors(unit: Tensor, real: Tensor, beta: Tensor | float) -> dict[str, Tensor]:
    """Return the error of every readout on given keys, in expectation over the values.

    Shapes: ``unit`` (batch, heads, pos, d_head), ``real`` (batch, pos), ``beta`` (batch, heads, 1,
    1); returns (batch, heads).
    """
    n = exact(real.sum(-1))[:, None]
    gram, moments = unit @ unit.mT, unit.mT @ unit
    # The smaller of the two has the same eigenvalues but for zeros.
    smaller = gram if gram.shape[-1] <= moments.shape[-1] else moments
    rank = torch.linalg.matrix_rank(smaller, hermitian=True, rtol=VARIANCE).double()
    real = real.to(unit.device)
    pairs = (real[:, :, None] & real[:, None, :])[:, None]
    answers = torch.softmax((beta * gram).masked_fill(~pairs, torch.finfo(gram.dtype).min), dim=-1)
    answers = answers * pairs  # rows of padding have nothing to see
    missed = (torch.diag_embed(exact(real[:, None])) - answers).square().sum((-2, -1))
    # Keys of length zero store nothing: of them nothing is read back.
    stored = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    best = stored.square() / gram.square().sum((-2, -1)).clamp_min(1e-300)
    return {
        "scaled-sum": 0.5 * (1 - best / n),
        "least-squares": 0.5 * (1 - rank / n),
        "softmax": 0.5 * missed / n,
    }


def closed_form(readout: str, keys: int, width: int) -> float | None:
    """Return the expected error for N random unit keys in d dimensions; None if not known."""
    if readout == "sum":
        return 0.5 * (keys - 1) / width
    if readout == "scaled-sum":
        return 0.5 * (keys - 1) / (keys - 1 + width)
    if readout == "least-squares":
        return 0.5 * max(0.0, 1 - width / keys)
    return None


def simulate(keys: int, width: int, generator: torch.Generator) -> dict[str, float]:
    """Draw unit keys and unit values, (keys, width) each, and return the error of every readout.

    Values are stored and read for real, so that this is another way to the closed forms.
    """
    k = _unit(keys, width, generator)
    v = _unit(keys, width, generator)
    memory = k.T @ v  # (width, width): the fast weights
    scale = 1 / (1 + (keys - 1) / width)
    best = torch.linalg.lstsq(k, v, driver="gelsd").solution
    answers = {
        "sum": k @ memory,
        "scaled-sum": scale * (k @ memory),
        "least-squares": k @ best,
        "softmax": torch.softmax(math.sqrt(width) * (k @ k.T), dim=-1) @ v,
    }
    return {name: float(0.5 * (v - v_).square().sum(-1).mean()) for name, v_ in answers.items()}


def _unit(rows: int, width: int, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return F.normalize(drawn, dim=-1)
