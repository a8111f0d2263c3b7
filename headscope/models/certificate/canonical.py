"""The textbook form of attention on a layer's recorded inputs, and how far rounding may take it.

:func:`run_canonical` puts the inputs of one layer through the canonical weights W_Q, ..., b_O that
the layout reads out of the checkpoint. :func:`distance` says how far another program that had the
very same inputs is from that, in units of rounding. Nothing accumulates over layers here, so the
unit holds for states of any size.

The unit is epsilon times the size that each sum would have, had its terms been independent: the
root of the sum of their squares. A query ``x W_Q`` is a sum over d_model, a score one over d_head,
and z one over keys, each with the errors of what it is made of::

    score  s_ij:  u_ij^2 = s_ij^2 + scale^2 (sum of (q_ic k_jc)^2 + |q_i|^2 |k_j|^2 (e_i^2 + e_j^2))
    row of P:     1 + sum over j of P_ij u_ij
    z_i:          sum over j of P_ij^2 (v_j^2 (1 + u_ij^2) + size of v_j^2)
    out:          (z^2 + error of z^2) W_O^2 + out^2

with e_i what a projected query or key is off by, relative to its length. Under a soft cap, u_ij is
multiplied by the slope of the cap at s_ij.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from headscope.attention import (
    AttentionWeights,
    attention_pattern,
    capped,
    project_out,
    with_bias,
)
from headscope.core.widest import wide
from headscope.models.certificate.whole_runs import finite
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput, Heads
from headscope.models.run.probes import Probe
from headscope.models.run.recording import SiteRecord


class CanonicalRun(NamedTuple):
    """What the canonical weights make of a layer's inputs."""

    weights: AttentionWeights
    projected: Heads  # q, k, v of every head, before any step of the layout
    heads: Heads  # q, k, v as they are scored
    bias: Tensor | None  # (1 or batch, n_heads, query_pos, key_pos): added to the scores
    pattern: Tensor  # (batch, n_heads, query_pos, key_pos)
    z: Tensor  # (batch, n_heads, query_pos, d_v)
    out: Tensor  # (batch, query_pos, d_model)


def run_canonical(site: AttentionSite, record: SiteRecord, allowed: Tensor) -> CanonicalRun | None:
    """Run the textbook form on the inputs of a record; None if weights and inputs do not fit.

    ``allowed`` (batch, query_pos, key_pos): which keys each query may see.
    """
    inputs = record.inputs
    if inputs is None:
        return None
    try:
        with torch.no_grad():
            weights = site.weights()
            projected = site.canonical(inputs, weights)
            heads = site.as_scored(projected, inputs)
            bias = site.bias(heads, inputs)
            mask = with_bias(allowed[:, None], bias)
            pattern = attention_pattern(
                heads.q,
                heads.k,
                scale=site.scale,
                softcap=site.softcap,
                mask=mask,
            )
            z = pattern @ heads.v
            out = project_out(z, weights)
            convolved = beside_heads(site, record.z)
            if convolved is not None:
                out = out + convolved
            return CanonicalRun(weights, projected, heads, bias, pattern, z, out)
    except (ValueError, RuntimeError):  # shapes that do not fit: the layout was misread
        return None


def beside_heads(site: AttentionSite, entering: Tensor | None) -> Tensor | None:
    """Return what else than the heads' z goes through W_O (ConvBERT); None in most families.

    ``entering`` (batch, pos, width) is the input of the output map: z of all heads, and behind it
    ConvBERT's convolution -> (batch, pos, d_model).
    """
    z_width = site.n_heads * site.d_head
    if entering is None or entering.shape[-1] == z_width:
        return None
    return entering[..., z_width:] @ site.projections.out.weight[:, z_width:].t()


def allowed_keys(site: AttentionSite, probe: Probe) -> Tensor:
    """Return which keys each query may see: (batch, query_pos, key_pos), boolean.

    Made from the padding, the direction and the window of the site alone, not from the mask that
    the model hands over.
    """
    keys = probe.real_keys(site.stack)
    n_q = probe.real_queries(site.stack).shape[1]
    n_k = keys.shape[1]
    query_pos = torch.arange(n_q, device=keys.device)[:, None]
    key_pos = torch.arange(n_k, device=keys.device)
    visible = torch.ones(n_q, n_k, dtype=torch.bool, device=keys.device)
    if site.causal:
        visible = key_pos <= query_pos
    if site.window is not None:
        visible = visible & ((key_pos - query_pos).abs() <= site.window)
    return keys[:, None, :] & visible


# --- in units of rounding -------------------------------------------------------------------------


class Distance(NamedTuple):
    """How far a program is from the textbook form on the same inputs, in units of rounding."""

    pattern: float | None  # Mean over rows, of the head that differs most; None if not comparable
    out: float | None  # Mean over positions and coordinates


class Units(NamedTuple):
    """What rounding may do at one site, given what the layer is called with."""

    #: (batch, n_heads, query_pos, key_pos): the squared error of every score, in epsilons
    score_errors: Tensor
    v_squares: Tensor  # (batch, n_heads, key_pos, d_v): the squared terms of v
    weights: AttentionWeights  # Squared, entry by entry


def rounding_units(site: AttentionSite, run: CanonicalRun, inputs: AttentionInput) -> Units:
    """Return the units of the distances from a textbook run on these inputs."""
    with torch.no_grad():
        weights = AttentionWeights(
            **{name: wide(tensor).square() for name, tensor in vars(run.weights).items()}
        )
        squares = site.canonical(_squared(inputs), weights)  # of the terms of q, k and v
        return Units(_score_errors(site, run, squares), squares.v, weights)


def distance(
    site: AttentionSite, run: CanonicalRun, record: SiteRecord, units: Units, real: Tensor
) -> Distance:
    """Compare the pattern and the output that a record shows with the textbook form of its inputs.

    ``real`` (batch, query_pos): query positions that are no padding; others are not compared. A
    record without a pattern (SDPA) is compared by its output alone. ``units`` may be those of
    inputs that differ from the record's by rounding.
    """
    if site.n_heads == 0:
        return Distance(0.0, 0.0)
    with torch.no_grad():
        return Distance(
            pattern=_pattern_distance(run, units, record.pattern, real),
            out=_out_distance(run, units, record.out, real),
        )


def _squared(inputs: AttentionInput) -> AttentionInput:
    """Square what queries, keys and values are made from, entry by entry."""
    x_q = wide(inputs.x_q).square()
    x_k = wide(inputs.x_k).square() if inputs.crossed else x_q
    x_value = None if inputs.x_value is None else wide(inputs.x_value).square()
    return dataclasses.replace(inputs, x_q=x_q, x_k=x_k, x_value=x_value)


def _score_errors(site: AttentionSite, run: CanonicalRun, squared: Heads) -> Tensor:
    """Return the squared error of every score, in epsilons: (batch, n_heads, query_pos, key_pos).

    A step that turns or norms q and k keeps how far each is off, relative to its length.
    """
    q = wide(run.heads.q)
    k = wide(run.heads.k)
    scale = site.d_head**-0.5 if site.scale is None else site.scale
    # (batch, n_heads, pos, 1)
    q_lengths = q.square().sum(-1, keepdim=True)
    k_lengths = k.square().sum(-1, keepdim=True)
    q_errors = q_lengths * (1 + _relative(squared.q, run.projected.q))
    k_errors = k_lengths * (1 + _relative(squared.k, run.projected.k))

    terms = q.square() @ k.square().transpose(-2, -1)
    d_head = q.shape[-1]
    from_q = q_errors @ k_lengths.transpose(-2, -1) / d_head
    from_k = q_lengths @ k_errors.transpose(-2, -1) / d_head
    scores = q @ k.transpose(-2, -1) * scale
    errors = scale**2 * (terms + from_q + from_k) + scores.square()
    if site.softcap is not None:  # the cap bends errors as it bends scores
        bent = capped(scores, site.softcap)
        slope = 1 - (bent / site.softcap).square()
        errors = errors * slope.square() + bent.square()
    if run.bias is not None:
        errors = errors + wide(run.bias).square()
    return errors


def _relative(squares: Tensor, projected: Tensor) -> Tensor:
    """Return the squared error of vectors relative to their squared lengths: (..., 1)."""
    lengths = wide(projected).square().sum(-1, keepdim=True)
    smallest = torch.finfo(lengths.dtype).tiny
    return squares.sum(-1, keepdim=True) / lengths.clamp_min(smallest)


def _pattern_distance(
    run: CanonicalRun, units: Units, pattern: Tensor | None, real: Tensor
) -> float | None:
    """Compare patterns row by row, head by head; the head that differs most counts."""
    if pattern is None or pattern.shape != run.pattern.shape:
        return None
    exact = wide(run.pattern)
    gaps = (wide(pattern) - exact).abs().sum(-1)  # (batch, n_heads, query_pos)
    sizes = 1 + (exact * units.score_errors.sqrt()).sum(-1)
    by_head = gaps.transpose(1, 2)[real].mean(0) / sizes.transpose(1, 2)[real].mean(0)
    return finite(float(by_head.max()) / torch.finfo(pattern.dtype).eps)


def _out_distance(
    run: CanonicalRun, units: Units, out: Tensor | None, real: Tensor
) -> float | None:
    """Compare the outputs of a layer."""
    if out is None or out.shape != run.out.shape:
        return None
    v_squared = wide(run.heads.v).square()
    pattern_squared = wide(run.pattern).square()
    from_pattern = (pattern_squared * (1 + units.score_errors)) @ v_squared
    z_errors = from_pattern + pattern_squared @ units.v_squares
    z_squared = wide(run.z).square()
    exact = wide(run.out)
    squares = project_out(z_errors + z_squared, units.weights) + exact.square()
    gap = (wide(out) - exact).abs()[real].mean()
    unit = squares.sqrt()[real].mean() * torch.finfo(out.dtype).eps
    return finite(float(gap / unit) if float(unit) else float(gap))
