"""What is estimated from random draws depends on a task's examples, not on how they are batched."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import WORDS, tiny_bert, write_tiny
from torch import Tensor

from headscope.models.run.loaded import LoadedModel
from headscope.pruning.ranking import Context
from headscope.pruning.surgeon import Surgeon
from headscope.session.opening import open_for_tasks
from headscope.tasks import base
from headscope.tasks.base import Task
from headscope.tasks.gauss_newton import sample
from headscope.tasks.making import make_task, read_examples
from headscope.tasks.units import units_of

PLAIN = [word for word in WORDS if word.isalpha()]


def sentences(n: int) -> list[str]:
    draw = np.random.default_rng(4)
    return [" ".join(draw.choice(PLAIN, size=draw.integers(3, 40))) for _ in range(n)]


def write_questions(path: Path) -> None:
    paragraphs = [
        {
            "context": context,
            "qas": [
                {
                    "id": f"q{i}",
                    "question": "is it ?",
                    "answers": [{"text": context.split()[0], "answer_start": 0}],
                }
            ],
        }
        for i, context in enumerate(sentences(12))
    ]
    path.write_text(json.dumps({"version": "v1.1", "data": [{"paragraphs": paragraphs}]}))


def written(name: str, folder: Path) -> tuple[LoadedModel, Path]:
    """Write a tiny model that can do a task, and examples of many lengths; open the model."""
    if name == "lm":
        model = write_tiny(folder / "model", "gpt2", template="$A")
    else:
        head = {"mlm": "mlm", "question-answering": name, "classification": name}.get(name)
        model = tiny_bert(folder / "model", task_head=head)
    data = folder / "data.txt"
    if name == "question-answering":
        data = folder / "data.json"
        write_questions(data)
    elif name == "classification":
        data = folder / "data.tsv"
        rows = [f"{text}\t{i % 2}" for i, text in enumerate(sentences(12))]
        data.write_text("sentence\tlabel\n" + "\n".join(rows))
    else:
        data.write_text("\n".join(sentences(60 if name in ("mlm", "lm") else 12)))
    return open_for_tasks(str(model), dtype="float64"), data


def gauss_newton(loaded: LoadedModel, task: Task) -> list[Tensor]:
    batches = task.loss_batches(loaded, labels=False)
    sums = sample(batches, units_of(loaded), directions=2, seed=7)
    # Fisher ranks by shares of the squares: their scale is that of the outputs' mean length.
    return [sums.matrix, sums.unit_squares / sums.unit_squares.sum()]


def moments(loaded: LoadedModel, task: Task) -> list[Tensor]:
    surgeon = Surgeon(Context.of_task(loaded, task))
    return [matrix for layer in surgeon._moments(0, {}) for matrix in (layer.A, layer.C)]


@pytest.mark.parametrize("estimate", [gauss_newton, moments])
@pytest.mark.parametrize("name", ["fidelity", "classification", "mlm", "question-answering", "lm"])
def test_estimates_are_those_of_batches_of_one_example(
    name: str,
    estimate: Callable[[LoadedModel, Task], list[Tensor]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A short example in a batch of its own, not padded, counts as it does among others."""
    loaded, data = written(name, tmp_path)
    together = estimate(loaded, make_task(name, read_examples(name, data), loaded))
    monkeypatch.setattr(base, "tokens_with_gradients", lambda loaded: 1)
    task = make_task(name, read_examples(name, data), loaded)
    assert {batch.size for batch in task.loss_batches(loaded, labels=False)} == {1}
    alone = estimate(loaded, task)
    for ours, expected in zip(together, alone, strict=True):
        assert float(expected.abs().max()) > 0
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-9 * float(expected.max()))
