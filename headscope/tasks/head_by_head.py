"""A task measured on versions of one model that differ from some layer on."""

from __future__ import annotations

from torch import Tensor

from headscope.core.accumulator import Array
from headscope.core.processes import share
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.replay import Replay
from headscope.tasks.base import TOKEN_HEADS, Task, one_position

#: Bytes of states that are kept at most; with longer texts every layer runs every time.
KEPT = 1 << 28


class HeadByHead:
    """Runs a task on changed versions of a model; layers before the change are played back.

    The outputs are those of :meth:`Task.outputs`, metrics of written texts aside.
    """

    def __init__(self, task: Task, loaded: LoadedModel) -> None:
        self._task, self._loaded, self._start = task, loaded, 0
        few = one_position if loaded.task_head in TOKEN_HEADS else None
        self._replay = Replay(loaded, share(task.batches(loaded)), few)
        states = sum(batch.inputs[0].numel() for batch in self._replay.batches)
        like = loaded.model.get_input_embeddings().weight
        self._fits = states * like.shape[-1] * like.element_size() <= KEPT

    def start_at(self, row: int) -> None:
        """Continue with versions that equal the model before this row."""
        self._start = self._replay.keep(row if self._fits else 0)

    def gated(self, gates: Tensor) -> dict[str, Array]:
        """Measure the model with gates (n_layers, n_heads)."""
        return self._outputs(self._loaded, gates.to(self._loaded.device))

    def cut(self, changed: LoadedModel) -> dict[str, Array]:
        """Measure a copy of the model that has lost heads."""
        return self._outputs(changed)

    def _outputs(self, changed: LoadedModel, gates: Tensor | None = None) -> dict[str, Array]:
        with self._replay.playing(self._start, changed, gates) as run:
            return self._task.outputs_of(run, self._replay.batches)
