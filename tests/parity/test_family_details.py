"""What some families have and others have not: windows, shared keys, tables, several stacks."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import BY_NAME, SITES, ids_and_mask, opened, tiny
from families import batch as pairs
from tiny_models import VOCABULARY, tiny_tokenizer
from torch import Tensor
from transformers import AutoModelForMaskedLM
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

import headscope
from headscope.artefacts.saving import bytes_of_weights
from headscope.core.activations import Activations
from headscope.core.errors import InputError, UnsupportedModelError, ValidationFailedError
from headscope.data.corpus import as_corpus
from headscope.data.packing import pack_pairs
from headscope.models.certificate.certificate import validate_model
from headscope.models.certificate.verdict import TOLERANCES
from headscope.models.certificate.whole_runs import largest_gap
from headscope.models.layouts.disentangled import bucketed
from headscope.models.layouts.positions import beyond_products
from headscope.models.run.implementation import use_implementation
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.probes import Probe, probes
from headscope.models.run.rotations import rotations
from headscope.models.run.routing import Router, routed


def wrapped(name: str, dtype: str = "float32", **changes: Any) -> LoadedModel:
    return headscope.wrap(tiny(name, dtype, **changes))


def batch(loaded: LoadedModel, *lengths: int) -> Probe:
    """Random sentences of these lengths, right-padded."""
    draw = torch.Generator().manual_seed(3)
    rows = [torch.randint(5, 61, (n,), generator=draw).tolist() for n in lengths]
    return Probe("batch", *loaded.pad(rows))


def states(loaded: LoadedModel) -> Tensor:
    probe = batch(loaded, 14, 3)
    with torch.no_grad():
        return loaded.run(**probe.inputs)[0][probe.real]


def reopened(loaded: LoadedModel, folder: Path) -> LoadedModel:
    headscope.save(loaded, folder)
    return headscope.load(str(folder), need_tokenizer=False, task_head="auto", device="cpu")


@pytest.mark.parametrize(
    ("changes", "window", "length"),
    [({"local_attention": 256, "max_position_embeddings": 8192}, 128, 384), ({}, 4, 64)],
)
def test_the_long_probe_goes_beyond_the_window(changes, window, length):
    """ModernBERT's windows are of so many positions to each side, inclusive."""
    loaded = wrapped("modernbert", **changes)
    assert [site.window for site in loaded.sites] == [None, window, None, window]
    assert probes(loaded)[-1].input_ids.shape == (1, length)
    assert length > 2 * window


def test_shared_keys_go_with_the_last_head_that_reads_them():
    """Heads 0 and 1 read the first key, 2 and 3 the second."""
    loaded = wrapped("eurobert, shared keys")
    first = loaded.sites[0].weights()
    assert first.W_K.shape == first.W_V.shape == first.W_Q.shape == (4, 32, 8)
    assert torch.equal(first.W_K[0], first.W_K[1])
    assert not torch.equal(first.W_K[1], first.W_K[2])
    cut = headscope.remove_heads(loaded, [(0, 0), (0, 1), (0, 3), (1, 2), (2, 1), (2, 2)])
    for layer, groups in {0: [1], 1: [0, 1], 2: [0, 1]}.items():
        before = loaded.sites[layer].module
        after = cut.sites[layer].module
        for name in ("k_proj", "v_proj"):
            stored = getattr(before, name).weight.unflatten(0, (2, 8))[groups]
            assert torch.equal(getattr(after, name).weight, stored.flatten(0, 1))
    weights = cut.sites[2].weights()
    full = loaded.sites[2].weights()
    assert torch.equal(weights.W_K, full.W_K[[0, 3]])
    assert torch.equal(weights.W_V, full.W_V[[0, 3]])


@pytest.mark.parametrize("name", ["squeezebert, mixed", "convbert, wide kernel", "gpt2, by layer"])
def test_other_settings_lose_heads_too(name):
    loaded = wrapped(name)
    gates = torch.ones(3, 4)
    gates[0, 1] = gates[2, 0] = 0
    gates[1] = 0
    probe = batch(loaded, 14, 3)
    with gated(loaded, gates) as run:
        expected = run(**probe.inputs)[0][probe.real]
    compact = headscope.remove_heads(
        loaded, [tuple(head) for head in (gates == 0).nonzero().tolist()]
    )
    torch.testing.assert_close(states(compact), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_half_precision_is_stored_where_nothing_is_lost(half, tmp_path):
    """ESM keeps its angles, which no type of two bytes holds, among its weights."""
    loaded = wrapped("esm", initializer_range=0.2)
    for parameter in loaded.model.parameters():
        parameter.data = parameter.to(getattr(torch, half)).float()
    loaded.model.rotary_embeddings.inv_freq.fill_(1 / 3)
    compact = headscope.remove_heads(loaded, [(0, 1)])
    again = reopened(compact, tmp_path / "x")
    assert again.stored_dtype == half
    assert bytes_of_weights(compact) == 2 * sum(p.numel() for p in compact.network.parameters())
    torch.testing.assert_close(states(again), states(compact), rtol=0, atol=1e-5)


def test_a_language_model_of_another_name_has_its_head(tmp_path):
    loaded = headscope.wrap(tiny("xlm", auto=AutoModelForMaskedLM))
    compact = headscope.remove_heads(loaded, [(0, 1), (2, 0)])
    again = reopened(compact, tmp_path / "x")
    assert (compact.task_head, again.task_head) == ("mlm", "mlm")
    inputs = batch(loaded, 9, 4).inputs
    with torch.no_grad():
        _, expected = compact.run(**inputs)
        _, logits = again.run(**inputs)
    assert expected.shape == (2, 9, 61)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("deberta, plain", {"talking_head": True}, r"talking_head.*mixes the scores"),
        ("squeezebert", {"post_attention_groups": 2}, "works in 2 groups"),
        # Its convolution of even width does not run in transformers either.
        ("convbert", {"conv_kernel_size": 4}, r"\(convbert\) does not run on token ids alone"),
    ],
)
def test_settings_that_cannot_be_covered_are_refused(name, changes, said):
    with pytest.raises(UnsupportedModelError, match=said):
        wrapped(name, **changes)


#: Layouts that rotate, but for two configurations of them.
TURNING = (
    *("rotary", "normed", "esm", "roformer", "modernbert", "modernbert-decoder"),
    *("phi", "phi3", "gpt_neox", "gpt_neox_japanese", "gptj", "codegen", "falcon"),
)
STILL = ("esm, absolute", "falcon, by distance")


def test_rank_knows_what_has_rotation_and_what_has_beyond_products():
    for name, family in BY_NAME.items():
        model = tiny(name)
        turns = family.layout in TURNING and name not in STILL
        assert bool(rotations(headscope.wrap(model))) == turns, name
        # olmo and olmoe bound the entries of q and k, gemma2 its scores
        bounded = family.kind in ("olmo", "olmoe") or name == "gemma2"
        biased = bounded or family.kind in ("mpnet", "t5", "mt5", "umt5", "bloom")
        relative = biased or name == "falcon, by distance"
        if "deberta" in name:
            relative = not name.endswith(("plain", "listed", "no term"))
        terms = beyond_products(model.config)
        assert (terms is not None) == relative, name
        if name in ("mpnet", "umt5", "gemma2"):
            assert headscope.rank(model, control_seeds=2, fresh=False).not_covered == (terms,)


def test_states_of_any_size_are_compared():
    """MobileBERT has no LayerNorm: its states may be large, and float32 rounds them as it must."""
    model = tiny("mobilebert")
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.output.bottleneck.LayerNorm.weight *= 20.0
            for bottleneck in (layer.bottleneck.input, layer.bottleneck.attention):
                bottleneck.LayerNorm.weight /= 20.0
            layer.attention.self.value.weight /= 20.0
    loaded = headscope.wrap(model)
    assert float(states(loaded).abs().max()) > 1e3
    result = validate_model(loaded)
    assert result.passed, result.reasons
    # Gaps are relative to their size, and small ones as they are.
    real = torch.tensor([[True, True, False]])
    reference = torch.tensor([[[1e7], [-3.0], [9e9]]])
    for ours, expected in ((reference + 20.0, 2e-5), (reference * 1.5, 5.0)):
        assert largest_gap(ours, reference, real) == pytest.approx(expected, rel=1e-3)
    small = torch.tensor([[[9.0], [-3.0], [0.0]]])
    assert largest_gap(small + 0.25, small, real) == 0.25


def test_a_model_may_be_routed_while_it_is_routed():
    """As a task runs the unpruned model between two batches of the pruned one."""
    loaded = wrapped("mpnet")
    outer = Router(loaded.sites)
    inner = Router(loaded.sites)
    run = partial(loaded.forward, **batch(loaded, 14, 3).inputs)
    with routed(loaded.model, outer):
        first = outer.checked(run)
        with routed(loaded.model, inner):
            inner.checked(run)
        torch.testing.assert_close(outer.checked(run), first)
    assert not any("forward" in vars(site.module) for site in loaded.sites)


LINES = ["the cat sat on the mat", "he saw a big dog in the red house and ran"] * 6


def with_words(family: str) -> LoadedModel:
    return headscope.wrap(tiny(family, vocab_size=len(VOCABULARY)), tiny_tokenizer(38))


def svd_curve(pattern: Any) -> np.ndarray:
    """Shares of the singular values of (batch, query_pos, key_pos), mean over sequences."""
    sigma = np.linalg.svd(pattern.double(), compute_uv=False)
    curve: np.ndarray = (np.cumsum(sigma, -1) / sigma.sum(-1, keepdims=True)).mean(0)
    return curve


PAIRS = [("the cat sat on the mat", "he saw a big dog"), ("a red house", "she ran and sat")] * 8


def test_every_stack_of_an_encoder_decoder():
    loaded = with_words("t5")
    result = headscope.spectrum(loaded, PAIRS, length=12, sequences=3)
    stacks = ["encoder"] * 8 + ["decoder"] * 12 + ["cross"] * 12
    assert [head.stack for head in result.heads] == stacks
    windows = pack_pairs(as_corpus(PAIRS), loaded, 12, (loaded.start_id,))
    sources, targets = map(torch.from_numpy, windows.inputs(windows.spread(3)))
    with use_implementation(loaded.network, "eager"), torch.no_grad():
        output = loaded.network(
            input_ids=sources, decoder_input_ids=targets, output_attentions=True
        )
    for head in result.heads:
        curve = svd_curve(getattr(output, f"{head.stack}_attentions")[head.layer][:, head.head])
        np.testing.assert_allclose(head.curve, curve, atol=2e-5)
    alone = headscope.spectrum(loaded, PAIRS, stack="cross", length=12, sequences=3)
    assert [h.curve for h in alone.heads] == [h.curve for h in result.heads if h.stack == "cross"]
    of_text = headscope.spectrum(loaded, LINES, length=12, sequences=3)
    assert {head.stack for head in of_text.heads} == {"encoder"}
    with pytest.raises(InputError, match="pairs of source and target for the stack cross"):
        headscope.spectrum(loaded, LINES, stack="cross", length=12)
    with pytest.raises(InputError, match="efficient covers"):
        headscope.spectrum(loaded, PAIRS, stack="cross", length=12, efficient=True)


@pytest.mark.parametrize(("buckets", "far"), [(256, 512), (8, 16)])
def test_buckets_are_those_of_transformers(buckets, far):
    """As DeBERTa-v3 has them (256 of 512), far beyond the last one."""
    away = torch.arange(-700, 701)
    expected = make_log_bucket_position(away, buckets, far)
    assert (bucketed(away, buckets, far) == expected).all()


# --- encoder-decoders, and views of a stack -------------------------------------------------------

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


def seen_by(loaded: LoadedModel, inputs: dict[str, Tensor]) -> list[Activations]:
    seen: list[Activations] = []

    class Keep:
        def observe(self, site: Activations) -> None:
            seen.append(replace(site, pattern=site.pattern.clone()))

        def finish(self, stack: str, layer: int) -> None:
            assert (stack, layer) == (seen[-1].stack, seen[-1].layer)

    router = Router(loaded.sites, [Keep()], unmeasured_sites=loaded.unmeasured_sites)
    with routed(loaded.model, router):
        router.checked(loaded.forward, **inputs)
    return seen


@each_kind
def test_a_view_sees_its_own_stack(kind):
    loaded = opened(kind)
    all_chunks = seen_by(loaded, pairs(loaded))
    for stack in STACKS:
        view = loaded.only(stack)
        layers = [layer for name, layer in SITES if name == stack]
        assert [(site.stack, site.layer, site.row) for site in view.sites] == [
            (stack, layer, layer) for layer in layers
        ]
        assert (view.n_layers, view.n_heads, view.stacks) == (len(layers), 4, (stack,))
        other_sites = {(site.stack, site.layer) for site in view.unmeasured_sites}
        assert other_sites == {*SITES} - {(stack, layer) for layer in layers}
        assert view.network is loaded.network
        assert view.view_of is loaded
        seen = seen_by(view, pairs(loaded))
        assert [(chunk.stack, chunk.row) for chunk in seen] == [(stack, layer) for layer in layers]
        of_stack = [chunk for chunk in all_chunks if chunk.stack == stack]
        for chunk, same in zip(seen, of_stack, strict=True):
            torch.testing.assert_close(chunk.pattern, same.pattern, rtol=0, atol=0)


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
        expected = loaded.network.get_encoder()(
            input_ids=ids, attention_mask=mask
        ).last_hidden_state
        torch.testing.assert_close(loaded.forward(ids, mask), expected, rtol=0, atol=0)
        hidden, logits = loaded.run(ids, mask)
    assert logits is None
    torch.testing.assert_close(hidden, expected, rtol=0, atol=0)
    view = loaded.only("encoder")
    router = Router(view.sites, unmeasured_sites=view.unmeasured_sites)
    with routed(loaded.model, router):
        ours = router.checked(view.forward, ids, mask)
    torch.testing.assert_close(ours[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-5)
    router = Router(loaded.sites)
    with routed(loaded.model, router), pytest.raises(ValidationFailedError, match="decoder layer"):
        router.checked(loaded.forward, ids, mask)
