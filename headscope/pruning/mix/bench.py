"""Any version of a model as it will be served: timed beside the whole one, measured, compared."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from headscope.artefacts.onnx_graph import quantize, write_graph
from headscope.artefacts.onnx_session import FLOAT32, INT8, Graph
from headscope.core.errors import InputError
from headscope.data.token_rows import Row, padded
from headscope.models.intervene import Run
from headscope.models.loaded import LoadedModel
from headscope.models.vocabulary import VocabularyPlan
from headscope.models.whole_vocabulary import WholeVocabulary
from headscope.pruning.confirm_speed import confirm_speed
from headscope.pruning.latency_result import Confirmed
from headscope.pruning.mix.budget import Budget
from headscope.pruning.mix.judge import Judge, Measured, megabytes_of
from headscope.pruning.setup import Inputs
from headscope.pruning.turns import passes
from headscope.tasks.base import Task

#: Task heads that put out the vocabulary.
PUT_OUT = ("mlm", "seq2seq")


class Bench:
    """Runs versions of one model in one runtime, on the evaluation data.

    Graphs for onnxruntime lie in ``folder``: those of the whole model and of the last smaller one.
    """

    def __init__(
        self, inputs: Inputs, runtime: str, batch_size: int, seed: int, folder: Path
    ) -> None:
        self.inputs, self.runtime, self._seed, self._folder = inputs, runtime, seed, folder
        self._last: LoadedModel | None = None  # Whose graphs lie in the folder
        self._batch_size = batch_size
        self._tasks: dict[int, Task] = {}  # The evaluation data by the size of a vocabulary.
        self.whole = inputs.loaded
        self.plan: VocabularyPlan | None = None  # Which rows of the vocabulary went, if any
        self.judge = Judge(self.whole, inputs.evaluation, seed)

    def task_of(self, model: LoadedModel) -> Task:
        """Return the evaluation data as a smaller model reads them."""
        whole = self.inputs.evaluation
        if model.vocab_size == self.whole.vocab_size:
            return whole
        if model.vocab_size not in self._tasks:
            self._tasks[model.vocab_size] = self._tokenised(model, whole)
        return self._tasks[model.vocab_size]

    def _tokenised(self, model: LoadedModel, whole: Task) -> Task:
        if self.plan is not None and self.whole.task_head in PUT_OUT:
            vocabulary = WholeVocabulary(self.whole, self.plan, tuple(whole.rows))
            task = whole.read_by(model, vocabulary)
            sides = [ids for r in task.rows for ids in (r.ids, getattr(r, "decoder_ids", ()))]
            _check_fitting(sum(len(ids) > model.max_length for ids in sides))
            return task
        task = self.inputs.sources.evaluation_for(model)
        _check_fitting(whole.n_examples - task.n_examples)
        task.distance = whole.distance  # near to the whole model, not to itself
        return task

    def served(self, model: LoadedModel, precision: str) -> LoadedModel | Graph:
        """Return a model in the form in which it will be served."""
        return model if self.runtime == "torch" else Graph(self._file(model, precision))

    def megabytes(self, model: LoadedModel, precision: str) -> float:
        """Return what a model takes, 1e6 bytes: its parameters, or the file of its 8-bit graph."""
        if precision == "int8":
            return self._file(model, precision).stat().st_size / 1e6
        return megabytes_of(model)

    def _file(self, model: LoadedModel, precision: str) -> Path:
        """Return the file of a model's graph, which is written where it is not there yet."""
        folder = self._folder / ("whole" if model is self.whole else "small")
        if model is not self.whole and model is not self._last:
            shutil.rmtree(folder, ignore_errors=True)
            self._last = model
        folder.mkdir(exist_ok=True)
        path = folder / FLOAT32
        if not path.exists():
            write_graph(model, path, typed=self.inputs.evaluation.rows[0].types is not None)
        if precision == "int8":
            path, written = folder / INT8, path
            if not path.exists():
                quantize(written, path)
        return path

    def confirmed(self, small: LoadedModel, precision: str, budget: Budget) -> Confirmed:
        """Time whole and cut model in turns, on evaluation texts, each with its own tokens."""
        task = self.task_of(small)
        places = usual_places(self.inputs.evaluation.rows, self._batch_size)
        sides = [(self.whole, self.inputs.evaluation.rows), (small, task.rows)]
        batches = [
            [padded([rows[i] for i in places], model.pad_id, model.device)] for model, rows in sides
        ]
        whole, cut = self.served(self.whole, "float32"), self.served(small, precision)
        with passes([whole], batches[0]) as [of_whole], passes([cut], batches[1]) as [of_cut]:
            found = confirm_speed(
                of_whole,
                of_cut,
                target=budget.wanted if budget.name == "speed" else None,
                weights=[1 / len(places)],
                seed=self._seed,
            )
        if budget.name == "ms":
            most = found.ms_high
            found = dataclasses.replace(found, reached=most is not None and most <= budget.wanted)
        return found

    def int8_distance(self, small: LoadedModel, task: Task, targets: Sequence[Tensor]) -> float:
        """Return how far the 8-bit graph of a model is from the whole one, on calibration text."""
        total, count = 0.0, 0
        graph = self.served(small, "int8")
        assert isinstance(graph, Graph)
        with torch.no_grad():
            batches = task.batches(small)
            for batch, target in zip(batches, targets, strict=True):
                gap = task.embed(graph, batch) - target
                total, count = total + float((gap.double() ** 2).sum()), count + len(gap)
        return total / count

    def measured(self, small: LoadedModel, precision: str) -> Measured:
        """Measure a model on the evaluation data, in 8 bits by its graph."""
        task = self.task_of(small)
        if precision == "int8":
            graph = self.served(small, "int8")
            assert isinstance(graph, Graph)
            run: Run = graph
            if task.vocabulary is not None:
                run = task.vocabulary.run_of(graph, small)
            outputs = task.outputs_of(run, task.batches(small))
        else:
            outputs = task.outputs(small, all_metrics=True)
        return self.judge.of(outputs)


def _check_fitting(longer: int) -> None:
    if longer:
        raise InputError(
            f"{longer} of the evaluation texts no longer fit the model once rare words are spelled "
            "in more pieces; leave them out of the data, or keep their words by keep_vocabulary."
        )


def usual_places(rows: Sequence[Row], size: int) -> list[int]:
    """Return the places of the texts that are timed: those in the middle by length."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    start = max(0, (len(order) - size) // 2)
    return order[start : start + size]
