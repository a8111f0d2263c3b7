"""What the records of one attention site prove about our attention and its canonical weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from torch import Tensor

from headscope.attention import attention_fused, key_padding_mask
from headscope.measures.agreement import Agreement, ScaleSums, agreement, out_error
from headscope.models.layouts import AttentionSite
from headscope.models.recording import SiteRecord
from headscope.results import LayerCheck

#: Whose pattern is held against the exact one.
PROGRAMS = ("the model's own attention", "the installed attention", "the canonical weights")


@dataclass(frozen=True)
class Evidence:
    """One site: numbers as in LayerCheck, each the worst of all programs and probes.

    Attributes
    ----------
    calls : int
        How often our attention ran in one pass.
    gaps : tuple of float or None
        LayerCheck's ``max_abs_pattern`` to ``rounding_out``; None if not comparable.
    scales : tuple of ScaleSums
        By program; empty where there was nothing to compare.
    """

    calls: int
    gaps: tuple[float | None, ...] = (None,) * 5
    scales: tuple[ScaleSums, ...] = ()


def gather(
    site: AttentionSite, calls: int, theirs: SiteRecord, ours: SiteRecord, real: Tensor
) -> Evidence:
    """Compare one site's records of one probe: the model's eager run, and the run through ours.

    Only positions that ``real`` (batch, pos) tells from padding are compared.
    """
    if not calls or theirs.x is None:
        return Evidence(calls)
    out, pattern = _canonical(site, theirs.x, real)
    pairs = [_by_query(p) for p in (ours.pattern, pattern)]
    against = _by_query(theirs.pattern)
    near = _agreements(site, theirs, ours, pattern, real)
    sums = ((theirs.z, theirs.out), (ours.z, ours.out), (theirs.z, out))
    gaps = (
        largest_gap((p, against, real) for p in pairs),
        largest_gap((o, theirs.out, real) for o in (ours.out, out)),
        _worst([_largest(a.error) for a in near]),
        _worst([_largest(a.rounding) for a in near]),
        _worst([_out_error(site, z, o, real) for z, o in sums]),
    )
    return Evidence(calls, gaps, tuple(a.scale for a in near))


def merge(found: Sequence[Evidence]) -> Evidence:
    """Join the evidence of several probes on one site."""
    calls = max((e.calls for e in found), key=lambda calls: abs(calls - 1))
    gaps = zip(*(e.gaps for e in found), strict=True)
    scales = zip(*(e.scales for e in found if e.scales), strict=True)
    return Evidence(calls, tuple(map(_worst, gaps)), tuple(reduce(add, sums) for sums in scales))


def layer_check(site: AttentionSite, evidence: Evidence) -> LayerCheck:
    """Turn evidence into the values of a certificate."""
    fits = [fit for sums in evidence.scales if (fit := sums.pooled()) is not None]
    scale = max(fits, key=lambda fit: abs(fit.value - 1), default=None)
    return LayerCheck(site.stack, site.layer, evidence.calls, *evidence.gaps, *(scale or ()))


def largest_gap(compared: Iterable[tuple[Tensor | None, Tensor | None, Tensor]]) -> float | None:
    """Return the largest |a - b| of all (a, b, real); None if any are not comparable."""
    return _worst([_difference(*item) for item in compared])


def _difference(a: Tensor | None, b: Tensor | None, real: Tensor) -> float | None:
    """Largest |a - b| over real positions (leading axes batch, pos); None if not comparable."""
    if a is None or b is None or a.shape != b.shape:
        return None
    if a.numel() == 0:  # a layer that has lost all its heads has no pattern to differ in
        return 0.0
    return _finite(float((a[real].double() - b[real].double()).abs().max()))


def _worst(gaps: Sequence[float | None]) -> float | None:
    """Return the largest gap, or None if any is missing."""
    known = [gap for gap in gaps if gap is not None]
    return max(known, default=None) if len(known) == len(gaps) else None


def _agreements(
    site: AttentionSite,
    theirs: SiteRecord,
    ours: SiteRecord,
    canonical: Tensor | None,
    real: Tensor,
) -> list[Agreement]:
    """Hold each program's pattern against the q and k of its run; nothing if one is missing."""
    scale = site.d_head**-0.5 if site.scale is None else site.scale
    recorded = ((theirs.pattern, theirs), (ours.pattern, ours), (canonical, theirs))
    found = [
        agreement(pattern, at.q, at.k, scale, real)
        for pattern, at in recorded
        if pattern is not None and at.q is not None and at.k is not None
        if pattern.shape == (*at.q.shape[:3], at.k.shape[2])
    ]
    return found if len(found) == len(recorded) else []


def _canonical(
    site: AttentionSite, x: Tensor, real: Tensor
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Run the page-one form of attention on this layer's input with the layout's weights."""
    try:
        with torch.no_grad():
            return attention_fused(
                x, x, site.weights(), mask=key_padding_mask(real), scale=site.scale
            )
    except (ValueError, RuntimeError):  # shapes that do not fit: the layout was misread
        return None, None


def _out_error(
    site: AttentionSite, z: Tensor | None, out: Tensor | None, real: Tensor
) -> float | None:
    linear = site.projections.out
    if z is None or out is None:
        return None
    with torch.no_grad():
        return _finite(out_error(out, z, linear.weight.t(), linear.bias, real))


def _by_query(pattern: Tensor | None) -> Tensor | None:
    """(batch, n_heads, query_pos, key_pos) -> (batch, query_pos, n_heads, key_pos)."""
    return None if pattern is None else pattern.transpose(1, 2)


def _largest(by_head: Tensor) -> float | None:
    return _finite(float(by_head.max())) if by_head.numel() else 0.0


def _finite(gap: float) -> float | None:
    return gap if math.isfinite(gap) else None
