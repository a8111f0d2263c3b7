"""Models that no layout describes are measured from q, k and v as they hand them over."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from families import _ENDS, BY_NAME, ENCODER, Family, padded_batch
from strange_model import N_HEADS, WIDTH, strange
from tiny_models import VOCABULARY, tiny_tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, AutoModelForSeq2SeqLM

import headscope
from headscope.attention import stream_attention
from headscope.core.activations import Activations
from headscope.core.errors import UnsupportedModelError
from headscope.live.answers import Answers
from headscope.models.certificate.certificate import validate_model
from headscope.models.layouts.handed import NAME
from headscope.models.run import routing
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router, routed

LINES = [f"the big dog sat on {what}" for what in ("it", "the mat", "a red house", "a cat")] * 3


@pytest.fixture
def loaded() -> LoadedModel:
    return headscope.wrap(strange())


@pytest.fixture
def with_words() -> LoadedModel:
    network = strange(vocab_size=len(VOCABULARY), num_hidden_layers=2)
    return headscope.wrap(network, tiny_tokenizer(128))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_model_of_tomorrow_validates(dtype):
    loaded = headscope.wrap(strange(dtype))
    assert [(s.layout.name, s.stack, s.layer) for s in loaded.sites] == [
        (NAME, "decoder", layer) for layer in range(3)
    ]
    assert {(site.n_heads, site.d_head) for site in loaded.sites} == {(N_HEADS, WIDTH)}
    result = validate_model(loaded)
    assert result.passed, result.reasons
    assert result.mask_reached
    assert result.max_abs_hidden_sdpa is not None
    (remark,) = loaded.remarks
    assert "no layout for Stirrer" in remark


class Keep:
    def __init__(self) -> None:
        self.patterns: dict[int, Tensor] = {}

    def observe(self, site: Activations) -> None:
        self.patterns[site.layer] = site.pattern.clone()

    def finish(self, stack: str, layer: int) -> None:
        """Nothing to do."""


def test_patterns_and_switched_off_heads_are_the_models_own(loaded):
    ids, mask = padded_batch()
    real = mask.bool()
    network: Any = loaded.network

    keep = Keep()
    with routed(loaded.model, Router(loaded.sites, [keep])) as router:
        router.checked(loaded.forward, ids, mask)
    network.set_attn_implementation("eager")
    with torch.no_grad():
        full = loaded.forward(ids, mask)
    for layer, storey in enumerate(network.storeys):
        own = storey.stirs.last_pattern.transpose(1, 2)[real]
        torch.testing.assert_close(keep.patterns[layer].transpose(1, 2)[real], own)

    gates = torch.ones(3, N_HEADS)
    gates[1, 2] = gates[0, 0] = 0
    with gated(loaded, gates) as run:
        without = run(ids, mask)[0][real]
    for layer, head in ((1, 2), (0, 0)):
        network.storeys[layer].stirs.mixes.weight.data[:, head * WIDTH : (head + 1) * WIDTH] = 0
    with torch.no_grad():
        expected = loaded.forward(ids, mask)[real]
    torch.testing.assert_close(without, expected, rtol=0, atol=1e-5)
    assert float((expected - full[real]).abs().max()) > 1e-2


def test_an_attention_that_is_wrong_by_one_percent_in_one_layer_fails(loaded, monkeypatch):
    scales = iter([1.0, 1.01, 1.0] * 10)

    def wrong(*qkv: Tensor, scale: float, **options: Any) -> Tensor:
        return stream_attention(*qkv, scale=scale * next(scales), **options)

    monkeypatch.setattr(routing, "stream_attention", wrong)
    result = validate_model(loaded)
    assert not result.passed
    assert "decoder layer 1" in "; ".join(result.reasons)


def test_what_the_model_does_to_its_pattern_by_itself_is_seen(loaded):
    """It sharpens in its own eager function, which nobody is told."""
    stirrer = loaded.model.storeys[2].stirs
    stirrer.change_pattern = lambda pattern: pattern**1.01 / (pattern**1.01).sum(-1, keepdim=True)
    result = validate_model(loaded)
    assert not result.passed
    assert any(reason.startswith("decoder layer 2: pattern") for reason in result.reasons)


def test_sites_without_weights_are_values_like_others(loaded):
    assert "strange, 3 layers x 4 heads" in repr(loaded)
    assert len(set(loaded.sites)) == 3
    copied = copy.deepcopy(loaded.sites[1])
    assert (copied.has_weights, copied.scale, copied.layer) == (False, loaded.sites[1].scale, 1)


def test_a_bound_of_the_scores_is_handed_over_too():
    network = strange()
    for storey in network.storeys:
        storey.stirs.extra = {"softcap": 0.7}
    network.set_attn_implementation("eager")  # transformers' SDPA refuses it
    loaded = headscope.wrap(network)
    assert {site.softcap for site in loaded.sites} == {0.7}
    result = validate_model(loaded)
    assert result.passed, result.reasons
    assert result.max_abs_hidden_sdpa is None


def test_arguments_that_change_scores_are_refused_in_one_sentence(loaded):
    for storey in loaded.model.storeys:
        storey.stirs.extra = {"s_aux": torch.zeros(N_HEADS)}
    (reason,) = validate_model(loaded).reasons
    assert reason == "Stirrer adds s_aux to its attention, which headscope does not cover."


def _texts(tmp_path: Any) -> dict[str, Any]:
    for name in ("data", "calibration"):
        (tmp_path / name).with_suffix(".txt").write_text("\n".join(f"{x} {name}" for x in LINES))
    return {"data": tmp_path / "data.txt", "calibration": tmp_path / "calibration.txt"}


FEW: dict[str, Any] = {"limit": 6, "calibration_limit": 6, "draws": 5}


def test_what_works(with_words, tmp_path):
    assert headscope.classify(with_words, LINES).heads
    assert headscope.spectrum(with_words, LINES, length=8, sequences=2)
    assert headscope.symmetric(with_words, LINES, sentences=2)
    answers = Answers(with_words)(LINES[:2], ["decoder:L0H1"])["answers"]
    assert answers[0]["full"] != answers[0]["off"]
    texts = _texts(tmp_path)
    result = headscope.prune(with_words, fractions=[0.5], **FEW, **texts)
    assert {curve.method for curve in result.curves} >= {"fisher", "random"}
    assert any("which headscope does not know" in warning for warning in result.warnings)
    named = headscope.prune(with_words, heads="L0H1", **FEW, **texts)
    (point,) = named.curves[0].points
    assert len(point.heads_removed) == 1


NEEDS_WEIGHTS: dict[str, Callable[..., Any]] = {
    "rank": lambda model, _: headscope.rank(model, control_seeds=2),
    "attribute": lambda model, _: headscope.attribute(model, LINES[0], LINES[1]),
    "explain": lambda model, _: headscope.explain(model, LINES[0]),
    "flow": lambda model, _: headscope.flow(model, LINES, control=False),
    "remove_heads": lambda model, _: headscope.remove_heads(model, [(0, 1)]),
    "prune --save": lambda model, folder: headscope.prune(
        model, heads="L0H1", save=folder / "saved", **FEW, **_texts(folder)
    ),
}


@pytest.mark.parametrize("command", NEEDS_WEIGHTS)
def test_what_needs_weights_says_so_in_one_sentence(command, with_words, tmp_path):
    with pytest.raises(
        UnsupportedModelError, match="does not know where Stirrer keeps W_Q"
    ) as said:
        NEEDS_WEIGHTS[command](with_words, tmp_path)
    assert "the curves of prune" in str(said.value)
    assert not (tmp_path / "saved").exists()


_GROUPS = {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}


@pytest.mark.parametrize(
    ("kind", "stack", "changes"),
    [
        ("hunyuan_v1_dense", "decoder", _GROUPS),  # norms what it has turned
        ("bitnet", "decoder", _GROUPS),  # a norm between z and W_O
        ("clip_text_model", "decoder", {"eos_token_id": 2}),  # says nowhere that it is causal
    ],
)
def test_a_layout_of_the_right_names_that_describes_another_family_is_not_used(
    kind, stack, changes
):
    sizes = {**changes, "max_position_embeddings": 64}
    loaded = headscope.wrap(Family(kind, NAME, (stack,), {**ENCODER, **sizes}).model())
    assert {site.layout.name for site in loaded.sites} == {NAME}
    assert loaded.stacks == (stack,)
    result = validate_model(loaded)
    assert result.passed, result.reasons


def test_a_layout_that_describes_an_unlisted_family_is_used():
    loaded = headscope.wrap(Family("arcee", "rotary", ("decoder",), _GROUPS).model())
    assert {site.layout.name for site in loaded.sites} == {"rotary"}
    assert validate_model(loaded).passed


def test_prompts_before_the_keys_are_refused_in_one_sentence():
    """MVP's, which its published models of several tasks have."""
    prompts = {"use_prompt": True, "prompt_length": 3, "prompt_mid_dim": 8}
    with pytest.raises(UnsupportedModelError, match=r"adds prompts \(use_prompt\) to its keys"):
        headscope.wrap(BY_NAME["mvp"].model(**prompts))


def test_an_encoder_decoder_with_a_configuration_for_each_stack():
    """Its cross-attention calls what it reads ``encoder_hidden_states``."""
    stack = {**ENCODER, **_GROUPS, "num_hidden_layers": 2, "sliding_window": 8}
    starts = {"bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    config = AutoConfig.for_model(
        "t5gemma", encoder=stack, decoder=stack, vocab_size=61, pad_token_id=0, **starts
    )
    loaded = headscope.wrap(AutoModelForSeq2SeqLM.from_config(config))
    assert [site.stack for site in loaded.sites] == ["encoder"] * 2 + ["decoder"] * 2 + [
        "cross"
    ] * 2
    result = validate_model(loaded)
    assert result.passed, result.reasons


def test_a_causal_model_of_the_other_name_predicts_next_tokens():
    """Gemma 3 that also reads images is a ``ForConditionalGeneration`` without an encoder."""
    sizes = {**ENCODER, **_GROUPS, "sliding_window": 8}
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    pixels = {"intermediate_size": 16, "image_size": 28, "patch_size": 14}
    config = AutoConfig.for_model(
        "gemma3", text_config=sizes, vision_config={**vision, **pixels}, mm_tokens_per_image=4
    )
    loaded = headscope.wrap(AutoModelForImageTextToText.from_config(config))
    assert (loaded.task_head, loaded.stacks) == ("causal", ("decoder",))


@pytest.mark.parametrize("kind", ["olmo_hybrid", "qwen3_5_text"])
def test_layers_of_linear_attention_have_no_heads(kind):
    """The others keep their numbers."""
    sizes = {"num_hidden_layers": 4, "num_key_value_heads": 4, **_ENDS}
    loaded = headscope.wrap(Family(kind, NAME, changes={**ENCODER, **sizes}).model())
    assert [(site.stack, site.layer) for site in loaded.sites] == [("decoder", 3)]
    result = validate_model(loaded)
    assert result.passed, result.reasons
    assert any("1 of 4 layers" in remark for remark in loaded.remarks)


def test_a_model_whose_layers_are_all_of_linear_attention_has_no_heads():
    loaded = headscope.wrap(Family("qwen3_5_text", NAME, changes={**ENCODER, **_ENDS}).model())
    (reason,) = validate_model(loaded).reasons
    assert reason == "no layer of this qwen3_5_text model has heads: all are of linear_attention"


def qwen3_next(**changes: Any) -> Any:
    """Make a tiny Qwen3-Next: in three layers of four its attention is linear."""
    linear = {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    sizes = {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 16, **_ENDS}
    widths = {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    changes = {**ENCODER, **sizes, **linear, **experts, **widths, **changes}
    return Family("qwen3_next", NAME, changes=changes).model()


def test_a_layout_whose_maps_have_other_widths_is_not_used():
    """Qwen3-Next's map of queries holds gates too, and its heads share keys."""
    loaded = headscope.wrap(qwen3_next(initializer_range=0.02))
    assert [(site.layout.name, site.layer) for site in loaded.sites] == [(NAME, 3)]
    assert validate_model(loaded).passed


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_rounding_that_layers_without_heads_carry_on_is_noise(seed):
    """Linear attention makes much of it, though its runs differ by the order of products alone."""
    network = qwen3_next(num_hidden_layers=8, initializer_range=0.3)
    torch.manual_seed(seed)
    network = type(network)._from_config(network.config).eval()
    result = validate_model(headscope.wrap(network))
    assert result.passed, result.reasons
