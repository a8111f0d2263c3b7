"""Which keys each query keeps in the sparse forms of attention: windows, global tokens, blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.measures.spectrum.structure import looks_back

#: Random key blocks of each query block (BigBird's base setting).
RANDOM_BLOCKS = 3
#: Blocks of a sequence.
_BLOCKS = 32


def block_size(length: int) -> int:
    """Return how many tokens of a sequence make a block."""
    return max(1, length // _BLOCKS)


def kept_keys(
    form: str,
    size: int,
    length: int,
    special: tuple[int, ...],
    generator: torch.Generator,
    seen: Tensor | None = None,
) -> Tensor:
    """Return which keys each query keeps, boolean (n, n).

    Parameters
    ----------
    form : str
        ``window``, ``window+global``, ``window+global+random`` or ``random-keys``.
    size : int
        Keys of a window, or keys that are drawn.
    length : int
        n.
    special : tuple of int
        Positions of the global tokens.
    generator : torch.Generator
        Draws what is random.
    seen : Tensor, (n, n), boolean, optional
        Which keys the model may see at all; every one by default. A window that may not look ahead
        ends at its query; keys and blocks are drawn among those that are seen.
    """
    if form == "random-keys":
        return _drawn(torch.rand(length, length, generator=generator), seen, size)
    ahead = 0 if seen is not None and looks_back(seen) else (size - 1) // 2
    position = torch.arange(length)
    back = position[:, None] - position  # how far key j lies before query i
    keep = (back <= size - 1 - ahead) & (-back <= ahead)
    if "global" in form:
        keep[:, special] = True
        keep[special, :] = True
    if "random" in form:
        keep |= _random_blocks(length, generator, seen)
    return keep if seen is None else keep & seen


def _random_blocks(length: int, generator: torch.Generator, seen: Tensor | None) -> Tensor:
    """Draw blocks of keys for each block of queries."""
    block = torch.arange(length) // block_size(length)
    n_blocks = int(block[-1]) + 1
    if seen is not None:  # by block: whether any of its queries sees any of its keys
        member = (block == torch.arange(n_blocks)[:, None]).double()
        seen = member @ seen.double() @ member.T > 0
    order = torch.rand(n_blocks, n_blocks, generator=generator)
    return _drawn(order, seen, RANDOM_BLOCKS)[block][:, block]


def _drawn(order: Tensor, seen: Tensor | None, count: int) -> Tensor:
    """Choose in each row the ``count`` lowest numbers in [0, 1), of those that are ``seen``."""
    if seen is None:
        return order.argsort(-1).argsort(-1) < count
    return ((order + ~seen).argsort(-1).argsort(-1) < count) & seen
