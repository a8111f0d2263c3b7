"""The covariance of what enters each layer, streamed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headscope.core.widest import exact
from headscope.measures.accumulator import Accumulator, Array, numpy


class InputCovariance(Accumulator):
    """Sums behind the mean and covariance of each layer's input vectors.

    Notes
    -----
    Kept in float64 as a count, sums and sums of outer products: about 1e-16 of the largest second
    moment is lost, far below what float32 activations carry.
    """

    def __init__(self, n_layers: int, d_model: int) -> None:
        self.count: Array = np.zeros(n_layers)
        self.sum: Array = np.zeros((n_layers, d_model))
        self.outer: Array = np.zeros((n_layers, d_model, d_model))

    def update(self, layer: int, x: Tensor, real: Tensor) -> None:
        """Add one batch of what enters one layer's attention, x (batch, pos, d_model).

        ``real`` (batch, pos) is False at padding; special tokens count.
        """
        rows = exact(x[real])  # (tokens, d_model)
        self.count[layer] += len(rows)
        self.sum[layer] += numpy(rows.sum(0))
        self.outer[layer] += numpy(rows.T @ rows)

    def mean(self, layer: int) -> Tensor:
        """Return the mean input, (d_model,), float64."""
        return torch.from_numpy(self.sum[layer] / self.count[layer])

    def covariance(self, layer: int) -> Tensor:
        """Return the covariance of the inputs, (d_model, d_model), float64, around their mean."""
        mean = self.sum[layer] / self.count[layer]
        return torch.from_numpy(self.outer[layer] / self.count[layer] - np.outer(mean, mean))


def square_root(covariance: Tensor) -> Tensor:
    """Return the symmetric S^(1/2) of a covariance S; rounding below 0 is taken for 0."""
    values, vectors = torch.linalg.eigh(covariance)
    root: Tensor = (vectors * values.clamp(min=0).sqrt()) @ vectors.mT
    return root
