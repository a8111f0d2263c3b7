r"""How alike the keys of a sentence are, and what can be read back from a memory that they address.

A memory stores N values under N unit keys and is asked for each of them by its own key. Whatever
the readout, it answers with ``v^_j = sum_i A_ji v_i``. For values that are orthonormal, or drawn
independently with mean zero and length 1, the mean of ``0.5 ||v_j - v^_j||^2`` is

    0.5 ||I - A||_F^2 / N                           exactly, or in expectation over the values

=================  ============================================  ============================
readout            A, with G_ij = k_i . k_j                      N random keys in d dimensions
=================  ============================================  ============================
``sum``            G: the fast weights sum_i v_i k_i^T, as       0.5 (N-1) / d
                   attention without softmax reads them
``scaled-sum``     c G, c = 1 / (1 + (N-1)/d)                    0.5 (N-1) / (N-1+d)
``least-squares``  the projection on what the keys span: no      0.5 (1 - d/N), N >= d
                   linear readout is better
``softmax``        softmax of beta G, row by row                 simulated
=================  ============================================  ============================

The last closed form needs no randomness: it holds for any N keys that span d dimensions, as a
projection of rank d has ``||I - A||^2 = N - d``. With N <= d independent keys it is 0. For given
keys the best c is ``N / ||G||_F^2``, and the error 0.5 (1 - N / ||G||_F^2): that depends on nothing
but the mean square of the cosines between keys.

beta is sqrt(d): what the scale 1/sqrt(d) leaves of keys and queries whose entries have variance 1.

References
----------
Schlag, Irie & Schmidhuber 2021, arXiv:2102.11174, sections 4.1 and 6.1; Hopfield 1982; Anderson
1972 (correlation matrix memories).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.core.widest import exact
from headscope.measures.rounding import ROUNDING, VARIANCE

__all__ = ["READOUTS", "closed_form", "coherence", "readout_errors", "simulate", "unit_keys"]

READOUTS = ("sum", "scaled-sum", "least-squares", "softmax")


def unit_keys(keys: Tensor, real: Tensor, *, centred: bool) -> tuple[Tensor, Tensor]:
    """Return the directions of the keys of each sentence and head, and their mean length.

    Parameters
    ----------
    keys : Tensor, (batch, heads, pos, d_head)
        Any dtype; computed in float64.
    real : Tensor, (batch, pos), boolean
        False at padding.
    centred : bool
        Whether the mean of a sentence's keys is taken away first: a softmax does not see it.

    Returns
    -------
    unit : Tensor of float64, (batch, heads, pos, d_head)
        Of length 1; zero at padding, and for keys that are zero, or nothing but rounding beside the
        sentence's longest (keys that are all equal, without their mean).
    length : Tensor of float64, (batch, heads)
        Mean length of the real keys.
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

    Parameters
    ----------
    unit : Tensor of float64, (batch, heads, pos, d_head)
        What :func:`unit_keys` gave.
    real : Tensor, (batch, pos), boolean
        False at padding.
    beta : float or Tensor, broadcastable to (batch, heads, 1, 1)
        Of the softmax.

    Returns
    -------
    dict of str to Tensor, (batch, heads)
        ``scaled-sum`` with the best number for these keys, ``least-squares`` and ``softmax``.
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
