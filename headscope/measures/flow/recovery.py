r"""How much of what a head reads a linear map finds again in what it passes on.

Row vectors. A head reads, at query i, the mixture ``a_i = sum_j P_ij x_j`` of the layer's inputs,
and passes on ``z_i = a_i W_V + b_V``. Ridge maps are fitted on half of the sentences and judged on
the other half::

    whole             z -> a           all d_model dimensions of the mixture
    directions        a G -> a         the same through d_head random directions, G Gaussian
    token             z -> x_top       the state of the word that gets the largest weight
    token_directions  a G -> x_top     the same through random directions
    value             z -> x_top U     that state in the space that W_V reads
    gaussian          a G -> x_top V   that state in the space that G reads: the same pattern, with
                                       a W_V of Gaussian entries
    other             z -> x_other U   as ``value``, of a word of the sentence drawn at random

``U`` and ``V`` have orthonormal columns that span those of W_V and of G; every head has a G of its
own. That ``a U`` can be read from z is no finding: z is ``a W_V + b_V``, so its R^2 is 1 whatever
the head does. None of the seven is 1 by construction: z has d_head numbers and ``a`` has d_model,
and of the states that z mixes only one is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscope.core.widest import exact, widest
from headscope.measures.accumulator import Array, numpy
from headscope.measures.activations import Activations
from headscope.measures.flow.clustered import Clustered
from headscope.measures.flow.ridge import SKETCH, RidgeMap, RidgeSums
from headscope.measures.flow.word_graph import WordNodes
from headscope.measures.rank.dimensions import column_basis
from headscope.measures.rounding import VARIANCE, first_largest

__all__ = ["TARGETS", "HeldOut", "LayerSpaces", "RecoverySums"]

#: What is predicted from z, and from random directions, by name.
_FROM_Z = ("whole", "token", "value", "other")
_FROM_RANDOM = ("directions", "token_directions", "gaussian")
TARGETS = (*_FROM_Z, *_FROM_RANDOM)


@dataclass(frozen=True)
class LayerSpaces:
    """What the values of one layer read, and what random ones would.

    Attributes
    ----------
    U : Tensor, (n_heads, d_in, d_v), float64
        Orthonormal columns that span those of each head's W_V; zeros beyond its rank.
    G, V : Tensor, (n_heads, d_in, d_v), float64
        Random directions, and orthonormal columns that span them.
    sketch : Tensor, (d_in, at most SKETCH), float64
        Random orthonormal columns.
    """

    U: Tensor
    G: Tensor
    V: Tensor
    sketch: Tensor

    @classmethod
    def of(cls, W_V: Tensor, seed: int) -> LayerSpaces:
        """Take them from a layer's W_V (n_heads, d_in, d_v) on the CPU; ``seed`` is of G."""
        generator = torch.Generator().manual_seed(seed)
        d_in = W_V.shape[1]
        wide = torch.randn(d_in, min(d_in, SKETCH), generator=generator, dtype=torch.float64)
        G = torch.randn(W_V.shape, generator=generator, dtype=torch.float64)
        U, V = ((column_basis(part)[0] if len(part) else part.double()) for part in (W_V, G))
        return cls(U, G, V, torch.linalg.qr(wide)[0])


@dataclass(frozen=True)
class _Chunk:
    """The queries of one chunk, by head: all (heads, queries, width).

    ``z`` is what is passed on, ``mixed`` the mixture through random directions; ``from_z`` and
    ``from_mixed`` are what is predicted from them; ``sentence`` (queries,) is the row of the batch.
    """

    z: Tensor
    mixed: Tensor
    from_z: tuple[Tensor, ...]
    from_mixed: tuple[Tensor, ...]
    sentence: Tensor


def _chunk(
    site: Activations, x: Tensor, nodes: WordNodes, spaces: LayerSpaces, dtype: torch.dtype
) -> _Chunk:
    """Gather what the words of a chunk read, pass on and attend to most."""
    x = x[site.rows]
    content = nodes.content[site.rows]
    row, query = content.nonzero(as_tuple=True)
    n_heads, n = site.pattern.shape[1:3]
    mixture = (site.pattern.to(x.dtype).flatten(1, 2) @ x).view(len(x), n_heads, n, -1)
    hidden = site.pattern.masked_fill(~content[:, None, None, :], -1.0)
    top = first_largest(hidden)[1][row, :, query].T  # (heads, queries)
    read = (mixture.transpose(0, 1)[:, row, query], site.z.transpose(0, 1)[:, row, query])
    words = x[row, top], x[row, nodes.other[site.rows][row, query]]
    a, z, token, other = (
        exact(part) if dtype == torch.float64 else part.to(dtype) for part in (*read, *words)
    )
    U, G, V = (part[site.heads].to(a) for part in (spaces.U, spaces.G, spaces.V))
    return _Chunk(
        z=z,
        mixed=a @ G,
        from_z=(a, token, token @ U, other @ U),
        from_mixed=(a, token, token @ V),
        sentence=row + site.rows.start,
    )


class RecoverySums:
    """The sums that ridge maps are fitted from, of all layers.

    Parameters
    ----------
    spaces : sequence of LayerSpaces
        One a layer.

    Attributes
    ----------
    tokens : int
        Queries of one head so far.
    """

    def __init__(self, spaces: Sequence[LayerSpaces]) -> None:
        self._spaces = spaces
        self._sums = []
        self._fold = torch.zeros(0)
        self.tokens = 0
        for space in spaces:
            n_heads, d_in, d_v = space.U.shape
            of_z = RidgeSums(n_heads, d_v, space.sketch, (d_in, d_in, d_v, d_v))
            self._sums.append((of_z, RidgeSums(n_heads, d_v, space.sketch, (d_in, d_in, d_v))))

    def start(self, folds: Sequence[int], nodes: WordNodes) -> None:
        """Begin a batch: the fold that each sentence belongs to."""
        self._fold = torch.tensor(folds, device=nodes.content.device)
        self.tokens += int(nodes.content.sum())

    def update(self, site: Activations, x: Tensor, nodes: WordNodes) -> None:
        """Add one chunk; ``x`` (batch, pos, d_in) is what the layer's values are made from."""
        found = _chunk(site, x, nodes, self._spaces[site.row], torch.float64)
        of_z, of_mixed = self._sums[site.row]
        fold = self._fold[found.sentence].to(found.z.device)
        of_z.add(site.heads, fold, found.z, found.from_z)
        of_mixed.add(site.heads, fold, found.mixed, found.from_mixed)

    def fitted(self) -> HeldOut:
        """Fit all maps; what they are worth is measured elsewhere."""
        return HeldOut(self._spaces, [(*a.solve(), *b.solve()) for a, b in self._sums])


class HeldOut:
    """Squared errors of fitted maps on sentences that they were not fitted on.

    Parameters
    ----------
    spaces : sequence of LayerSpaces
        One a layer.
    maps : sequence of sequence of RidgeMap
        Of every layer the maps to :data:`TARGETS`.

    Attributes
    ----------
    sums : list of array, (3, targets, n_heads)
        Of every sentence: squared errors, squared distances from the mean of the other half, and
        squares.
    """

    def __init__(self, spaces: Sequence[LayerSpaces], maps: Sequence[Sequence[RidgeMap]]) -> None:
        self._spaces, self._maps = spaces, maps
        self._first = np.cumsum([0, *(len(space.U) for space in spaces)])
        self.sums: list[Array] = []
        self._batch: Array = np.zeros(0)

    def start(self, sentences: int) -> None:
        """Make room for a batch."""
        self._batch = np.zeros((sentences, 3, len(TARGETS), int(self._first[-1])))

    def update(self, site: Activations, x: Tensor, nodes: WordNodes) -> None:
        """Add one chunk, as :meth:`RecoverySums.update` takes it."""
        found = _chunk(site, x, nodes, self._spaces[site.row], x.dtype)
        start = int(self._first[site.row])
        heads = slice(start + site.heads.start, start + site.heads.stop)
        sentence = numpy(found.sentence)
        given = [found.z] * len(_FROM_Z) + [found.mixed] * len(_FROM_RANDOM)
        targets = (*found.from_z, *found.from_mixed)
        for i, fitted in enumerate(self._maps[site.row]):
            gaps = (*fitted.gaps(site.heads, given[i], targets[i]), targets[i])
            for side, gap in enumerate(gaps):
                size = widest(torch.linalg.vector_norm(gap, dim=-1)).square()
                np.add.at(self._batch[:, side, i, heads], sentence, numpy(size.T))

    def finish(self) -> None:
        """Keep what the sentences of the batch add up to."""
        self.sums += list(self._batch)

    def explained(self, target: str) -> Clustered:
        """Return held-out R^2 of every head: 1 - error / distance from the other half's mean.

        NaN where the target never changes.
        """
        every = np.zeros((0, 3, len(TARGETS), int(self._first[-1])))
        sums = np.concatenate([every, *(part[None] for part in self.sums)])
        error, distance, square = np.moveaxis(sums[:, :, TARGETS.index(target)], 1, 0)
        varies = distance.sum(0) > VARIANCE * square.sum(0)
        return Clustered.ratio(error * varies, distance * varies).rest()

    def penalties(self, target: str) -> Array:
        """Return the penalty of every head's map, in units of its predictors' mean variance."""
        i = TARGETS.index(target)
        return np.concatenate([np.zeros(0), *(maps[i].penalty.numpy() for maps in self._maps)])
