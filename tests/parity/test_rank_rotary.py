"""Rank of models that rotate queries and keys: every distance against dense float64 matrices.

The reference forms R(D) as the exponential of D times a generator of rotations, and every product
in full; that these are the model's scores is read off transformers' own eager patterns.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from families import BY_NAME
from rank_reference import Matrix, dense, dense_asymmetry, gaussian, least_dims, orthonormal
from rank_reference import spectrum as singular_values
from scipy.linalg import expm
from tiny_models import tiny_tokenizer
from transformers import AutoConfig, AutoModel

import headscope
from headscope import rank
from headscope.analyses.rank.distances import distances_sentence
from headscope.analyses.rank.result import HeadRank, LayerRank, RankResult
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.core.heads import layer_name
from headscope.models.layouts.layout import AttentionSite, Step
from headscope.models.layouts.steps import Rotation, with_gains
from headscope.models.run.rotations import rotations
from headscope.stats.ranks import DISTANCES, DistanceRange

BRIEF: dict[str, Any] = {"fresh": False, "control_seeds": 2}
_LLAMA = {
    **{"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 1024},
    "initializer_range": 0.3,
}


def llama(**changes: Any) -> Any:
    torch.manual_seed(3)
    config = AutoConfig.for_model("llama", **{**_LLAMA, **changes})
    return AutoModel.from_config(config).double().eval()


def halves(width: int) -> list[tuple[int, int]]:
    return [(i, i + width // 2) for i in range(width // 2)]


def neighbours(width: int) -> list[tuple[int, int]]:
    return [(i, i + 1) for i in range(0, width, 2)]


def rotation(pairs: list[tuple[int, int]], angles: Any, d_head: int, distance: int) -> Matrix:
    """R(D) for row vectors: in each pair (a, b) becomes (a cos - b sin, b cos + a sin)."""
    generator = np.zeros((d_head, d_head))
    for (a, b), angle in zip(pairs, angles, strict=True):
        generator[a, b] = float(angle)
        generator[b, a] = -float(angle)
    turned: Matrix = expm(distance * generator)
    return turned


def turns_of(name: str, model: Any, layer: int) -> tuple[list[tuple[int, int]], Any] | None:
    """The planes of a head in one layer and their angles, where the modelling code has them."""
    if name == "cohere2" and model.config.layer_types[layer] == "full_attention":
        return None
    if name in ("glm", "cohere2"):
        angles = model.rotary_emb.inv_freq
        return neighbours(2 * len(angles)), angles
    if name.startswith(("roformer", "gptj")):
        width = 8 if name.startswith("roformer") else 4
        return neighbours(width), [10000.0 ** (-2 * i / width) for i in range(width // 2)]
    if name == "smollm3" and not model.config.no_rope_layers[layer]:
        return None
    module = model.rotary_embeddings if name == "esm" else model.rotary_emb
    if hasattr(module, "inv_freq"):
        angles = module.inv_freq
    else:
        angles = getattr(module, f"{model.config.layer_types[layer]}_inv_freq")
    return halves(2 * len(angles)), angles


def weights_of(name: str, site: AttentionSite) -> tuple[Matrix, Matrix]:
    """W_Q and W_K by head, (n_heads, d_model, d_head), with what the layer's norms do to them."""
    d = site.d_head
    query = site.projections.q.weight.detach().double().numpy()
    key = site.projections.k.weight.detach().double().numpy()
    norms = [getattr(site.module, f"{side}_norm", None) for side in "qk"]
    if name == "phi":
        norms = [site.module.q_layernorm, site.module.k_layernorm]
        query = query - query.reshape(-1, d, query.shape[1]).mean(1).repeat(d, 0)
        key = key - key.reshape(-1, d, key.shape[1]).mean(1).repeat(d, 0)
    if norms[0] is not None:
        gains = [norm.weight.detach().double().numpy() for norm in norms]
        if name.startswith("gemma3"):
            gains = [1 + gain for gain in gains]
        query = query * np.tile(gains[0], len(query) // len(gains[0]))[:, None]
        key = key * np.tile(gains[1], len(key) // len(gains[1]))[:, None]
    n_heads = len(query) // d
    group = n_heads // (len(key) // d)
    queries = [query[h * d : (h + 1) * d].T for h in range(n_heads)]
    keys = [key[h // group * d : (h // group + 1) * d].T for h in range(n_heads)]
    return np.stack(queries), np.stack(keys)


def near(measured: float | None, expected: float, rel: float) -> bool:
    return measured == pytest.approx(expected, rel=rel)


def check_range(found: DistanceRange, forwards: list[Matrix], backwards: list[Matrix], rank: int):
    """Compare with the dense product at every distance, and at every distance the other way."""
    sigmas = [singular_values(product, rank) for product in forwards]
    dims90 = [least_dims(sigma, 0.9, 2) for sigma in sigmas]
    assert (found.dims90_low, found.dims90_high) == (min(dims90), max(dims90))
    stable = [float((sigma**2).sum() / sigma[0] ** 2) for sigma in sigmas]
    assert near(found.stable_rank_low, min(stable), 1e-3)
    assert near(found.stable_rank_high, max(stable), 1e-3)
    gaps = []
    for forward, backward in zip(forwards, backwards, strict=True):
        gaps.append(float(np.linalg.norm(forward - backward.T) / np.linalg.norm(forward)))
    assert near(found.asymmetry_low, min(gaps), 1e-3)
    assert near(found.asymmetry_high, max(gaps), 1e-3)


ENCODERS = (
    *("eurobert, shared keys", "eurobert, one key", "nomic_bert", "nomic_bert, far", "gte"),
    *("jina_embeddings_v3", "esm", "modernbert", "roformer", "roformer, rotated values"),
)
#: Two heads share keys; gpt_neox, phi and gptj turn a part of each head.
DECODERS = (
    *("llama", "qwen2", "gemma2", "smollm3", "phi3", "modernbert-decoder", "gpt_neox", "gptj"),
    *("falcon, one key", "falcon, shared keys", "glm", "cohere2"),
)
#: Queries and keys are normed: of each head (qwen3, gemma3, phi), or of all heads together.
NORMED = ("qwen3", "gemma3_text", "gemma3_text, both directions", "phi", "olmo2", "olmoe")


@pytest.mark.parametrize("name", [*ENCODERS, *DECODERS, *NORMED])
def test_every_distance_is_that_of_the_dense_product(name):
    model = BY_NAME[name].model("float64")
    loaded = headscope.wrap(model)
    result = rank(loaded, validate=False, **BRIEF)
    assert result.turns_values == (name == "roformer, rotated values")
    for site in loaded.sites:
        queries, keys = weights_of(name, site)
        layer = result.layers[site.row]
        heads = [head for head in result.heads if head.layer == site.layer]
        for head in heads:
            at_0 = dense(queries[head.head], keys[head.head])
            sigma = singular_values(at_0, 8)
            found = np.array(head.qk.singular_values)
            # A norm's epsilon is in what is measured of its gain.
            np.testing.assert_allclose(found / found[0], sigma / sigma[0], rtol=1e-6, atol=1e-9)
            assert head.asymmetry == pytest.approx(dense_asymmetry(at_0), rel=1e-6)
        n_keys = len(site.projections.k.weight) // 8
        sigma = singular_values(sum(map(dense, queries, keys)), min(32, n_keys * 8))
        found = np.array(layer.qk.singular_values)
        np.testing.assert_allclose(found / found[0], sigma / sigma[0], rtol=1e-6, atol=1e-9)
        assert layer.shared_keys == (None if n_keys == 4 else n_keys)
        assert layer.qk_gains == (name in NORMED)
        turns = turns_of(name, model, site.layer)
        assert (turns is None) == (layer.over_distances is None)
        if turns is None:
            continue
        R = {D: rotation(*turns, 8, D) for D in DISTANCES}
        back = {D: rotation(*turns, 8, -D) for D in DISTANCES}
        forwards = [queries @ R[D] @ keys.transpose(0, 2, 1) for D in DISTANCES]
        backwards = [queries @ back[D] @ keys.transpose(0, 2, 1) for D in DISTANCES]
        for head in heads:
            check_range(
                head.over_distances,
                [products[head.head] for products in forwards],
                [products[head.head] for products in backwards],
                rank=8,
            )
        check_range(
            layer.over_distances,
            [products.sum(0) for products in forwards],
            [products.sum(0) for products in backwards],
            rank=min(32, n_keys * 8),
        )


@pytest.mark.parametrize("name", ["bloom", "falcon, by distance", "gpt_neo", "opt", "gpt2"])
def test_decoders_without_rotation_have_no_range(name):
    result = rank(BY_NAME[name].model(), validate=False, **BRIEF)
    assert not result.rotates
    assert len(result.not_covered) == (name.startswith(("bloom", "falcon")))
    assert {head.over_distances for head in result.heads} == {None}


@pytest.mark.parametrize("name", ["eurobert, shared keys", "roformer", "modernbert", "llama"])
def test_the_products_are_the_scores_of_transformers_own_run(name):
    """log P differs between two keys as x_i W_Q R(i - j) W_K^T x_j^T does, times the scale."""
    model = BY_NAME[name].model("float64")
    for module in model.modules():  # the scores' other terms
        for bias in (getattr(module, map_name, None) for map_name in ("query", "key")):
            if isinstance(bias, torch.nn.Linear):
                torch.nn.init.zeros_(bias.bias)
    model.set_attn_implementation("eager")
    loaded = headscope.wrap(model)
    site = loaded.sites[-1]
    seen: dict[str, Any] = {}

    def keep(module: Any, args: Any, kwargs: Any) -> None:
        seen["x"] = site.layout.read(module, args, kwargs).x_q[0].detach()

    handle = site.module.register_forward_pre_hook(keep, with_kwargs=True)
    ids = torch.randint(5, 61, (1, 7), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        pattern = model(input_ids=ids, output_attentions=True).attentions[site.layer][0]
    handle.remove()
    planes = rotations(loaded)[site.row]
    w = site.weights()
    for head in range(4):
        scores = torch.full((7, 7), -torch.inf, dtype=torch.float64)
        for i in range(7):
            for j in range(i + 1 if loaded.stacks == ("decoder",) else 7):
                product = planes.turned(w.W_Q[head], i - j) @ w.W_K[head].T
                scores[i, j] = seen["x"][i] @ product @ seen["x"][j]
        if name == "modernbert" and site.window is not None:
            far = (torch.arange(7)[:, None] - torch.arange(7)).abs() > site.window
            scores[far] = -torch.inf
        expected = torch.softmax(scores.detach() * 8**-0.5, -1)
        torch.testing.assert_close(expected, pattern[head].double(), rtol=1e-4, atol=1e-6)


def planted(W_Q: torch.Tensor, W_K: torch.Tensor) -> RankResult:
    """One layer of a Llama whose first head has these maps, (d_model, d_head), for theta 10000."""
    model = llama(num_hidden_layers=1, num_key_value_heads=4, rope_theta=10000.0)
    attention = model.layers[0].self_attn
    attention.q_proj.weight.data[:8] = W_Q.T
    attention.k_proj.weight.data[:8] = W_K.T
    return rank(headscope.wrap(model), **BRIEF)


def test_a_figure_that_hangs_on_the_distance_and_one_that_does_not():
    u = orthonormal(32, 8)
    v = orthonormal(32, 8, seed=1)
    # Equal singular values at every distance: R is orthogonal.
    steady = planted(u, v).heads[0]
    assert steady.qk.dims["90"] == 8
    found = steady.over_distances
    assert (found.dims90_low, found.dims90_high) == (8, 8)
    assert found.stable_rank_low == pytest.approx(8, rel=1e-12)
    assert found.stable_rank_high == pytest.approx(8, rel=1e-12)
    # Queries live in the first coordinate of each plane; keys in the first of one plane and the
    # second of three others, which meet the queries only once these are turned.
    query = torch.cat([u[:, :4], torch.zeros(32, 4).double()], dim=1)
    key = torch.zeros(32, 8).double()
    key[:, 0] = v[:, 0]
    key[:, 5:] = v[:, 5:]
    hanging = planted(query, key).heads[0]
    assert hanging.qk.dims["90"] == 1
    assert hanging.over_distances.dims90_high == 3
    assert hanging.over_distances.dims90_low == 1


def test_symmetric_weights_are_symmetric_at_every_distance():
    W = gaussian(32, 8)
    found = planted(W, W).heads[0]
    assert found.asymmetry < 1e-12
    assert found.over_distances.asymmetry_high < 1e-12
    other = planted(W, gaussian(32, 8, seed=1)).heads[0]
    assert 1.2 < other.over_distances.asymmetry_low < other.over_distances.asymmetry_high < 1.6


def test_random_factors_share_keys_as_the_model_does():
    """Untrained heads in groups look as random as their control; without groups they would not."""
    torch.manual_seed(1)
    loaded = headscope.wrap(llama(hidden_size=64, num_attention_heads=8, num_key_value_heads=2))
    result = rank(loaded, control_seeds=8, fresh=True)
    for kind in ("gaussian", "fresh"):
        for layer in result.layers:
            control = result.control_of(layer, kind, "qk")
            assert len(layer.qk.singular_values) == len(control.singular_values) == 16
            assert layer.qk.dims["90"] == pytest.approx(control.dims["90"], abs=1.5)
            random = result.control_range(layer, kind)
            assert layer.over_distances.dims90_high == pytest.approx(random.dims90_high, abs=1.5)
            assert random.dims90_low <= control.dims["90"] <= random.dims90_high + 1
    own_keys = llama(hidden_size=64, num_attention_heads=8, num_key_value_heads=8)
    alone = rank(headscope.wrap(own_keys), **BRIEF)
    assert alone.layers[0].qk.dims["90"] > 1.3 * result.layers[0].qk.dims["90"]


class Gains(Step):
    """Norms of q and k with gains, over a head or over all heads."""

    def __init__(self, query: torch.Tensor, key: torch.Tensor) -> None:
        self.gains = query, key

    def fold(self, site: AttentionSite, weights: Any) -> Any:
        query, key = self.gains
        return with_gains(site, weights, query=query, key=key)


@pytest.mark.parametrize("over", ["head", "all heads"])
def test_gains_of_norms_are_folded_into_the_maps(over):
    query = gaussian(8 if over == "head" else 32)
    key = gaussian(8 if over == "head" else 16, seed=1)  # two sets of keys are stored
    model = llama()
    loaded = headscope.wrap(model)
    plain = rank(loaded, **BRIEF)
    sites = []
    for site in loaded.sites:
        steps = (Gains(query, key), *site.layout.steps)
        layout = dataclasses.replace(site.layout, steps=steps)
        sites.append(dataclasses.replace(site, layout=layout))
    folded = rank(dataclasses.replace(loaded, sites=tuple(sites)), validate=False, **BRIEF)
    with torch.no_grad():
        for layer in model.layers:
            maps = layer.self_attn
            maps.q_proj.weight *= query.repeat(32 // len(query))[:, None]
            maps.k_proj.weight *= key.repeat(16 // len(key))[:, None]
    by_hand = rank(headscope.wrap(model), **BRIEF)
    assert (folded.layers[0].qk_gains, by_hand.layers[0].qk_gains) == (True, False)
    for ours, expected, before in zip(folded.heads, by_hand.heads, plain.heads, strict=True):
        np.testing.assert_allclose(ours.qk.singular_values, expected.qk.singular_values, rtol=1e-9)
        assert ours.over_distances == expected.over_distances
        assert ours.qk.stable_rank != pytest.approx(before.qk.stable_rank, rel=1e-3)


def test_a_layer_without_rotation_has_no_range(monkeypatch):
    tables = Rotation.tables

    def in_the_first_layer(self: Any, site: AttentionSite, inputs: Any) -> Any:
        return tables(self, site, inputs) if site.layer == 0 else None

    monkeypatch.setattr(Rotation, "tables", in_the_first_layer)
    result = rank(headscope.wrap(llama()), validate=False, **BRIEF)
    assert [layer.over_distances is None for layer in result.layers] == [False, True]
    ranged = {layer_name(head.layer) for head in result.heads if head.over_distances is not None}
    assert ranged == {"L0"}
    assert result.layers[1].qk.dims["90"] is not None
    assert "1 layer without rotation" in distances_sentence(result)


def test_angles_are_exact_whatever_the_models_dtype():
    """cos and sin of a model in half precision are rounded; its rotary module keeps the angles."""
    exact = llama().float()
    half = llama().bfloat16()
    half.rotary_emb.inv_freq = exact.rotary_emb.inv_freq.clone()  # as from_pretrained leaves it
    expected = exact.rotary_emb.inv_freq.double()
    for model in (exact, half):
        for planes in rotations(headscope.wrap(model)).values():
            assert torch.equal(planes.angle, expected)
    table_only = headscope.wrap(BY_NAME["roformer"].model("bfloat16"))
    with pytest.raises(InputError, match=r"rounded to bfloat16.*dtype=.float32"):
        rank(table_only, validate=False, **BRIEF)


def test_shared_projections_are_refused():
    with pytest.raises(UnsupportedModelError, match=r"rotates queries and keys.*no place for"):
        rank(
            headscope.wrap(llama(), tiny_tokenizer(40)),
            share_projections=[4],
            validate=False,
            **BRIEF,
        )


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_the_gain_of_an_rmsnorm_before_a_layer_is_folded_where_it_is_asked_for(name):
    model = BY_NAME[name].model("float64")
    norm = model.layers[1].input_layernorm
    torch.nn.init.normal_(norm.weight)
    gain = norm.weight.detach() + (name == "gemma")
    plain = rank(headscope.wrap(model), validate=False, **BRIEF)
    folded = rank(headscope.wrap(model), fold_layernorm=True, validate=False, **BRIEF)
    with torch.no_grad():
        model.layers[1].self_attn.q_proj.weight *= gain
        model.layers[1].self_attn.k_proj.weight *= gain
    by_hand = rank(headscope.wrap(model), validate=False, **BRIEF)
    assert [layer.folded for layer in folded.layers] == [True] * 3
    for ours, expected, before in zip(folded.heads, by_hand.heads, plain.heads, strict=True):
        if ours.layer == 1:
            assert ours.qk.stable_rank == pytest.approx(expected.qk.stable_rank, rel=1e-5)
            assert ours.qk.stable_rank != pytest.approx(before.qk.stable_rank, rel=1e-3)


@pytest.mark.parametrize("name", ["eurobert, shared keys", "olmo2", "qwen3", "falcon, shared keys"])
def test_a_model_without_some_heads_keeps_the_ranges_of_the_others(name):
    loaded = headscope.wrap(BY_NAME[name].model("float64"))
    compact = headscope.remove_heads(loaded, [(0, 1), (1, 0), (1, 1)])
    full = {head.name: head for head in rank(loaded, validate=False, **BRIEF).heads}
    rest = rank(compact, validate=False, **BRIEF)
    assert [layer.shared_keys for layer in rest.layers] == [2, 1, 2]
    for head in rest.heads:
        same: HeadRank = full[head.name]
        assert head.over_distances.dims90_low == same.over_distances.dims90_low
        low = same.over_distances.stable_rank_low
        assert head.over_distances.stable_rank_low == pytest.approx(low, rel=1e-9)
    uneven: LayerRank = rest.layers[0]
    w = compact.sites[0].folded(compact.sites[0].weights())
    products = map(dense, w.W_Q.detach(), w.W_K.detach())
    sigma = singular_values(sum(products), 16)
    np.testing.assert_allclose(uneven.qk.singular_values, sigma, rtol=1e-8)
