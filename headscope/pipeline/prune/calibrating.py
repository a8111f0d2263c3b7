"""What the methods of ``headscope.pruning`` may look at, made from a model and a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from headscope.models.intervene import Means, shared_layers
from headscope.models.loaded import LoadedModel
from headscope.pipeline.progress import Progress, silent
from headscope.pipeline.prune.means import mean_z
from headscope.pipeline.tasks import LossBatch, Task
from headscope.pruning.method import Given
from headscope.pruning.units import Units
from headscope.results import HeadResult


@dataclass(frozen=True)
class TaskCalibration:
    """A model and calibration examples, as :class:`headscope.pruning.method.Calibration`."""

    loaded: LoadedModel
    task: Task
    means: Means | None = None

    @property
    def has_labels(self) -> bool:
        """Whether the task has a loss besides the distance to the unpruned model."""
        return self.task.has_labels

    def batches(self, *, labels: bool) -> Iterator[LossBatch]:
        """Pass over the examples once."""
        for batch in self.task.loss_batches(self.loaded, labels=labels):
            yield batch if self.means is None else batch.leaving(self.means)

    def leaving_means(self) -> TaskCalibration:
        """Return the same examples for heads that leave their mean z behind."""
        return TaskCalibration(self.loaded, self.task, mean_z(self.loaded, self.task))

    def quality(self, gates: Tensor) -> float:
        """Measure the metric with gates (n_layers, n_heads); higher is better."""
        value = self.task.value(self.task.outputs(self.loaded, gates.to(self.loaded.device)))
        return value if self.task.higher_is_better else -value


def units_of(loaded: LoadedModel) -> Units:
    """List what can be removed from a model on its own."""
    return Units([site.n_heads for site in loaded.sites], shared_layers(loaded.sites))


def make_given(
    loaded: LoadedModel,
    calibration: Task,
    *,
    roles: Mapping[tuple[int, int], HeadResult],
    use_labels: bool,
    budget: int,
    largest: int,
    seed: int,
    progress: Progress = silent,
) -> Given:
    """Gather what methods look at; ``roles`` go by the heads' places in the loaded model."""
    return Given(
        units=units_of(loaded),
        calibration=TaskCalibration(loaded, calibration),
        weights=[site.weights() for site in loaded.sites],
        roles=roles,
        use_labels=use_labels,
        budget=budget,
        largest=largest,
        seed=seed,
        progress=progress,
    )
