"""Forms whose outputs depend on the batch are found out, and measured in several orders."""

import numpy as np
import pytest
import torch

from headscope.artefacts.runtime_files import RuntimeFile
from headscope.removal.times import length_batches, typical_batches
from headscope.shrinking.bench import Bench
from headscope.shrinking.text import read_all


class _Served(RuntimeFile):
    """The model itself; with ``shared`` above 0 each text reads something of its batch."""

    def __init__(self, model, shared):
        self._model = model
        self._shared = shared

    @torch.no_grad()
    def run(self, input_ids, attention_mask, token_type_ids=None):
        hidden, _ = self._model.run(input_ids, attention_mask, token_type_ids)
        return {"last_hidden_state": hidden + self._shared * hidden[:1, :1] * hidden[-1:, :1]}


@pytest.fixture
def bench(bert, lines, tmp_path):
    texts = read_all(
        "fidelity",
        lines / "judge.txt",
        [lines / "train.txt"],
        lines / "other.txt",
        limit=None,
        seed=0,
        trains=False,
    )
    task = texts.evaluation_task(bert)
    return Bench(bert, task, texts, tmp_path, batch_size=8, seed=0)


def test_what_does_not_depend_on_the_batch_is_measured_once(bert, bench):
    measurement = bench.measurement(bert, _Served(bert, shared=0.0))
    assert measurement.batch_effect is None
    assert measurement.change.same


def test_what_depends_on_the_batch_is_measured_in_several_orders(bert, bench):
    served = _Served(bert, shared=0.2)
    measurement = bench.measurement(bert, served)
    effect = measurement.batch_effect
    lowest = min(effect.values)
    highest = max(effect.values)
    assert effect.difference > 0.01
    assert len(set(effect.values)) == len(effect.values) == 5
    assert measurement.value.value == pytest.approx(np.mean(effect.values))
    assert measurement.value.low < lowest < highest < measurement.value.high
    # The whole model's own value is 1.
    assert measurement.change.low < lowest - 1.0
    assert measurement.change.high > highest - 1.0
    assert not measurement.change.same
    # The first order is that of the batches whose times are taken.
    first = bench._in_order(bert, served, None)
    assert effect.values[0] == first.value.value
    rows = bench.task.rows
    batches = length_batches(rows, 8)
    assert all(timed in batches for timed in typical_batches(rows, 8))
