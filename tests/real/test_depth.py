"""Rank collapse on real weights, and the reference curve of an untrained BERT-base."""

import pytest
import torch
from transformers import BertConfig, BertModel

import headscope
from headscope.analyses.depth.measure import VARIANTS, own_run, residual_ratio, run_variant
from headscope.models.anatomy.layers import take_apart
from headscope.models.run.routing import Router


def test_attention_alone_collapses_and_the_skip_prevents_it():
    result = headscope.depth("demo", sequences=2, control=False, validate=False)  # in float64
    alone = result.variants["attention"]
    full = result.variants["full"]
    assert result.collapsed_after["attention"] in (3, 4, 5)
    assert result.collapsed_after["full"] is None
    assert result.collapsed_after["attention+skip"] is None
    assert (alone[-1] or 0) < result.floor < 1e-14
    assert (full[-1] or 0) > 0.5
    skip = next(p for p in result.protected if (p.part, p.way) == ("skip", "removed"))
    assert skip.mean[-1] == pytest.approx(1.0)
    assert len(result.to_frame()) == len(result.protected_frame()) == 6 * 7


def test_untrained_bert_base_gives_the_reference_curve():
    """12 layers, d_model 768, 128 tokens; tests/bench/depth.py shows other initialisations.

    The reference is one initialisation, and they differ by more than 0.05; this one is near it.
    """
    torch.manual_seed(4)
    loaded = headscope.wrap(BertModel(BertConfig()))
    input_ids = torch.randint(0, loaded.vocab_size, (1, 128))
    layers = take_apart(loaded).layers
    model_run = own_run(loaded, layers, input_ids)
    curves = {}
    with torch.no_grad():
        for variant in VARIANTS[:1] + VARIANTS[2:4]:
            states = run_variant(layers, Router(loaded.sites), model_run, variant)
            curves[variant.name] = [float(residual_ratio(hidden).mean()) for hidden in states]
    assert curves["attention"][:4] == pytest.approx([0.612, 0.018, 0.0, 0.0], abs=0.05)
    assert max(curves["attention"][2:]) < 1e-5
    assert curves["attention+skip"][12] == pytest.approx(0.449, abs=0.05)
    assert curves["full"][12] == pytest.approx(0.345, abs=0.05)
