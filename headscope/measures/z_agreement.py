"""How well recorded z agree with ``pattern v`` of their own recorded pattern and values.

As :mod:`headscope.measures.agreement` does for patterns, and for the same reason: in half precision
a difference from another correct run is as large as what a wrong program may do to values that are
small. Written without the functions of :mod:`headscope.attention`, which are on trial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.measures.agreement import QUERIES, ScaleSums, scale_sums

__all__ = ["ZAgreement", "z_agreement"]


@dataclass(frozen=True)
class ZAgreement:
    """Recorded z beside the exact ones."""

    #: (n_heads,): mean ``|z - pattern v|`` in units of rounding: epsilon times the size of the
    #: result and of its terms, if these were independent.
    rounding: Tensor
    scale: ScaleSums  # What the factor on ``pattern v`` is fitted from


def z_agreement(z: Tensor, pattern: Tensor, v: Tensor, real: Tensor) -> ZAgreement:
    """Hold recorded z against the ones that pattern and values give in float32 or better.

    ``z`` (batch, n_heads, query_pos, d_v), ``pattern`` (batch, n_heads, query_pos, key_pos), ``v``
    (batch, n_heads, key_pos, d_v), ``real`` (batch, query_pos).
    """
    step = math.ceil(pattern.shape[-2] / QUERIES)
    wide = z.dtype if z.dtype == torch.float64 else torch.float32
    seen = real[:, None, ::step, None]
    P, v = pattern[..., ::step, :].to(wide), v.to(wide)
    exact = (P @ v).masked_fill(~seen, 0.0)
    off = z[..., ::step, :].to(wide).masked_fill(~seen, 0.0) - exact
    terms = (P.square() @ v.square()).sqrt().masked_fill(~seen, 0.0)
    size = (exact.abs() + terms).sum((0, 2, 3))
    unit = size * torch.finfo(z.dtype).eps
    gap = off.abs().sum((0, 2, 3))
    return ZAgreement(
        torch.where(unit > 0, gap / unit, gap), scale_sums(exact * exact, exact * off)
    )
