"""How far attention is from mutual: ||P - P^T||_F / ||P||_F of every pattern."""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.core.widest import widest
from headscope.measures.accumulator import Accumulator, Array, numpy, zeros
from headscope.measures.activations import Activations
from headscope.measures.statistics import ratio, standard_error


class PatternAsymmetry(Accumulator):
    """Mean over sequences of each head's pattern asymmetry.

    ``||P - P^T||_F / ||P||_F`` over real tokens, special ones included: 0 where every pair of
    tokens attends to each other alike (also for evenly spread attention), sqrt(2) where no token
    is attended to by one that it attends to.

    Parameters
    ----------
    n_layers, n_heads : int
        Layers, and heads of the layer that has most.
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.count, self.sum, self.squares = zeros(3, n_layers, n_heads)

    def start(self, real: Tensor) -> None:
        """Say which positions of the batch are real, (batch, pos), before its pass."""
        self._real = real

    def observe(self, site: Activations) -> None:
        """Add one chunk of patterns."""
        real = self._real[site.rows]
        pattern = widest(site.pattern) * real[:, None, :, None]  # padded queries attend too
        gap = torch.linalg.matrix_norm(pattern - pattern.mT)
        values = numpy(gap / torch.linalg.matrix_norm(pattern))  # (rows, heads)
        self.count[site.row, site.heads] += len(values)
        self.sum[site.row, site.heads] += values.sum(0)
        self.squares[site.row, site.heads] += (values**2).sum(0)

    def finish(self, stack: str, layer: int) -> None:
        """Nothing is held back between chunks."""

    def mean(self) -> Array:
        """Return the mean over sequences, (n_layers, n_heads); NaN where there is no head."""
        return ratio(self.sum, self.count)

    def sem(self) -> Array:
        """Return the standard error of :meth:`mean`; NaN for fewer than two sequences."""
        return standard_error(self.sum, self.squares, self.count)
