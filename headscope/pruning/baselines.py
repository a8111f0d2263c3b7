"""``magnitude`` and ``random``: what any method must beat."""

from __future__ import annotations

import torch

from headscope.core.widest import exact
from headscope.pruning.method import Given, Ranking


def magnitude(given: Given) -> Ranking:
    """Frobenius norm of all weights of a head: W_Q, W_K, W_V and W_O together."""
    grid = torch.zeros(given.units.shape, dtype=torch.float64)
    for layer, weights in enumerate(given.weights):
        maps = (weights.W_Q, weights.W_K, weights.W_V, weights.W_O)
        squares = sum((exact(W.detach()) ** 2).sum(dim=(1, 2)) for W in maps)
        grid[layer, : weights.n_heads] = torch.as_tensor(squares).cpu()
    return Ranking(given.units.contract(grid).sqrt())


def random(given: Given) -> Ranking:
    """Draw an order of all units from the seed."""
    generator = torch.Generator().manual_seed(given.seed)
    order = torch.randperm(len(given.units), generator=generator).tolist()
    values = torch.empty(len(order), dtype=torch.float64)
    values[torch.tensor(order)] = torch.arange(len(order), dtype=torch.float64)
    return Ranking(values, order)
