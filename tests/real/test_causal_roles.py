"""Sinks and induction of the real SmolLM2-135M, against transformers' own eager attention."""

from collections import Counter

import numpy as np
import pytest
import reference_causal
import torch
from transformers import AutoModel, AutoTokenizer

import headscope

pytestmark = pytest.mark.large


def test_sinks_and_induction_are_those_of_an_eager_run(smollm2, ewt):
    result = headscope.classify(str(smollm2), ewt, limit=60, validate=False)
    heads = {(head.layer, head.head): head for head in result.heads}
    network = AutoModel.from_pretrained(
        smollm2, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    weights = []
    for line in ewt.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# text = ") or len(weights) == 60:
            continue
        ids = tokenizer(line.removeprefix("# text = "))["input_ids"]
        with torch.no_grad():
            attentions = network(torch.tensor([ids]), output_attentions=True).attentions
        weights.append(np.stack([layer[0, :, 4:, 0].numpy() for layer in attentions]))
    mean = np.concatenate(weights, axis=-1).mean(axis=-1)  # (layers, heads), over all queries
    for place, head in heads.items():
        assert head.first_token.weight.value == pytest.approx(float(mean[place]), abs=1e-4)
    sinks = [head for head in result.heads if "first_token" in head.roles]
    assert 70 < len(sinks) < 120
    details = Counter(label.detail for head in sinks for label in head.labels)
    assert details["token"] == 0

    # Induction on other random tokens.
    gains = reference_causal.induction(network, [], range(1000, 20000), draws=3, copy=50, seed=1)
    for place, gain in gains.items():
        assert heads[place].prefix.after.gain.value == pytest.approx(gain, abs=0.1), place
    found = {place for place, head in heads.items() if "induction" in head.roles}
    assert {(17, 3), (17, 4), (18, 6)} <= found
    assert 10 < len(found) < 22
