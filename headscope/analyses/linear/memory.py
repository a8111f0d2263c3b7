r"""Values stored under keys as fast weights, and how well they are read back.

N unit keys k_i of d dimensions store values v_i in ``sum_i v_i k_i^T``; v^ is what a readout gives
for a key, and the error is the mean of ``0.5 ||v - v^||^2``: 0.5 if nothing is read back.

=================  =============================================================================
``scaled-sum``     the sum of fast weights times the key, with the best single scale
``least-squares``  the best linear readout
``softmax``        attention to the stored keys, ``softmax(beta k_i . k_j)``
=================  =============================================================================

References
----------
Schlag, Irie & Schmidhuber 2021, arXiv:2102.11174, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.analyses.linear.result import KeyMemory
from headscope.core.rounding import ROUNDING, VARIANCE
from headscope.core.widest import exact
from headscope.stats.statistics import crossed_mean

TIMES = (0.5, 1, 2, 4, 8)  # Numbers of keys, as multiples of their width.
STRETCHES = 4  # Stretches of keys, at most.


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
    gram, moments = unit @ unit.mT, unit.mT @ unit
    # The smaller of the two has the same non-zero eigenvalues, so the same rank.
    smaller = gram if gram.shape[-1] <= moments.shape[-1] else moments
    rank = torch.linalg.matrix_rank(smaller, hermitian=True, rtol=VARIANCE).double()
    real = real.to(unit.device)
    pairs = (real[:, :, None] & real[:, None, :])[:, None]
    own, lowest = torch.diag_embed(exact(real[:, None])), torch.finfo(gram.dtype).min

    def missed(beta: Tensor | float) -> Tensor:
        answers = torch.softmax((beta * gram).masked_fill(~pairs, lowest), dim=-1)
        answers = answers * pairs  # rows of padding have nothing to see
        return (own - answers).square().sum((-2, -1))

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
        real = torch.ones(stretches, n, dtype=torch.bool)
        by_site = []
        for site_keys in keys:
            parts = site_keys[: stretches * n].view(stretches, n, *site_keys.shape[1:])
            unit, _ = unit_keys(parts.transpose(1, 2), real, centred=False)
            by_site.append(readout_errors(unit, real, width**0.5))
        for readout in by_site[0]:
            values = torch.cat([errors[readout] for errors in by_site], dim=1).mean(1).numpy()
            error = crossed_mean(values[:, None]).estimate()  # Student's t over the stretches
            yield KeyMemory(readout, n, width, error, closed_form(readout, n, width), stretches)
