"""Any version of a model, measured on the evaluation data against the whole one."""

from __future__ import annotations

from dataclasses import dataclass

from headscope.core.accumulator import Array
from headscope.models.loaded import LoadedModel
from headscope.pruning.measure import at
from headscope.pruning.mix.result import MixModel
from headscope.pruning.result import Baseline, Point
from headscope.stats.confirm import Judged, judged
from headscope.stats.metrics import Outputs
from headscope.stats.paired_change import Change, paired_change
from headscope.tasks.base import Task


def megabytes_of(loaded: LoadedModel) -> float:
    """Return what a model's parameters take, 1e6 bytes; tied ones count once."""
    parameters = {id(p): p for p in loaded.network.parameters()}.values()
    return float(sum(p.numel() * p.element_size() for p in parameters)) / 1e6


@dataclass(frozen=True)
class Measured:
    """A version of the model on the evaluation data."""

    value: float
    ci: tuple[float, ...] | None
    change: Change
    metrics: dict[str, float]

    def model(
        self, name: str, curve: str, arithmetic: float, mb: float, ms: float | None, detail: str
    ) -> MixModel:
        """Return it as the result holds it."""
        change = self.change
        return MixModel(
            name,
            curve,
            arithmetic,
            mb,
            ms,
            self.value,
            self.ci,
            change.difference,
            change.ci,
            detail,
        )


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

    def baseline(self) -> Baseline:
        """Describe the whole model."""
        value = self.task.interval(self._full, seed=self._seed)
        return Baseline(value.value, value.ci, self.task.metrics(self._full))

    def of(self, outputs: Outputs) -> Measured:
        """Measure outputs of the same examples, in the same order."""
        task, seed = self.task, self._seed
        values = task.resampled(outputs, seed=seed)
        value = task.interval(outputs, seed=seed, values=values)
        change = task.change(self._full, outputs, seed=seed, drawn=self._drawn, values=values)
        return Measured(value.value, value.ci, change, task.metrics(outputs))

    def loss(self, outputs: Outputs, examples: Array, bound: float) -> Judged:
        """Test whether a version loses at most ``bound``, on some of the examples."""
        task, sign = self.task, 1 if self.task.higher_is_better else -1
        pair = at(self._full, examples), at(outputs, examples)
        change = paired_change(task.table[task.metric], *pair, seed=self._seed)
        return judged(change, sign, bound)

    def point(
        self, measured: Measured, fraction: float, heads_removed: tuple[tuple[object, ...], ...]
    ) -> Point:
        """Return it as a point of a curve."""
        change = measured.change
        return Point(
            fraction=fraction,
            heads_removed=heads_removed,
            value=measured.value,
            ci=measured.ci,
            difference=change.difference,
            difference_ci=change.ci,
            p_value=change.p_value,
            metrics=measured.metrics,
        )
