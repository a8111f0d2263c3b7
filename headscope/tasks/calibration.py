"""Calibration data: which examples are drawn, of which stack, and what may be asked of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from headscope.data.examples import Examples
from headscope.errors import InputError
from headscope.models.gating import Means, shared_layers
from headscope.models.loaded import LoadedModel
from headscope.pipeline.tasks import LossBatch, Task, select
from headscope.tasks.head_means import mean_z
from headscope.tasks.units import Units


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


def chosen_stack(loaded: LoadedModel, stack: str | None, task: str) -> LoadedModel:
    """Return the view of the stack that heads are removed from.

    Left open, it is every stack that the task runs.

    Raises
    ------
    InputError
        If the model has no such stack, or the task does not run it.
    """
    whole = loaded.whole or loaded
    if stack is None:
        stack = "all" if task == "seq2seq" or not whole.encoder_decoder else "encoder"
    if whole.encoder_decoder and task != "seq2seq" and stack != "encoder":
        raise InputError(
            f"The task {task} runs the encoder of {loaded.name} only; choose the stack encoder, or "
            "the task seq2seq with pairs of source and target."
        )
    return whole.only(stack)


def pick(examples: Examples, limit: int, task: str, seed: int) -> Examples:
    """Draw examples at random, in their order; a pair counts as two sentences.

    The ``mlm`` task takes all of the text: its windows are limited instead.
    """
    size = limit // 2 if task == "similarity" else limit
    if task == "mlm" or len(examples) <= size:
        return examples
    return select(examples, sorted(random.Random(seed).sample(range(len(examples)), max(2, size))))
