"""Every model of a run, measured alike: the metric, the speed, and text of another kind."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from torch import Tensor

from headscope.artefacts.onnx_graph import RuntimeFile
from headscope.data.token_rows import padded
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.products import fast_products
from headscope.removal.times import Times, length_batches, times, typical_batches
from headscope.shrinking.distil import Lesson
from headscope.shrinking.elsewhere import OtherText, as_model
from headscope.shrinking.layers import layers_of
from headscope.shrinking.neurons import width_of
from headscope.shrinking.result import BatchEffect, Elsewhere, MeasuredModel, Training
from headscope.shrinking.serving import CALIBRATION, Files, Form, Served
from headscope.shrinking.text import Texts
from headscope.stats.estimate import FEWEST_TESTED, Estimate
from headscope.stats.metrics import Outputs
from headscope.stats.paired_change import Change, estimate_over_orders, over_orders
from headscope.tasks.base import Task

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
        self._n_folders = 0
        self._batch_size = batch_size
        self._outputs = task.outputs(full_model, all_metrics=True)
        self._drawn = task.resampled(self._outputs, seed=seed)
        #: What gives the whole model's outputs on other text than the examples: the model itself,
        #: or a file that has the same ones sooner; and its outputs of training texts, by text.
        self.teacher = full_model
        self.known = dict[int, Tensor]()
        self._other_text = OtherText(full_model, texts, seed=seed)
        # Files are often sorted: ranges of 8 bits come from lines of all of the text, and what is
        # lost by them is judged on others.
        n_rows = len(texts.rows(full_model))
        drawn = random.Random(seed).sample(range(n_rows), min(n_rows, CALIBRATION + CHOOSING))
        self._calibration = drawn[:CALIBRATION]
        self._choosing = drawn[CALIBRATION:] or drawn
        self.files_of_whole = self.files(full_model)

    def files(self, model: LoadedModel, texts: int = CALIBRATION) -> Files:
        """Return where a model's files lie, in a new folder; ``texts`` calibrate 8 bits."""
        self._n_folders += 1
        rows = self.texts.rows(model)
        calibration = [
            padded([rows[i]], model.pad_id, model.device) for i in self._calibration[:texts]
        ]
        return Files(model, self._folder / str(self._n_folders), calibration)

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
            return self._compared(self._outputs)
        if isinstance(served, LoadedModel):
            return self._compared(self.task.outputs(served, all_metrics=True))
        difference = self._batch_difference(model, served)
        first = self._in_order(model, served, None)
        if difference <= served.rounding:
            return first
        drawn_orders = range(self.seed + 1, self.seed + ORDERS)
        measured = [first, *(self._in_order(model, served, order) for order in drawn_orders)]
        values = [each.value for each in measured]
        return Measurement(
            value=estimate_over_orders(values),
            change=over_orders([each.change for each in measured]),
            metrics={
                name: fmean(each.metrics[name] for each in measured) for name in first.metrics
            },
            batch_effect=BatchEffect(difference, tuple(float(value) for value in values)),
        )

    def _in_order(self, model: LoadedModel, served: RuntimeFile, order: int | None) -> Measurement:
        """Run a file over the evaluation data in one order: that of the data, or a drawn one."""
        rows = self.task.rows
        batches = (
            padded([rows[i] for i in indices], model.pad_id, model.device)
            for indices in length_batches(rows, self._batch_size, order)
        )
        return self._compared(self.task.outputs_of(served, batches))

    def _compared(self, outputs: Outputs) -> Measurement:
        """Hold a model's outputs against the whole model's."""
        drawn = self.task.resampled(outputs, seed=self.seed)
        return Measurement(
            value=self.task.interval(outputs, seed=self.seed, values=drawn),
            change=self.task.change(
                self._outputs,
                outputs,
                seed=self.seed,
                drawn=self._drawn,
                values=drawn,
            ),
            metrics=self.task.metrics(outputs),
        )

    def _batch_difference(self, model: LoadedModel, served: RuntimeFile) -> float:
        """Return how far last states of a text differ alone and in a batch.

        As a share of the largest state, of a few texts of every batch that speeds are measured on.
        """
        rows = self.task.rows
        largest = 0.0
        difference = 0.0
        for indices in typical_batches(rows, self._batch_size):
            batch = padded([rows[i] for i in indices], model.pad_id, model.device)
            together, _ = served(*batch.inputs)
            for i, in_batch in zip(indices[:ALONE], together, strict=False):
                single = padded([rows[i]], model.pad_id, model.device)
                (alone,), _ = served(*single.inputs)
                largest = max(largest, float(alone.abs().max()))
                difference = max(difference, float((in_batch[: len(alone)] - alone).abs().max()))
        return difference / largest if largest else 0.0

    def distance(self, model: LoadedModel, served: Served, most: int = CHOOSING) -> float:
        """Return the mean loss on calibration text, by which forms and layers are chosen."""
        rows = self.texts.rows(self.full_model)
        lesson = Lesson(as_model(model, served), self.teacher, rows, self.known)
        with fast_products(self.full_model.network), fast_products(model.network):
            return lesson.distance(self._choosing[:most])

    # --- the speed ------------------------------------------------------------------------------

    def times(self, model: LoadedModel, served: Served, longer: int = 1) -> Times:
        """Time a model in turns with the whole one in torch, ``longer`` times as long as usual."""
        rows = self.task.rows
        full = (self.full_model, self.full_model, rows)
        cut = None if served is self.full_model else (model, served, rows)
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
        measured = self.value(model, served)
        change = measured.change.estimate()
        most_lost = self._most_lost(measured.change, exact=exact)
        if served is self.full_model:  # against itself
            most_lost = 0.0
            change = Estimate(0.0)
        return MeasuredModel(
            layers=tuple(chain.from_iterable(layers_of(model).values())),
            neurons=width_of(model),
            runtime=form.runtime,
            precision=form.precision,
            megabytes=files.megabytes(form),
            ms=times.ms,
            speed=times.speed,
            value=measured.value,
            change=change,
            most_lost=most_lost,
            metrics=measured.metrics,
            elsewhere=self.elsewhere(model, served) if elsewhere else (),
            training=training,
            batch_effect=measured.batch_effect,
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

        Embeddings by their cosine and by their nearest neighbours among these texts, a head's
        outputs as :mod:`headscope.shrinking.elsewhere` says.
        """
        if served is self.full_model:
            return ()
        return self._other_text.compare(model, served, self.teacher)
