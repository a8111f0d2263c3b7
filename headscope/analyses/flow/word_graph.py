"""Attention between words: one node for every word and for every special token of a sentence.

The weight *to* a word is the sum over its pieces, the weight *from* a word the mean over its
pieces, as everywhere in headscope; a special token is a node of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

__all__ = ["WordNodes"]


@dataclass(frozen=True)
class WordNodes:
    """The nodes of a padded batch of sentences."""

    #: (batch, pos). The node that each position belongs to, in the order of the text; -1 at
    #: padding.
    node: Tensor
    content: Tensor  # (batch, pos). Positions of words.
    #: (batch, pos). For each position of a word another position of a word that it may see, drawn
    #: at random (the same may be drawn).
    other: Tensor
    names: tuple[tuple[str, ...], ...]  # What the nodes of each sentence are called.
    causal: bool = False  # Whether a position sees only itself and what stands before it.

    def to(self, device: torch.device | str) -> WordNodes:
        """Copy to a device."""
        node, content, other = (part.to(device) for part in (self.node, self.content, self.other))
        return WordNodes(node, content, other, self.names, self.causal)

    @property
    def size(self) -> int:
        """Nodes of the sentence that has most."""
        return max(map(len, self.names))

    @cached_property
    def belongs(self) -> Tensor:
        """1 where a position belongs to a node, (batch, pos, nodes)."""
        nodes = torch.arange(self.size, device=self.node.device)
        return (self.node[:, :, None] == nodes).float()

    @cached_property
    def share(self) -> Tensor:
        """1 / pieces where a position belongs to a node, (batch, nodes, pos)."""
        pieces = self.belongs.sum(1, keepdim=True).clamp(min=1)
        return (self.belongs / pieces).mT

    @cached_property
    def is_word(self) -> Tensor:
        """Nodes that are words, (batch, nodes)."""
        return torch.einsum("bpn,bp->bn", self.belongs, self.content.float()) > 0

    def fold(self, pattern: Tensor, rows: slice = slice(None)) -> Tensor:
        """Turn patterns (rows, heads, pos, pos) into weights between nodes.

        Shapes: returns (rows, heads, nodes, nodes).
        """
        pattern = pattern.to(self.belongs.dtype)
        return self.share[rows, None] @ (pattern @ self.belongs[rows, None])

    @cached_property
    def even(self) -> Tensor:
        """Weights between nodes where attention is spread evenly, (batch, nodes, nodes)."""
        real = self.node >= 0
        visible = (real[:, None, :] & real[:, :, None]).float()
        if self.causal:
            visible = visible.tril()
        pattern = visible / visible.sum(-1, keepdim=True).clamp(min=1)
        return self.fold(pattern[:, None])[:, 0]
