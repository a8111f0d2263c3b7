r"""Values stored under a head's keys and read back, and how alike the keys are.

N keys k_i, each of length 1 and d dimensions, store values v_i; the sum of fast weights is
``sum_i v_i k_i^T``. A readout answers the i-th key with a weighted sum of the values, weights in a
table R: ``v^_i = sum_j R_ij v_j``. The best answer is v_i itself, R the identity. The error is the
mean over keys of ``0.5 ||v_i - v^_i||^2``; for independent random values of length 1 that is::

    0.5 ||I - R||^2 / N            0 if every value is read back, 0.5 if nothing is (R = 0)

With G the keys' cosines, ``G_ij = k_i . k_j``, the readouts are:

=================  =============================================================================
``scaled-sum``     R = c G: the sum of fast weights times the key, with the best single scale c
``least-squares``  R projects on the span of the keys: the best linear readout
``softmax``        R = softmax(beta G), row by row: attention to the stored keys
=================  =============================================================================

:func:`readout_errors` computes these errors; :func:`key_memory` does it for more and more keys of a
text.

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

MULTIPLES = (0.5, 1, 2, 4, 8)  # Numbers of keys N, as multiples of their width d.
MOST_STRETCHES = 8  # Stretches of N keys that are cut from the text, at most.
#: Readouts of a sentence's own keys. The betas of both softmax are set by whoever measures: sqrt(d)
#: for ``softmax``; for ``softmax-own`` as sharp as the head's own scores.
READOUTS = ("scaled-sum", "least-squares", "softmax", "softmax-own")


def unit_keys(keys: Tensor, real: Tensor, *, centred: bool) -> tuple[Tensor, Tensor]:
    """Divide every key by its length; return these unit keys, and the mean length by head.

    ``real`` (batch, pos) says which positions are tokens; keys of padding become zero. ``centred``
    takes the mean of the sentence's keys away first. A key that is zero up to rounding has no
    direction and stays zero.

    Shapes: ``keys`` (batch, heads, pos, d_head); returns (batch, heads, pos, d_head), (batch,
    heads).
    """
    weight = exact(real[:, None, :, None])  # [batch, 1, pos, 1]
    n_keys = weight.sum(-2, keepdim=True)
    keys = exact(keys) * weight
    longest = torch.linalg.vector_norm(keys, dim=-1).amax(-1)[..., None, None]
    if centred:
        mean_key = keys.sum(-2, keepdim=True) / n_keys
        keys = (keys - mean_key) * weight
    lengths = torch.linalg.vector_norm(keys, dim=-1, keepdim=True)  # [batch, heads, pos, 1]
    has_direction = lengths > ROUNDING * longest
    unit = torch.where(has_direction, F.normalize(keys, dim=-1, eps=1e-300), 0.0)
    return unit, lengths.sum((-2, -1)) / n_keys[..., 0, 0]


def coherence(unit: Tensor, real: Tensor) -> Tensor:
    """Return the mean |cosine| of two different keys of a sentence, (batch, heads), from 0 to 1.

    0 for orthogonal keys, about sqrt(2 / (pi d)) for random directions, 1 for keys on one line; NaN
    for a single key. ``unit`` are keys of :func:`unit_keys`, ``real`` is as there.
    """
    n = exact(real.sum(-1))[:, None]
    cosines = (unit @ unit.mT).abs()  # [batch, heads, pos, pos]
    of_key_with_itself = cosines.diagonal(dim1=-2, dim2=-1).sum(-1)
    of_different_keys = cosines.sum((-2, -1)) - of_key_with_itself
    return of_different_keys / (n * (n - 1))


def readout_errors(
    unit: Tensor, real: Tensor, betas: Mapping[str, Tensor | float]
) -> dict[str, Tensor]:
    """Return the error of every readout by its name, in expectation over random values.

    ``betas`` holds one softmax readout by its name and beta, or several.

    Shapes: ``unit`` (batch, heads, pos, d_head) of :func:`unit_keys`, ``real`` (batch, pos), each
    of ``betas`` a number or (batch, heads, 1, 1); returns (batch, heads) each.
    """
    n = exact(real.sum(-1))[:, None]  # keys of each sentence: [batch, 1]
    G = unit @ unit.mT  # [batch, heads, pos, pos]

    # R = c G: the best c leaves ||I - c G||^2 = N - trace(G)^2 / ||G||^2. The trace counts the keys
    # that have a direction: by others nothing is stored, so nothing is read back.
    trace = G.diagonal(dim1=-2, dim2=-1).sum(-1)
    read_back = trace.square() / G.square().sum((-2, -1)).clamp_min(1e-300)
    errors = {"scaled-sum": 0.5 * (1 - read_back / n)}

    # R a projection: ||I - R||^2 = N - rank of the keys. G and the keys' second moments have the
    # same rank; the smaller of the two tells it faster.
    moments = unit.mT @ unit  # [batch, heads, d_head, d_head]
    smaller = G if G.shape[-1] <= moments.shape[-1] else moments
    rank = torch.linalg.matrix_rank(smaller, hermitian=True, rtol=VARIANCE).double()
    errors["least-squares"] = 0.5 * (1 - rank / n)

    # R = softmax(beta G), over real keys.
    real = real.to(unit.device)
    both_real = (real[:, :, None] & real[:, None, :])[:, None]  # [batch, 1, pos, pos]
    identity = torch.diag_embed(exact(real[:, None]))
    lowest = torch.finfo(G.dtype).min  # not -inf, which would make rows of padding NaN
    for name, beta in betas.items():
        R = torch.softmax((beta * G).masked_fill(~both_real, lowest), dim=-1)
        R = R * both_real  # rows of padding are nothing
        errors[name] = 0.5 * (identity - R).square().sum((-2, -1)) / n
    return errors


def closed_form(readout: str, n_keys: int, width: int) -> float | None:
    """Return the expected error for random unit keys in ``width`` dimensions; None if unknown."""
    if readout == "scaled-sum":
        return 0.5 * (n_keys - 1) / (n_keys - 1 + width)
    if readout == "least-squares":
        return 0.5 * max(0.0, 1 - width / n_keys)
    return None


def key_memory(keys: Sequence[Tensor], width: int) -> Iterator[KeyMemory]:
    """Measure every readout of N keys of the model, as they follow in the text.

    ``keys`` holds for every attention module its keys (tokens, heads, width). Numbers N that the
    text is too short for are left out.
    """
    n_tokens = len(keys[0]) if keys else 0
    for multiple in MULTIPLES:
        n = round(multiple * width)
        if n < 2 or n_tokens < n:
            continue
        stretches = min(MOST_STRETCHES, n_tokens // n)
        errors_by_module = [_errors_of_stretches(module_keys, n, stretches) for module_keys in keys]
        for readout in errors_by_module[0]:
            errors_of_heads = torch.cat([errors[readout] for errors in errors_by_module], dim=1)
            means = errors_of_heads.mean(1).numpy()  # (stretches,)
            # Student's t over the stretches: nothing is drawn, so there is one draw of each.
            error = crossed_mean(means[:, None]).estimate()
            yield KeyMemory(readout, n, width, error, closed_form(readout, n, width), stretches)


def _errors_of_stretches(keys: Tensor, n: int, stretches: int) -> dict[str, Tensor]:
    """Cut ``keys`` (tokens, heads, width) into stretches of ``n``; measure every readout of each.

    Returns errors (stretches, heads) by the name of the readout.
    """
    width = keys.shape[-1]
    all_real = torch.ones(1, n, dtype=torch.bool)
    keys_by_head = keys[: stretches * n].transpose(0, 1)  # (heads, stretches * n, width)
    # One stretch after the other: the tables (heads, n, n) of all of them are large.
    by_stretch = []
    for stretch in torch.split(keys_by_head, n, dim=1):
        unit, _ = unit_keys(stretch[None], all_real, centred=False)  # a batch of one
        by_stretch.append(readout_errors(unit, all_real, {"softmax": width**0.5}))
    return {
        readout: torch.cat([errors[readout] for errors in by_stretch]) for readout in by_stretch[0]
    }
