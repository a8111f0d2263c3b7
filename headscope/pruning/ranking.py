"""What a method of choosing heads may look at, and the ranking that it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from torch import Tensor

from headscope.analyses.classify.result import HeadResult
from headscope.attention import AttentionWeights
from headscope.core.progress import Progress, silent
from headscope.core.rounding import tied
from headscope.models.run.loaded import LoadedModel
from headscope.tasks.base import Task
from headscope.tasks.calibration import TaskCalibration
from headscope.tasks.gauss_newton import GaussNewton, Targets, full_outputs, sample
from headscope.tasks.gauss_newton import distance as distance_to_full
from headscope.tasks.units import Head, Units, units_of

T = TypeVar("T")


@dataclass(frozen=True)
class Context:
    """Everything that a method may look at."""

    units: Units
    calibration: TaskCalibration
    weights: Sequence[AttentionWeights] = ()  # of each layer
    roles: Mapping[Head, HeadResult] = field(default_factory=dict)  # empty if not classified
    use_labels: bool = False  # where a method can do with or without
    largest: int = 0  # most units that any point removes; the surgeon's path may stop there
    seed: int = 0
    progress: Progress = silent
    #: What several methods and repairs would otherwise compute again, by name.
    memo: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of_task(cls, loaded: LoadedModel, task: Task, **fields: Any) -> Context:
        """Make the context of a model and a task's calibration examples."""
        weights = [site.weights() for site in loaded.sites]
        return cls(units_of(loaded), TaskCalibration(loaded, task), weights, **fields)

    @property
    def labelled(self) -> bool:
        """Whether the loss is the labelled one, and not the distance to the unpruned model."""
        return self.use_labels and self.calibration.has_labels

    def remember(self, name: str, make: Callable[[], T]) -> T:
        """Return what ``make`` gives; made once for each name."""
        if name not in self.memo:
            self.memo[name] = make()
        return cast(T, self.memo[name])

    def targets(self) -> Targets:
        """Return the unpruned model's outputs of each batch, as far as they are kept; made once."""
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
    """Which units go, for every number of them.

    ``values`` (n_units,) are higher for units that are rather kept. Units go in ``order``, or by
    ascending value: of values that are equal to rounding the later unit goes first. ``passes`` says
    how often the calibration data were run ``forward`` and ``backward``; ``size`` how large the
    numbers were whose differences the values are.
    """

    def __init__(
        self,
        values: Tensor,
        order: Sequence[int] | None = None,
        passes: Mapping[str, int] | None = None,
        size: float = 0.0,
    ) -> None:
        self.values = values.detach().cpu().double()
        if order is None:
            level = tied(self.values.numpy(), size)
            order = sorted(range(len(level)), key=lambda unit: (level[unit], -unit))
        #: Units, the first to go first.
        self.order = tuple(order)
        self.passes = dict(passes or {})

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go."""
        return tuple(sorted(self.order[:count]))
