"""Rank on every family: from a text, without some heads, shared; and what it refuses."""

from typing import Any

import numpy as np
import pytest
import torch
from families import network, tiny
from rank_reference import check, dense, dense_asymmetry
from scipy import stats
from tiny_models import VOCABULARY, tiny_tokenizer
from transformers import T5Config, T5EncoderModel

import headscope
from headscope import rank
from headscope.analyses.rank.result import RankResult
from headscope.core.errors import UnsupportedModelError
from headscope.data.corpus import as_plain
from headscope.models.run.loaded import LoadedModel

EPS64 = 2.0**-52
LINES = [
    "the cat sat on the mat",
    "he saw a dog",
    "she ran to the big red house and it was in the house of a cat",
    "it is",
    "cats and dogs sat",
    "a big dog ran",
    "the dog and the cat ran on",
    "it sat in the red house",
]


def opened(family: str, **changes: Any) -> LoadedModel:
    model = tiny(family, "float64", vocab_size=len(VOCABULARY), initializer_range=0.2, **changes)
    return headscope.wrap(model, tiny_tokenizer(40))


def measured(loaded: LoadedModel, **options: Any) -> RankResult:
    return rank(loaded, text=as_plain(LINES), control_seeds=2, fresh=False, **options)


def alone(loaded: LoadedModel) -> tuple[dict[int, list[np.ndarray]], dict[int, list[np.ndarray]]]:
    """Inputs and eager patterns of every layer, sentence after sentence, without padding.

    The inputs are the hidden states that transformers itself hands out.
    """
    loaded.model.set_attn_implementation("eager")
    inputs: dict[int, list[np.ndarray]] = {}
    patterns: dict[int, list[np.ndarray]] = {}
    for line in LINES:
        encoded = loaded.tokenizer(line, return_tensors="pt")
        with torch.no_grad():
            out = loaded.model(
                input_ids=encoded.input_ids,
                attention_mask=encoded.attention_mask,
                output_attentions=True,
                output_hidden_states=True,
            )
        for layer, pattern in enumerate(out.attentions):
            inputs.setdefault(layer, []).append(out.hidden_states[layer][0].numpy())
            patterns.setdefault(layer, []).append(pattern[0].numpy())
    return inputs, patterns


@pytest.mark.parametrize("family", ["bert", "albert, two groups"])
def test_numbers_are_those_of_dense_matrices_and_the_eager_model(family):
    loaded = opened(family)
    result = measured(loaded, share_projections=[4, 32])
    inputs, patterns = alone(loaded)
    for site in loaded.sites:
        w = site.weights()
        heads = [head for head in result.heads if head.layer == site.layer]
        assert [head.head for head in heads] == [0, 1, 2, 3]
        for head in heads:
            q = w.W_Q[head.head].detach().numpy()
            k = w.W_K[head.head].detach().numpy()
            v = w.W_V[head.head].detach().numpy()
            check(head.qk, dense(q, k), 8, rtol=32 * EPS64)
            check(head.ov, v @ w.W_O[head.head].detach().numpy(), 8, rtol=32 * EPS64)
            assert head.asymmetry == pytest.approx(dense_asymmetry(dense(q, k)), rel=1e-9)
            # Seen through a text.
            values = [dense_asymmetry(pattern[head.head]) for pattern in patterns[site.layer]]
            asymmetry = head.pattern_asymmetry
            interval = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
            assert asymmetry.value == pytest.approx(np.mean(values), rel=1e-8)
            assert asymmetry.interval == pytest.approx(interval, rel=1e-6)
    assert result.text["tokens"] == sum(map(len, inputs[0]))
    assert (result.text["lines"], result.text["skipped"]) == (len(LINES), 0)
    # Of projections that heads share, the full width keeps the model.
    narrow, full = result.shared.widths
    assert full.score_error < 1e-10
    assert full.fidelity.value == pytest.approx(1, abs=1e-10)
    assert narrow.fidelity.value < 1 - 1e-4
    distinct = 3 if family == "bert" else 2
    assert len(narrow.layer_score_errors) == distinct
    before = 32 * (2 * 32 + 1)
    after = 4 * (2 * 32 + 4) + 4 * 32
    assert narrow.parameters == distinct * after
    assert narrow.parameters_saved == distinct * (before - after)


def test_a_model_without_some_heads():
    loaded = opened("bert")
    layer_1 = [(1, head) for head in range(4)]
    compact = headscope.remove_heads(loaded, [(0, 1), *layer_1, (2, 3)])
    full = rank(loaded, text=as_plain(LINES), control_seeds=2)
    rest = rank(compact, text=as_plain(LINES), control_seeds=2)
    assert [layer.heads for layer in rest.layers] == [(0, 2, 3), (), (0, 1, 2)]
    assert rest.layers[1].qk.singular_values == ()
    before = {(head.layer, head.head): head for head in full.heads}
    assert [head.head for head in rest.heads] == [0, 2, 3, 0, 1, 2]
    for head in rest.heads:
        same = before[head.layer, head.head]
        assert (head.qk, head.ov) == (same.qk, same.ov)
        assert head.asymmetry == pytest.approx(same.asymmetry, rel=1e-12)
        assert head.pattern_asymmetry is not None
    for control in rest.controls.values():
        assert [g.n_heads for g in control.geometries] == [3]
    site = compact.sites[0].weights()
    all_queries = site.W_Q.detach().transpose(0, 1).flatten(1)
    all_keys = site.W_K.detach().transpose(0, 1).flatten(1)
    check(rest.layers[0].qk, dense(all_queries, all_keys), 24, rtol=32 * EPS64)
    (width,) = measured(compact, share_projections=[4]).shared.widths
    assert len(width.layer_score_errors) == 2


def test_encoder_and_decoder_with_heads_of_two_widths():
    result = rank(headscope.wrap(network("bart", encoder_attention_heads=2)), control_seeds=2)
    for control in result.controls.values():
        sizes = [(g.n_heads, len(g.heads["qk"].singular_values)) for g in control.geometries]
        assert sizes == [(4, 8), (2, 16)]


def test_relative_keys_in_a_config():
    model = tiny("bert")
    model.config.position_embedding_type = "relative_key_query"
    with pytest.raises(UnsupportedModelError, match="relative_key_query"):
        rank(model)
    result = rank(model, validate=False, control_seeds=2, fresh=False)
    assert "relative_key_query" in result.not_covered[0]


def test_from_a_text_the_relative_bias_stays_as_it_is():
    """T5's encoder by itself: in its patterns, and where queries and keys are replaced."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    model = T5EncoderModel(T5Config(vocab_size=len(VOCABULARY), **sizes)).double()
    table = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias
    torch.nn.init.normal_(table.weight, std=3.0)
    loaded = headscope.wrap(model, tiny_tokenizer(40))
    assert loaded.stacks == ("encoder",)
    assert headscope.validate(loaded).passed
    result = measured(loaded, validate=False, share_projections=[32])
    assert len(result.not_covered) == 1
    _, patterns = alone(loaded)
    for head in result.heads:
        values = [dense_asymmetry(pattern[head.head]) for pattern in patterns[head.layer]]
        assert head.pattern_asymmetry.value == pytest.approx(np.mean(values), rel=1e-8)
    assert result.shared.widths[0].fidelity.value == pytest.approx(1.0, abs=1e-6)
