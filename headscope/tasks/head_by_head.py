"""A task measured on versions of one model that differ from some layer on."""

from __future__ import annotations

from torch import Tensor

from headscope.core.accumulator import Array
from headscope.core.processes import share
from headscope.models.run.intervene import Means, gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.replay import Rerun
from headscope.tasks.base import TOKEN_HEADS, Task, one_position


class HeadByHead(Rerun):
    """Runs a task on changed versions of a model; layers before the change are played back.

    The outputs are those of :meth:`Task.outputs`, metrics of written texts aside.
    """

    def __init__(self, task: Task, loaded: LoadedModel) -> None:
        few = one_position if loaded.task_head in TOKEN_HEADS else None
        super().__init__(loaded, share(task.batches(loaded)), few)
        self._task = task

    def outputs(
        self,
        version: LoadedModel | None = None,
        *,
        gates: Tensor | None = None,
        means: Means | None = None,
    ) -> dict[str, Array]:
        """Measure the model, or a copy that has lost heads, with gates (n_layers, n_heads)."""
        version = version or self.loaded
        gates = None if gates is None else gates.to(version.device)
        with gated(version, gates, means=means) as run:
            return self._task.outputs_of(self.again(run, version), self.batches)
