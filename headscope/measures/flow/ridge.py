r"""Ridge maps from sums over sentences, their penalties chosen by cross-validation.

Sentences are dealt to :data:`FOLDS` folds, and every fold keeps its own first and second moments.
What a map that was fitted on the other folds errs by on a fold follows from these alone::

    sum ||y - m_y - (x - m_x) W||^2 = tr Y'Y - 2 tr W'X'Y + tr W'X'X W

with X and Y centred at the means m of the other folds: one pass over the text is enough, and
nothing is kept of a single token. In the eigenvectors of the other folds' covariance a penalty
only shrinks each direction, so all of :data:`PENALTIES` cost one decomposition.

A target may be wide (d_model), and its moments are what memory goes into. For choosing a penalty,
and only for that, a wide target is seen through :data:`SKETCH` random orthonormal directions: the
squared error there is an unbiased share of the whole. Held in memory are, for each head, with t
the widths of the targets, ``d^2 + d sum(t)`` numbers of 8 bytes, and for each fold
``d^2 + d sum(min(t, SKETCH))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.measures.rounding import VARIANCE

__all__ = ["FOLDS", "PENALTIES", "SKETCH", "RidgeMap", "RidgeSums"]

FOLDS = 5
#: In units of the mean variance of the predictors.
PENALTIES = tuple(10 ** (exponent / 2) for exponent in range(-8, 7))
#: Directions of a target that a penalty is chosen by, at most.
SKETCH = 32
#: Errors that differ by less than this share of what there is to explain are equal: the larger
#: penalty is taken.
_EQUAL = 1e-9
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class RidgeMap:
    """An affine map of each of a layer's heads: y + (given - x) weight.

    ``penalty`` (n_heads,) is in units of the mean variance of what is given.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    penalty: Tensor

    def gaps(self, heads: slice, given: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the map leaves of a target, and what its mean leaves."""
        x, y, weight = (part[heads].to(given) for part in (self.x, self.y, self.weight))
        of_mean = target - y[:, None]
        return of_mean - (given - x[:, None]) @ weight, of_mean


class RidgeSums:
    """What maps from one predictor of each of a layer's heads to several targets are made from.

    Parameters
    ----------
    n_heads, d : int
        Heads, and the predictor's width.
    sketch : Tensor, (wide, at most SKETCH), float64
        Orthonormal columns that targets as wide as that are seen through by the folds.
    widths : sequence of int
        Of the targets.
    """

    def __init__(self, n_heads: int, d: int, sketch: Tensor, widths: Sequence[int]) -> None:
        self._sketch = sketch
        self._whole = _Moments((n_heads,), d, widths)
        self._folds = _Moments((FOLDS, n_heads), d, [min(t, sketch.shape[1]) for t in widths])

    def add(self, heads: slice, fold: Tensor, x: Tensor, targets: Sequence[Tensor]) -> None:
        """Add tokens: predictors (heads, tokens, d), targets alike, the fold of every token."""
        self._whole.add(heads, x, targets)
        seen = [self._seen(target) for target in targets]
        for number in range(FOLDS):
            (here,) = (fold == number).nonzero(as_tuple=True)
            if len(here):
                parts = [part[:, here] for part in seen]
                self._folds.add((number, heads), x[:, here], parts)

    def _seen(self, target: Tensor) -> Tensor:
        width = self._sketch.shape[1]
        return target if target.shape[-1] <= width else target @ self._sketch.to(target)

    def solve(self) -> list[RidgeMap]:
        """Fit a map to each target, of the penalty that errs least on folds left out."""
        whole = self._whole
        x, means = whole.means()
        spectrum = _Spectrum.of(whole)
        found = []
        for i, (errors, size) in enumerate(_left_out(self._folds)):
            equal = errors <= errors.amin(0) + _EQUAL * size
            last = equal.to(torch.uint8).flip(0).argmax(0)  # the largest penalty of equal ones
            penalty = torch.tensor(PENALTIES, dtype=torch.float64)[len(PENALTIES) - 1 - last]
            shrunk = spectrum.shrunk(penalty)[:, None]
            weight = spectrum.vectors * shrunk @ spectrum.vectors.mT @ whole.joint(i)
            found.append(RidgeMap(x, means[i], weight, penalty))
        return found


class _Moments:
    """Sums of first and second moments; the first axes are heads, or folds and heads."""

    def __init__(self, shape: tuple[int, ...], d: int, widths: Sequence[int]) -> None:
        def room(*more: int) -> Tensor:
            return torch.zeros((*shape, *more), dtype=torch.float64)

        self.count, self.x, self.xx = room(), room(d), room(d, d)
        self.y, self.xy = [room(t) for t in widths], [room(d, t) for t in widths]
        self.yy = [room() for _ in widths]

    def add(self, place: slice | tuple[int, slice], x: Tensor, targets: Sequence[Tensor]) -> None:
        self.count[place] += x.shape[1]
        self.x[place] += x.sum(1).cpu()
        self.xx[place] += (x.mT @ x).cpu()
        for y, xy, yy, target in zip(self.y, self.xy, self.yy, targets, strict=True):
            y[place] += target.sum(1).cpu()
            xy[place] += (x.mT @ target).cpu()
            yy[place] += target.square().sum((1, 2)).cpu()

    def without_each(self) -> _Moments:
        """Return for each fold the sums of all others."""
        rest = _Moments((), 0, ())
        for name in ("count", "x", "xx"):
            own = getattr(self, name)
            setattr(rest, name, own.sum(0) - own)
        rest.y, rest.xy, rest.yy = (
            [own.sum(0) - own for own in part] for part in (self.y, self.xy, self.yy)
        )
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


def _left_out(folds: _Moments) -> list[tuple[Tensor, Tensor]]:
    """Say what maps fitted on all other folds err by on each, by target.

    Returns
    -------
    list of (errors, size)
        Sums over folds: errors (penalties, n_heads), and of distances from the mean (n_heads,).
    """
    rest = folds.without_each()
    spectrum = _Spectrum.of(rest)
    x, means = rest.means()
    vectors, n = spectrum.vectors, folds.count[..., None, None]
    held = folds.xx - _around(x, folds.x, x, folds.x, n)
    held = vectors.mT @ held @ vectors
    shrunk = torch.stack([spectrum.shrunk(penalty) for penalty in PENALTIES])
    found = []
    for i, y in enumerate(means):
        fitted = vectors.mT @ rest.joint(i)
        target = vectors.mT @ (folds.xy[i] - _around(x, folds.x, y, folds.y[i], n))
        size = folds.yy[i] + (n[..., 0] * y * y - 2 * y * folds.y[i]).sum(-1)
        linear = (shrunk * (fitted * target).sum(-1)).sum(-1)
        gram = fitted @ fitted.mT * held
        square = torch.einsum("pfhi,fhij,pfhj->pfh", shrunk, gram, shrunk)
        found.append(((size - 2 * linear + square).sum(1), size.sum(0)))
    return found


def _around(x: Tensor, x_sum: Tensor, y: Tensor, y_sum: Tensor, n: Tensor) -> Tensor:
    """Return what a sum of products exceeds that of the same numbers less x and y by."""
    outer = x[..., :, None] * y_sum[..., None, :] + x_sum[..., :, None] * y[..., None, :]
    return outer - n * x[..., :, None] * y[..., None, :]
