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
#: In a block of :func:`unchanging`: its network and the network's fingerprint.
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

    Unlike torch's version counters it sees edits through ``.data``, and unlike addresses in memory
    it recognises weights that were changed and set back.
    """
    unchanging_network = _unchanging.get()
    if unchanging_network is not None:
        known_network, known_fingerprint = unchanging_network
        if known_network is network:
            return known_fingerprint
    return _all_checksums(network)


@contextmanager
def unchanging(network: nn.Module) -> Iterator[None]:
    """Compute the fingerprint once for the whole block, which leaves the network as it is."""
    token = _unchanging.set((network, _all_checksums(network)))
    try:
        yield
    finally:
        _unchanging.reset(token)


def _all_checksums(network: nn.Module) -> Fingerprint:
    tensors = (*network.named_parameters(), *network.named_buffers())
    return tuple((name, tuple(t.shape), str(t.dtype), _checksum(t)) for name, t in tensors)


def _checksum(tensor: Tensor) -> int:
    in_bytes = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return zlib.crc32(in_bytes.numpy().data)
