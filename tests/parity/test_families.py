"""Every supported family, tiny and random: our attention is the model's, read from its weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import each_family, padded_batch, tiny
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM

import headscope
from headscope.attention import attention_fused, key_padding_mask
from headscope.measures.activations import Activations
from headscope.models import routing
from headscope.models.certificate import TOLERANCES, validate_model
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router, routed
from headscope.results import ValidationResult


def assert_passed(result: ValidationResult, dtype: str, n_layers: int = 3) -> None:
    assert result.passed, result.reasons
    assert result.reasons == ()
    assert [(check.stack, check.layer, check.calls) for check in result.layers] == [
        ("encoder", layer, 1) for layer in range(n_layers)
    ]
    assert result.mask_reached
    assert result.padded > 0
    limit = TOLERANCES[dtype]
    for check in result.layers:
        assert check.max_abs_pattern is not None
        assert check.max_abs_out is not None
        assert check.max_abs_pattern <= limit["pattern"]
        assert check.max_abs_out <= limit["out"]
    for gap in (result.max_abs_hidden_eager, result.max_abs_hidden_sdpa):
        assert gap is not None
        assert gap <= limit["hidden"]


# --- the certificate --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@each_family
def test_family_validates(family: str, dtype: str) -> None:
    # Half precision has absolute tolerances for activations of the usual size: 1 / sqrt(hidden).
    spread = 0.15 if "16" in dtype else 0.3
    loaded = headscope.wrap(tiny(family, dtype, initializer_range=spread))
    assert loaded.dtype == dtype
    before = loaded.model.config._attn_implementation
    assert_passed(validate_model(loaded), dtype, 2 if "wide" in family else 3)
    assert loaded.model.config._attn_implementation == before


@each_family
def test_routed_run_is_the_models_own(family: str) -> None:
    """Without the certificate's code: patterns, order of layers and hidden state of one run."""
    model = tiny(family, "float64")
    loaded = headscope.wrap(model)
    ids, valid = padded_batch()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        theirs = model(input_ids=ids, attention_mask=valid, output_attentions=True)
    patterns: list[Tensor] = []

    class Keep:
        def observe(self, site: Activations) -> None:
            assert site.layer == len(patterns)
            patterns.append(site.pattern.clone())  # small enough to be one chunk

        def finish(self, stack: str, layer: int) -> None:
            assert (stack, layer) == ("encoder", len(patterns) - 1)

    router = Router(loaded.sites, [Keep()])
    router.begin()
    with routed(loaded.model, router):
        hidden = loaded.forward(ids, valid)
    router.check_calls()
    real = valid.bool()
    assert len(patterns) == len(theirs.attentions)
    for ours, expected in zip(patterns, theirs.attentions, strict=True):
        torch.testing.assert_close(ours.transpose(1, 2)[real], expected.transpose(1, 2)[real])
        assert not bool(ours[1, :, :, 4:].any())
    torch.testing.assert_close(hidden[real], theirs.last_hidden_state[real])


def test_albert_with_an_inner_group_has_more_attention_layers_than_its_config_says() -> None:
    loaded = headscope.wrap(tiny("albert", inner_group_num=2))
    assert_passed(validate_model(loaded), "float32", 6)


def test_albert_layers_share_one_module_and_groups_do_not() -> None:
    one = headscope.wrap(tiny("albert")).sites
    assert len({site.module for site in one}) == 1
    two = headscope.wrap(tiny("albert, two groups")).sites
    assert len({site.module for site in two}) == 2
    assert [site.layer for site in two] == [0, 1, 2]


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_certificate_does_not_depend_on_the_chunk_size(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = validate_model(headscope.wrap(tiny(family, "float64")))
    for chunk_entries in (1, 23 * 23 * 2, 23 * 23 * 12):
        stream = partial(routing.stream_attention, chunk_entries=chunk_entries)
        with monkeypatch.context() as patch:
            patch.setattr(routing, "stream_attention", stream)
            parts = validate_model(headscope.wrap(tiny(family, "float64")))
        assert_passed(parts, "float64")
        assert len(parts.layers) == len(whole.layers)


@pytest.mark.parametrize(
    ("family", "room"), [("bert", 10), ("roberta", 8), ("camembert", 8), ("distilbert", 10)]
)
def test_probe_respects_a_short_position_table(family: str, room: int) -> None:
    """Ten rows; RoBERTa and its kin keep the first two for padding."""
    loaded = headscope.wrap(tiny(family, max_position_embeddings=10))
    assert loaded.max_length == room
    result = validate_model(loaded)
    assert_passed(result, "float32")
    short, long = result.probes
    assert (short.tokens, short.padded) == (room + 7 + room + 3, 4 * room - (2 * room + 10))
    assert (long.sequences, long.length, long.padded) == (1, room, 0)


# --- the canonical weights --------------------------------------------------------------------


def layer_0_by_hand(
    family: str, model: Any, x: np.ndarray, valid: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pattern and output of the first attention, from the state dict alone."""
    attention, names = {
        "bert": ("encoder.layer.0.attention", "self.query self.key self.value output.dense"),
        "distilbert": ("transformer.layer.0.attention", "q_lin k_lin v_lin out_lin"),
        "albert": (
            "encoder.albert_layer_groups.0.albert_layers.0.attention",
            "query key value dense",
        ),
    }[family]
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    (Q, b_Q), (K, b_K), (V, b_V), (W_O, b_O) = (
        (state[f"{attention}.{name}.weight"].T, state[f"{attention}.{name}.bias"])
        for name in names.split()
    )
    batch, n, d_model = x.shape
    d_head = d_model // 4
    pattern, out = np.zeros((batch, 4, n, n)), np.zeros(x.shape) + b_O
    for b in range(batch):
        for h in range(4):
            cut = slice(h * d_head, (h + 1) * d_head)
            q, k, v = ((x[b] @ W + c)[:, cut] for W, c in ((Q, b_Q), (K, b_K), (V, b_V)))
            weight = np.exp(q @ k.T / np.sqrt(d_head)) * valid[b]
            pattern[b, h] = weight / weight.sum(1, keepdims=True)
            out[b] += pattern[b, h] @ v @ W_O[cut]
    return pattern, out


@pytest.mark.parametrize("family", ["bert", "distilbert", "albert"])
def test_canonical_weights_are_the_state_dicts(family: str) -> None:
    model = tiny(family, "float64")
    ids, valid = padded_batch()
    with torch.no_grad():
        x = model.embeddings(ids)
        if family == "albert":
            x = model.encoder.embedding_hidden_mapping_in(x)
    site = headscope.wrap(model).sites[0]
    with torch.no_grad():
        out, pattern = attention_fused(
            x, x, site.weights(), mask=key_padding_mask(valid), scale=site.scale
        )
    expected_pattern, expected_out = layer_0_by_hand(family, model, x.numpy(), valid.numpy())
    np.testing.assert_allclose(pattern, expected_pattern, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(out, expected_out, rtol=1e-9, atol=1e-12)
    model.set_attn_implementation("eager")  # and the model agrees with the hand
    with torch.no_grad():
        theirs = model(input_ids=ids, attention_mask=valid, output_attentions=True).attentions[0]
    np.testing.assert_allclose(theirs, expected_pattern, rtol=1e-9, atol=1e-13)


@each_family
def test_sites_know_heads_and_scale(family: str) -> None:
    loaded = headscope.wrap(tiny(family))
    n_heads = 2 if "wide" in family else 4
    assert {(site.n_heads, site.d_head) for site in loaded.sites} == {(n_heads, 32 // n_heads)}
    for site in loaded.sites:
        assert site.scale == pytest.approx((32 // n_heads) ** -0.5)
        w = site.weights()
        assert (w.n_heads, w.d_model, w.d_head) == (n_heads, 32, 32 // n_heads)


def test_missing_biases_are_zeros() -> None:
    model = tiny("bert", "float64")
    attention = model.encoder.layer[1].attention
    for owner, name in ((attention.self, "query"), (attention.self, "value")):
        linear = nn.Linear(32, 32, bias=False, dtype=torch.float64)
        linear.weight = getattr(owner, name).weight
        setattr(owner, name, linear)
    loaded = headscope.wrap(model)
    assert not bool(loaded.sites[1].weights().b_V.any())
    assert_passed(validate_model(loaded), "float64")


# --- other shapes of the same models ----------------------------------------------------------


def test_task_head_is_unwrapped() -> None:
    model = tiny("bert", auto=AutoModelForMaskedLM).train()
    loaded = headscope.wrap(model)
    assert loaded.model is model.bert
    assert not model.bert.training
    assert_passed(validate_model(loaded), "float32")


def sliced(linear: nn.Linear, rows: Tensor | None = None, columns: Tensor | None = None) -> Any:
    """Copy a linear map with some of its outputs or inputs only."""
    weight, bias = linear.weight.detach(), linear.bias.detach()
    weight = weight if rows is None else weight[rows]
    weight = weight if columns is None else weight[:, columns]
    new = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    new.weight = nn.Parameter(weight.clone())
    new.bias = nn.Parameter((bias if rows is None else bias[rows]).clone())
    return new


def remove_heads(model: Any, layer: int, keep: list[int]) -> None:
    kept = torch.cat([torch.arange(8 * h, 8 * h + 8) for h in keep])
    if model.config.model_type == "distilbert":
        owner = output = model.transformer.layer[layer].attention
        q, k, v, out = "q_lin", "k_lin", "v_lin", "out_lin"
    else:
        attention = model.encoder.layer[layer].attention
        owner, output = attention.self, attention.output
        q, k, v, out = "query", "key", "value", "dense"
    for name in (q, k, v):
        setattr(owner, name, sliced(getattr(owner, name), rows=kept))
    setattr(output, out, sliced(getattr(output, out), columns=kept))


@pytest.mark.parametrize("keep", [[0, 2], [3]])
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_physically_removed_heads(family: str, keep: list[int]) -> None:
    model = tiny(family, "float64")
    whole = headscope.wrap(tiny(family, "float64")).sites[1].weights()
    remove_heads(model, 1, keep)
    loaded = headscope.wrap(model)
    assert [site.n_heads for site in loaded.sites] == [4, len(keep), 4]
    assert loaded.n_heads == 4
    assert_passed(validate_model(loaded), "float64")
    rest = loaded.sites[1].weights()
    for name in ("W_Q", "b_Q", "W_K", "b_K", "W_V", "b_V", "W_O"):
        torch.testing.assert_close(getattr(rest, name), getattr(whole, name)[keep], rtol=0, atol=0)
    torch.testing.assert_close(rest.b_O, whole.b_O, rtol=0, atol=0)


# --- from a folder ----------------------------------------------------------------------------


def hidden_of(model: Any) -> Tensor:
    ids, valid = padded_batch()
    with torch.no_grad():
        hidden: Tensor = model(input_ids=ids, attention_mask=valid).last_hidden_state
    return hidden[valid.bool()]


def reopened(model: Any, folder: Path, dtype: str = "float32") -> LoadedModel:
    model.save_pretrained(folder)
    return headscope.load(str(folder), dtype=dtype, device="cpu", need_tokenizer=False)


@each_family
def test_saved_folder_validates_and_is_the_same_model(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    loaded = reopened(model, tmp_path)
    assert loaded.tokenizer is None
    assert loaded.weights_sha256 is not None
    torch.testing.assert_close(hidden_of(loaded.model), hidden_of(model))
    assert_passed(validate_model(loaded), "float32", 2 if "wide" in family else 3)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_folder_opens_in_another_dtype(dtype: str, tmp_path: Path) -> None:
    loaded = reopened(tiny("bert"), tmp_path, dtype)
    assert loaded.dtype == dtype
    assert_passed(validate_model(loaded), dtype)


def test_folder_with_a_task_head_opens_as_the_base_model(tmp_path: Path) -> None:
    """A masked language model has no pooler; that is no missing part."""
    model = tiny("bert", auto=AutoModelForMaskedLM)
    loaded = reopened(model, tmp_path)
    torch.testing.assert_close(hidden_of(loaded.model), hidden_of(model.bert))
    assert_passed(validate_model(loaded), "float32")
