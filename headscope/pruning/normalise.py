"""Per-layer normalisation of scores."""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.measures.rounding import EPS


def per_layer(values: Tensor, layers: Tensor) -> Tensor:
    """Divide each layer's scores by their l2 norm, so that layers compete on equal terms.

    ``layers`` holds the layer of each unit. Scores that are zero beside another layer's become 0.

    References
    ----------
    Michel et al. 2019, arXiv:1905.10650, section 4.1, after Molchanov et al. 2017.
    """
    squares = values.new_zeros(int(layers.max()) + 1).index_add(0, layers, values**2)
    norm = squares.sqrt()[layers]
    return values / norm.where(norm > EPS * norm.max(), norm.new_full((), torch.inf))
