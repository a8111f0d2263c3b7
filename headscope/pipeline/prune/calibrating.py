"""What the methods of ``headscope.pruning`` may look at, made from a model and a task."""

from __future__ import annotations

from collections.abc import Mapping

from headscope.models.loaded import LoadedModel
from headscope.pipeline.progress import Progress, silent
from headscope.pipeline.tasks import Task
from headscope.pruning.method import Given
from headscope.results import HeadResult
from headscope.tasks.calibration import TaskCalibration, units_of


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
