"""Layers before a change are played back: nothing else differs, and they do not run."""

from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import tiny_bert

import headscope
from headscope.data.examples import sample_texts
from headscope.models.run import replay
from headscope.tasks.calibration import HeadByHead
from headscope.tasks.making import make_task


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return headscope.load(str(tiny_bert(tmp_path_factory.mktemp("models") / "bert")))


def first_layer_runs(loaded: Any) -> list[int]:
    """Count how often the first layer of a model runs."""
    runs: list[int] = []
    loaded.model.encoder.layer[0].attention.register_forward_pre_hook(lambda *_: runs.append(1))
    return runs


@pytest.mark.parametrize("room", [replay.RECORDED, 0])
def test_outputs_are_those_of_whole_passes(tiny, room, monkeypatch):
    monkeypatch.setattr(replay, "RECORDED", room)
    task = make_task("fidelity", sample_texts().pick(range(40)), tiny)
    shorter, batches = HeadByHead(task, tiny), len(list(task.batches(tiny)))
    for row, site in enumerate(tiny.sites):
        gates = torch.ones(tiny.n_layers, tiny.n_heads)
        gates[row, 1] = 0.0
        shorter.start_at(row)
        cut = headscope.remove_heads(tiny, [(site.layer, 1)])
        whole = task.outputs(tiny, gates), task.outputs(cut)
        runs = first_layer_runs(cut)
        found = shorter.outputs(gates=gates), shorter.outputs(cut)
        assert len(runs) == (0 if row and room else batches)
        for ours, theirs in zip(found, whole, strict=True):
            assert ours.keys() == theirs.keys()
            assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
        assert (found[0]["cosine"] < 1).any()
