"""Any version of a model, measured on the evaluation data against the whole one."""

from __future__ import annotations

from dataclasses import dataclass

from headscope.core.accumulator import Array
from headscope.models.loaded import LoadedModel
from headscope.stats.metrics import Outputs
from headscope.stats.paired_change import Change
from headscope.tasks.base import Task


@dataclass(frozen=True)
class Measured:
    """A version of the model on the evaluation data."""

    value: float
    ci: tuple[float, ...] | None
    change: Change
    metrics: dict[str, float]


class Judge:
    """Measures versions of one model on the same examples."""

    def __init__(self, loaded: LoadedModel, task: Task, seed: int) -> None:
        self.task, self._seed = task, seed
        self._full: Outputs = task.outputs(loaded, all_metrics=True)
        self._drawn: Array = task.resampled(self._full, seed=seed)

    @property
    def degenerate(self) -> str | None:
        """Say why the whole model's values mean nothing, if they do not."""
        return self.task.degenerate(self._full)

    def of(self, outputs: Outputs) -> Measured:
        """Measure outputs of the same examples, in the same order."""
        task, seed = self.task, self._seed
        values = task.resampled(outputs, seed=seed)
        value = task.interval(outputs, seed=seed, values=values)
        change = task.change(self._full, outputs, seed=seed, drawn=self._drawn, values=values)
        return Measured(value.value, value.ci, change, task.metrics(outputs))
