r"""How much of what a head reads a linear map finds again in what it passes on.

Row vectors. At query i a head reads the mixture ``a_i = sum_j P_ij x_j`` of the layer's inputs,
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

from headscope.analyses.flow.graph import WordNodes
from headscope.core.accumulator import Array, numpy
from headscope.core.activations import Activations
from headscope.core.rounding import VARIANCE, first_largest
from headscope.core.widest import exact, widest
from headscope.stats.spectra import column_basis
from headscope.stats.statistics import ratio, t_half_width

#: What is predicted from z, and from random directions, by name.
_FROM_Z = ("whole", "token", "value", "other")
_FROM_RANDOM = ("directions", "token_directions", "gaussian")
TARGETS = (*_FROM_Z, *_FROM_RANDOM)
FOLDS = 5
#: In units of the mean variance of the predictors.
PENALTIES = tuple(10 ** (exponent / 2) for exponent in range(-8, 7))
SKETCH = 32  # Directions of a target that a penalty is chosen by, at most.
#: Errors that differ by less than this share of what there is to explain are equal: the larger
#: penalty is taken.
_EQUAL = 1e-9
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class LayerSpaces:
    """What the values of one layer read, and what random ones would."""

    #: (n_heads, d_in, d_v). Orthonormal columns that span those of each head's W_V; zeros beyond
    #: its rank.
    U: Tensor
    G: Tensor  # (n_heads, d_in, d_v). Random directions, and orthonormal columns that span them.
    V: Tensor
    sketch: Tensor  # (d_in, at most SKETCH). Random orthonormal columns.

    @classmethod
    def of(cls, W_V: Tensor, seed: int) -> LayerSpaces:
        """Take them from a layer's W_V (n_heads, d_in, d_v) on the CPU; ``seed`` is of G."""
        generator = torch.Generator().manual_seed(seed)
        d_in = W_V.shape[1]
        wide = torch.randn(d_in, min(d_in, SKETCH), generator=generator, dtype=torch.float64)
        G = torch.randn(W_V.shape, generator=generator, dtype=torch.float64)
        U, V = ((column_basis(part)[0] if len(part) else part.double()) for part in (W_V, G))
        return cls(U, G, V, torch.linalg.qr(wide)[0])


#: z and the mixture through random directions (heads, queries, d_v), what is predicted from each
#: (heads, queries, width), and the row of the batch that each query is of (queries,).
_Chunk = tuple[Tensor, Tensor, tuple[Tensor, ...], tuple[Tensor, ...], Tensor]


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
    from_z, from_random = (a, token, token @ U, other @ U), (a, token, token @ V)
    return z, a @ G, from_z, from_random, row + site.rows.start


class RecoverySums:
    """The sums that ridge maps are fitted from, of all layers."""

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
        z, mixed, from_z, from_random, sentence = _chunk(
            site, x, nodes, self._spaces[site.row], torch.float64
        )
        fold = self._fold[sentence].to(z.device)
        of_z, of_random = self._sums[site.row]
        targets = [of_z.sketched(target) for target in from_z]
        of_z.add(site.heads, fold, z, targets)
        both = [*targets[:2], of_random.sketched(from_random[2])]  # the wide ones are the same
        of_random.add(site.heads, fold, mixed, both)

    def fitted(self) -> HeldOut:
        """Fit all maps; what they are worth is measured elsewhere."""
        return HeldOut(self._spaces, [(*a.solve(), *b.solve()) for a, b in self._sums])


class HeldOut:
    """Squared errors of fitted maps on sentences that they were not fitted on."""

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
        z, mixed, from_z, from_random, row = _chunk(site, x, nodes, self._spaces[site.row], x.dtype)
        sentence, start = numpy(row), int(self._first[site.row])
        heads = slice(start + site.heads.start, start + site.heads.stop)
        predictors = [z] * len(from_z) + [mixed] * len(from_random)
        pairs = zip(predictors, (*from_z, *from_random), strict=True)
        beside: dict[
            int, list[Array]
        ] = {}  # maps from z and from directions have targets in common
        for i, (predictor, target) in enumerate(pairs):
            left, of_mean = self._maps[site.row][i].gaps(site.heads, predictor, target)
            if id(target) not in beside:
                beside[id(target)] = [_squared(of_mean), _squared(target)]
            for side, size in enumerate((_squared(left), *beside[id(target)])):
                np.add.at(self._batch[:, side, i, heads], sentence, size)

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


def _squared(vectors: Tensor) -> Array:
    """Return squared lengths of (heads, tokens, width): (tokens, heads)."""
    return numpy(widest(torch.linalg.vector_norm(vectors, dim=-1)).square().T)


@dataclass(frozen=True)
class RidgeMap:
    """An affine map of each of a layer's heads: y + (predictor - x) weight.

    ``penalty`` (n_heads,) is in units of the mean variance of the predictor.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    penalty: Tensor

    def gaps(self, heads: slice, predictor: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the map leaves of a target, and what its mean leaves."""
        x, y, weight = (part[heads].to(predictor) for part in (self.x, self.y, self.weight))
        of_mean = target - y[:, None]
        return of_mean - (predictor - x[:, None]) @ weight, of_mean


Target = tuple[Tensor, Tensor]  # (heads, tokens, width), and the same through a few directions.


class RidgeSums:
    """What maps from one predictor of each of a layer's heads to several targets are made from."""

    def __init__(self, n_heads: int, d: int, sketch: Tensor, widths: Sequence[int]) -> None:
        self._sketch = sketch
        self._whole = _Moments((n_heads,), d, widths)
        self._folds = _Moments((FOLDS, n_heads), d, [min(t, sketch.shape[1]) for t in widths])
        self._squares = [torch.zeros(FOLDS, n_heads, dtype=torch.float64) for _ in widths]

    def sketched(self, target: Tensor) -> Target:
        """Return a target (heads, tokens, width), and what of it a penalty is chosen by."""
        narrow = target.shape[-1] <= self._sketch.shape[1]
        return target, target if narrow else target @ self._sketch.to(target)

    def add(self, heads: slice, fold: Tensor, x: Tensor, targets: Sequence[Target]) -> None:
        """Add tokens: predictors (heads, tokens, d), targets, the fold of every token."""
        self._whole.add(heads, x, [target for target, _ in targets])
        for number in range(FOLDS):
            (here,) = (fold == number).nonzero(as_tuple=True)
            if len(here):
                parts = [sketch[:, here] for _, sketch in targets]
                self._folds.add((number, heads), x[:, here], parts)
                for yy, part in zip(self._squares, parts, strict=True):
                    yy[number, heads] += part.square().sum((1, 2)).cpu()

    def solve(self) -> list[RidgeMap]:
        """Fit a map to each target, of the penalty that errs least on folds left out."""
        whole = self._whole
        x, means = whole.means()
        spectrum = _Spectrum.of(whole)
        maps = []
        for i, (errors, size) in enumerate(_left_out(self._folds, self._squares)):
            equal = errors <= errors.amin(0) + _EQUAL * size
            last = equal.to(torch.uint8).flip(0).argmax(0)  # the largest penalty of equal ones
            penalty = torch.tensor(PENALTIES, dtype=torch.float64)[len(PENALTIES) - 1 - last]
            shrunk = spectrum.shrunk(penalty)[:, None]
            weight = spectrum.vectors * shrunk @ spectrum.vectors.mT @ whole.joint(i)
            maps.append(RidgeMap(x, means[i], weight, penalty))
        return maps


class _Moments:
    """Sums of first and second moments; the first axes are heads, or folds and heads."""

    def __init__(self, shape: tuple[int, ...], d: int, widths: Sequence[int]) -> None:
        def room(*more: int) -> Tensor:
            return torch.zeros((*shape, *more), dtype=torch.float64)

        self.count, self.x, self.xx = room(), room(d), room(d, d)
        self.y, self.xy = [room(t) for t in widths], [room(d, t) for t in widths]

    def add(self, at: slice | tuple[int, slice], x: Tensor, targets: Sequence[Tensor]) -> None:
        self.count[at] += x.shape[1]
        self.x[at] += x.sum(1).cpu()
        self.xx[at] += (x.mT @ x).cpu()
        for y, xy, target in zip(self.y, self.xy, targets, strict=True):
            y[at] += target.sum(1).cpu()
            xy[at] += (x.mT @ target).cpu()

    def without_each(self) -> _Moments:
        """Return for each fold the sums of all others."""
        rest = _Moments((), 0, ())
        for name in ("count", "x", "xx"):
            own = getattr(self, name)
            setattr(rest, name, own.sum(0) - own)
        rest.y, rest.xy = ([own.sum(0) - own for own in part] for part in (self.y, self.xy))
        return rest

    def means(self) -> tuple[Tensor, list[Tensor]]:
        n = self.count.clamp(min=1)[..., None]
        return self.x / n, [y / n for y in self.y]

    def joint(self, target: int) -> Tensor:
        """Return the covariance of predictors and a target."""
        x, means = self.means()
        n = self.count.clamp(min=1)[..., None, None]
        return self.xy[target] / n - x[..., :, None] * means[target][..., None, :]


@dataclass(frozen=True)
class _Spectrum:
    """The covariance of predictors by its eigenvectors.

    ``values`` (..., d) is zero where they vary by rounding only; ``spread`` (...) is their mean.
    """

    values: Tensor
    vectors: Tensor
    spread: Tensor

    @classmethod
    def of(cls, moments: _Moments) -> _Spectrum:
        x, _ = moments.means()
        square = moments.xx / moments.count.clamp(min=1)[..., None, None]
        values, vectors = torch.linalg.eigh(square - x[..., :, None] * x[..., None, :])
        # Rounding of a constant is a share of it: along one direction of all that it is made of.
        constant = VARIANCE * square.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
        values = torch.where(values > constant, values, 0.0)
        return cls(values, vectors, values.mean(-1))

    def shrunk(self, penalty: Tensor | float) -> Tensor:
        """Return 1 / (value + penalty), 0 for what never varies; ``penalty`` (...)."""
        ridge = (self.spread * penalty)[..., None]
        return (self.values > 0) / (self.values + ridge).clamp(min=_TINY)


def _left_out(folds: _Moments, squares: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return errors on each fold of maps fitted on all others, and what is to be explained.

    ``squares`` (folds, n_heads) are the sums of each target's. Shapes: (penalties, n_heads) and
    (n_heads,) of each target.
    """
    rest = folds.without_each()
    spectrum = _Spectrum.of(rest)
    x, means = rest.means()
    vectors, n = spectrum.vectors, folds.count[..., None, None]
    held = folds.xx - _around(x, folds.x, x, folds.x, n)
    held = vectors.mT @ held @ vectors
    shrunk = torch.stack([spectrum.shrunk(penalty) for penalty in PENALTIES])
    results = []
    for i, y in enumerate(means):
        fitted = vectors.mT @ rest.joint(i)
        target = vectors.mT @ (folds.xy[i] - _around(x, folds.x, y, folds.y[i], n))
        size = squares[i] + (n[..., 0] * y * y - 2 * y * folds.y[i]).sum(-1)
        linear = (shrunk * (fitted * target).sum(-1)).sum(-1)
        gram = fitted @ fitted.mT * held
        square = torch.einsum("pfhi,fhij,pfhj->pfh", shrunk, gram, shrunk)
        results.append(((size - 2 * linear + square).sum(1), size.sum(0)))
    return results


def _around(x: Tensor, x_sum: Tensor, y: Tensor, y_sum: Tensor, n: Tensor) -> Tensor:
    """Return what a sum of products exceeds that of the same numbers less x and y by."""
    outer = x[..., :, None] * y_sum[..., None, :] + x_sum[..., :, None] * y[..., None, :]
    return outer - n * x[..., :, None] * y[..., None, :]


@dataclass(frozen=True)
class Clustered:
    """Numbers that are smooth functions of sums over sentences."""

    value: Array  # (n,). The numbers; NaN where nothing was counted.
    #: (sentences, n). How much each sentence pulls at each number, in units of a mean over
    #: sentences: the standard error of a number is that of the mean of its column. Columns of
    #: numbers that were measured on the same sentences may be added and subtracted, row by row.
    influence: Array

    @classmethod
    def ratio(cls, part: Array, whole: Array) -> Clustered:
        """Make sum(part) / sum(whole) over sentences, both (sentences, n) or broadcast to it.

        Cochran 1977, Sampling Techniques, section 6.4.
        """
        part, whole = np.broadcast_arrays(
            np.asarray(part, dtype=float), np.asarray(whole, dtype=float)
        )
        value = ratio(part.sum(0), whole.sum(0))
        with np.errstate(invalid="ignore", divide="ignore"):
            influence = (part - value * whole) / (whole.sum(0) / max(1, len(whole)))
        return cls(value, influence)

    def rest(self) -> Clustered:
        """Return 1 minus each number."""
        return Clustered(1.0 - self.value, -self.influence)

    def mean(self) -> Clustered:
        """Return the mean of the finite numbers, as one number."""
        finite = np.isfinite(self.value)
        if not finite.any():
            return Clustered(np.full(1, np.nan), np.full((len(self.influence), 1), np.nan))
        return Clustered(
            self.value[finite].mean(keepdims=True),
            self.influence[:, finite].mean(1, keepdims=True),
        )

    def __sub__(self, other: Clustered) -> Clustered:
        return Clustered(self.value - other.value, self.influence - other.influence)

    def half_width(self) -> Array:
        """Return half of each 95% interval (Student's t over sentences); infinite for one."""
        n = len(self.influence)
        if n < 2:
            return np.full(len(self.value), np.inf)
        error = self.influence.std(axis=0, ddof=1) / np.sqrt(n)
        return t_half_width(error, np.array(n))
