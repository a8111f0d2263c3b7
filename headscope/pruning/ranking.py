"""What a method of choosing heads may look at, its ranking, and the repair of what is left.

The heads that are left stay as they are (``none``), are scaled, or have W_O refitted
(:mod:`headscope.pruning.surgeon`).

``scale`` finds the gates of the surviving heads by least squares (Kwon et al., section 4.3; there
layer by layer, here on the outputs)::

    minimise over xi_kept   mean over examples ||e(xi) - e(1)||^2      xi_removed = 0

The first guess comes from the Gauss-Newton matrix at the unpruned model; each round then
linearises e anew where the gates stand (Gauss-Newton with damping). A step that does not lower the
distance on the calibration data is halved twice, then given up. No weight is trained; a gate other
than 1 is folded into W_O when the model is saved.

References
----------
Kwon et al. 2022, arXiv:2204.09656.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from headscope.analyses.classify.result import HeadResult
from headscope.core.progress import Progress, silent
from headscope.core.rounding import ROUNDING, tied
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.output_maps import OutputMap
from headscope.tasks.base import Task
from headscope.tasks.calibration import TaskCalibration
from headscope.tasks.gauss_newton import GaussNewton, Targets, full_outputs, sample
from headscope.tasks.gauss_newton import distance as distance_to_full
from headscope.tasks.units import Head, Units, units_of

T = TypeVar("T")
#: Scaling: linearisations after the first guess, the share of the distance below which a round's
#: gain makes it the last, and what is added to the diagonal, in units of its mean.
ROUNDS = 3
ENOUGH = 0.03
DAMPING = 0.03
DIRECTIONS = 4  # Random directions an example for the first guess
RIDGE = 0.1  # Its pull of the kept gates towards 1, in units of the mean diagonal


@dataclass(frozen=True)
class Context:
    """Everything that a method may look at."""

    units: Units
    calibration: TaskCalibration
    roles: Mapping[Head, HeadResult] = field(default_factory=dict)  # empty if not classified
    largest: int = 0  # most units that any point removes; the surgeon's path may stop there
    seed: int = 0
    progress: Progress = silent
    #: What several methods and repairs would otherwise compute again, by name.
    memo: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of_task(cls, loaded: LoadedModel, task: Task, **fields: Any) -> Context:
        """Make the context of a model and a task's calibration examples."""
        return cls(units_of(loaded), TaskCalibration(loaded, task), **fields)

    def remember(self, name: str, make: Callable[[], T]) -> T:
        """Return ``make()``, cached by name."""
        if name not in self.memo:
            self.memo[name] = make()
        return cast(T, self.memo[name])

    def targets(self) -> Targets:
        """Return the unpruned model's outputs of each batch, where they are stored; cached."""
        batches = self.calibration.batches(labels=False)
        return self.remember("full outputs", lambda: full_outputs(batches))

    def gauss_newton(self, directions: int) -> GaussNewton:
        """Return the label-free sums at the unpruned model, made once for each ``directions``."""
        batches = self.calibration.batches(labels=False)
        return self.remember(
            f"gauss-newton {directions}",
            lambda: sample(batches, self.units, directions=directions, seed=self.seed),
        )

    def distance(self, gates: Tensor) -> float:
        """Return the mean squared distance at gates (n_units,) to the unpruned model's outputs."""
        batches = self.calibration.batches(labels=False)
        return distance_to_full(batches, self.units, gates, self.targets())


class Ranking:
    """Which units are removed, for every count.

    ``values`` (n_units,) are higher for units worth keeping; of values that are equal up to
    rounding the later unit goes first. ``size`` is the magnitude of the numbers whose differences
    the values are.
    """

    def __init__(self, values: Tensor, size: float = 0.0) -> None:
        self.values = values.detach().cpu().double()
        level = tied(self.values.numpy(), size)
        #: Units, the first to go first.
        self.order = tuple(sorted(range(len(level)), key=lambda unit: (level[unit], -unit)))

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go."""
        return tuple(sorted(self.order[:count]))


@dataclass(frozen=True)
class Repaired:
    """A pruned model as gates and output maps of the full one."""

    removed: tuple[int, ...]  # units
    gates: Tensor  # (n_layers, n_heads), float32: what each head's z is multiplied by
    #: By layer; empty unless W_O was refitted.
    maps: Mapping[int, OutputMap] = field(default_factory=dict)

    @classmethod
    def bare(cls, units: Units, removed: Sequence[int]) -> Repaired:
        """Remove units and leave the others as they are."""
        return cls(tuple(removed), units.expand(units.gates(removed)))


def scale_gates(
    context: Context, removed: Sequence[int], *, directions: int = DIRECTIONS, rounds: int = ROUNDS
) -> Tensor:
    """Return gates (n_units,), float64: zero where removed, rescaled elsewhere.

    They never bring the outputs farther from the unpruned model's than gates of 1.
    """
    remaining = [unit for unit in range(len(context.units)) if unit not in set(removed)]
    gates = context.units.gates(removed).double()
    if not remaining or not removed:
        return gates
    distance = context.distance(gates)

    # A first guess from the Gauss-Newton matrix at the unpruned model.
    matrix = context.gauss_newton(directions).matrix
    pull_of_removed = matrix[remaining][:, list(removed)].sum(dim=1)
    step = _solve_damped(matrix, remaining, pull_of_removed, RIDGE)
    gates, distance = _step_down(context, gates, distance, remaining, step)

    # Rounds that linearise the outputs anew where the gates stand.
    for round_number in range(1, rounds + 1):
        sums = sample(
            context.calibration.batches(labels=False),
            context.units,
            unit_gates=gates,
            targets=context.targets(),
            seed=context.seed + round_number,
        )
        step = _solve_damped(sums.matrix, remaining, -sums.gradient[remaining], DAMPING)
        distance_before = distance
        gates, distance = _step_down(context, gates, distance, remaining, step)
        if distance > (1 - ENOUGH) * distance_before:
            break
    return gates


def _step_down(
    context: Context, gates: Tensor, distance: float, units: list[int], step: Tensor
) -> tuple[Tensor, float]:
    """Take a step of some units' gates, half or a quarter of it, if that lowers the distance.

    Returns the gates after it, and their distance; both as they were where none does.
    """
    for length in (1.0, 0.5, 0.25):
        trial = gates.clone()
        trial[units] += length * step
        distance_of_trial = context.distance(trial)
        if distance_of_trial < (1 - ROUNDING) * distance:
            return trial, distance_of_trial
    return gates, distance


def _solve_damped(matrix: Tensor, units: list[int], right: Tensor, damping: float) -> Tensor:
    """Solve the rows and columns of ``units`` for ``right``, damped by a share of their diagonal.

    ``damping`` times the mean of the diagonal is added to it.
    """
    inner = matrix[units][:, units].double()
    added = max(damping * float(inner.diagonal().mean()), 1e-30)
    solved: Tensor = torch.linalg.solve(inner + added * torch.eye(len(units)).double(), right)
    return solved
