"""Telling whether a network's weights are still those that were read or validated."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

#: Name, shape, type and checksum of every parameter and buffer.
Fingerprint = tuple[tuple[str, tuple[int, ...], str, int], ...]


@dataclass(frozen=True)
class FileWeights:
    """Weights as they lay in a file: its SHA-256, and the network right after it was read."""

    sha256: str
    network: Fingerprint


def fingerprint(network: nn.Module) -> Fingerprint:
    """Sum up a network's parameters and buffers: CRC-32 of every byte, 3 GB in a second.

    Unlike version counters it sees edits through ``.data``, and unlike addresses it knows weights
    that came back.
    """
    tensors = (*network.named_parameters(), *network.named_buffers())
    return tuple((name, tuple(t.shape), str(t.dtype), _checksum(t)) for name, t in tensors)


def _checksum(tensor: Tensor) -> int:
    data = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return zlib.crc32(data.numpy().data)
