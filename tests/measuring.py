"""What a task says of a model, with all heads or without some: the other side of prune's tests."""

from pathlib import Path
from typing import Any

from headscope.data.examples import Examples
from headscope.models.run.loaded import LoadedModel
from headscope.pruning.curves import units_by_name
from headscope.pruning.result import Baseline
from headscope.session.opening import open_for_tasks
from headscope.tasks.calibration import chosen_stack
from headscope.tasks.making import make_task, read_examples
from headscope.tasks.units import units_of


def measured(
    model: Any,
    task: str = "fidelity",
    data: str | Path | Examples | None = None,
    *,
    without: str | None = None,
    reference: LoadedModel | None = None,
    limit: int | None = None,
    **loading: Any,
) -> Baseline:
    """Measure a model whose heads ``without`` have gates of 0.

    ``reference`` is the model that fidelity is a distance to, where it is not the model itself.
    """
    loaded = chosen_stack(open_for_tasks(model, task=task, **loading), None, task)
    target = loaded
    if reference is not None:
        target = chosen_stack(open_for_tasks(reference), None, task)
    examples = make_task(task, read_examples(task, data, limit, 0), target, seed=0, limit=limit)
    gates = None
    if without is not None:
        units = units_of(loaded)
        gates = units.expand(units.gates(units_by_name(loaded, without)))
    outputs = examples.outputs(loaded, gates, all_metrics=True)
    return Baseline(examples.interval(outputs), examples.metrics(outputs))
