"""Where the tokens of a repeated sequence look: at the earlier copy, before it, or after it.

References
----------
Elhage et al. 2021 (induction heads); Olsson et al. 2022, arXiv:2209.11895 (prefix matching score).
"""

from __future__ import annotations

import numpy as np
import torch

from headscope.core.widest import widest
from headscope.measures.accumulator import Array, numpy
from headscope.measures.activations import Activations

#: Steps from the earlier occurrence of a token, by the name of the place.
PLACES = {"after": 1, "same": 0, "before": -1}


class PrefixWeights:
    """Mean weight of each head on every place, sequence by sequence.

    The sequences are alike in length: special tokens, a first half, a second half as long, special
    tokens. Queries are the tokens of the second half but its first and last, so that all three
    places are in the first half.
    """

    def __init__(self, n_layers: int, n_heads: int, sequences: int, start: int, copy: int) -> None:
        #: (places, n_layers, n_heads, sequences): NaN where a layer has fewer heads
        self.weights: Array = np.full((len(PLACES), n_layers, n_heads, sequences), np.nan)
        self._queries = torch.arange(start + copy + 1, start + 2 * copy - 1)
        self._copy = copy
        self._first = 0

    def begin(self, first: int) -> None:
        """Say which sequence the next batch starts with."""
        self._first = first

    def observe(self, site: Activations) -> None:
        """Add one chunk of patterns."""
        rows = slice(self._first + site.rows.start, self._first + site.rows.stop)
        for i, step in enumerate(PLACES.values()):
            keys = self._queries - self._copy + step
            weight = widest(site.pattern[:, :, self._queries, keys]).mean(-1)  # (rows, heads)
            self.weights[i, site.row, site.heads, rows] = numpy(weight).T

    def finish(self, stack: str, layer: int) -> None:
        """Nothing is held back between chunks."""
