"""Choosing heads by a task: on which examples, and how versions of the model are run on them.

Heads to remove are chosen on *calibration* data, in the form of the task's own data or plain text,
which are other examples than those that the task is measured on. In this order: the calibration of
one task (:class:`TaskCalibration`) and the examples for it; the mean of z, a head's output before
W_O, that a removed head may leave behind; runs that change one head after the other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from headscope.core.accumulator import Array
from headscope.core.errors import InputError, TooFewExamplesError
from headscope.core.processes import share, summed
from headscope.data.examples import WINDOWED, Examples, read_texts
from headscope.data.queries import thinned
from headscope.data.tables import TABLES
from headscope.data.token_rows import Padded
from headscope.models.run.intervene import Means, gated, shared_layers, sums_of_z
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.replay import Rerun
from headscope.tasks.base import Task
from headscope.tasks.loss_batches import LossBatch
from headscope.tasks.making import read_examples
from headscope.tasks.positions import TOKEN_HEADS, one_position

#: Tasks whose heads may be chosen on plain text too, and the endings of their labelled files. A
#: file with another ending is plain text for them; a folder is not.
_LABELLED_FILES = {
    "classification": TABLES,
    "similarity": TABLES,
    "retrieval": TABLES,
    "rerank": TABLES,
    "question-answering": (".json",),
}


@dataclass(frozen=True)
class TaskCalibration:
    """A model and a task made of calibration examples: heads are scored on them."""

    loaded: LoadedModel
    task: Task
    #: The z that a head with a gate of zero leaves behind, by the layer's row; None: zeros.
    means: Means | None = None

    @property
    def has_labels(self) -> bool:
        """Whether the task has a loss besides the distance to the unpruned model."""
        return self.task.has_labels

    def batches(self, *, labels: bool, value_only: bool = False) -> Iterator[LossBatch]:
        """Pass over the examples once, always in the same order.

        The loss is that of the labels, or without ``labels`` the distance to the full model. With
        ``value_only`` a batch's output has nothing that the task's value is not made of.
        """
        for batch in self.task.loss_batches(self.loaded, labels=labels, value_only=value_only):
            yield replace(batch, means=self.means)

    def quality(self, gates: Tensor) -> float:
        """Measure the task's value with gates (n_layers, n_heads), so that higher is better."""
        outputs = self.task.outputs(self.loaded, gates.to(self.loaded.device))
        value = self.task.value(outputs)
        return value if self.task.higher_is_better else -value


def chosen_stack(loaded: LoadedModel, stack: str | None, task: str) -> LoadedModel:
    """Return the model with the stack to prune alone; by default all stacks that the task runs.

    Refuses a stack that the model does not have, or that the task does not run.
    """
    all_stacks = loaded.with_all_stacks
    runs_encoder_only = all_stacks.encoder_decoder and task != "seq2seq"
    if stack is None:
        stack = "encoder" if runs_encoder_only else "all"
    if runs_encoder_only and stack != "encoder":
        raise InputError(
            f"The task {task} runs the encoder of {loaded.name} only; choose the stack encoder, or "
            "the task seq2seq with pairs of source and target."
        )
    return all_stacks.only(stack)


def pick(examples: Examples, limit: int, task: str, seed: int) -> Examples:
    """Draw at most ``limit`` texts at random, in the order that they have.

    An example is one text; a scored pair, or a question with its context, counts as two. Queries
    are drawn with some of their documents. Tasks of running text take all of it: their windows are
    limited instead.
    """
    if task in ("retrieval", "rerank"):
        return thinned(examples, limit, seed)
    n_examples = limit // 2 if task in ("similarity", "question-answering") else limit
    if task in WINDOWED or len(examples) <= n_examples:
        return examples
    drawn = random.Random(seed).sample(range(len(examples)), max(2, n_examples))
    return examples.pick(sorted(drawn))


def open_calibration(
    task: str, source: str | Path | Examples | None, needs_labels: Sequence[str]
) -> tuple[Examples, str]:
    """Read calibration data; returns them and the name of the task that is made of them.

    That is ``task`` itself, or ``fidelity`` where they are plain text without its labels; methods
    that choose heads by labels, which ``needs_labels`` names, cannot use these. For ``seq2seq``
    plain text does not do: a decoder needs something to read.
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
    except TooFewExamplesError as error:
        raise TooFewExamplesError(f"calibration: {error}") from None


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

    Returns (n_heads, d_head), float64, by the layer's ``row``: its place among all measured layers.
    Layers that share a module (ALBERT) have one b_O, into which a mean is added when heads go; so
    each of them has the mean of all.
    """

    def batches_with_queries() -> Iterator[tuple[Padded, dict[str, list[Tensor]]]]:
        """Yield batches, with masks of the positions to sum over: one mask, the real queries."""
        for batch in share(task.batches(loaded)):
            yield batch, {stack: [batch.queries_of(stack).bool()] for stack in loaded.stacks}

    # Sums (masks, n_heads, d_head) and counts (masks,) of this process, by row.
    sums, counts = sums_of_z(loaded, batches_with_queries())

    # Those of all processes: a tensor for each row, and the counts of all rows as the last one.
    counts_by_row = torch.cat(list(counts.values()))
    *total_sums, total_counts = summed("means of z", *sums.values(), counts_by_row)
    means = {}
    for row, sums_of_masks, count in zip(sums, total_sums, total_counts.tolist(), strict=True):
        (sum_over_queries,) = sums_of_masks
        means[row] = sum_over_queries / max(count, 1)
    for rows in shared_layers(loaded.sites):
        mean = torch.stack([means[row] for row in rows]).mean(dim=0)
        for row in rows:
            means[row] = mean
    return means


class HeadByHead(Rerun):
    """Runs a task on versions of a model that differ in one head or a few.

    Layers before the change are not computed but played back (:class:`Rerun`). The outputs are
    those of :meth:`Task.outputs`, without metrics of texts that the model writes.
    """

    def __init__(self, task: Task, loaded: LoadedModel) -> None:
        # While layers are recorded nobody needs the outputs of a costly head.
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
