r"""Values stored under a head's keys and read back, and how alike the keys are.

N unit keys k_i of d dimensions store values v_i in ``sum_i v_i k_i^T``; v^ is what a readout gives
for a key, and the error is the mean of ``0.5 ||v - v^||^2``: 0.5 if nothing is read back.

=================  =============================================================================
``scaled-sum``     the sum of fast weights times the key, with the best single scale
``least-squares``  the best linear readout
``softmax``        attention to the stored keys, ``softmax(beta k_i . k_j)``
=================  =============================================================================

References
----------
Schlag, Irie & Schmidhuber 2021, arXiv:2102.11174, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.analyses.linear.result import KeyMemory
from headscope.core.rounding import ROUNDING, VARIANCE
from headscope.core.widest import exact
from headscope.stats.statistics import crossed_mean

TIMES = (0.5, 1, 2, 4, 8)  # Numbers of keys N, as multiples of their width d.
STRETCHES = 8  # Stretches of N keys that are cut from the text, at most.
#: Readouts of a sentence's own keys: the last softmax is as sharp as the head's own scores, its
#: beta the mean length of keys times that of queries times the scale.
STORED = ("scaled-sum", "least-squares", "softmax", "softmax-own")


def unit_keys(keys: Tensor, real: Tensor, *, centred: bool) -> tuple[Tensor, Tensor]:
    """Return the directions of the keys of each sentence and head, and their mean length.

    ``centred`` takes the mean of the sentence's keys away first. A key that is zero up to rounding
    has no direction: zero.

    Shapes: ``keys`` (batch, heads, pos, d_head), ``real`` (batch, pos); returns (batch, heads, pos,
    d_head), (batch, heads).
    """
    weight = exact(real[:, None, :, None])
    count = weight.sum(-2, keepdim=True)
    keys = exact(keys) * weight
    longest = torch.linalg.vector_norm(keys, dim=-1).amax(-1)[..., None, None]
    if centred:
        keys = (keys - keys.sum(-2, keepdim=True) / count) * weight
    lengths = torch.linalg.vector_norm(keys, dim=-1, keepdim=True)
    unit = torch.where(lengths > ROUNDING * longest, F.normalize(keys, dim=-1, eps=1e-300), 0.0)
    return unit, lengths.sum((-2, -1)) / count[..., 0, 0]


def coherence(unit: Tensor, real: Tensor) -> Tensor:
    """Return the mean |cosine| of two different keys, (batch, heads), from 0 to 1.

    0 orthogonal, about sqrt(2 / (pi d)) for random directions, 1 on one line; NaN for a single key.
    """
    n = exact(real.sum(-1))[:, None]
    gram = (unit @ unit.mT).abs()
    off_diagonal = gram.sum((-2, -1)) - gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    return off_diagonal / (n * (n - 1))


def readout_errors(
    unit: Tensor, real: Tensor, betas: Mapping[str, Tensor | float]
) -> dict[str, Tensor]:
    """Return the error of every readout on given keys, in expectation over the values.

    ``betas`` are those of the softmax readouts, by name.

    Shapes: ``unit`` (batch, heads, pos, d_head), ``real`` (batch, pos), each of ``betas`` a number
    or (batch, heads, 1, 1); returns (batch, heads).
    """
    n = exact(real.sum(-1))[:, None]
    gram = unit @ unit.mT
    moments = unit.mT @ unit
    # The smaller of the two has the same non-zero eigenvalues, so the same rank.
    smaller = gram if gram.shape[-1] <= moments.shape[-1] else moments
    rank = torch.linalg.matrix_rank(smaller, hermitian=True, rtol=VARIANCE).double()
    # The trace: keys of length zero store nothing, so nothing is read back for them.
    stored = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    read_back = stored.square() / gram.square().sum((-2, -1)).clamp_min(1e-300)
    errors = {
        "scaled-sum": 0.5 * (1 - read_back / n),
        "least-squares": 0.5 * (1 - rank / n),
    }

    # A softmax answers each key with a mean of the values, by how alike the stored keys are.
    real = real.to(unit.device)
    pairs = (real[:, :, None] & real[:, None, :])[:, None]
    identity = torch.diag_embed(exact(real[:, None]))
    lowest = torch.finfo(gram.dtype).min
    for name, beta in betas.items():
        answers = torch.softmax((beta * gram).masked_fill(~pairs, lowest), dim=-1)
        answers = answers * pairs  # rows of padding have nothing to see
        missed = (identity - answers).square().sum((-2, -1))
        errors[name] = 0.5 * missed / n
    return errors


def closed_form(readout: str, keys: int, width: int) -> float | None:
    """Return the expected error for N random unit keys in d dimensions; None if there is none."""
    if readout == "scaled-sum":
        return 0.5 * (keys - 1) / (keys - 1 + width)
    if readout == "least-squares":
        return 0.5 * max(0.0, 1 - width / keys)
    return None


def key_memory(keys: Sequence[Tensor], width: int) -> Iterator[KeyMemory]:
    """Measure every readout of N keys of the model, as they follow in the text.

    ``keys`` are those of every site, each (tokens, heads, width). Numbers of keys that the text has
    no stretch of are left out.
    """
    n_tokens = len(keys[0]) if keys else 0
    for times in TIMES:
        n = round(times * width)
        if n < 2 or n_tokens < n:
            continue
        stretches = min(STRETCHES, n_tokens // n)
        errors_by_site = [_errors_of_stretches(site_keys, n, stretches) for site_keys in keys]
        for readout in errors_by_site[0]:
            head_errors = torch.cat([errors[readout] for errors in errors_by_site], dim=1)
            means = head_errors.mean(1).numpy()  # (stretches,)
            error = crossed_mean(means[:, None]).estimate()  # Student's t over the stretches
            yield KeyMemory(readout, n, width, error, closed_form(readout, n, width), stretches)


def _errors_of_stretches(keys: Tensor, n: int, stretches: int) -> dict[str, Tensor]:
    """Return the error of every readout of stretches of ``n`` keys, (stretches, heads).

    ``keys`` (tokens, heads, width) are those of one site.
    """
    width = keys.shape[-1]
    real = torch.ones(1, n, dtype=torch.bool)
    # One stretch after the other: the tables (heads, n, n) of all of them are large.
    by_stretch = []
    for stretch in torch.split(keys[: stretches * n].transpose(0, 1), n, dim=1):
        unit, _ = unit_keys(stretch[None], real, centred=False)
        by_stretch.append(readout_errors(unit, real, {"softmax": width**0.5}))
    return {
        readout: torch.cat([errors[readout] for errors in by_stretch]) for readout in by_stretch[0]
    }
