"""What the records of one attention site prove about our attention and its canonical weights.

A *probe* is one batch of texts, a *site* one layer's attention, and a :class:`SiteRecord` what the
site showed in one run: inputs, q, k, v, pattern, z and output. Three *programs* are compared: the
model's own eager attention (``eager``), the installed attention (``ours``), and the textbook form
with the canonical weights W_Q, ..., b_O, run here on the eager run's inputs (``canonical``).

*Local* numbers are of programs that had the same inputs at this site, in units of rounding. Others
compare whole runs, in which the rounding of earlier layers has added up.

:func:`gather` compares what one probe showed, :func:`merge` joins several probes, and
:func:`layer_check` makes a line of the certificate of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import add

import torch
from torch import Tensor

from headscope.models.certificate.agreement import (
    Agreement,
    Scale,
    ScaleSums,
    ZAgreement,
    agreement,
    out_errors,
    z_agreement,
)
from headscope.models.certificate.canonical import (
    CanonicalRun,
    Distance,
    Units,
    allowed_keys,
    distance,
    rounding_units,
    run_canonical,
)
from headscope.models.certificate.handed import (
    HandedRun,
    handed_bias,
    handed_keys,
    run_handed,
)
from headscope.models.certificate.handed import distance as handed_distance
from headscope.models.certificate.in_float32 import float32_distance
from headscope.models.certificate.validation import LayerCheck
from headscope.models.certificate.whole_runs import NOT_COMPARED, OwnRuns, RunGaps, finite, worst
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import Heads
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.probes import Probe
from headscope.models.run.recording import Recording, SiteRecord

#: The programs, in the order of their agreements.
PROGRAMS = ("the model's own attention", "the installed attention", "the canonical weights")


@dataclass(frozen=True)
class Gaps:
    """Local differences at one site, as in LayerCheck: the largest of all programs and probes.

    None if not comparable.
    """

    local_pattern: float | None = None
    local_out: float | None = None
    mean_abs_pattern: float | None = None
    rounding_pattern: float | None = None
    rounding_out: float | None = None
    rounding_z: float | None = None

    @classmethod
    def worst(cls, gaps: Sequence[Gaps]) -> Gaps:
        """Return the largest of each; None where any is missing."""
        largest = {}
        for field in fields(cls):
            largest[field.name] = worst([getattr(probe_gaps, field.name) for probe_gaps in gaps])
        return cls(**largest)


@dataclass(frozen=True)
class Evidence:
    """What one or several probes showed of one site."""

    calls: int  # How often our attention ran in one pass
    gaps: Gaps = Gaps()
    pattern: RunGaps = NOT_COMPARED  # Of whole runs, as they arrive at this site
    out: RunGaps = NOT_COMPARED
    #: How far the output of the model's own SDPA is from the textbook form of its inputs, in units
    #: of rounding; None without such a run.
    local_sdpa: float | None = None
    #: By program: what the factor on its scores, and the one on its z, are fitted from. Empty where
    #: there was nothing to compare.
    scales: tuple[ScaleSums, ...] = ()
    z_scales: tuple[ScaleSums, ...] = ()


def gather(
    loaded: LoadedModel,
    site: AttentionSite,
    calls: int,
    own: OwnRuns,
    ours_run: Recording,
    probe: Probe,
) -> Evidence:
    """Compare what one site showed on one probe: in the model's own runs, and in ours.

    ``calls``: how often our attention ran there. Only query positions that are no padding are
    compared.
    """
    eager = own.eager.site(site)
    ours = ours_run.site(site)
    if not calls or eager.inputs is None:
        return Evidence(calls)
    real = probe.real_queries(site.stack)
    allowed = allowed_keys(site, probe) if site.has_weights else handed_keys(eager, real)
    canonical = _textbook(site, eager, allowed)
    units = None  # of the eager run's inputs, and up to their own rounding of the SDPA run's
    if isinstance(canonical, CanonicalRun):
        units = rounding_units(site, canonical, eager.inputs)

    # Local: the model's pattern and output against the textbook form of the very same inputs.
    local = None
    if site.has_weights:
        local = float32_distance(loaded, site, eager.inputs, allowed, real)
    if local is None:
        local = _distance(site, canonical, eager, units, real, allowed)

    # Local: each program's pattern, z and output against the exact ones of its own q, k and v.
    agreements = _agreements(site, eager, ours, canonical, real, allowed)
    z_agreements = _z_agreements(eager, ours, canonical, real)
    if site.has_weights:
        canonical_out = canonical.out if isinstance(canonical, CanonicalRun) else None
        of_outputs = [
            *_out_errors(site, eager.z, [eager.out, canonical_out], real),
            *_out_errors(site, ours.z, [ours.out], real),
        ]
    else:  # what follows z is the model's own in every run
        of_outputs = [0.0]
    gaps = Gaps(
        local_pattern=local.pattern,
        local_out=local.out,
        mean_abs_pattern=worst([_largest(a.error) for a in agreements]),
        rounding_pattern=worst([_largest(a.rounding) for a in agreements]),
        rounding_out=worst(of_outputs),
        rounding_z=worst([_largest(a.rounding) for a in z_agreements]),
    )

    # Whole runs. SDPA shows no pattern: it has that of the textbook form of its inputs.
    sdpa = None if own.sdpa is None else own.sdpa.site(site)
    of_sdpa = None if sdpa is None else _textbook(site, sdpa, allowed)
    local_sdpa = None if sdpa is None else _distance(site, of_sdpa, sdpa, units, real, allowed).out
    varied = own.varied.site(site)
    return Evidence(
        calls=calls,
        gaps=gaps,
        pattern=RunGaps.of(
            ours=_queries_first(ours.pattern),
            eager=_queries_first(eager.pattern),
            sdpa=None if of_sdpa is None else _queries_first(of_sdpa.pattern),
            varied=_queries_first(varied.pattern),
            real=real,
        ),
        out=RunGaps.of(
            ours=ours.out,
            eager=eager.out,
            sdpa=None if sdpa is None else sdpa.out,
            varied=varied.out,
            real=real,
        ),
        local_sdpa=local_sdpa,
        scales=tuple(a.scale for a in agreements),
        z_scales=tuple(a.scale for a in z_agreements),
    )


#: What the textbook form makes of a layer's inputs, or of the q, k and v that it handed over.
_Textbook = CanonicalRun | HandedRun


def _textbook(site: AttentionSite, record: SiteRecord, allowed: Tensor) -> _Textbook | None:
    """Run the textbook form of a site on what a run showed of it."""
    if site.has_weights:
        return run_canonical(site, record, allowed)
    return run_handed(site, record, allowed)


def _distance(
    site: AttentionSite,
    run: _Textbook | None,
    record: SiteRecord,
    units: Units | None,
    real: Tensor,
    allowed: Tensor,
) -> Distance:
    """Say how far what a run showed is from the textbook form, in units of rounding."""
    if isinstance(run, HandedRun):
        return handed_distance(site, run, record, real, allowed)
    if run is None or units is None:
        return Distance(None, None)
    return distance(site, run, record, units, real)


def _queries_first(pattern: Tensor | None) -> Tensor | None:
    """Turn (batch, n_heads, query_pos, key_pos) into (batch, query_pos, n_heads, key_pos).

    ``real``, (batch, query_pos), then picks its queries.
    """
    return None if pattern is None else pattern.transpose(1, 2)


def merge(evidence: Sequence[Evidence]) -> Evidence:
    """Join the evidence of several probes on one site."""
    calls = max((e.calls for e in evidence), key=lambda calls: abs(calls - 1))  # farthest from 1
    return Evidence(
        calls=calls,
        gaps=Gaps.worst([e.gaps for e in evidence]),
        pattern=RunGaps.worst([e.pattern for e in evidence]),
        out=RunGaps.worst([e.out for e in evidence]),
        local_sdpa=worst([e.local_sdpa for e in evidence]),
        scales=_added([e.scales for e in evidence]),
        z_scales=_added([e.z_scales for e in evidence]),
    )


def _added(by_probe: Sequence[tuple[ScaleSums, ...]]) -> tuple[ScaleSums, ...]:
    """Add up each program's sums over the probes; some probes may have none to add."""
    with_sums = [sums for sums in by_probe if sums]
    by_program = zip(*with_sums, strict=True)
    return tuple(reduce(add, sums) for sums in by_program)


def layer_check(site: AttentionSite, evidence: Evidence, *, with_sdpa: bool) -> LayerCheck:
    """Turn evidence into the values of a certificate; of three programs' scales, the worst.

    ``with_sdpa``: whether our run is held against the SDPA run too.
    """
    scale, scale_error = _farthest_from_1(evidence.scales)
    z_scale, z_scale_error = _farthest_from_1(evidence.z_scales)
    return LayerCheck(
        stack=site.stack,
        layer=site.layer,
        calls=evidence.calls,
        max_abs_pattern=evidence.pattern.ours(with_sdpa=with_sdpa),
        max_abs_out=evidence.out.ours(with_sdpa=with_sdpa),
        noise_pattern=evidence.pattern.noise(with_sdpa=with_sdpa),
        noise_out=evidence.out.noise(with_sdpa=with_sdpa),
        **vars(evidence.gaps),
        scale=scale,
        scale_error=scale_error,
        z_scale=z_scale,
        z_scale_error=z_scale_error,
    )


def _farthest_from_1(scales: Sequence[ScaleSums]) -> Scale | tuple[None, None]:
    """Return the fitted factor that is farthest from 1 and its error; None for both without any."""
    known = []
    for sums in scales:
        fit = sums.pooled()
        if fit is not None and math.isfinite(fit.value) and math.isfinite(fit.error):
            known.append(fit)
    return max(known, key=lambda fit: abs(fit.value - 1), default=(None, None))


def _agreements(
    site: AttentionSite,
    eager: SiteRecord,
    ours: SiteRecord,
    canonical: _Textbook | None,
    real: Tensor,
    allowed: Tensor,
) -> list[Agreement]:
    """Compare each program's pattern with softmax(q k^T * scale) of its run's q and k.

    In the order of ``PROGRAMS``; empty if one is missing or does not fit.
    """
    if canonical is None:
        return []
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
            results.append(
                agreement(
                    pattern,
                    q,
                    k,
                    scale,
                    real,
                    softcap=site.softcap,
                    allowed=allowed,
                    bias=bias,
                )
            )
        except (ValueError, RuntimeError):  # a bias that does not fit: the layout was misread
            return []
    return results


def _z_agreements(
    eager: SiteRecord,
    ours: SiteRecord,
    canonical: _Textbook | None,
    real: Tensor,
) -> list[ZAgreement]:
    """Compare each program's z with its pattern times v.

    In the order of ``PROGRAMS``; empty if one is missing or does not fit.
    """
    if canonical is None:
        return []
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
    if not site.has_weights:
        return handed_bias(eager)
    assert eager.inputs is not None
    heads = Heads(q, k, v=k)  # no bias depends on values
    with torch.no_grad():
        return site.bias(heads, eager.inputs)


def _out_errors(
    site: AttentionSite, z: Tensor | None, outs: Sequence[Tensor | None], real: Tensor
) -> list[float | None]:
    """Compare outputs with z W_O + b_O, in units of rounding; None where either was not seen."""
    linear = site.projections.out
    if z is None:
        return [None] * len(outs)
    with torch.no_grad():
        errors = out_errors(outs, z, linear.weight.t(), linear.bias, real)
    return [None if error is None else finite(error) for error in errors]


def _largest(by_head: Tensor) -> float | None:
    """Return the largest of the heads' numbers, 0 without a head; None if it is not finite."""
    return finite(float(by_head.max())) if by_head.numel() else 0.0
