"""Our attention on the very q, k and v that a model hands over, where nothing else is known of it.

:func:`run_handed` puts them through the textbook form with the mask and the scale that came with
them; :func:`distance` says how far the model's own pattern and z are from that, in units of
rounding: epsilon times what rounding explains.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headscope.attention import attention_pattern, with_bias
from headscope.models.certificate.agreement import agreement, z_agreement
from headscope.models.certificate.canonical import Distance
from headscope.models.certificate.whole_runs import finite
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import split
from headscope.models.run.recording import SiteRecord


class HandedRun(NamedTuple):
    """What the textbook form makes of q, k and v as they were handed over."""

    pattern: Tensor  # (batch, n_heads, query_pos, key_pos)
    z: Tensor  # (batch, n_heads, query_pos, d_v)


def handed_keys(record: SiteRecord, real: Tensor) -> Tensor:
    """Return which keys each query may see by the mask: (batch, query_pos, key_pos), boolean."""
    mask = record.mask
    batch, n_q = real.shape
    if mask is None:
        n_k = n_q if record.k is None else record.k.shape[2]
        return torch.ones(batch, n_q, n_k, dtype=torch.bool, device=real.device)
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return allowed.any(dim=1).expand(batch, n_q, -1)


def handed_bias(record: SiteRecord) -> Tensor | None:
    """Return what the mask adds to scores that it does not hide; None for nothing."""
    mask = record.mask
    if mask is None or mask.dtype == torch.bool:
        return None
    bias = mask.masked_fill(mask <= torch.finfo(mask.dtype).min / 2, 0.0)
    return bias if bool(bias.any()) else None


def run_handed(site: AttentionSite, record: SiteRecord, allowed: Tensor) -> HandedRun | None:
    """Run the textbook form; None if nothing was handed over, or tensors do not fit.

    ``allowed`` (batch, query_pos, key_pos): which keys each query may see.
    """
    if record.q is None or record.k is None or record.v is None:
        return None
    mask = with_bias(allowed[:, None], handed_bias(record))
    try:
        pattern = attention_pattern(
            record.q, record.k, scale=site.scale, softcap=site.softcap, mask=mask
        )
        return HandedRun(pattern, pattern @ record.v)
    except (ValueError, RuntimeError):
        return None


def distance(
    site: AttentionSite, run: HandedRun | None, record: SiteRecord, real: Tensor, allowed: Tensor
) -> Distance:
    """Compare the pattern and z of a record with the textbook form; ``out`` is that of z."""
    if run is None or record.q is None or record.k is None or record.v is None:
        return Distance(None, None)
    assert site.scale is not None
    pattern_distance = None
    if record.pattern is not None:
        compared = agreement(
            record.pattern,
            record.q,
            record.k,
            site.scale,
            real,
            allowed=allowed,
            bias=handed_bias(record),
            softcap=site.softcap,
        )
        pattern_distance = finite(float(compared.rounding.max()))
    if record.z is None:
        return Distance(pattern_distance, None)
    z = split(record.z, -1, record.v.shape[3]).transpose(1, 2)
    z_compared = z_agreement(z, run.pattern, record.v, real)
    return Distance(pattern_distance, finite(float(z_compared.rounding.max())))
