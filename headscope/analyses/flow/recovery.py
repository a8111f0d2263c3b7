r"""How much of what a head reads can be recovered linearly from what it passes on.

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
from copy import copy
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.flow.graph import WordNodes
from headscope.core.accumulator import Array
from headscope.core.activations import Activations
from headscope.core.memory import give_back
from headscope.core.rounding import VARIANCE, first_largest
from headscope.core.widest import exact
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
#: Bytes of sums up to which batches are read side by side: a batch adds as many, and some wait.
SUMS = 1 << 27
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class LayerSpaces:
    """The subspaces that the values of one layer read, and those that random ones would."""

    G: Tensor  # (n_heads, d_in, d_v). Random directions.
    U: Tensor  # Orthonormal columns that span those of each head's W_V, zeros beyond its rank.
    V: Tensor  # Orthonormal columns that span those of G.
    sketch: Tensor  # (d_in, at most SKETCH). Random orthonormal columns.

    @classmethod
    def of(cls, W_V: Tensor, seed: int) -> LayerSpaces:
        """Take them from a layer's W_V (n_heads, d_in, d_v) on the CPU; ``seed`` is of G."""
        generator = torch.Generator().manual_seed(seed)
        d_in = W_V.shape[1]
        wide = torch.randn(d_in, min(d_in, SKETCH), generator=generator, dtype=torch.float64)
        G = torch.randn(W_V.shape, generator=generator, dtype=torch.float64)
        U, V = ((column_basis(part)[0] if len(part) else part.double()) for part in (W_V, G))
        wider = [0, G.shape[-1] - U.shape[-1]]  # heads that are wider than the states
        U, V = (torch.nn.functional.pad(basis, wider) for basis in (U, V))
        return cls(G, U, V, torch.linalg.qr(wide)[0])


class _Words:
    """What the words of a chunk read, in float64, head by head."""

    def __init__(
        self, site: Activations, x: Tensor, nodes: WordNodes, fold: Tensor | None = None
    ) -> None:
        content = nodes.content[site.rows]
        row, query = content.nonzero(as_tuple=True)
        if fold is not None:  # words of a fold together
            order = fold[site.rows][row].argsort(stable=True)
            row, query = row[order], query[order]
        hidden = site.pattern.masked_fill(~content[:, None, None, :], -1.0)
        top = first_largest(hidden)[1][row, :, query]  # (words, heads)
        self._x, self._pattern, self._z = exact(x[site.rows]), exact(site.pattern), exact(site.z)
        self.row, self._query, self._top, self._other = (
            part.to(self._x.device)
            for part in (row, query, top, nodes.other[site.rows][row, query])
        )
        self._first = site.heads.start
        self.heads = range(site.heads.start, site.heads.stop)

    def pairs(self, head: int, spaces: LayerSpaces) -> dict[str, tuple[Tensor, Tensor]]:
        """Return, by target, the (predictor, target) of one head's map."""
        i = head - self._first
        G, U, V = (part[head].to(self._x) for part in (spaces.G, spaces.U, spaces.V))
        a = (self._pattern[:, i] @ self._x)[self.row, self._query]
        top, other = (self._x[self.row, place] for place in (self._top[:, i], self._other))
        z, random = self._z[self.row, i, self._query], a @ G
        return {
            "whole": (z, a),
            "token": (z, top),
            "value": (z, top @ U),
            "other": (z, other @ U),
            "directions": (random, a),
            "token_directions": (random, top),
            "gaussian": (random, top @ V),
        }


class RecoverySums:
    """The sums that ridge maps are fitted from, of all layers."""

    def __init__(self, spaces: Sequence[LayerSpaces]) -> None:
        self._spaces = list(spaces)
        self._fold = torch.zeros(0)
        self.tokens = 0
        #: Of each layer: of maps from z, and of maps from random directions.
        self._sums: list[tuple[RidgeSums, RidgeSums]] = []
        for space in spaces:
            n_heads, d_in, d_v = space.G.shape
            sizes = n_heads, d_v, d_in, space.sketch.shape[1]
            self._sums.append((RidgeSums(*sizes, (d_v, d_v)), RidgeSums(*sizes, (d_v,))))

        nbytes = sum(part.nbytes for sums in chain(*self._sums) for part in sums.parts)
        #: Whether sums are so large that batches run one by one and are added in place.
        self.alone = nbytes > SUMS

    def of_batch(self, nodes: WordNodes, folds: Sequence[int]) -> RecoverySums:
        """Return empty sums for a batch; with ``alone`` they are these sums themselves.

        ``folds`` are the folds of the batch's sentences.
        """
        own = copy(self) if self.alone else RecoverySums(self._spaces)
        own._fold = torch.tensor(folds, device=nodes.content.device)
        own.tokens = int(nodes.content.sum())
        return own

    def add(self, other: RecoverySums) -> None:
        """Add the sums of a batch."""
        self.tokens += other.tokens
        if self.alone:
            return
        for mine, theirs in zip(chain(*self._sums), chain(*other._sums), strict=True):
            for part, more in zip(mine.parts, theirs.parts, strict=True):
                part += more

    def update(self, site: Activations, x: Tensor, nodes: WordNodes) -> None:
        """Add one chunk; ``x`` (batch, pos, d_in) is what the layer's values are made from."""
        space, words = self._spaces[site.row], _Words(site, x, nodes, self._fold)
        folds = self._fold[site.rows][words.row.to(self._fold.device)]
        sizes = folds.bincount(minlength=FOLDS).tolist()
        for head in words.heads:
            pairs = words.pairs(head, space)
            for sums, names in zip(self._sums[site.row], (_FROM_Z, _FROM_RANDOM), strict=True):
                targets = [pairs[name][1] for name in names]
                sums.add(head, sizes, pairs[names[0]][0], targets, space.sketch)

    def fitted(self) -> HeldOut:
        """Fit all maps, drop the sums, and return what measures the maps on the other half."""
        spaces, maps = self._spaces, list[list[RidgeMap]]()
        while self._sums:
            a, b = self._sums.pop(0)
            maps.append([*a.solve(), *b.solve()])
            del a, b
            give_back()
        self._spaces = []
        return HeldOut(spaces, maps)


class HeldOut:
    """Squared errors of fitted maps on sentences that they were not fitted on."""

    alone = False  # What a batch adds is next to nothing.

    def __init__(self, spaces: Sequence[LayerSpaces], maps: Sequence[Sequence[RidgeMap]]) -> None:
        #: Of each layer, in the order of :data:`TARGETS`; until :meth:`forget_maps`.
        self.maps, self._spaces = list(maps), list(spaces)
        #: Targets that the text is too short for, and why; their R^2 is NaN.
        self.not_measured: dict[str, str] = {}
        self._first = np.cumsum([0, *(len(space.G) for space in spaces)])
        self.sums: list[Array] = []
        self._batch = torch.zeros(0)

    def forget_maps(self) -> None:
        """Drop the maps once everything is measured; the errors stay."""
        self.maps.clear()
        self._spaces.clear()

    def of_batch(self, nodes: WordNodes, folds: Sequence[int] = ()) -> HeldOut:
        """Begin the errors of a batch."""
        own = copy(self)
        own.sums = []
        shape = (len(nodes.node), 3, len(TARGETS), int(self._first[-1]))
        own._batch = torch.zeros(shape, dtype=torch.float64)
        return own

    def add(self, other: HeldOut) -> None:
        """Add the errors of a batch, sentence by sentence."""
        self.sums += list(other._batch.numpy())

    def update(self, site: Activations, x: Tensor, nodes: WordNodes) -> None:
        """Add one chunk, as :meth:`RecoverySums.update` takes it."""
        words, maps = _Words(site, x, nodes), self.maps[site.row]
        rows = (words.row + site.rows.start).cpu()
        for head in words.heads:
            pairs = words.pairs(head, self._spaces[site.row])
            errors = [of.errors(head, *pairs[name]) for name, of in zip(TARGETS, maps, strict=True)]
            found = torch.stack(errors, 1).permute(2, 0, 1).cpu()
            self._batch[..., int(self._first[site.row]) + head].index_add_(0, rows, found)

    def explained(self, target: str) -> Clustered:
        """Return held-out R^2 of every head: 1 - error / distance from the other half's mean.

        NaN where the target never changes, or was not measured.
        """
        every = np.zeros((0, 3, len(TARGETS), int(self._first[-1])))
        sums = np.concatenate([every, *(part[None] for part in self.sums)])
        error, distance, square = np.moveaxis(sums[:, :, TARGETS.index(target)], 1, 0)
        varies = distance.sum(0) > VARIANCE * square.sum(0)
        varies &= target not in self.not_measured
        return Clustered.ratio(error * varies, distance * varies).rest()


@dataclass(frozen=True)
class RidgeMap:
    """An affine map of each of a layer's heads: y + (predictor - x) weight.

    ``penalty`` (n_heads,) is in units of the mean variance of the predictor.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    penalty: Tensor

    def errors(self, head: int, predictor: Tensor, target: Tensor) -> Tensor:
        """Return squared errors of a head's map and of its mean, and the target's squared length.

        Shapes: ``predictor`` (words, d), ``target`` (words, width); returns (3, words).
        """
        x, y, weight = (part[head].to(predictor) for part in (self.x, self.y, self.weight))
        of_mean = target - y
        parts = (of_mean - (predictor - x) @ weight, of_mean, target)
        return torch.stack([part.square().sum(-1) for part in parts])


class RidgeSums:
    """Sums for fitting maps from one predictor of each of a layer's heads to several targets.

    The first two targets have ``d_in`` numbers; cross-validation sees a sketch of them only.
    """

    def __init__(self, n_heads: int, d: int, d_in: int, sketch: int, narrow: Sequence[int]) -> None:
        self._widths = [1 + d, sketch, sketch, *narrow]
        shape = (FOLDS, n_heads, 1 + d, sum(self._widths))
        self._folds = torch.zeros(shape, dtype=torch.float64)
        self._squares = torch.zeros(FOLDS, n_heads, shape[-1], dtype=torch.float64)
        self._wide = torch.zeros(2, n_heads, 1 + d, d_in, dtype=torch.float64)
        self.parts = self._folds, self._squares, self._wide

    def add(
        self, head: int, sizes: Sequence[int], x: Tensor, targets: Sequence[Tensor], sketch: Tensor
    ) -> None:
        """Add tokens of one head, fold by fold: ``sizes`` are the tokens of each fold.

        Shapes: ``x`` (tokens, d), ``targets`` (tokens, width) each, ``sketch`` (d_in, directions).
        """
        predictor = torch.cat([torch.ones_like(x[:, :1]), x], -1)
        seen = [target @ sketch.to(target) for target in targets[:2]]
        every = torch.cat([predictor, *seen, *targets[2:]], -1)
        for fold, part in enumerate(torch.split(every, list(sizes))):
            self._folds[fold, head] += (part[:, : self._widths[0]].T @ part).cpu()
            self._squares[fold, head] += part.square().sum(0).cpu()
        for sums, target in zip(self._wide, targets[:2], strict=True):
            sums[head] += (predictor.T @ target).cpu()

    def solve(self) -> list[RidgeMap]:
        """Fit a map to each target, with the penalty that has the least cross-validation error."""
        total = self._folds.sum(0)
        folds, rest, whole = (
            _Moments(*torch.split(part, self._widths, -1))
            for part in (self._folds, total - self._folds, total)
        )
        whole.of_targets[:2] = self._wide
        x, means = whole.means()
        spectrum = _Spectrum.of(whole)
        _, *squares = (part.sum(-1) for part in torch.split(self._squares, self._widths, -1))
        maps = []
        for i, (errors, size) in enumerate(_left_out(folds, rest, squares)):
            equal = errors <= errors.amin(0) + _EQUAL * size
            last = equal.to(torch.uint8).flip(0).argmax(0)  # ties go to the largest penalty
            penalty = torch.tensor(PENALTIES, dtype=torch.float64)[len(PENALTIES) - 1 - last]
            shrunk = spectrum.shrunk(penalty)[:, None]
            weight = spectrum.vectors * shrunk @ spectrum.vectors.mT @ whole.joint(i)
            maps.append(RidgeMap(x, means[i], weight, penalty))
        return maps


class _Moments:
    """Sums of products of (1, predictors) with themselves and with targets.

    The first axes are heads, or folds and heads.
    """

    def __init__(self, own: Tensor, *of_targets: Tensor) -> None:
        self.count, self.x, self.xx = own[..., 0, 0], own[..., 0, 1:], own[..., 1:, 1:]
        self.of_targets = list(of_targets)

    @property
    def y(self) -> list[Tensor]:
        """Sums of the targets."""
        return [part[..., 0, :] for part in self.of_targets]

    @property
    def xy(self) -> list[Tensor]:
        """Sums of products of the predictors with the targets."""
        return [part[..., 1:, :] for part in self.of_targets]

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
        # A constant predictor has a variance by rounding, up to this share of its squared length.
        constant = VARIANCE * square.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
        values = torch.where(values > constant, values, 0.0)
        return cls(values, vectors, values.mean(-1))

    def shrunk(self, penalty: Tensor | float) -> Tensor:
        """Return 1 / (value + penalty), 0 for what never varies; ``penalty`` (...)."""
        ridge = (self.spread * penalty)[..., None]
        return (self.values > 0) / (self.values + ridge).clamp(min=_TINY)


def _left_out(
    folds: _Moments, rest: _Moments, squares: Sequence[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Return each target's cross-validation errors, and the variation to be explained.

    ``squares`` (folds, n_heads) are the sums of each target's. Shapes: (penalties, n_heads) and
    (n_heads,) of each target.
    """
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
    """Return what to subtract from a sum of products to centre its factors on x and y."""
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
