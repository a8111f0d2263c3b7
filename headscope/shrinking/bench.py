"""Every model of a run, measured alike: the metric, the speed, and text of another kind."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headscope.artefacts.onnx_graph import RuntimeFile
from headscope.core.accumulator import numpy
from headscope.core.errors import InputError
from headscope.data.batches import buckets
from headscope.data.token_rows import Row, padded
from headscope.models.run.head_outputs import HeadOutputs, head_outputs
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.products import fast_products
from headscope.removal.times import Times, length_batches, spread_places, times
from headscope.shrinking.distil import Lesson, output_of
from headscope.shrinking.layers import layers_of
from headscope.shrinking.neurons import width_of
from headscope.shrinking.result import BatchEffect, Elsewhere, MeasuredModel, Training
from headscope.shrinking.serving import CALIBRATION, Files, Form, Served
from headscope.shrinking.text import Texts
from headscope.stats.estimate import FEWEST_TESTED, UNKNOWN, Estimate
from headscope.stats.metrics import Outputs, mean_of, spearman
from headscope.stats.paired_change import (
    Change,
    estimate_over_orders,
    interval_of,
    over_orders,
)
from headscope.tasks.base import Task

#: Nearest neighbours of each query, queries at most, and fewest texts to find them in.
NEIGHBOURS = 10
QUERIES = 1000
FEWEST_TEXTS = 100
CHOOSING = 256  # Texts by which forms and layers are chosen; none of them is in CALIBRATION
#: Mean loss on calibration text above which 8 bits have ruined a model: of 1 - cosine, of nats, or
#: of the share of a score's variance.
RUINED = 0.05
#: Orders of the texts in which a form is measured whose outputs depend on the batch, and texts of
#: each batch that are read alone to see whether they do.
ORDERS = 5
ALONE = 8


class Measurement(NamedTuple):
    """What the evaluation data say of a model as it is served."""

    value: Estimate  # The task's metric
    change: Change  # From the whole model's
    metrics: dict[str, float]  # All metrics of the task
    batch_effect: BatchEffect | None = None  # Where outputs depend on the batch


class Bench:
    """Measures models against the whole one, on the same examples and batches."""

    def __init__(
        self,
        full_model: LoadedModel,
        task: Task,
        texts: Texts,
        folder: Path,
        *,
        batch_size: int,
        seed: int,
    ) -> None:
        self.full_model = full_model
        self.task = task
        self.texts = texts
        self.seed = seed
        self._folder = folder
        self._made = 0
        self._batch_size = batch_size
        self._outputs = task.outputs(full_model, all_metrics=True)
        self._drawn = task.resampled(self._outputs, seed=seed)
        self._tasks: dict[int, Task] = {full_model.vocab_size: task}
        #: What gives the whole model's outputs on other text than the examples: the model itself,
        #: or a file that has the same ones sooner; and its outputs of training texts, by text.
        self.teacher = full_model
        self.known = dict[int, Tensor]()
        #: The whole model's outputs and nearest neighbours on text of another kind.
        self._elsewhere: tuple[Tensor, Tensor | None] | None = None
        # Files are often sorted: ranges of 8 bits come from lines of all of the text, and what is
        # lost by them is judged on others.
        n = len(texts.rows(full_model))
        drawn = random.Random(seed).sample(range(n), min(n, CALIBRATION + CHOOSING))
        self._calibrate = drawn[:CALIBRATION]
        self._choose = drawn[CALIBRATION:] or drawn
        self.files_of_whole = self.files(full_model)

    def files(self, model: LoadedModel, texts: int = CALIBRATION) -> Files:
        """Return where a model's files lie, in its own folder; ``texts`` calibrate 8 bits."""
        self._made += 1
        rows = self.texts.rows(model)
        few = [padded([rows[i]], model.pad_id, model.device) for i in self._calibrate[:texts]]
        return Files(model, self._folder / str(self._made), few)

    def task_of(self, model: LoadedModel) -> Task:
        """Return the evaluation data as a model with another vocabulary reads them."""
        if model.vocab_size not in self._tasks:
            task = self.texts.evaluation_task(model)
            if task.n_examples != self.task.n_examples:
                raise InputError(
                    "Some evaluation texts no longer fit the model once rare words are spelled in "
                    "more pieces; leave the longest ones out of the data."
                )
            task.distance = self.task.distance  # the distance to the whole model, not to itself
            self._tasks[model.vocab_size] = task
        return self._tasks[model.vocab_size]

    # --- the metric -----------------------------------------------------------------------------

    @property
    def degenerate(self) -> str | None:
        """Say why the whole model's values mean nothing, if they do not."""
        return self.task.degenerate(self._outputs)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Say what makes the whole model's values doubtful."""
        return self.task.doubts(self._outputs)

    def value(self, model: LoadedModel, served: Served) -> Measurement:
        """Measure a model as it is served, on the batches that its speed is measured on.

        Where its outputs depend on the batch, in :data:`ORDERS` orders of the texts: the means, and
        intervals that hold those of every order.
        """
        if served is self.full_model:
            return self._compared(self.task, self._outputs)
        if isinstance(served, LoadedModel):
            task = self.task_of(model)
            return self._compared(task, task.outputs(served, all_metrics=True))
        difference = self._batch_difference(model, served)
        if difference <= served.rounding:
            return self._in_order(model, served, None)
        orders = [self.seed + order for order in range(1, ORDERS)]
        found = [self._in_order(model, served, order) for order in (None, *orders)]
        values = [each.value for each in found]
        means = {name: fmean(each.metrics[name] for each in found) for name in found[0].metrics}
        return Measurement(
            value=estimate_over_orders(values),
            change=over_orders([each.change for each in found]),
            metrics=means,
            batch_effect=BatchEffect(difference, tuple(float(value) for value in values)),
        )

    def _in_order(self, model: LoadedModel, served: RuntimeFile, order: int | None) -> Measurement:
        """Run a file over the evaluation data in one order: that of the data, or a drawn one."""
        task = self.task_of(model)
        batches = (
            padded([task.rows[i] for i in part], model.pad_id, model.device)
            for part in length_batches(task.rows, self._batch_size, order)
        )
        return self._compared(task, task.outputs_of(served, batches))

    def _compared(self, task: Task, outputs: Outputs) -> Measurement:
        """Hold a model's outputs against the whole model's."""
        seed = self.seed
        drawn = task.resampled(outputs, seed=seed)
        value = task.interval(outputs, seed=seed, values=drawn)
        pair = {"drawn": self._drawn, "values": drawn}
        change = task.change(self._outputs, outputs, seed=seed, **pair)
        return Measurement(value, change, task.metrics(outputs))

    def _batch_difference(self, model: LoadedModel, served: RuntimeFile) -> float:
        """Return how far last states of a text differ alone and in a batch.

        As a share of the largest state, of a few texts of every batch that speeds are measured on.
        """
        rows = self.task_of(model).rows
        largest = 0.0
        difference = 0.0
        for part in spread_places(rows, self._batch_size):
            batch = padded([rows[i] for i in part], model.pad_id, model.device)
            together, _ = served(*batch.inputs)
            for i, in_batch in zip(part[:ALONE], together, strict=False):
                single = padded([rows[i]], model.pad_id, model.device)
                (alone,), _ = served(*single.inputs)
                largest = max(largest, float(alone.abs().max()))
                difference = max(difference, float((in_batch[: len(alone)] - alone).abs().max()))
        return difference / largest if largest else 0.0

    def distance(self, model: LoadedModel, served: Served, most: int = CHOOSING) -> float:
        """Return the mean loss on calibration text, by which forms and layers are chosen."""
        rows = self.texts.rows(model), self.texts.rows(self.full_model)
        lesson = Lesson(as_model(model, served), self.teacher, rows, self.known)
        with fast_products(self.full_model.network), fast_products(model.network):
            return lesson.distance(self._choose[:most])

    # --- the speed ------------------------------------------------------------------------------

    def times(self, model: LoadedModel, served: Served, longer: int = 1) -> Times:
        """Time a model in turns with the whole one in torch, ``longer`` times as long as usual."""
        full = (self.full_model, self.full_model, self.task.rows)
        cut = None if served is self.full_model else (model, served, self.task_of(model).rows)
        return times(full, cut, batch_size=self._batch_size, longer=longer)

    # --- all of it ------------------------------------------------------------------------------

    def measured(
        self,
        files: Files,
        form: Form,
        times: Times,
        training: Training | None = None,
        *,
        elsewhere: bool = True,
        exact: bool = False,
    ) -> MeasuredModel:
        """Measure one model in one form; ``exact`` says that its outputs are the whole model's."""
        model = files.model
        served = files.served(form)
        value, paired, metrics, batch_effect = self.value(model, served)
        change = paired.estimate()
        most_lost = self._most_lost(paired, exact=exact)
        if served is self.full_model:  # against itself
            most_lost = 0.0
            change = Estimate(0.0)
        return MeasuredModel(
            layers=tuple(name for layers in layers_of(model).values() for name in layers),
            neurons=width_of(model),
            rows=model.vocab_size,
            runtime=form.runtime,
            precision=form.precision,
            megabytes=files.megabytes(form),
            ms=times.ms,
            speed=times.speed,
            value=value,
            change=change,
            most_lost=most_lost,
            metrics=metrics,
            elsewhere=self.elsewhere(model, served) if elsewhere else (),
            training=training,
            batch_effect=batch_effect,
        )

    def _most_lost(self, change: Change, *, exact: bool) -> float | None:
        """Return the most that is lost, as far as the data can tell; None where they cannot."""
        if change.examples < FEWEST_TESTED or self.degenerate is not None:
            return None
        most_lost = change.most_lost(1 if self.task.higher_is_better else -1)
        if np.isfinite(most_lost):
            return most_lost
        return 0.0 if exact else None

    def elsewhere(self, model: LoadedModel, served: Served) -> tuple[Elsewhere, ...]:
        """Compare a model with the full one on text of another kind; empty for the full one itself.

        Embeddings by their cosine and by their nearest neighbours among these texts, classes by the
        share of equal guesses, labels that are independent by the share of texts with the same set
        of them, scores by their rank correlation; models with other heads are not compared.
        """
        full_model = self.full_model
        other = self.texts.other
        head = self.full_model.task_head
        compared = head in (None, "classification") and not full_model.encoder_decoder
        if other is None or not compared or served is full_model:
            return ()
        rows = self.texts.other_rows(model)
        if self._elsewhere is None:
            theirs = _outputs(self.teacher, full_model, self.texts.other_rows(full_model))
            self._elsewhere = theirs, nearest(theirs) if head is None else None
        ours = _outputs(model, served, rows)
        (theirs, near) = self._elsewhere
        if near is None:
            what, nearness = self._same_outputs(ours, theirs)
            return (Elsewhere(other.name, len(rows), what, nearness, UNKNOWN),)
        same = (nearest(ours)[:, :, None] == near[:, None, :]).any(dim=2).double().mean(dim=1)
        neighbours = self._mean(same) if len(rows) >= FEWEST_TEXTS else UNKNOWN
        cosine = self._mean((ours * theirs).sum(-1))
        return (Elsewhere(other.name, len(rows), "cosine", cosine, neighbours),)

    def _same_outputs(self, ours: Tensor, theirs: Tensor) -> tuple[str, Estimate]:
        """Say what is compared of a head's logits (texts, outputs), and how alike they are."""
        outputs = head_outputs(self.full_model)
        if outputs is HeadOutputs.CHOICE:
            return "classes", self._mean(ours.argmax(-1) == theirs.argmax(-1))
        if outputs is HeadOutputs.LABELS:
            return "labels", self._mean(((ours > 0) == (theirs > 0)).all(-1))
        return "scores", self._rank_correlation(ours, theirs)

    def _rank_correlation(self, ours: Tensor, theirs: Tensor) -> Estimate:
        """Return Spearman's correlation; the mean over outputs, without interval, of several."""
        pairs = zip(numpy(ours.double()).T, numpy(theirs.double()).T, strict=True)
        each = [
            interval_of(spearman, {"similarity": one, "gold": full}, seed=self.seed)
            for one, full in pairs
        ]
        if len(each) > 1:
            return Estimate(sum(float(one) for one in each) / (100 * len(each)))
        ends = [end / 100 for end in each[0].interval or ()]
        return Estimate(float(each[0]) / 100, *ends)

    def _mean(self, values: Tensor) -> Estimate:
        outputs = {"value": values.double().clamp(max=1.0).numpy()}
        return interval_of(mean_of("value"), outputs, seed=self.seed)


def as_model(model: LoadedModel, served: Served) -> LoadedModel:
    """Let a file run in a model's place, with the model's pooling."""
    return model if isinstance(served, LoadedModel) else _Stand(model, served)  # type: ignore[return-value]


class _Stand:
    """A model whose outputs come from a file."""

    def __init__(self, model: LoadedModel, served: Served) -> None:
        self._model = model
        self.run = served

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _outputs(model: LoadedModel, served: Served, rows: Sequence[Row]) -> Tensor:
    """Return what :func:`output_of` gives of every row, in the order of the rows."""
    by_row: list[Tensor] = [torch.empty(0)] * len(rows)
    with torch.no_grad(), fast_products(model.network):
        for part in buckets(rows):
            batch = padded(part, model.pad_id, model.device)
            outputs = output_of(as_model(model, served), batch)
            for i, each in zip(batch.index, outputs, strict=True):
                by_row[i] = each
    return torch.stack(by_row)


def nearest(embeddings: Tensor) -> Tensor:
    """Return the indices of the neighbours of the first texts, (queries, neighbours).

    The texts are in random order (:meth:`Texts.other_rows`), so the first ones are random ones.
    """
    similarity = embeddings[:QUERIES] @ embeddings.T
    similarity.fill_diagonal_(-torch.inf)
    return similarity.topk(min(NEIGHBOURS, len(embeddings) - 1), dim=1).indices
