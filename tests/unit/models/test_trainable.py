"""What each way of fine-tuning trains, counted from the configuration and by name."""

from __future__ import annotations

import pytest
import torch
from families import FAMILIES, each_family, tiny
from torch import nn
from transformers import AutoConfig, AutoModel

from headscope.errors import UnsupportedModelError
from headscope.models.loading import wrap
from headscope.models.trainable import TRAINED, choose, count


def names(model: nn.Module, way: str) -> dict[str, int]:
    """The chosen parameters by name, with how many entries of each."""
    loaded = wrap(model)
    known = {id(p): name for name, p in loaded.model.named_parameters()}
    return {known[id(c.parameter)]: len(c) for c in choose(loaded, way)}


def test_bert_by_name() -> None:
    model = tiny("bert")
    norms = names(model, "layernorm")
    assert set(norms) == {n for n, _ in model.named_parameters() if "LayerNorm" in n}
    assert sum(norms.values()) == 2 * 32 * (1 + 2 * 3)
    attention = names(model, "attention")
    assert len(attention) == 3 * 8
    assert sum(attention.values()) == 3 * 4 * (32 * 32 + 32)
    everything = names(model, "all")
    whole = {n: p.numel() for n, p in model.named_parameters() if "pooler" not in n}
    assert everything == whole
    assert names(model, "head") == {}


@each_family
def test_equal_sets_are_equal_and_apart(family: str) -> None:
    model = tiny(family)
    norms = names(model, "layernorm")
    assert norms
    for way, dims in (("biases", {1}), ("weights", {2, 3}), ("lora", {2})):
        drawn = names(model, way)
        assert sum(drawn.values()) == sum(norms.values())
        assert not set(drawn) & set(norms)
        parameters = dict(model.named_parameters())
        assert {parameters[name].ndim for name in drawn} <= dims
        assert not any("_embeddings." in name for name in drawn)
    assert set(names(model, "attention")) < set(names(model, "all"))


def test_draws_depend_on_the_seed_and_are_all_different() -> None:
    loaded = wrap(tiny("bert"))

    def places(seed: int) -> list[list[int]]:
        return [c.entries.tolist() for c in choose(loaded, "weights", seed)]

    assert places(0) == places(0) != places(1)
    for chosen in choose(loaded, "weights"):
        assert len(set(chosen.entries.tolist())) == len(chosen)
        assert int(chosen.entries.max()) < chosen.parameter.numel()


def test_rank_one_changes_are_of_queries_and_values_first_and_cut_to_the_size() -> None:
    drawn = names(tiny("bert"), "lora")
    first = {n for n in drawn if ".query." in n or ".value." in n}
    assert len(first) == 2 * 3
    assert all(drawn[name] == 2 * 32 for name in first)
    assert sum(drawn[name] for name in set(drawn) - first) == 2 * 32


def test_all_biases_hold_those_of_norms() -> None:
    model = tiny("bert")
    found = set(names(model, "all_biases"))
    assert found == {n for n, _ in model.named_parameters() if "bias" in n and "pooler" not in n}
    assert {n for n in names(model, "layernorm") if "bias" in n} < found


def test_choosing_leaves_no_trace() -> None:
    model = tiny("bert")
    model.embeddings.word_embeddings.weight.requires_grad_(False)
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    for way in TRAINED:
        choose(wrap(model), way)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    assert all(p.grad is None for p in model.parameters())


def test_of_a_translator_the_encoder_alone_and_rms_norms_too() -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "t5", vocab_size=61, d_model=32, d_kv=8, num_heads=4, num_layers=2, d_ff=48
    )
    model = AutoModel.from_config(config).eval()
    norms = names(model, "layernorm")
    assert sum(norms.values()) == 32 * (2 * 2 + 1)
    assert not any("decoder" in name for name in names(model, "all"))
    with pytest.raises(UnsupportedModelError, match="only 0 other biases"):
        choose(wrap(model), "biases")


def test_a_model_without_norms_is_refused() -> None:
    model = tiny("bert")
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.LayerNorm):
                setattr(module, name, nn.Identity())
    with pytest.raises(UnsupportedModelError, match="no LayerNorm or RMSNorm"):
        choose(wrap(model), "layernorm")


def test_shared_layers_count_once() -> None:
    assert "albert" in FAMILIES
    model = tiny("albert")
    assert count(choose(wrap(model), "all")) <= sum(p.numel() for p in model.parameters())
    assert sum(names(model, "layernorm").values()) == 2 * 16 + 2 * 2 * 32
