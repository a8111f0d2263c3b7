"""Calibration data: which examples heads are chosen on; a task run on versions of one model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from headscope.stats.metrics import Outputs
from headscope.tasks.base import Task
from headscope.tasks.loss_batches import LossBatch
from headscope.tasks.making import read_examples
from headscope.tasks.positions import TOKEN_HEADS, one_position

#: Tasks that plain text can calibrate, and the endings of files that are no plain text for them; a
#: folder never is.
_LABELLED = {
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
    means: Means | None = None  # By row of the site: what a gate of zero leaves behind

    @property
    def has_labels(self) -> bool:
        """Whether the task has a loss besides the distance to the unpruned model."""
        return self.task.has_labels

    def batches(self, *, labels: bool, of_value: bool = False) -> Iterator[LossBatch]:
        """Pass over the examples once, always in the same order.

        Without labels the loss is the distance to the full model; ``of_value`` leaves out of the
        output e what the task's value is not made of.
        """
        for batch in self.task.loss_batches(self.loaded, labels=labels, of_value=of_value):
            yield replace(batch, means=self.means)

    def quality(self, gates: Tensor, run: Callable[[Tensor], Outputs] | None = None) -> float:
        """Measure the metric with gates (n_layers, n_heads); higher is better.

        ``run`` gives the outputs with gates, where the caller has a faster way to them.
        """
        run = run or partial(self.task.outputs, self.loaded)
        value = self.task.value(run(gates.to(self.loaded.device)))
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
        return task in _LABELLED or task == "token-classification"
    path = Path(source)
    return task in _LABELLED and not path.is_dir() and path.suffix.lower() not in _LABELLED[task]


def mean_z(loaded: LoadedModel, task: Task) -> dict[int, Tensor]:
    """Average the full model's z over the real queries of each layer.

    Gives (n_heads, d_head), float64, by row of the site. Layers that share a module have one b_O,
    so each has the mean of all of them.
    """
    batches_with_queries = (
        (batch, {stack: [batch.queries_of(stack).bool()] for stack in loaded.stacks})
        for batch in share(task.batches(loaded))
    )
    sums, counts = sums_of_z(loaded, batches_with_queries)
    all_counts = torch.cat(list(counts.values()))
    *sums_of_all, counts_of_all = summed("means of z", *sums.values(), all_counts)
    means = {
        row: sum_of_row[0] / max(count, 1)
        for row, sum_of_row, count in zip(sums, sums_of_all, counts_of_all.tolist(), strict=True)
    }
    for layers in shared_layers(loaded.sites):
        mean = torch.stack([means[row] for row in layers]).mean(dim=0)
        means.update(dict.fromkeys(layers, mean))
    return means


class HeadByHead(Rerun):
    """Runs a task on changed versions of a model; layers before the change are played back.

    The outputs are those of :meth:`Task.outputs`, metrics of written texts aside.
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
