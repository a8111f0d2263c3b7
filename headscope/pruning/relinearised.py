r"""``fisher-relinearised``: joint elimination, linearised again after each eighth of the heads.

One Gauss-Newton matrix at the unpruned model says little about a model that has lost half of its
heads. So the path is walked in eighths. Where the gates stand, ``xi``, the squared distance is
about::

    ||e(x) - e(1)||^2  ~  (x - xi) G (x - xi)^T + 2 g (x - xi)^T + ridge * ||x - t||^2 + constant

with G the Gauss-Newton matrix and g = J^T (e(xi) - e(1)), both at ``xi``, and t the gates where
they stand (1 for a head that is gone). *All* heads are eliminated anew on this form, one by one as
in ``fisher-joint``: those that had gone before compete again and may come back. The gates of the
heads that stay go to the minimum of the form, as far as that lowers the exact distance, and the
next eighth begins there.

``fisher-mean`` is the same for heads that leave their mean behind (the repair ``mean``): gates then
multiply the deviation of z from its mean over the calibration tokens.

Notes
-----
Sets of different sizes need not lie inside each other. Each linearisation gives one whole order of
removal, which answers for the sizes up to the next: any size has its set, and asking costs nothing.

References
----------
Hassibi & Stork 1993, Second order derivatives for network pruning: Optimal Brain Surgeon (NIPS 5).
Kwon et al. 2022, arXiv:2204.09656.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import torch

from headscope.pruning.fisher import outputs_matrix
from headscope.pruning.gauss_newton import GaussNewton, sample
from headscope.pruning.joint import RIDGE, one_by_one
from headscope.pruning.method import Given, Ranking
from headscope.pruning.scale import distance, full_outputs, search

#: Linearisations on the way from all heads to none.
STAGES = 8
#: Random directions per example at each of them.
DIRECTIONS = 2
#: Pull of the gates to where they stand, in units of the mean diagonal of G.
RIDGE_ON_THE_WAY = 0.03
NAME = "fisher-relinearised"


class RelinearisedRanking(Ranking):
    """An order of removal for each eighth of the sizes.

    Parameters
    ----------
    orders : sequence of sequence of int
        All units, the first to go first: one order for each linearisation.
    sizes : sequence of int
        How many units were gone at each of them, ascending from 0.
    passes : dict
        As :class:`Ranking` has them.

    Notes
    -----
    A unit's value is its mean place in these orders: 0 where it is always the first to go, 1 where
    it is always the last.
    """

    def __init__(
        self, orders: Sequence[Sequence[int]], sizes: Sequence[int], passes: dict[str, int]
    ) -> None:
        places = torch.stack([torch.tensor(order).argsort().double() for order in orders])
        super().__init__(places.mean(dim=0) / max(places.shape[1] - 1, 1), passes=passes)
        self._orders, self._sizes = tuple(tuple(order) for order in orders), tuple(sizes)

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go: by the last linearisation at fewer of them."""
        order = self._orders[max(bisect_left(self._sizes, count) - 1, 0)]
        return tuple(sorted(order[:count]))


def fisher_relinearised(
    given: Given, *, stages: int = STAGES, directions: int = DIRECTIONS
) -> Ranking:
    """Rank heads by joint elimination that is linearised again after each eighth of them.

    Never uses labels: the distance to the unpruned model's outputs has a gradient on the way.
    Sizes beyond ``given.largest`` are answered by the last linearisation before it.
    """
    n = len(given.units)
    sizes = [round(n * number / stages) for number in range(1, stages)]
    sizes = sorted({size for size in sizes if 0 < size < min(given.largest or n, n)})
    path = _Path(given, directions)
    given.progress(NAME, 1, len(sizes) + 1)
    for done, size in enumerate(sizes, start=2):
        path.walk(size)
        given.progress(NAME, done, len(sizes) + 1)
    return RelinearisedRanking(path.orders, [0, *sizes], path.passes)


def fisher_mean(given: Given, *, stages: int = STAGES, directions: int = DIRECTIONS) -> Ranking:
    """Rank heads as :func:`fisher_relinearised` does, where each leaves its mean behind."""
    given.remember("full outputs", lambda: full_outputs(given))
    return fisher_relinearised(given.leaving_means(), stages=stages, directions=directions)


class _Path:
    """Where the gates stand, and the quadratic form there."""

    def __init__(self, given: Given, directions: int) -> None:
        self._given, self._directions = given, directions
        self._targets = given.remember("full outputs", lambda: full_outputs(given))
        self._gates = torch.ones(len(given.units), dtype=torch.float64)
        self.orders = list[list[int]]()
        self.passes = {"forward": 2, "backward": directions}
        self._linearised(outputs_matrix(given, directions), RIDGE)

    def walk(self, size: int) -> None:
        """Remove ``size`` units, chosen anew, let the gates follow, and linearise there."""
        removed = self.orders[-1][:size]
        kept = sorted(set(range(len(self._gates))) - set(removed))
        wanted = torch.linalg.solve(self._left[kept][:, kept], self._right[kept])
        start = self._gates.clone()
        start[list(removed)] = 0.0
        known = distance(self._given, start, self._targets)
        step = wanted - start[kept]
        self._gates, _ = search(self._given, start, known, kept, step, self._targets)
        self._linearised(self._sample(), RIDGE_ON_THE_WAY)

    def _sample(self) -> GaussNewton:
        for name, more in (("forward", 3), ("backward", self._directions + 1)):
            self.passes[name] += more
        return sample(
            self._given.calibration.batches(labels=False),
            self._given.units,
            at=self._gates,
            targets=self._targets,
            directions=self._directions,
            seed=self._given.seed + 1 + len(self.orders),
        )

    def _linearised(self, found: GaussNewton, ridge: float) -> None:
        """Hold the form around the gates as ``x A x - 2 b x``, and the order it gives."""
        strength = max(ridge * float(found.matrix.diagonal().mean()), 1e-30)
        towards = self._gates.where(self._gates != 0, torch.ones(()).double())
        self._left = found.matrix + strength * torch.eye(len(self._gates)).double()
        self._right = found.matrix @ self._gates - found.gradient + strength * towards
        self.orders.append(one_by_one(self._left, self._right)[0])
