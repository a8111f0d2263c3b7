"""What each way of fine-tuning trains, counted from the configuration and by name."""

import pytest
import torch
from families import tiny
from torch import nn
from transformers import AutoConfig, AutoModel

from headscope.core.errors import UnsupportedModelError
from headscope.models.run.wrapping import wrap
from headscope.models.surgery.trainable import choose


def names(model: nn.Module, way: str) -> dict[str, int]:
    """The chosen parameters by name, with how many entries of each."""
    loaded = wrap(model)
    known = {id(p): name for name, p in loaded.model.named_parameters()}
    return {known[id(c.parameter)]: len(c) for c in choose(loaded, way)}


def test_bert_by_name():
    model = tiny("bert")
    norms = names(model, "layernorm")
    assert set(norms) == {n for n, _ in model.named_parameters() if "LayerNorm" in n}
    assert sum(norms.values()) == 2 * 32 * (1 + 2 * 3)
    attention = names(model, "attention")
    assert (len(attention), sum(attention.values())) == (3 * 8, 3 * 4 * (32 * 32 + 32))
    sizes = {n: p.numel() for n, p in model.named_parameters() if "pooler" not in n}
    assert names(model, "all") == sizes
    assert names(model, "head") == {}
    biases = set(names(model, "all_biases"))
    assert biases == {name for name in sizes if "bias" in name}
    assert {name for name in norms if "bias" in name} < biases
    # Rank-one changes are of queries and values first, and cut to the size.
    drawn = names(model, "lora")
    first = {n for n in drawn if ".query." in n or ".value." in n}
    assert len(first) == 2 * 3
    assert all(drawn[name] == 2 * 32 for name in first)
    assert sum(drawn[name] for name in set(drawn) - first) == 2 * 32


@pytest.mark.parametrize("family", ["distilbert", "albert, two groups"])
def test_equal_sets_are_equal_and_apart(family):
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


def test_draws_depend_on_the_seed_and_are_all_different():
    loaded = wrap(tiny("bert"))

    def entries(seed: int) -> list[list[int]]:
        return [chosen.entries.tolist() for chosen in choose(loaded, "weights", seed)]

    assert entries(0) == entries(0) != entries(1)
    for chosen in choose(loaded, "weights"):
        assert len(set(chosen.entries.tolist())) == len(chosen)
        assert int(chosen.entries.max()) < chosen.parameter.numel()


def test_of_a_translator_the_encoder_alone_and_rms_norms_or_none():
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 2}
    config = AutoConfig.for_model("t5", vocab_size=61, **sizes)
    model = AutoModel.from_config(config).eval()
    norms = names(model, "layernorm")
    assert sum(norms.values()) == 32 * (2 * 2 + 1)
    assert not any("decoder" in name for name in names(model, "all"))
    with pytest.raises(UnsupportedModelError, match="only 0 other biases"):
        choose(wrap(model), "biases")
    for module in list(model.modules()):
        for name, _ in list(module.named_children()):
            if "norm" in name:
                setattr(module, name, nn.Identity())
    with pytest.raises(UnsupportedModelError, match="no LayerNorm or RMSNorm"):
        choose(wrap(model), "layernorm")
