"""A task measured on versions of one model that differ from some layer on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from headscope.core.accumulator import Array
from headscope.core.processes import share
from headscope.models.intervene import gated
from headscope.models.loaded import LoadedModel
from headscope.models.replay import Replay
from headscope.tasks.base import TOKEN_HEADS, Task, one_position

#: Bytes of states that are kept at most; of longer texts every layer runs every time.
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

    @contextmanager
    def from_row(self, row: int) -> Iterator[None]:
        """Measure, while the block runs, versions that are the model itself before this row."""
        with self._replay.before(row if self._fits else 0) as self._start:
            yield

    def gated(self, gates: Tensor) -> dict[str, Array]:
        """Measure the model with gates (n_layers, n_heads)."""
        gates = gates.to(self._loaded.device)
        with gated(self._loaded, gates, start=self._start) as run:
            return self._task.outputs_of(self._replay.following(run), self._replay.batches)

    def cut(self, changed: LoadedModel) -> dict[str, Array]:
        """Measure a copy of the model that has lost heads."""
        with self._replay.within(changed, self._start) as run:
            return self._task.outputs_of(run, self._replay.batches)
