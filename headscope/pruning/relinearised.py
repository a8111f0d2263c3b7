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

Any number of heads starts from the last of these linearisations at fewer heads; then it is
linearised twice more where that leads, all heads competing, and the set whose exact distance is
least is taken.

``fisher-mean`` is the same for heads that leave their mean behind (the repair ``mean``): gates then
multiply the deviation of z from its mean over the calibration tokens.

Notes
-----
Sets of different sizes need not lie inside each other. A size costs two linearisations when it is
first asked for, whichever sizes were asked for before, and its set depends on nothing else.

References
----------
Hassibi & Stork 1993, Second order derivatives for network pruning: Optimal Brain Surgeon (NIPS 5).
Kwon et al. 2022, arXiv:2204.09656.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.measures.rounding import ROUNDING
from headscope.pruning.fisher import outputs_matrix
from headscope.pruning.joint import RIDGE, one_by_one
from headscope.pruning.method import Given, Ranking
from headscope.pruning.scale import distance, full_outputs, search
from headscope.tasks.gauss_newton import GaussNewton, sample

#: Linearisations on the way from all heads to none.
STAGES = 8
#: Random directions per example at each of them.
DIRECTIONS = 2
#: Linearisations at a size that is asked for.
ROUNDS = 2
#: Pull of the gates to where they stand, in units of the mean diagonal of G.
RIDGE_ON_THE_WAY = 0.03
NAME = "fisher-relinearised"


@dataclass(frozen=True)
class Form:
    """The distance as ``x left x - 2 right x`` near some gates, and the order in which units go.

    Attributes
    ----------
    gates : Tensor, (n_units,)
        Where it was linearised.
    left : Tensor, (n_units, n_units)
        Positive definite.
    right : Tensor, (n_units,)
        Beside it.
    order : tuple of int
        All units, the first to go first.
    """

    gates: Tensor
    left: Tensor
    right: Tensor
    order: tuple[int, ...]


@dataclass(frozen=True)
class Chosen:
    """Units that go, the gates of the others, and the exact distance that is left."""

    removed: tuple[int, ...]
    gates: Tensor
    distance: float


class RelinearisedRanking(Ranking):
    """A set for each size, from the last linearisation at fewer units.

    Parameters
    ----------
    path : Path
        What linearises.
    forms : sequence of Form
        One for each linearisation on the way.
    sizes : sequence of int
        How many units were gone at each of them, ascending from 0.
    rounds : int
        Linearisations at each size that is asked for.

    Notes
    -----
    A unit's value is its mean place in the orders of the forms: 0 where it is always the first to
    go, 1 where it is always the last.
    """

    def __init__(
        self, path: Path, forms: Sequence[Form], sizes: Sequence[int], rounds: int = ROUNDS
    ) -> None:
        places = torch.stack([torch.tensor(form.order).argsort().double() for form in forms])
        super().__init__(places.mean(dim=0) / max(places.shape[1] - 1, 1))
        self.passes = path.passes
        self._path, self._forms, self._sizes = path, tuple(forms), tuple(sizes)
        self._rounds, self._known = rounds, dict[int, tuple[int, ...]]()

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go; a size is settled when it is first asked for."""
        if not 0 < count < len(self.values):
            return super().remove(count)
        if count not in self._known:
            self._known[count] = self._settled(count)
        return self._known[count]

    def _settled(self, count: int) -> tuple[int, ...]:
        form = self._forms[max(bisect_left(self._sizes, count) - 1, 0)]
        if not self._rounds:
            return tuple(sorted(form.order[:count]))
        best = here = self._path.follow(form, count)
        for number in range(self._rounds):
            form = self._path.linearise(here.gates, draw=1000 * (count + 1) + number)
            here = self._path.follow(form, count)
            best = here if here.distance < (1 - ROUNDING) * best.distance else best
        return best.removed


def fisher_relinearised(
    given: Given, *, stages: int = STAGES, directions: int = DIRECTIONS, rounds: int = ROUNDS
) -> Ranking:
    """Rank heads by joint elimination that is linearised again after each eighth of them.

    Never uses labels: the distance to the unpruned model's outputs has a gradient on the way.
    Sizes beyond ``given.largest`` start from the last linearisation before it.
    """
    n = len(given.units)
    sizes = [round(n * number / stages) for number in range(1, stages)]
    sizes = sorted({size for size in sizes if 0 < size < min(given.largest or n, n)})
    path = Path(given, directions)
    forms = [path.start()]
    given.progress(NAME, 1, len(sizes) + 1)
    for size in sizes:
        gates = path.follow(forms[-1], size).gates
        forms.append(path.linearise(gates, draw=len(forms)))
        given.progress(NAME, len(forms), len(sizes) + 1)
    return RelinearisedRanking(path, forms, [0, *sizes], rounds)


def fisher_mean(
    given: Given, *, stages: int = STAGES, directions: int = DIRECTIONS, rounds: int = ROUNDS
) -> Ranking:
    """Rank heads as :func:`fisher_relinearised` does, where each leaves its mean behind."""
    given.remember("full outputs", lambda: full_outputs(given))
    leaving = given.leaving_means()
    return fisher_relinearised(leaving, stages=stages, directions=directions, rounds=rounds)


class Path:
    """Linearises the distance where gates stand, and follows the form to fewer units.

    Parameters
    ----------
    given : Given
        Its calibration data, without labels.
    directions : int
        Random directions per example.

    Attributes
    ----------
    passes : dict
        Passes over the calibration data so far, ``forward`` and ``backward``.
    """

    def __init__(self, given: Given, directions: int) -> None:
        self._given, self._directions = given, directions
        self._targets = given.remember("full outputs", lambda: full_outputs(given))
        self.passes = {"forward": 1, "backward": 0}

    def start(self) -> Form:
        """Linearise at the unpruned model, where the gradient is zero."""
        self._count(1, self._directions)
        ones = torch.ones(len(self._given.units), dtype=torch.float64)
        return _form(outputs_matrix(self._given, self._directions), ones, RIDGE)

    def linearise(self, gates: Tensor, draw: int) -> Form:
        """Linearise at gates (n_units,); ``draw`` numbers the random directions."""
        self._count(1, self._directions + 1)
        found = sample(
            self._given.calibration.batches(labels=False),
            self._given.units,
            at=gates,
            targets=self._targets,
            directions=self._directions,
            seed=self._given.seed + 7919 * draw,
        )
        return _form(found, gates, RIDGE_ON_THE_WAY)

    def follow(self, form: Form, size: int) -> Chosen:
        """Remove ``size`` units by a form; the other gates move as far as the distance falls."""
        self._count(2, 0)
        removed = tuple(sorted(form.order[:size]))
        kept = sorted(set(range(len(form.order))) - set(removed))
        wanted = torch.linalg.solve(form.left[kept][:, kept], form.right[kept])
        start = form.gates.clone()
        start[list(removed)] = 0.0
        known = distance(self._given, start, self._targets)
        step = wanted - start[kept]
        return Chosen(removed, *search(self._given, start, known, kept, step, self._targets))

    def _count(self, forward: int, backward: int) -> None:
        self.passes["forward"] += forward
        self.passes["backward"] += backward


def _form(found: GaussNewton, gates: Tensor, ridge: float) -> Form:
    strength = max(ridge * float(found.matrix.diagonal().mean()), 1e-30)
    towards = gates.where(gates != 0, torch.ones(()).double())
    left = found.matrix + strength * torch.eye(len(gates)).double()
    right = found.matrix @ gates - found.gradient + strength * towards
    return Form(gates, left, right, tuple(one_by_one(left, right)[0]))
