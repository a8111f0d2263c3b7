r"""How much of what a head reads a linear map finds again in what it passes on.

Row vectors. A head reads, at query i, the mixture ``a_i = sum_j P_ij x_j`` of the layer's inputs,
and passes on ``z_i = a_i W_V + b_V``. Ridge maps are fitted on half of the sentences and judged on
the other half::

    whole       z -> a             all d_model dimensions of the mixture
    directions  a G -> a           the same through d_head random directions, G Gaussian
    token       z -> x_top         the state of the word that gets the largest weight
    value       z -> x_top U       that state in the space that W_V reads
    other       z -> x_other U     the same of a word of the sentence that is drawn at random

``U`` has orthonormal columns that span those of W_V. That ``a U`` can be read from z is no finding:
z is ``a W_V + b_V``, so its R^2 is 1 whatever the head does. None of the five is 1 by construction:
z has d_head numbers and ``a`` has d_model, and of the states that z mixes only one is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscope.measures.accumulator import Array, numpy
from headscope.measures.activations import Activations
from headscope.measures.flow.clustered import Clustered
from headscope.measures.flow.word_graph import WordNodes
from headscope.measures.rank.dimensions import column_basis
from headscope.measures.rounding import VARIANCE, first_largest
from headscope.widest import exact, widest

__all__ = ["TARGETS", "HeldOut", "LayerSpaces", "RecoverySums"]

#: What is predicted, by name.
TARGETS = ("whole", "directions", "token", "value", "other")
#: Penalty of the ridge maps, in units of the mean variance of what they read: what z holds only in
#: traces, and no layer behind it would notice, does not count.
RIDGE = 0.1
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class LayerSpaces:
    """What the values of one layer read.

    Attributes
    ----------
    U : Tensor, (n_heads, d_in, d_v), float64
        Orthonormal columns that span those of each head's W_V; zeros beyond its rank.
    G : Tensor, (d_in, d_v), float64
        Random directions.
    """

    U: Tensor
    G: Tensor

    @classmethod
    def of(cls, W_V: Tensor, seed: int) -> LayerSpaces:
        """Take them from a layer's W_V (n_heads, d_in, d_v) on the CPU; ``seed`` is of G."""
        generator = torch.Generator().manual_seed(seed)
        G = torch.randn(W_V.shape[1:], generator=generator, dtype=torch.float64)
        return cls(column_basis(W_V)[0] if len(W_V) else W_V.double(), G)


@dataclass(frozen=True)
class _Chunk:
    """The queries of one chunk, by head: all (heads, queries, width).

    ``z`` is what is passed on, ``mixed`` the mixture through random directions; ``targets`` are the
    mixture, the state of the word attended to most, and another word's in the space of W_V;
    ``sentence`` (queries,) is the row of the batch.
    """

    z: Tensor
    mixed: Tensor
    targets: tuple[Tensor, Tensor, Tensor]
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
    U, G = spaces.U[site.heads].to(a), spaces.G.to(a)
    return _Chunk(
        z=z,
        mixed=a @ G,
        targets=(a, token, other @ U),
        sentence=row + site.rows.start,
    )


class _Moments:
    """First and second moments of predictors and targets of one layer's heads."""

    def __init__(self, n_heads: int, d: int, widths: Sequence[int]) -> None:
        def room(*shape: int) -> Tensor:
            return torch.zeros(n_heads, *shape, dtype=torch.float64)

        self.count, self.x, self.xx = room(), room(d), room(d, d)
        self.y, self.xy = [room(t) for t in widths], [room(d, t) for t in widths]

    def add(self, heads: slice, x: Tensor, targets: Sequence[Tensor]) -> None:
        self.count[heads] += x.shape[1]
        self.x[heads] += x.sum(1).cpu()
        self.xx[heads] += (x.mT @ x).cpu()
        for y, xy, target in zip(self.y, self.xy, targets, strict=True):
            y[heads] += target.sum(1).cpu()
            xy[heads] += (x.mT @ target).cpu()

    def solve(self) -> list[_Map]:
        """Fit a ridge map to each target."""
        n = self.count.clamp(min=1)[:, None]
        x = self.x / n
        xx = self.xx / n[..., None]
        square = xx.diagonal(dim1=1, dim2=2).mean(1)[:, None]
        xx = xx - x[:, :, None] * x[:, None, :]
        spread = xx.diagonal(dim1=1, dim2=2).mean(1).clamp(min=0)[:, None]
        # By eigenvalues: predictors that never vary get the weight 0, without dividing by 0.
        values, vectors = torch.linalg.eigh(xx)
        varies = spread > VARIANCE * square  # a constant z varies by its rounding
        inverse = varies / (values.clamp(min=0) + RIDGE * spread).clamp(min=_TINY)
        inverse = vectors * inverse[:, None, :] @ vectors.mT
        means = [y / n for y in self.y]
        pairs = zip(self.xy, means, strict=True)
        joint = (xy / n[..., None] - x[:, :, None] * y[:, None, :] for xy, y in pairs)
        return [_Map(x, y, inverse @ xy) for xy, y in zip(joint, means, strict=True)]


@dataclass(frozen=True)
class _Map:
    """An affine map of each of a layer's heads: y + (given - x) weight."""

    x: Tensor
    y: Tensor
    weight: Tensor

    def gaps(self, heads: slice, given: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the map leaves of a target, and what its mean leaves."""
        x, y, weight = (part[heads].to(given) for part in (self.x, self.y, self.weight))
        of_mean = target - y[:, None]
        return of_mean - (given - x[:, None]) @ weight, of_mean


class RecoverySums:
    """The sums that ridge maps are fitted from, of all layers.

    Parameters
    ----------
    spaces : sequence of LayerSpaces
        One a layer.
    """

    def __init__(self, spaces: Sequence[LayerSpaces]) -> None:
        self._spaces = spaces
        self._sums = []
        for space in spaces:
            n_heads, d_in, d_v = space.U.shape
            of_z = _Moments(n_heads, d_v, (d_in, d_in, d_v))
            self._sums.append((of_z, _Moments(n_heads, d_v, (d_in,))))

    def update(self, site: Activations, x: Tensor, nodes: WordNodes) -> None:
        """Add one chunk; ``x`` (batch, pos, d_in) is what the layer's values are made from."""
        found = _chunk(site, x, nodes, self._spaces[site.row], torch.float64)
        of_z, of_mixed = self._sums[site.row]
        of_z.add(site.heads, found.z, found.targets)
        of_mixed.add(site.heads, found.mixed, found.targets[:1])

    def fitted(self) -> HeldOut:
        """Fit all maps; what they are worth is measured elsewhere."""
        return HeldOut(self._spaces, [(a.solve(), b.solve()[0]) for a, b in self._sums])


class HeldOut:
    """Squared errors of fitted maps on sentences that they were not fitted on.

    Parameters
    ----------
    spaces : sequence of LayerSpaces
        One a layer.
    maps : sequence of (list of maps, map)
        Of every layer the maps that read z, and the one that reads random directions.

    Attributes
    ----------
    sums : list of array, (2, targets, n_heads)
        Of every sentence: squared errors, and squared distances from the mean of the other half.
    """

    def __init__(
        self, spaces: Sequence[LayerSpaces], maps: Sequence[tuple[list[_Map], _Map]]
    ) -> None:
        self._spaces, self._maps = spaces, maps
        self._first = np.cumsum([0, *(len(space.U) for space in spaces)])
        self.sums: list[Array] = []
        self._batch: Array = np.zeros(0)

    def start(self, sentences: int) -> None:
        """Make room for a batch."""
        self._batch = np.zeros((sentences, 2, len(TARGETS), int(self._first[-1])))

    def update(self, site: Activations, x: Tensor, nodes: WordNodes) -> None:
        """Add one chunk, as :meth:`RecoverySums.update` takes it."""
        spaces = self._spaces[site.row]
        found = _chunk(site, x, nodes, spaces, x.dtype)
        of_z, of_mixed = self._maps[site.row]
        pairs = zip(("whole", "token", "other"), of_z, found.targets, strict=True)
        gaps = {name: m.gaps(site.heads, found.z, target) for name, m, target in pairs}
        gaps["directions"] = of_mixed.gaps(site.heads, found.mixed, found.targets[0])
        U = spaces.U[site.heads].to(found.z)
        gaps["value"] = gaps["token"][0] @ U, gaps["token"][1] @ U
        start = int(self._first[site.row])
        heads = slice(start + site.heads.start, start + site.heads.stop)
        sentence = numpy(found.sentence)
        for target, sides in gaps.items():
            for side, gap in enumerate(sides):
                size = widest(torch.linalg.vector_norm(gap, dim=-1)).square()
                place = self._batch[:, side, TARGETS.index(target), heads]
                np.add.at(place, sentence, numpy(size.T))

    def finish(self) -> None:
        """Keep what the sentences of the batch add up to."""
        self.sums += list(self._batch)

    def explained(self, target: str) -> Clustered:
        """Return held-out R^2 of every head: 1 - error / distance from the other half's mean."""
        every = np.zeros((0, 2, len(TARGETS), int(self._first[-1])))
        sums = np.concatenate([every, *(part[None] for part in self.sums)])
        sums = sums[:, :, TARGETS.index(target)]  # (sentences, 2, n_heads)
        return Clustered.ratio(sums[:, 0], sums[:, 1]).rest()
