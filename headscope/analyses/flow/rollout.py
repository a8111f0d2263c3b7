"""Attention rollout: where attention leads through all layers, if heads only moved whole states.

    A_l = (mean of the layer's heads + identity) / 2,    rollout = A_L ... A_2 A_1

It knows nothing of values, feed-forward networks or LayerNorms, and so is a baseline for what heads
are said to pass on. Evenly spread attention in every layer is its control.

References
----------
Abnar & Zuidema 2020, arXiv:2005.00928, section 3.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.flow.graph import WordNodes, in_degree, top_share
from headscope.core.accumulator import Array, numpy
from headscope.core.activations import Activations


class Rollout:
    """Follows one batch through the layers; holds (batch, pos, pos) twice."""

    def __init__(self, nodes: WordNodes) -> None:
        self._nodes = nodes
        n = nodes.node.shape[1]
        self._identity = torch.eye(n, device=nodes.node.device)
        self._total = self._identity.expand(len(nodes.node), n, n)
        self._layer = torch.zeros_like(self._total)
        self._heads = self._layers = 0

    def observe(self, site: Activations) -> None:
        """Add one chunk of patterns to its layer's sum."""
        self._layer[site.rows] += site.pattern.to(self._layer.dtype).sum(1)
        self._heads = site.n_heads

    def finish(self) -> None:
        """Go through one layer; a layer without heads has its identity only."""
        if self._heads:
            mixed = (self._layer / self._heads + self._identity) / 2
            self._total = mixed @ self._total
        self._layer, self._heads = torch.zeros_like(self._layer), 0
        self._layers += 1

    def graph(self) -> Tensor:
        """Weights between nodes of the rollout and of its control, (batch, 2, nodes, nodes)."""
        even = torch.linalg.matrix_power(
            (self._nodes.even_pattern + self._identity) / 2, self._layers
        )
        return self._nodes.fold(torch.stack([self._total, even], dim=1))


#: What is measured of every sentence.
QUANTITIES = ("own", "special", "top_share")


class RolloutSums:
    """The numbers of every sentence: (2, quantities), of the rollout and of its control."""

    def __init__(self) -> None:
        self.rows: list[Array] = []

    def update(self, graph: Tensor, nodes: WordNodes) -> None:
        """Add one batch's :meth:`Rollout.graph`."""
        asks = nodes.is_word.to(graph.dtype)[:, None]  # (batch, 1, nodes)
        n_words = asks.sum(-1)
        own = (graph.diagonal(dim1=-2, dim2=-1) * asks).sum(-1) / n_words
        to_words = ((graph @ asks[..., None])[..., 0] * asks).sum(-1) / n_words
        total = (graph.sum(-1) * asks).sum(-1) / n_words
        sizes = torch.tensor(list(map(len, nodes.names)), device=graph.device)
        top = top_share(in_degree(graph, nodes)[0], sizes)
        parts = torch.stack([own, total - to_words, top.to(own)], dim=-1)
        self.rows += list(np.asarray(numpy(parts), dtype=float))
