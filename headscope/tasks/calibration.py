"""Choosing heads by a task: on which examples, and how versions of the model are run on them.

First the calibration of one task and the examples for it, then the mean of z that a removed head
may leave behind, and runs that change one head after the other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from headscope.core.accumulator import Array
from headscope.core.errors import CorpusError, InputError
from headscope.core.processes import share, summed
from headscope.data.examples import Examples, read_texts
from headscope.data.queries import thinned
from headscope.data.tables import TABLES
from headscope.models.run.intervene import Means, gated, shared_layers, sums_of_z
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.replay import Rerun
from headscope.tasks.base import Task
from headscope.tasks.loss_batches import LossBatch
from headscope.tasks.making import read_examples
from headscope.tasks.positions import TOKEN_HEADS, one_position

#: Tasks whose heads may be chosen on plain text too, and the endings of their labelled files. Any
#: other file is plain text for them, a folder never.
_LABELLED_FILES = {
    "classification": TABLES,
    "similarity": TABLES,
    "retrieval": TABLES,
    "rerank": TABLES,
    "question-answering": (".json",),
}


@dataclass(frozen=True)
class TaskCalibration:
    """The model and the calibration examples of a task on which scores are computed."""

    loaded: LoadedModel
    task: Task
    means: Means | None = None  # What a gate of zero leaves behind, by site; None: nothing

    @property
    def has_labels(self) -> bool:
        """Whether the task has a loss besides the distance to the unpruned model."""
        return self.task.has_labels

    def batches(self, *, labels: bool, value_only: bool = False) -> Iterator[LossBatch]:
        """Pass over the examples once, always in the same order.

        Without labels the loss is the distance to the full model; ``value_only`` is that of
        :meth:`Task.loss_batches`.
        """
        for batch in self.task.loss_batches(self.loaded, labels=labels, value_only=value_only):
            yield replace(batch, means=self.means)

    def quality(self, gates: Tensor) -> float:
        """Measure the task's value with gates (n_layers, n_heads), so that higher is better."""
        outputs = self.task.outputs(self.loaded, gates.to(self.loaded.device))
        value = self.task.value(outputs)
        return value if self.task.higher_is_better else -value


def chosen_stack(loaded: LoadedModel, stack: str | None, task: str) -> LoadedModel:
    """Return the view of the stack to prune; by default all stacks that the task runs.

    Refuses a stack that the model does not have, or that the task does not run.
    """
    all_stacks = loaded.with_all_stacks
    if stack is None:
        stack = "all" if task == "seq2seq" or not all_stacks.encoder_decoder else "encoder"
    if all_stacks.encoder_decoder and task != "seq2seq" and stack != "encoder":
        raise InputError(
            f"The task {task} runs the encoder of {loaded.name} only; choose the stack encoder, or "
            "the task seq2seq with pairs of source and target."
        )
    return all_stacks.only(stack)


def pick(examples: Examples, limit: int, task: str, seed: int) -> Examples:
    """Draw examples at random, in their order; a scored pair, or a question, counts as two.

    Queries are drawn with some of their documents, and what counts are texts.
    The ``mlm`` task takes all of the text: its windows are limited instead.
    """
    if task in ("retrieval", "rerank"):
        return thinned(examples, limit, seed)
    size = limit // 2 if task in ("similarity", "question-answering") else limit
    if task == "mlm" or len(examples) <= size:
        return examples
    return examples.pick(sorted(random.Random(seed).sample(range(len(examples)), max(2, size))))


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
    if _is_plain_text(task, source):
        if needs_labels:
            raise InputError(
                f"{', '.join(needs_labels)} needs labelled calibration data; give a calibration "
                f"file in the form of the {task} data, but not the evaluation "
                "file itself."
            )
        return read_texts(source), "fidelity"
    try:
        return read_examples(task, source), task
    except CorpusError as error:
        if "at least two" in str(error):
            raise CorpusError(f"calibration: {error}") from None
        raise


def _is_plain_text(task: str, source: str | Path | None) -> bool:
    """Whether calibration data are text without the labels that the task has."""
    if source is None:
        return task in _LABELLED_FILES or task == "token-classification"
    path = Path(source)
    if task not in _LABELLED_FILES or path.is_dir():
        return False
    return path.suffix.lower() not in _LABELLED_FILES[task]


def mean_z(loaded: LoadedModel, task: Task) -> dict[int, Tensor]:
    """Average the full model's z over the real queries of each layer.

    Gives (n_heads, d_head), float64, by row of the site. Layers that share a module have one b_O,
    so each has the mean of all of them.
    """
    # One kind of position is counted: the real queries of a stack.
    batches_with_queries = (
        (batch, {stack: [batch.queries_of(stack).bool()] for stack in loaded.stacks})
        for batch in share(task.batches(loaded))
    )
    sums, counts = sums_of_z(loaded, batches_with_queries)

    # Add up those of all processes: a tensor for each row of a site, the counts as the last one.
    all_counts = torch.cat(list(counts.values()))
    *sums_of_all, counts_of_all = summed("means of z", *sums.values(), all_counts)
    means = {}
    for row, sum_of_kinds, count in zip(sums, sums_of_all, counts_of_all.tolist(), strict=True):
        (sum_of_row,) = sum_of_kinds
        means[row] = sum_of_row / max(count, 1)
    for layers in shared_layers(loaded.sites):
        mean = torch.stack([means[row] for row in layers]).mean(dim=0)
        means.update(dict.fromkeys(layers, mean))
    return means


class HeadByHead(Rerun):
    """Runs a task on versions of a model that differ in one head, say.

    Layers before the change are not computed but played back. The outputs are those of
    :meth:`Task.outputs`, metrics of written texts aside.
    """

    def __init__(self, task: Task, loaded: LoadedModel) -> None:
        select = one_position if loaded.task_head in TOKEN_HEADS else None
        super().__init__(loaded, share(task.batches(loaded)), select)
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
        if gates is not None:
            gates = gates.to(version.device)
        with gated(version, gates, means=means) as run:
            return self._task.outputs_of(self.again(run, version), self.batches)
