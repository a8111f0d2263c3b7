"""Encoder-decoder models: certificate, views of a stack, wrong variants, found checkpoints."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import SITES, batch, ids_and_mask, network, opened, tiny
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

import headscope
from headscope import attention
from headscope.attention import stream_attention
from headscope.core.activations import Activations
from headscope.core.errors import CheckpointError, InputError, ValidationFailedError
from headscope.models.certificate.certificate import TOLERANCES, validate_model
from headscope.models.layouts.layout import Layout
from headscope.models.layouts.maps import AttentionInput
from headscope.models.layouts.relative import T5Layout
from headscope.models.load.network import _check_complete
from headscope.models.load.source import Source
from headscope.models.run import routing
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.recording import probes
from headscope.models.run.routing import Router, routed

STACKS = ("encoder", "decoder", "cross")
each_kind = pytest.mark.parametrize("kind", ["bart", "t5"])


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("bart", "float16"), ("t5", "float16"), ("marian", "bfloat16"), ("t5", "float64")],
)
def test_it_validates_with_padding_on_both_sides(kind, dtype):
    # Half precision has absolute tolerances for activations of the usual size.
    changes = {"init_std": 0.15} if "16" in dtype and kind != "t5" else {}
    loaded = opened(kind, dtype, **changes)
    result = validate_model(loaded)
    assert result.passed, result.reasons
    assert [(c.stack, c.layer, c.calls) for c in result.layers] == [(*site, 1) for site in SITES]
    assert result.mask_reached
    assert result.max_abs_pattern <= TOLERANCES[dtype]["pattern"]
    padded = probes(loaded)[0]
    for mask in (padded.attention_mask, padded.decoder_attention_mask):
        assert 0 in mask
    assert padded.input_ids.shape != padded.inputs["decoder_input_ids"].shape


@each_kind
def test_sites_and_states_are_those_of_transformers(kind):
    loaded = opened(kind, "float64")
    assert loaded.stacks == STACKS
    assert [(site.stack, site.layer) for site in loaded.sites] == SITES
    assert [site.row for site in loaded.sites] == list(range(8))
    assert [site.causal for site in loaded.sites] == [site[0] == "decoder" for site in SITES]
    for site in loaded.sites:
        inside = site.name.split(".")[0]
        assert inside == ("encoder" if site.stack == "encoder" else "decoder")
        assert (site.n_heads, site.d_head) == (4, 8)
        named_cross = "encoder_attn" in site.name or "EncDec" in site.name
        assert named_cross == (site.stack == "cross")
    given = batch(loaded)
    with torch.no_grad():
        own = loaded.network(**given, output_hidden_states=True)
        hidden, logits = loaded.run(**given)
        alone = loaded.forward(**given)
    torch.testing.assert_close(logits, own.logits, rtol=0, atol=0)
    torch.testing.assert_close(hidden, own.decoder_hidden_states[-1], rtol=0, atol=0)
    torch.testing.assert_close(alone, hidden, rtol=0, atol=0)


def _seen(loaded: LoadedModel, given: dict[str, Tensor]) -> list[Activations]:
    seen: list[Activations] = []

    class Keep:
        def observe(self, site: Activations) -> None:
            seen.append(replace(site, pattern=site.pattern.clone()))

        def finish(self, stack: str, layer: int) -> None:
            assert (stack, layer) == (seen[-1].stack, seen[-1].layer)

    router = Router(loaded.sites, [Keep()], others=loaded.others)
    with routed(loaded.model, router):
        router.checked(loaded.forward, **given)
    return seen


@each_kind
def test_a_view_sees_its_own_stack(kind):
    loaded = opened(kind)
    whole = _seen(loaded, batch(loaded))
    for stack in STACKS:
        view = loaded.only(stack)
        layers = [layer for name, layer in SITES if name == stack]
        assert [(site.stack, site.layer, site.row) for site in view.sites] == [
            (stack, layer, layer) for layer in layers
        ]
        assert (view.n_layers, view.n_heads, view.stacks) == (len(layers), 4, (stack,))
        others = {(site.stack, site.layer) for site in view.others}
        assert others == {*SITES} - {(stack, layer) for layer in layers}
        assert view.network is loaded.network
        assert view.whole is loaded
        seen = _seen(view, batch(loaded))
        assert [(found.stack, found.row) for found in seen] == [(stack, layer) for layer in layers]
        of_whole = [found for found in whole if found.stack == stack]
        for found, same in zip(seen, of_whole, strict=True):
            torch.testing.assert_close(found.pattern, same.pattern, rtol=0, atol=0)


def test_a_view_of_a_view_is_of_the_whole_and_an_only_stack_is_the_model():
    loaded = opened("bart")
    view = loaded.only("cross")
    assert view.only("decoder").stacks == ("decoder",)
    assert view.only("all") is loaded
    assert loaded.only("all") is loaded
    with pytest.raises(InputError, match="has no stack 'sideways'; it has encoder and decoder and"):
        view.only("sideways")
    only = headscope.wrap(tiny("bert"))
    assert only.only("encoder") is only
    with pytest.raises(InputError, match="has no stack 'cross'; it has encoder"):
        only.only("cross")


def test_the_certificate_of_a_view_is_that_of_the_whole(monkeypatch):
    loaded = opened("bart")
    result = validate_model(loaded.only("cross"))
    assert len(result.layers) == 8
    assert validate_model(loaded) is result
    with torch.no_grad():
        loaded.model.get_parameter("encoder.layers.0.self_attn.q_proj.weight").mul_(2)
    assert validate_model(loaded.only("cross")) is not result


@each_kind
def test_the_encoder_runs_on_sentences_alone(kind):
    loaded = opened(kind)
    ids, mask = ids_and_mask((9, 5, 7), 1)
    with torch.no_grad():
        own = loaded.network.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        torch.testing.assert_close(loaded.forward(ids, mask), own, rtol=0, atol=0)
        hidden, logits = loaded.run(ids, mask)
    assert logits is None
    torch.testing.assert_close(hidden, own, rtol=0, atol=0)
    view = loaded.only("encoder")
    router = Router(view.sites, others=view.others)
    with routed(loaded.model, router):
        ours = router.checked(view.forward, ids, mask)
    torch.testing.assert_close(ours[mask.bool()], own[mask.bool()], rtol=0, atol=1e-5)
    router = Router(loaded.sites)
    with routed(loaded.model, router), pytest.raises(ValidationFailedError, match="decoder layer"):
        router.checked(loaded.forward, ids, mask)


def roll(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.roll(1, dims=1)


def mask_lost(*args: Any, **options: Any) -> Tensor | None:
    mask = sdpa_mask(*args, **options)
    return None if mask is None else mask.any(dim=2, keepdim=True).expand_as(mask)


def own_keys(*call: Any, right: Any = Layout.read) -> AttentionInput:
    inputs = right(*call)
    return replace(inputs, x_k=inputs.x_q)


def other_sentence(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if q.shape[2] != k.shape[2]:
        k, v = (x.roll(1, dims=0) for x in (k, v))
    return stream_attention(q, k, v, **options)


def other_bias(*call: Any, right: Any = T5Layout.bias) -> Tensor | None:
    return roll(right(*call))


def merged(mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    return attention.with_bias(mask, roll(bias))


def scaled(*qkv: Tensor, scale: float, **options: Any) -> Tensor:
    return stream_attention(*qkv, scale=scale * 8**-0.5, **options)


THREE = ("bart", "t5")
MASKS = AttentionMaskInterface._global_mapping
#: Of what is wrong: where, the families, the stacks whose patterns fail, those that are right.
WRONG: dict[str, tuple[Any, str, Any, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "mask lost": (MASKS, "headscope", mask_lost, THREE, ("decoder",), ("encoder",)),
    "no direction": (Layout, "causal", lambda *_: False, THREE, ("decoder",), ("encoder", "cross")),
    "own keys": (Layout, "read", own_keys, THREE, ("cross",), ("encoder", "decoder")),
    "other sentence": (routing, "stream_attention", other_sentence, THREE, (), ()),
    # T5 has no bias where the decoder reads the encoder
    "other bias": (T5Layout, "bias", other_bias, ("t5",), ("encoder", "decoder"), ("cross",)),
    "merged otherwise": (routing, "with_bias", merged, ("t5",), ("encoder", "decoder"), ()),
    "scale of the layout": (T5Layout, "scale", lambda *_: 8**-0.5, ("t5",), STACKS, ()),
    "scale of attention": (routing, "stream_attention", scaled, ("t5",), STACKS, ()),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_variants_fail_where_they_are(case, monkeypatch):
    owner, name, wrong, kinds, failed, right = WRONG[case]
    models = [opened(kind, "float64") for kind in kinds]
    if isinstance(owner, dict):
        monkeypatch.setitem(owner, name, wrong)
    else:
        monkeypatch.setattr(owner, name, wrong)
    for loaded in models:
        result = validate_model(loaded)
        assert not result.passed
        assert result.mask_reached
        for stack in failed:
            first = [r for r in result.reasons if f"{stack} layer 0" in r]
            assert any("pattern" in r for r in first), result.reasons
        for stack in right:
            assert not any(f"{stack} layer" in r for r in result.reasons), result.reasons
        if not failed:  # the patterns are right, and not what they are multiplied by
            assert any("cross layer 0: max |out" in r for r in result.reasons), result.reasons


#: A tensor of each family that nothing else can stand for.
NEEDED = {
    "marian": "model.decoder.layers.1.encoder_attn.k_proj.weight",
    "bart": "model.encoder.embed_positions.weight",  # learned, not computed
    "t5": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
}
TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
GIVEN = {
    "input_ids": torch.tensor([[7, 8, 9, 10, 11]]),
    "attention_mask": torch.ones(1, 5, dtype=torch.long),
    "decoder_input_ids": torch.tensor([[2, 12, 13]]),
}


def saved(kind: str, folder: Path, without: tuple[str, ...] = ()) -> tuple[Any, dict[str, Tensor]]:
    """Let transformers save a model, then take tensors out of the file."""
    model = network(kind)
    model.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    store(folder, {name: tensor for name, tensor in state.items() if name not in without})
    return model, state


def store(folder: Path, state: dict[str, Tensor]) -> None:
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def from_folder(folder: Path, task_head: str | None) -> LoadedModel:
    return headscope.load(str(folder), task_head=task_head, need_tokenizer=False, device="cpu")


@pytest.mark.parametrize(
    ("kind", "task_head"),
    [*((kind, "auto") for kind in ("bart", "marian", "pegasus", "t5")), ("marian", None)],
)
def test_what_transformers_saved_opens(kind, task_head, tmp_path):
    model, state = saved(kind, tmp_path, TABLES if kind in ("marian", "pegasus") else ())
    assert not any(name.startswith("lm_head") for name in state)  # tied to the embeddings
    loaded = from_folder(tmp_path, task_head)
    assert loaded.task_head == (task_head and "seq2seq")
    with torch.no_grad():
        expected = model(**GIVEN, output_hidden_states=True)
        hidden, logits = loaded.run(**GIVEN)
    torch.testing.assert_close(hidden, expected.decoder_hidden_states[-1], rtol=0, atol=1e-5)
    if task_head:
        torch.testing.assert_close(logits, expected.logits, rtol=0, atol=1e-5)
        head, words = loaded.network.get_output_embeddings(), loaded.model.get_input_embeddings()
        assert head.weight is words.weight
    result = validate_model(loaded)
    assert result.passed, result.reasons


def test_a_table_that_is_stored_counts_as_it_stands(tmp_path):
    model, state = saved("marian", tmp_path, TABLES)
    # Marian itself does not store them, or the test above would prove nothing.
    assert not {*TABLES} & state.keys()
    own = {name: model.state_dict()[name] + 0.25 for name in TABLES}
    store(tmp_path, {**state, **own})
    loaded = from_folder(tmp_path, "seq2seq")
    for name, tensor in own.items():
        assert torch.equal(loaded.network.state_dict()[name], tensor)


def test_a_missing_table_must_hold_what_its_module_computes(tmp_path):
    model = network("marian")
    info = {"missing_keys": [*TABLES]}
    stated: Any = SimpleNamespace(stated={})
    _check_complete(model, info, Source("tiny", tmp_path), stated)
    with torch.no_grad():
        model.get_parameter(TABLES[1])[3, 3] += 0.01
    with pytest.raises(CheckpointError, match=r"lacks 1 of the model's tensors.*decoder.embed_pos"):
        _check_complete(model, info, Source("tiny", tmp_path), stated)


@pytest.mark.parametrize(("kind", "task_head"), [*((k, "auto") for k in NEEDED), ("bart", None)])
def test_a_tensor_that_is_really_missing(kind, task_head, tmp_path):
    saved(kind, tmp_path, (NEEDED[kind],))
    name = NEEDED[kind] if task_head else NEEDED[kind].removeprefix("model.")
    with pytest.raises(CheckpointError, match=f"lacks 1 of the model's tensors.*{name}"):
        from_folder(tmp_path, task_head)
