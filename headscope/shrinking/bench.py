"""Every model of a run, measured alike: the metric, the speed, and text of another kind.

A *form* is a runtime and a precision, such as openvino int8. A model is measured as it is *served*
in a form: itself where torch runs it, else a file that another runtime has opened. ``Files`` holds
a model and writes these files when they are asked for. A ``Task`` holds the evaluation data as
token ids (``rows``), and computes metrics from a model's outputs for them.

:meth:`Bench.measured` makes a row of the result; the sections before it measure the metric and the
speed. :meth:`Bench.distance` is for choosing: a mean loss on calibration text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from headscope.artefacts.runtime_files import RuntimeFile
from headscope.data.token_rows import padded
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.products import fast_products
from headscope.removal.times import (
    TimedTogether,
    Times,
    length_batches,
    timed_together,
    times,
    typical_batches,
)
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

#: Texts on which distances are measured, by which forms and layers are chosen. Other texts,
#: CALIBRATION of them, calibrate 8 bits.
CHOOSING = 256
#: Distance above which 8 bits have ruined a model: 1 - cosine, nats, or a share of the variance of
#: a score.
RUINED = 0.05
#: A form whose outputs depend on the batch is measured in so many orders of the texts.
ORDERS = 5
ALONE = 8  # Texts of each batch that are also read alone, to see whether outputs depend on it


def timed_fields(times: Times) -> dict[str, Any]:
    """Return the fields of a :class:`MeasuredModel` that times fill: they have the same names."""
    return times._asdict()


class Measurement(NamedTuple):
    """The metric of a model as it is served, on the evaluation data."""

    value: Estimate  # The task's metric
    change: Change  # The metric minus the whole model's, paired over examples
    metrics: dict[str, float]  # All metrics of the task
    batch_effect: BatchEffect | None = None  # None where outputs do not depend on the batch


class Bench:
    """Measures models beside the whole one, on the same examples and batches.

    ``texts`` has the training text, by which forms and layers are chosen, and the text of another
    kind. Files are written below ``folder``.
    """

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
        self.batch_size = batch_size
        #: The whole model's outputs for the evaluation data
        self._full_outputs = task.outputs(full_model, all_metrics=True)
        #: The whole model's metric on resampled examples, for intervals
        self._full_resampled = task.resampled(self._full_outputs, seed=seed)
        #: What gives the whole model's outputs on other text than the examples: the model itself,
        #: or a file that has the same ones sooner
        self.teacher = full_model
        self.known: dict[int, Tensor] = {}  # The teacher's outputs, by index of the training text
        self._other_text = OtherText(full_model, texts, seed=seed)
        # Texts that calibrate 8 bits, and others for distances. Both are drawn at random from all
        # of the training text, since files are often sorted.
        n_rows = len(texts.training_rows(full_model))
        drawn = random.Random(seed).sample(range(n_rows), min(n_rows, CALIBRATION + CHOOSING))
        self._calibration = drawn[:CALIBRATION]
        self._choosing = drawn[CALIBRATION:] or drawn  # a short text serves for both
        self.files_of_whole = self.files(full_model)

    def files(self, model: LoadedModel, n_texts: int = CALIBRATION) -> Files:
        """Let a model's files be written into a new folder; ``n_texts`` texts calibrate 8 bits."""
        self._n_folders += 1
        rows = self.texts.training_rows(model)
        calibration = [
            padded([rows[i]], model.pad_id, model.device) for i in self._calibration[:n_texts]
        ]
        return Files(model, self._folder / str(self._n_folders), calibration)

    # --- the metric -----------------------------------------------------------------------------

    @property
    def degenerate(self) -> str | None:
        """Say why the whole model's values mean nothing, if they do not."""
        return self.task.degenerate(self._full_outputs)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Say what makes the whole model's values doubtful."""
        return self.task.doubts(self._full_outputs)

    def measurement(self, model: LoadedModel, served: Served) -> Measurement:
        """Measure a model as it is served, in batches as its speed is.

        Where its outputs depend on the batch, in :data:`ORDERS` orders of the texts: values are
        means over the orders, and an interval holds the intervals of every order.
        """
        if served is self.full_model:
            return self._compared(self._full_outputs)
        if isinstance(served, LoadedModel):
            return self._compared(self.task.outputs(served, all_metrics=True))

        # a file, which may read a text otherwise beside other texts
        difference = self._batch_difference(model, served)
        first = self._in_order(model, served, None)
        if difference <= served.rounding:
            return first
        order_seeds = range(self.seed + 1, self.seed + ORDERS)
        orders = [first, *(self._in_order(model, served, seed) for seed in order_seeds)]
        values = [measured.value for measured in orders]
        return Measurement(
            value=estimate_over_orders(values),
            change=over_orders([measured.change for measured in orders]),
            metrics={
                name: fmean(measured.metrics[name] for measured in orders) for name in first.metrics
            },
            batch_effect=BatchEffect(difference, tuple(float(value) for value in values)),
        )

    def _in_order(
        self, model: LoadedModel, served: RuntimeFile, order_seed: int | None
    ) -> Measurement:
        """Measure a file on the evaluation data in their own order, or in one drawn by a seed."""
        rows = self.task.rows
        batches = (
            padded([rows[i] for i in indices], model.pad_id, model.device)
            for indices in length_batches(rows, self.batch_size, order_seed)
        )
        return self._compared(self.task.outputs_of(served, batches))

    def _compared(self, outputs: Outputs) -> Measurement:
        """Compute the metric of a model's outputs, and its change from the whole model's."""
        resampled = self.task.resampled(outputs, seed=self.seed)
        return Measurement(
            value=self.task.interval(outputs, seed=self.seed, values=resampled),
            change=self.task.change(
                self._full_outputs,
                outputs,
                seed=self.seed,
                baseline_values=self._full_resampled,
                values=resampled,
            ),
            metrics=self.task.metrics(outputs),
        )

    def _batch_difference(self, model: LoadedModel, served: RuntimeFile) -> float:
        """Return how much the last hidden states of a text differ when it is read alone.

        The largest difference, as a share of the largest absolute value, over a few texts of every
        batch that speeds are measured on.
        """
        rows = self.task.rows
        largest = 0.0
        difference = 0.0
        for indices in typical_batches(rows, self.batch_size):
            batch = padded([rows[i] for i in indices], model.pad_id, model.device)
            batch_states, _ = served(*batch.inputs)  # [texts, pos, d_model]
            for i, beside_others in zip(indices[:ALONE], batch_states, strict=False):
                single = padded([rows[i]], model.pad_id, model.device)
                single_states, _ = served(*single.inputs)
                alone = single_states[0]
                without_padding = beside_others[: len(alone)]
                largest = max(largest, float(alone.abs().max()))
                difference = max(difference, float((without_padding - alone).abs().max()))
        return difference / largest if largest else 0.0

    def distance(self, model: LoadedModel, served: Served, most: int = CHOOSING) -> float:
        """Return how far a model's outputs are from the whole model's on calibration text.

        The mean loss of distillation, over ``most`` texts at most; forms and layers are chosen by
        it.
        """
        rows = self.texts.training_rows(self.full_model)
        lesson = Lesson(as_model(model, served), self.teacher, rows, self.known)
        with fast_products(self.full_model.network), fast_products(model.network):
            return lesson.distance(self._choosing[:most])

    # --- the speed ------------------------------------------------------------------------------

    def times(self, model: LoadedModel, served: Served, longer: int = 1) -> Times:
        """Time a model in turns with the whole one in torch, ``longer`` times as long as usual."""
        rows = self.task.rows
        full = (self.full_model, self.full_model, rows)  # model, what runs it, texts
        smaller = None if served is self.full_model else (model, served, rows)
        return times(full, smaller, batch_size=self.batch_size, longer=longer)

    def times_together(self, served_forms: Sequence[Served]) -> TimedTogether:
        """Time forms of the whole model in turns with torch and with each other."""
        rows = self.task.rows
        full = (self.full_model, self.full_model, rows)
        forms = [(self.full_model, served, rows) for served in served_forms]
        return timed_together(full, forms, batch_size=self.batch_size)

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
        """Measure one model in one form, whose ``times`` were measured before.

        ``elsewhere``: whether to compare it on text of another kind. ``exact``: whether its outputs
        are the whole model's up to rounding.
        """
        model = files.model
        served = files.served(form)
        measurement = self.measurement(model, served)
        change = measurement.change.estimate()
        most_lost = self._most_lost(measurement.change, exact=exact)
        if served is self.full_model:  # against itself
            most_lost = 0.0
            change = Estimate(0.0)
        return MeasuredModel(
            layers=tuple(chain.from_iterable(layers_of(model).values())),
            neurons=width_of(model),
            runtime=form.runtime,
            precision=form.precision,
            megabytes=files.megabytes(form),
            value=measurement.value,
            **timed_fields(times),
            change=change,
            most_lost=most_lost,
            metrics=measurement.metrics,
            elsewhere=self.elsewhere(model, served) if elsewhere else (),
            training=training,
            batch_effect=measurement.batch_effect,
        )

    def _most_lost(self, change: Change, *, exact: bool) -> float | None:
        """Return the most that is lost of the metric, at the bad end of the change's interval.

        None where the data cannot tell: few examples, or a whole model whose values mean nothing.
        """
        if change.examples < FEWEST_TESTED or self.degenerate is not None:
            return None
        most_lost = change.most_lost(1 if self.task.higher_is_better else -1)
        if np.isfinite(most_lost):
            return most_lost
        return 0.0 if exact else None

    def elsewhere(self, model: LoadedModel, served: Served) -> tuple[Elsewhere, ...]:
        """Compare a model with the whole one on text of another kind; empty for the whole one."""
        if served is self.full_model:
            return ()
        return self._other_text.compare(model, served, self.teacher)
