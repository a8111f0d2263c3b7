"""What a method of choosing heads may look at, what it gives back, and a pruned model.

What is removed is a unit: a head, or heads of several layers that can only go together (ALBERT). A
method takes a :class:`Context` and returns a :class:`Ranking` of the units. What is left when units
are removed, repaired or not, is a :class:`Repaired`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from torch import Tensor

from headscope.analyses.classify.result import HeadResult
from headscope.core.progress import Progress, silent
from headscope.core.rounding import tied
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.output_maps import OutputMap
from headscope.tasks.base import Task
from headscope.tasks.calibration import TaskCalibration
from headscope.tasks.gauss_newton import GaussNewton, Targets, full_outputs, sample
from headscope.tasks.gauss_newton import distance as distance_to_full
from headscope.tasks.units import Head, Units, units_of

T = TypeVar("T")


@dataclass(frozen=True)
class Context:
    """Everything that a method or a repair may look at."""

    units: Units  # What can be removed, and the heads of each
    calibration: TaskCalibration  # The model, and batches of examples to differentiate it on
    roles: Mapping[Head, HeadResult] = field(default_factory=dict)  # Empty if not classified
    #: The most units that will ever be removed, 0 if unknown; the surgeon measures no further.
    largest: int = 0
    seed: int = 0
    progress: Progress = silent
    #: What several methods and repairs would otherwise compute again, by name; see ``remember``.
    memo: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of_task(cls, loaded: LoadedModel, task: Task, **fields: Any) -> Context:
        """Make the context of a model and a task's calibration examples."""
        return cls(units_of(loaded), TaskCalibration(loaded, task), **fields)

    def remember(self, name: str, make: Callable[[], T]) -> T:
        """Return what ``make`` returned when the name was first asked for."""
        if name not in self.memo:
            self.memo[name] = make()
        return cast(T, self.memo[name])

    def targets(self) -> Targets:
        """Return the unpruned model's outputs of each batch, where they are stored; cached."""
        batches = self.calibration.batches(labels=False)
        return self.remember("full outputs", lambda: full_outputs(batches))

    def gauss_newton(self, directions: int) -> GaussNewton:
        """Return the second derivatives by the gates, without labels, at the unpruned model.

        Made once for each number of random ``directions`` of the output.
        """
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
    rounding the later unit goes first: 0.3, 0.1, 0.1 -> order 2, 1, 0. Where values are differences
    of larger numbers, ``size`` is the magnitude of these, which says what rounding is.
    """

    def __init__(self, values: Tensor, size: float = 0.0) -> None:
        self.values = values.detach().cpu().double()
        rounded = tied(self.values.numpy(), size)  # the same number where values are equal
        #: Units, the first to go first.
        self.order = tuple(sorted(range(len(rounded)), key=lambda unit: (rounded[unit], -unit)))

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go."""
        return tuple(sorted(self.order[:count]))


@dataclass(frozen=True)
class Repaired:
    """A pruned model, as gates and output maps of the full one."""

    removed: tuple[int, ...]  # Units
    #: What each head's output z is multiplied by: 0 for removed heads, 1 or a repaired value for
    #: others; (n_layers, n_heads), float32.
    gates: Tensor
    #: New W_O and b_O by layer; empty unless they were refitted.
    maps: Mapping[int, OutputMap] = field(default_factory=dict)

    @classmethod
    def bare(cls, units: Units, removed: Sequence[int]) -> Repaired:
        """Remove units and repair nothing."""
        return cls(tuple(removed), units.expand(units.gates(removed)))
