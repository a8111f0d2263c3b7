"""Layers played back give what running them gives, in every family; what cannot be is run."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from families import COVERED, Family
from tiny_models import VOCABULARY, tiny_tokenizer

import headscope
from headscope.data.examples import Examples
from headscope.models.gating import gated
from headscope.models.replay import Replay
from headscope.pipeline.tasks import make_task

LINES = ("the cat sat on the mat", "a big red dog ran", "she saw it", "he was in the house")


@pytest.mark.parametrize("family", COVERED, ids=lambda family: family.name)
def test_playing_back_changes_nothing(family: Family) -> None:
    network = family.model(vocab_size=len(VOCABULARY))
    loaded = headscope.wrap(network, tiny_tokenizer(38), name=family.name)
    view = loaded.only("encoder") if loaded.encoder_decoder else loaded
    task = make_task("fidelity", Examples("lines", "", LINES), view)
    replay = Replay(view, task.batches(view, tokens=8))
    assert len(replay.batches) > 1
    starts = []
    for row in range(view.n_layers):
        gates = torch.ones(view.n_layers, view.n_heads)
        gates[row, 1] = 0.0
        with replay.before(row) as start, gated(view, gates, start=start) as run:
            found = task.outputs_of(replay.following(run), replay.batches)
        starts.append(start)
        # ConvBERT's outputs depend on the padding, so the batches have to be the same.
        with gated(view, gates) as run:
            wanted = task.outputs_of(run, replay.batches)
        torch.testing.assert_close(found["cosine"], wanted["cosine"], rtol=0, atol=1e-6)
        assert (wanted["cosine"] < 1 - 1e-6).any()
    assert starts in (list(range(view.n_layers)), [0] * view.n_layers)
    if family.name in ("bert", "distilbert", "gpt2", "roberta"):
        assert starts[-1] == view.n_layers - 1
    if family.name.startswith("albert"):
        assert not any(starts)


def test_layers_run_again_afterwards() -> None:
    network = COVERED[0].model(vocab_size=len(VOCABULARY))
    loaded = headscope.wrap(network, tiny_tokenizer(38), name="bert")
    task = make_task("fidelity", Examples("lines", "", LINES), loaded)
    before = task.outputs(loaded)
    replay = Replay(loaded, task.batches(loaded))
    with suppress(ZeroDivisionError), replay.before(2) as start:
        assert start == 2
        raise ZeroDivisionError
    assert not any("forward" in vars(layer) for layer in network.encoder.layer)
    assert (task.outputs(loaded)["cosine"] == before["cosine"]).all()
