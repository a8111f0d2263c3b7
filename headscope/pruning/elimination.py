r"""Search over sets of heads: joint elimination, at the full model or linearised on the way.

``fisher-joint``: with the Gauss-Newton matrix G of all heads (not of one layer) the distance to the
unpruned model is about ``(1 - xi) G (1 - xi)^T``. Heads that say the same thing have large
off-diagonal entries: one of them can go if another is turned up. So at every step the surviving
gates minimise::

    (1 - xi) G (1 - xi)^T + ridge * ||1 - xi_kept||^2         xi_removed = 0

and the head goes whose removal raises that minimum least. With ``A = (G + ridge I)`` restricted to
the kept heads this is the head with the smallest ``xi_h^2 / (A^-1)[h, h]``: Optimal Brain Surgeon,
with gates in place of weights. One forward pass and one backward pass per direction; the choice is
one inverse of an (n_units, n_units) matrix per removed head.

``fisher-relinearised``: one matrix at the unpruned model says little about a model that has lost
half of its heads. So the path is walked in eighths. Where the gates stand, ``xi``, the squared
distance is about::

    ||e(x) - e(1)||^2  ~  (x - xi) G (x - xi)^T + 2 g (x - xi)^T + ridge * ||x - t||^2 + constant

with G the Gauss-Newton matrix and g = J^T (e(xi) - e(1)), both at ``xi``, and t the gates where
they stand (1 for a head that is gone). *All* heads are eliminated anew on this form: those that had
gone before compete again and may come back. The gates of the heads that stay go to the minimum of
the form, as far as that lowers the exact distance, and the next eighth begins there. Any number of
heads starts from the last of these linearisations at fewer heads; then it is linearised twice more
where that leads, and the set whose exact distance is least is taken. Sets of different sizes need
not lie inside each other, and each depends on nothing but its size.

``fisher-mean`` is the same for heads that leave their mean behind (the repair ``mean``).

References
----------
Hassibi & Stork 1993, Second order derivatives for network pruning: Optimal Brain Surgeon (NIPS 5).
Kwon et al. 2022, arXiv:2204.09656 (gates, Fisher, scaling as a step of its own).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.core.rounding import ROUNDING, tied
from headscope.pruning.ranking import Context, Ranking
from headscope.tasks.gauss_newton import GaussNewton, labelled_rows, sample

DIRECTIONS = 4  # Random directions per example; the matrix needs more of them than its diagonal.
RIDGE = 0.1  # Pull of the kept gates towards 1, in units of the mean diagonal of G.
#: On the way: linearisations from all heads to none, random directions at each of them,
#: linearisations at a size that is asked for, pull of the gates to where they stand.
STAGES, PATH_DIRECTIONS, ROUNDS, PATH_RIDGE = 8, 2, 2, 0.03


def information(context: Context, directions: int) -> tuple[Tensor, Tensor]:
    """Return the matrix (n_units, n_units) and the scores (n_units,) of its diagonal, float64."""
    if context.labelled:
        rows = labelled_rows(context.calibration.batches(labels=True), context.units)
        matrix = rows.t() @ rows
        return matrix, matrix.diagonal()
    sums = context.gauss_newton(directions)
    return sums.matrix, sums.unit_squares


def fisher_joint(
    context: Context, *, ridge: float = RIDGE, directions: int = DIRECTIONS
) -> Ranking:
    """Rank heads by joint elimination on the Gauss-Newton matrix of all heads.

    The value of a unit is the rise of the minimum at the step that removed it, so values need not
    rise along the order.
    """
    matrix, _ = information(context, directions)
    passes = {"forward": 1, "backward": 1 if context.labelled else directions}
    return JointRanking(matrix, ridge, passes)


class JointRanking(Ranking):
    """The order of joint elimination on ``matrix`` (n_units, n_units) with a ``ridge``."""

    def __init__(self, matrix: Tensor, ridge: float, passes: dict[str, int]) -> None:
        order, rises = eliminate(matrix, ridge)
        super().__init__(rises, order, passes)
        self._matrix, self._ridge = matrix, ridge


def eliminate(matrix: Tensor, ridge: float) -> tuple[list[int], Tensor]:
    """Remove units one by one, re-solving the kept gates at each step.

    ``matrix`` (n, n), positive semidefinite, is the quadratic form of ``1 - xi`` that is to stay
    small. Returns the order of removal, and what each unit's removal adds to the minimum.
    """
    strength = max(ridge * float(matrix.diagonal().mean()), 1e-30)
    left = matrix.double() + strength * torch.eye(len(matrix), dtype=torch.float64)
    return one_by_one(left, left.sum(dim=1))


def one_by_one(left: Tensor, right: Tensor) -> tuple[list[int], Tensor]:
    """Remove units one by one from the least of ``x left x - 2 right x``, where removed x are 0.

    ``left`` (n, n) is symmetric and positive definite, ``right`` (n,) is ``left`` times the x at
    which nothing is lost. The unit goes first whose removal raises the minimum least, of equals the
    lower one. Returns the order, and what each unit's removal adds to the minimum (n,).
    """
    kept, order = list(range(len(left))), list[int]()
    rises = torch.zeros_like(right)
    while kept:
        inverse = torch.linalg.inv(left[kept][:, kept])
        rise = (inverse @ right[kept]) ** 2 / inverse.diagonal()
        best = int(tied(rise.numpy()).argmin())
        unit = kept.pop(best)
        order.append(unit)
        rises[unit] = rise[best]
    return order, rises


# --- linearised on the way ------------------------------------------------------------------------


def fisher_relinearised(
    context: Context,
    *,
    stages: int = STAGES,
    directions: int = PATH_DIRECTIONS,
    rounds: int = ROUNDS,
) -> Ranking:
    """Rank heads by joint elimination that is linearised again after each eighth of them.

    Never uses labels: the distance to the unpruned model's outputs has a gradient on the way.
    Sizes beyond ``context.largest`` start from the last linearisation before it.
    """
    n, name = len(context.units), "fisher-relinearised"
    sizes = [round(n * number / stages) for number in range(1, stages)]
    sizes = sorted({size for size in sizes if 0 < size < min(context.largest or n, n)})
    path = Path(context, directions)
    forms = [path.start()]
    context.progress(name, 1, len(sizes) + 1)
    for size in sizes:
        gates = path.follow(forms[-1], size).gates
        forms.append(path.linearise(gates, draw=len(forms)))
        context.progress(name, len(forms), len(sizes) + 1)
    return RelinearisedRanking(path, forms, [0, *sizes], rounds)


def fisher_mean(context: Context, **options: int) -> Ranking:
    """Rank heads as :func:`fisher_relinearised` does, where each leaves its mean behind."""
    context.targets()
    return fisher_relinearised(context.leaving_means(), **options)


@dataclass(frozen=True)
class Form:
    """The distance as ``x left x - 2 right x`` near some gates, and the order in which units go."""

    gates: Tensor  # (n_units,), where it was linearised
    left: Tensor  # (n_units, n_units), positive definite
    right: Tensor  # (n_units,)
    order: tuple[int, ...]  # all units, the first to go first

    @classmethod
    def at(cls, gates: Tensor, sums: GaussNewton, ridge: float) -> Form:
        """Make the form from derivatives at gates (n_units,)."""
        strength = max(ridge * float(sums.matrix.diagonal().mean()), 1e-30)
        towards = gates.where(gates != 0, torch.ones(()).double())
        left = sums.matrix + strength * torch.eye(len(gates)).double()
        right = sums.matrix @ gates - sums.gradient + strength * towards
        return cls(gates, left, right, tuple(one_by_one(left, right)[0]))


@dataclass(frozen=True)
class Chosen:
    """Units that go, the gates of the others, and the exact distance that is left."""

    removed: tuple[int, ...]
    gates: Tensor
    distance: float


class Path:
    """Linearises the distance where gates stand, and follows the form to fewer units."""

    def __init__(self, context: Context, directions: int) -> None:
        self._context, self._directions = context, directions
        context.targets()
        #: Passes over the calibration data so far.
        self.passes = {"forward": 1, "backward": 0}

    def start(self) -> Form:
        """Linearise at the unpruned model, where the gradient is zero."""
        self._count(1, self._directions)
        ones = torch.ones(len(self._context.units), dtype=torch.float64)
        return Form.at(ones, self._context.gauss_newton(self._directions), RIDGE)

    def linearise(self, gates: Tensor, draw: int) -> Form:
        """Linearise at gates (n_units,); ``draw`` numbers the random directions."""
        self._count(1, self._directions + 1)
        sums = sample(
            self._context.calibration.batches(labels=False),
            self._context.units,
            at=gates,
            targets=self._context.targets(),
            directions=self._directions,
            seed=self._context.seed + 7919 * draw,
        )
        return Form.at(gates, sums, PATH_RIDGE)

    def follow(self, form: Form, size: int) -> Chosen:
        """Remove ``size`` units by a form; the other gates move as far as the distance falls."""
        self._count(2, 0)
        removed = tuple(sorted(form.order[:size]))
        kept = sorted(set(range(len(form.order))) - set(removed))
        wanted = torch.linalg.solve(form.left[kept][:, kept], form.right[kept])
        start = form.gates.clone()
        start[list(removed)] = 0.0
        distance = self._context.distance(start)
        step = wanted - start[kept]
        return Chosen(removed, *line_search(self._context, start, distance, kept, step))

    def _count(self, forward: int, backward: int) -> None:
        self.passes["forward"] += forward
        self.passes["backward"] += backward


class RelinearisedRanking(Ranking):
    """A set for each size, from the last linearisation at fewer units.

    ``sizes`` says how many units were gone at each of the ``forms``, ascending from 0; ``rounds``
    linearisations follow at each size that is asked for. A unit's value is its mean position in the
    orders of the forms: 0 where it is always the first to go, 1 where it is always the last.
    """

    def __init__(
        self, path: Path, forms: Sequence[Form], sizes: Sequence[int], rounds: int
    ) -> None:
        positions = torch.stack([torch.tensor(form.order).argsort().double() for form in forms])
        super().__init__(positions.mean(dim=0) / max(positions.shape[1] - 1, 1))
        self.passes = path.passes
        self._path, self._forms, self._sizes, self._rounds = path, forms, sizes, rounds
        self._chosen = dict[int, tuple[int, ...]]()

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go; a size is settled when it is first asked for."""
        if not 0 < count < len(self.values):
            return super().remove(count)
        if count not in self._chosen:
            form = self._forms[max(bisect_left(self._sizes, count) - 1, 0)]
            best = here = self._path.follow(form, count)
            for number in range(self._rounds):
                form = self._path.linearise(here.gates, draw=1000 * (count + 1) + number)
                here = self._path.follow(form, count)
                best = here if here.distance < (1 - ROUNDING) * best.distance else best
            self._chosen[count] = best.removed
        return self._chosen[count]


def line_search(
    context: Context, gates: Tensor, distance: float, kept: Sequence[int], step: Tensor
) -> tuple[Tensor, float]:
    """Go as far along a step as lowers the distance: all of it, half, a quarter, or not at all."""
    for length in (1.0, 0.5, 0.25):
        trial = gates.clone()
        trial[list(kept)] += length * step
        if (at_trial := context.distance(trial)) < (1 - ROUNDING) * distance:
            return trial, at_trial
    return gates, distance
