"""What the records of one attention site prove about our attention and its canonical weights.

A *probe* is one batch of texts, a *site* one layer's attention, and a :class:`SiteRecord` what the
site showed in one run: inputs, q, k, v, pattern, z and output. Three *programs* are compared: the
model's own eager attention (``eager``), the installed attention (``ours``), and the textbook form
with the canonical weights W_Q, ..., b_O, run here on the eager run's inputs (``canonical``).

:func:`gather` compares what one probe showed, :func:`merge` joins several probes, and
:func:`layer_check` makes a line of the certificate of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from headscope.attention import attention_pattern, project_out, with_bias
from headscope.core.widest import widest
from headscope.models.certificate.agreement import (
    Agreement,
    Scale,
    ScaleSums,
    ZAgreement,
    agreement,
    out_error,
    z_agreement,
)
from headscope.models.certificate.validation import LayerCheck
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import Heads
from headscope.models.run.probes import Probe
from headscope.models.run.recording import SiteRecord

#: States with larger entries (MobileBERT's reach 10^7) are compared relative to their size.
_LARGE = 10.0
#: The programs, in the order of their agreements.
PROGRAMS = ("the model's own attention", "the installed attention", "the canonical weights")


@dataclass(frozen=True)
class Gaps:
    """Differences at one site, as in LayerCheck: each the largest of all programs and probes.

    None if not comparable.
    """

    max_abs_pattern: float | None = None
    max_abs_out: float | None = None
    mean_abs_pattern: float | None = None
    rounding_pattern: float | None = None
    rounding_out: float | None = None
    rounding_z: float | None = None

    @classmethod
    def worst(cls, gaps: Sequence[Gaps]) -> Gaps:
        """Return the largest of each; None where any is missing."""
        worst = {}
        for field in fields(cls):
            worst[field.name] = _worst([getattr(probe_gaps, field.name) for probe_gaps in gaps])
        return cls(**worst)


@dataclass(frozen=True)
class Evidence:
    """What one or several probes showed of one site."""

    calls: int  # How often our attention ran in one pass
    gaps: Gaps = Gaps()
    #: By program: what the factor on its scores, and the one on its z, are fitted from. Empty where
    #: there was nothing to compare.
    scales: tuple[ScaleSums, ...] = ()
    z_scales: tuple[ScaleSums, ...] = ()


class CanonicalRun(NamedTuple):
    """What the canonical weights make of a layer's input; None where they do not fit it."""

    pattern: Tensor | None = None  # (batch, n_heads, query_pos, key_pos)
    z: Tensor | None = None  # (batch, n_heads, query_pos, d_v)
    out: Tensor | None = None  # (batch, query_pos, d_model)


def gather(
    site: AttentionSite, calls: int, eager: SiteRecord, ours: SiteRecord, probe: Probe
) -> Evidence:
    """Compare one site's records of one probe: the model's eager run, and the run through ours.

    ``calls``: how often our attention ran there. Only query positions that are no padding are
    compared.
    """
    if not calls or eager.inputs is None:
        return Evidence(calls)
    real = probe.real_queries(site.stack)
    allowed = allowed_keys(site, probe)
    canonical = _run_canonical(site, eager, allowed)

    # Entry by entry, against what the eager run shows.
    eager_pattern = _queries_first(eager.pattern)
    patterns = [_queries_first(ours.pattern), _queries_first(canonical.pattern)]
    outs = [ours.out, canonical.out]

    # Each program's pattern, z and output against the exact ones of its own inputs.
    agreements = _agreements(site, eager, ours, canonical, real, allowed)
    z_agreements = _z_agreements(eager, ours, canonical, real)
    out_errors = [
        _out_error(site, eager.z, eager.out, real),
        _out_error(site, ours.z, ours.out, real),
        _out_error(site, eager.z, canonical.out, real),
    ]
    gaps = Gaps(
        max_abs_pattern=largest_gap((pattern, eager_pattern, real) for pattern in patterns),
        max_abs_out=largest_gap((out, eager.out, real) for out in outs),
        mean_abs_pattern=_worst([_largest(a.error) for a in agreements]),
        rounding_pattern=_worst([_largest(a.rounding) for a in agreements]),
        rounding_out=_worst(out_errors),
        rounding_z=_worst([_largest(a.rounding) for a in z_agreements]),
    )
    return Evidence(
        calls=calls,
        gaps=gaps,
        scales=tuple(a.scale for a in agreements),
        z_scales=tuple(a.scale for a in z_agreements),
    )


def _queries_first(pattern: Tensor | None) -> Tensor | None:
    """Turn (batch, n_heads, query_pos, key_pos) into (batch, query_pos, n_heads, key_pos).

    ``real``, (batch, query_pos), then picks its queries.
    """
    return None if pattern is None else pattern.transpose(1, 2)


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


def merge(evidence: Sequence[Evidence]) -> Evidence:
    """Join the evidence of several probes on one site."""
    calls = max((e.calls for e in evidence), key=lambda calls: abs(calls - 1))  # farthest from 1
    return Evidence(
        calls=calls,
        gaps=Gaps.worst([e.gaps for e in evidence]),
        scales=_added([e.scales for e in evidence]),
        z_scales=_added([e.z_scales for e in evidence]),
    )


def _added(by_probe: Sequence[tuple[ScaleSums, ...]]) -> tuple[ScaleSums, ...]:
    """Add up each program's sums over the probes; some probes may have none to add."""
    with_sums = [sums for sums in by_probe if sums]
    by_program = zip(*with_sums, strict=True)
    return tuple(reduce(add, sums) for sums in by_program)


def layer_check(site: AttentionSite, evidence: Evidence) -> LayerCheck:
    """Turn evidence into the values of a certificate; of three programs' scales, the worst."""
    scale, scale_error = _farthest_from_1(evidence.scales)
    z_scale, z_scale_error = _farthest_from_1(evidence.z_scales)
    return LayerCheck(
        stack=site.stack,
        layer=site.layer,
        calls=evidence.calls,
        **vars(evidence.gaps),
        scale=scale,
        scale_error=scale_error,
        z_scale=z_scale,
        z_scale_error=z_scale_error,
    )


def _farthest_from_1(scales: Sequence[ScaleSums]) -> Scale | tuple[None, None]:
    """Return the fitted factor that is farthest from 1 and its error; None for both without any."""
    finite = []
    for sums in scales:
        fit = sums.pooled()
        if fit is not None and math.isfinite(fit.value) and math.isfinite(fit.error):
            finite.append(fit)
    return max(finite, key=lambda fit: abs(fit.value - 1), default=(None, None))


def largest_gap(compared: Iterable[tuple[Tensor | None, Tensor | None, Tensor]]) -> float | None:
    """Return the largest |a - b| of all (a, b, real); None if any are not comparable.

    a and b are (batch, pos, ...), and ``real`` (batch, pos) marks the positions to compare. Where b
    has entries beyond 10, differences are divided by a tenth of its largest: 0.5 at an entry of 40
    counts as 0.125.
    """
    gaps: list[float | None] = []
    for a, b, real in compared:
        if a is None or b is None or a.shape != b.shape:
            gaps.append(None)
        elif a.numel() == 0:  # a layer that has lost all its heads has no pattern to differ in
            gaps.append(0.0)
        else:
            real_a = widest(a.detach()[real])
            real_b = widest(b.detach()[real])
            size = max(1.0, float(real_b.abs().max()) / _LARGE)
            gaps.append(_finite(float((real_a - real_b).abs().max()) / size))
    return _worst(gaps)


def _worst(gaps: Sequence[float | None]) -> float | None:
    """Return the largest gap; None if any is missing, or there is none."""
    present = [gap for gap in gaps if gap is not None]
    if len(present) < len(gaps):
        return None
    return max(present, default=None)


def _agreements(
    site: AttentionSite,
    eager: SiteRecord,
    ours: SiteRecord,
    canonical: CanonicalRun,
    real: Tensor,
    allowed: Tensor,
) -> list[Agreement]:
    """Compare each program's pattern with softmax(q k^T * scale) of its run's q and k.

    In the order of ``PROGRAMS``; empty if one is missing or does not fit.
    """
    scale = site.d_head**-0.5 if site.scale is None else site.scale
    results = []
    programs = (
        (eager.pattern, eager.q, eager.k),
        (ours.pattern, ours.q, ours.k),
        (canonical.pattern, eager.q, eager.k),
    )
    for pattern, q, k in programs:
        if pattern is None or q is None or k is None:
            return []
        if pattern.shape != (*q.shape[:3], k.shape[2]):
            return []
        try:
            bias = _bias(site, q, k, eager)
            results.append(agreement(pattern, q, k, scale, real, allowed=allowed, bias=bias))
        except (ValueError, RuntimeError):  # a bias that does not fit: the layout was misread
            return []
    return results


def _z_agreements(
    eager: SiteRecord,
    ours: SiteRecord,
    canonical: CanonicalRun,
    real: Tensor,
) -> list[ZAgreement]:
    """Compare each program's z with its pattern times v.

    In the order of ``PROGRAMS``; empty if one is missing or does not fit.
    """
    programs = (
        (_by_head(eager.z, eager.v), eager.pattern, eager.v),
        (_by_head(ours.z, ours.v), ours.pattern, ours.v),
        (canonical.z, canonical.pattern, eager.v),
    )
    results = []
    for z, pattern, v in programs:
        if z is None or pattern is None or v is None:
            return []
        if pattern.shape != (*z.shape[:3], v.shape[2]) or z.shape[3] != v.shape[3]:
            return []
        results.append(z_agreement(z, pattern, v, real))
    return results


def _by_head(z: Tensor | None, v: Tensor | None) -> Tensor | None:
    """Cut what enters W_O, (batch, pos, width), into the heads' z (batch, n_heads, pos, d_v)."""
    if z is None or v is None:
        return None
    batch, n_pos, width = z.shape
    _, n_heads, _, d_v = v.shape
    if width < n_heads * d_v:
        return None
    heads_z = z[..., : n_heads * d_v]  # a family may put something beside it
    return heads_z.reshape(batch, n_pos, n_heads, d_v).transpose(1, 2)


def _bias(site: AttentionSite, q: Tensor, k: Tensor, eager: SiteRecord) -> Tensor | None:
    """Return what the layout adds to the scores of these q and k; None where it adds nothing."""
    assert eager.inputs is not None
    heads = Heads(q, k, v=k)  # no bias depends on values
    with torch.no_grad():
        return site.bias(heads, eager.inputs)


def _run_canonical(site: AttentionSite, eager: SiteRecord, allowed: Tensor) -> CanonicalRun:
    """Run the textbook form of attention on this layer's input with the layout's weights."""
    assert eager.inputs is not None
    try:
        with torch.no_grad():
            weights = site.weights()
            heads = site.as_scored(site.canonical(eager.inputs, weights), eager.inputs)
            mask = with_bias(allowed[:, None], _bias(site, heads.q, heads.k, eager))
            pattern = attention_pattern(heads.q, heads.k, scale=site.scale, mask=mask)
            z = pattern @ heads.v
            out = project_out(z, weights)
            convolved = beside_heads(site, eager.z)
            if convolved is not None:
                out = out + convolved
            return CanonicalRun(pattern, z, out)
    except (ValueError, RuntimeError):  # shapes that do not fit: the layout was misread
        return CanonicalRun()


def beside_heads(site: AttentionSite, entering: Tensor | None) -> Tensor | None:
    """Return what else than the heads' z goes through W_O (ConvBERT); None in most families.

    ``entering`` (batch, pos, width) is the input of the output map: z of all heads, and behind it
    ConvBERT's convolution -> (batch, pos, d_model).
    """
    z_width = site.n_heads * site.d_head
    if entering is None or entering.shape[-1] == z_width:
        return None
    return entering[..., z_width:] @ site.projections.out.weight[:, z_width:].t()


def _out_error(
    site: AttentionSite, z: Tensor | None, out: Tensor | None, real: Tensor
) -> float | None:
    """Compare ``out`` with z W_O + b_O, in units of rounding; None if either was not seen."""
    linear = site.projections.out
    if z is None or out is None:
        return None
    with torch.no_grad():
        return _finite(out_error(out, z, linear.weight.t(), linear.bias, real))


def _largest(by_head: Tensor) -> float | None:
    """Return the largest of the heads' numbers, 0 without a head; None if it is not finite."""
    return _finite(float(by_head.max())) if by_head.numel() else 0.0


def _finite(gap: float) -> float | None:
    """Return a gap; None if it is NaN or infinite, and so proves nothing."""
    return gap if math.isfinite(gap) else None
