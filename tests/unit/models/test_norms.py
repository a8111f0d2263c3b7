"""Which LayerNorm hands a layer its input, in families that differ in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import each_family, padded_batch, tiny
from torch import nn

import headscope
from headscope.measures.rank.factors import fold_gain
from headscope.models.norms import gain_and_shift, preceding_norms


def names(model: Any) -> dict[int, str]:
    known = {module: name for name, module in model.named_modules()}
    return {layer: known[norm] for layer, norm in preceding_norms(headscope.wrap(model)).items()}


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "camembert"])
def test_post_layer_norm_families(family: str) -> None:
    assert names(tiny(family)) == {
        0: "embeddings.LayerNorm",
        1: "encoder.layer.0.output.LayerNorm",
        2: "encoder.layer.1.output.LayerNorm",
    }


def test_distilbert() -> None:
    assert names(tiny("distilbert")) == {
        0: "embeddings.LayerNorm",
        1: "transformer.layer.0.output_layer_norm",
        2: "transformer.layer.1.output_layer_norm",
    }


def test_a_projection_of_the_embeddings_is_no_norm() -> None:
    assert 0 not in names(tiny("electra"))
    assert sorted(names(tiny("electra"))) == [1, 2]
    assert names(tiny("electra", embedding_size=32))[0] == "embeddings.LayerNorm"
    (norm,) = set(names(tiny("albert")).values())  # one module, several layers
    assert norm.endswith("full_layer_layer_norm")
    assert sorted(names(tiny("albert"))) == [1, 2]


def test_groups_of_albert_are_told_apart() -> None:
    found = names(tiny("albert, two groups"))
    assert sorted(found) == [1, 2]
    assert "groups.0" in found[1] or "groups.0" in found[2]


@each_family
def test_norm_is_behaviourally_the_one_before(family: str) -> None:
    """Queries from the normalised state through the folded weights are the model's own."""
    loaded = headscope.wrap(tiny(family, "float64"))
    for module in loaded.model.modules():  # gains and shifts that matter
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1, 0.5)
            nn.init.normal_(module.bias, 0, 0.5)
    norms = preceding_norms(loaded)
    assert set(range(1, loaded.n_layers)) <= set(norms)
    for site in loaded.sites:
        if site.layer not in norms:
            continue
        norm = norms[site.layer]
        seen: dict[str, list[torch.Tensor]] = {"x": [], "q": []}
        hooks = [
            norm.register_forward_pre_hook(lambda _, args, seen=seen: seen["x"].append(args[0])),
            site.projections.q.module.register_forward_hook(
                lambda _, args, out, seen=seen: seen["q"].append(out)
            ),
        ]
        with torch.no_grad():
            loaded.forward(*padded_batch())
        for hook in hooks:
            hook.remove()
        folded = fold_gain(site.weights(), *gain_and_shift(norm))
        made = [nn.functional.layer_norm(x, norm.normalized_shape, eps=norm.eps) for x in seen["x"]]
        ours = [
            (x[:, None] @ folded.W_Q + folded.b_Q[:, None]).transpose(1, 2).flatten(2) for x in made
        ]
        # (ALBERT's one module runs in every layer: this layer's query is among them)
        assert any(torch.allclose(a, b, atol=1e-9) for a in ours for b in seen["q"])


def test_hooks_are_removed_and_the_model_still_works() -> None:
    model = tiny("bert")
    preceding_norms(headscope.wrap(model))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_norm_without_gain_or_shift_folds_as_ones_and_zeros() -> None:
    gain, shift = gain_and_shift(nn.LayerNorm(6, elementwise_affine=False))
    assert (gain.tolist(), shift.tolist()) == ([1.0] * 6, [0.0] * 6)
    norm = nn.LayerNorm(6, bias=False)
    nn.init.normal_(norm.weight)
    gain, shift = gain_and_shift(norm)
    assert torch.equal(gain, norm.weight)
    assert shift.tolist() == [0.0] * 6
