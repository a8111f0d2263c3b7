"""Measure every rank of one layer, of each head and of all heads together, and what a text adds."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.rank.result import HeadRank, LayerRank, Overlap
from headscope.core.accumulator import Accumulator, Array, numpy, zeros
from headscope.core.activations import Activations
from headscope.core.widest import exact, widest
from headscope.stats.estimate import Estimate
from headscope.stats.spectra import LayerSpectra
from headscope.stats.statistics import finite, standard_error, t_half_width


def rank_rows(
    layer: int, found: LayerSpectra, *, folded: bool | None = None
) -> tuple[list[HeadRank], LayerRank]:
    """Turn a layer's spectra into result rows: of each head (counted without gaps), and of all.

    ``folded`` says whether a LayerNorm was folded in.
    """
    heads = [
        HeadRank(
            layer=layer,
            head=head,
            asymmetry=finite(value),
            qk=found.heads["qk"][head],
            ov=found.heads["ov"][head],
            w_q=found.heads["w_q"][head],
            w_k=found.heads["w_k"][head],
        )
        for head, value in enumerate(found.asymmetry)
    ]
    overlaps = found.overlap.items()
    whole = LayerRank(
        layer=layer,
        heads=tuple(range(len(heads))),
        asymmetry=finite(found.layer_asymmetry[0]),
        overlap=Overlap(**{name: tuple(map(tuple, table.tolist())) for name, table in overlaps}),
        folded=folded,
        qk=found.layer["qk"][0],
        ov=found.layer["ov"][0],
        w_q=found.layer["w_q"][0],
        w_k=found.layer["w_k"][0],
    )
    return heads, whole


class InputCovariance(Accumulator):
    """Sums behind the mean and covariance of each layer's input vectors."""

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

    def moments(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the mean (d_model,) and S^(1/2) (d_model, d_model) of the covariance S, float64.

        Eigenvalues of S below 0 are rounding and count as 0.
        """
        mean = self.sum[layer] / self.count[layer]
        covariance = torch.from_numpy(self.outer[layer] / self.count[layer] - np.outer(mean, mean))
        values, vectors = torch.linalg.eigh(covariance)
        return torch.from_numpy(mean), (vectors * values.clamp(min=0).sqrt()) @ vectors.mT


class PatternAsymmetry(Accumulator):
    """Mean over sequences of each head's pattern asymmetry.

    ``||P - P^T||_F / ||P||_F`` over real tokens, special ones included: 0 where every two tokens
    attend to each other equally (also for evenly spread attention), sqrt(2) where no token is
    attended to by one that it attends to.
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.count, self.sum, self.squares = zeros(3, n_layers, n_heads)

    def start(self, real: Tensor) -> None:
        """Set which positions of the next batch are real, (batch, pos)."""
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

    def mean(self, row: int, head: int) -> Estimate | None:
        """Return one head's mean over sequences; None where nothing was measured."""
        total, squares, n = (float(x[row, head]) for x in (self.sum, self.squares, self.count))
        if n == 0 or not np.isfinite(total):
            return None
        half = t_half_width(standard_error(total, squares, n), n)
        return Estimate.around(total / n, finite(float(half)))
