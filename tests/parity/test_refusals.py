"""A model that headscope reads wrongly: every command says so first, and in words."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from families import opened
from families_faults import wrong_scale
from tiny_models import VOCABULARY, framed_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

import headscope
from headscope.core.errors import ValidationFailedError
from headscope.models.run.wrapping import wrap

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}


@pytest.fixture
def misread(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A Llama whose scores are multiplied by another scale in layer 1 than headscope takes."""
    wrong_scale(monkeypatch, 1)
    torch.manual_seed(5)
    config = AutoConfig.for_model("llama", vocab_size=len(VOCABULARY), **SIZES)
    network = AutoModelForCausalLM.from_config(config).eval()
    return wrap(network, framed_tokenizer("$A [SEP]"), name="tiny")


def test_a_refusal_names_the_layer_in_words_and_keeps_its_numbers(misread: Any) -> None:
    result = headscope.validate(misread)
    assert result.refusal.startswith("decoder layer 1 weighs tokens otherwise than softmax")
    assert "tolerance" not in result.refusal
    assert any("tolerance" in reason for reason in result.reasons)
    with pytest.raises(ValidationFailedError, match="decoder layer 1 weighs tokens"):
        headscope.explain(misread, "the cat")


def test_another_output_of_a_layer_is_told_from_other_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = opened("llama")
    projection = loaded.sites[2].module.o_proj
    # The canonical map is read without what the module does to its output.
    projection.register_forward_hook(lambda _module, _inputs, output: 1.01 * output)
    result = headscope.validate(loaded)
    assert not result.passed
    assert result.refusal.startswith("decoder layer 2 weighs tokens as headscope does")


def _breaks(*_arguments: Any, **_options: Any) -> Any:
    raise IndexError("list index out of range")


@pytest.mark.parametrize(
    ("broken", "call"),
    [
        (
            "headscope.pruning.run.units_by_name",
            lambda model: headscope.prune(model, heads="L0H0", task="fidelity"),
        ),
        ("headscope.analyses.rank.run.rotations", lambda model: headscope.rank(model)),
        ("headscope.analyses.rank.run._measure_weights", lambda model: headscope.rank(model)),
        (
            "headscope.analyses.attribute.examples.with_tokens",
            lambda model: headscope.attribute(model, "the cat sat", of="next"),
        ),
    ],
    ids=["prune --heads", "rank, rotations", "rank, weights", "attribute"],
)
def test_the_certificate_speaks_before_what_reads_the_heads_breaks(
    misread: Any,
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
    call: Callable[[Any], Any],
) -> None:
    monkeypatch.setattr(broken, _breaks)
    with torch.no_grad(), pytest.raises(ValidationFailedError, match="decoder layer 1"):
        call(misread)
