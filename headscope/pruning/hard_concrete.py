r"""The hard-concrete distribution: gates in [0, 1] that are exactly 0 or 1 with positive chance.

::

    s     = sigmoid((ln u - ln(1 - u) + log_a) / temperature)        u uniform on (0, 1)
    gate  = min(1, max(0, s (high - low) + low))
    P(open) = P(gate > 0) = sigmoid(log_a - temperature ln(-low / high))

References
----------
Louizos, Welling & Kingma 2018, arXiv:1712.01312, equations 10 to 12; Voita et al. 2019,
arXiv:1905.09418, section 6.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

TEMPERATURE = 0.33
STRETCH = (-0.1, 1.1)


def open_probability(log_a: Tensor) -> Tensor:
    """P(gate > 0), elementwise."""
    low, high = STRETCH
    return torch.sigmoid(log_a - TEMPERATURE * math.log(-low / high))


def draw_gates(log_a: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Draw gates for ``size`` examples, differentiable by ``log_a``: (size, *log_a.shape)."""
    low, high = STRETCH
    # Away from 0 and 1, whose logarithm is infinite.
    u = torch.rand(size, *log_a.shape, generator=generator).clamp(1e-6, 1 - 1e-6).to(log_a)
    s = torch.sigmoid((u.log() - (1 - u).log() + log_a) / TEMPERATURE)
    return (s * (high - low) + low).clamp(0.0, 1.0)
