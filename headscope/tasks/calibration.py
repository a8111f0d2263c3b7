"""Calibration data: which examples are drawn, of which stack, and what may be asked of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from headscope.core.errors import CorpusError, InputError
from headscope.data.examples import Examples, read_texts
from headscope.models.intervene import Means
from headscope.models.loaded import LoadedModel
from headscope.tasks.base import LossBatch, Task
from headscope.tasks.head_means import mean_z
from headscope.tasks.making import read_examples, select

_TABLES = (".csv", ".tsv", ".jsonl")  # Files whose columns hold labels; anything else is text.


@dataclass(frozen=True)
class TaskCalibration:
    """What scores are computed on: a model and examples of a task, apart from those of curves."""

    loaded: LoadedModel
    task: Task
    means: Means | None = None

    @property
    def has_labels(self) -> bool:
        """Whether the task has a loss besides the distance to the unpruned model."""
        return self.task.has_labels

    def batches(self, *, labels: bool) -> Iterator[LossBatch]:
        """Pass over the examples once, always in the same order.

        Without labels the loss is the distance to the full model.
        """
        for batch in self.task.loss_batches(self.loaded, labels=labels):
            yield batch if self.means is None else batch.leaving(self.means)

    def leaving_means(self) -> TaskCalibration:
        """Return the same examples for heads that leave their mean z behind: m + xi (z - m)."""
        return TaskCalibration(self.loaded, self.task, mean_z(self.loaded, self.task))

    def quality(self, gates: Tensor) -> float:
        """Measure the metric with gates (n_layers, n_heads); higher is better."""
        value = self.task.value(self.task.outputs(self.loaded, gates.to(self.loaded.device)))
        return value if self.task.higher_is_better else -value


def chosen_stack(loaded: LoadedModel, stack: str | None, task: str) -> LoadedModel:
    """Return the view of the stack that heads are removed from; by default all that the task runs.

    Refuses a stack that the model has not, or that the task does not run.
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


def open_calibration(
    task: str, source: str | Path | Examples | None, needs_labels: Sequence[str]
) -> tuple[Examples, str]:
    """Read calibration data; returns them and the task that they serve.

    Plain text serves tasks of sentences without labels, as ``fidelity``; the methods that
    ``needs_labels`` names then refuse. It does not serve ``seq2seq``: a decoder needs something to
    read.
    """
    if task == "seq2seq" and source is None:
        raise InputError(
            "The task seq2seq chooses heads on pairs of source and target: give a calibration file "
            "in the form of the data, with other pairs. Plain text cannot serve, and the built-in "
            "sample has no targets."
        )
    if isinstance(source, Examples):
        return source, task
    is_text = source is None or Path(source).suffix.lower() not in _TABLES
    if task in ("classification", "similarity") and is_text:
        if needs_labels:
            raise InputError(
                f"{', '.join(needs_labels)} needs labelled calibration data; give a calibration "
                f"file (csv, tsv, jsonl) in the form of the {task} data, but not the evaluation "
                "file itself."
            )
        return read_texts(source), "fidelity"
    try:
        return read_examples(task, source), task
    except CorpusError as error:
        if "at least two" in str(error):
            raise CorpusError(f"calibration: {error}") from None
        raise
