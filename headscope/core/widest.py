"""float64 where a device has it, and float32 where half precision is too little.

An Apple GPU has no float64. Sums over positions are taken by :func:`widest`, in the widest type of
the device itself. What has to be float64 (differences that cancel, matrices that are decomposed)
:func:`exact` moves to the CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

WITHOUT_FLOAT64 = frozenset({"mps"})  # Types of device that have no float64.


def widest_type(device: torch.device | str) -> torch.dtype:
    """Return the widest floating-point type that a device has."""
    return torch.float32 if torch.device(device).type in WITHOUT_FLOAT64 else torch.float64


def widest(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor, of any type, in the widest type of its device."""
    return tensor.to(widest_type(tensor.device))


def wide(tensor: Tensor) -> Tensor:
    """Return half-precision numbers in float32, for sums and logarithms; others as they are."""
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def exact(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor in float64: on its device if possible, else on the CPU."""
    if tensor.device.type in WITHOUT_FLOAT64:
        tensor = tensor.cpu()
    return tensor.double()
