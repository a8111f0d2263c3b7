"""Layouts that compute their attention themselves, and MobileBERT: by hand, pruned, and wrong."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import COVERED, Family
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM

import headscope
from headscope.errors import UnsupportedModelError
from headscope.models.certificate import TOLERANCES, validate_model
from headscope.models.compact import removed_heads
from headscope.models.evidence import largest_gap
from headscope.models.layouts import convbert, mobilebert, rembert, roformer, squeezebert, xlm
from headscope.models.loaded import LoadedModel
from headscope.models.probes import Probe
from headscope.models.recording import run_ours

Array = NDArray[np.float64]

LAYOUTS = ("rembert", "roformer", "xlm", "convbert", "squeezebert", "mobilebert")
FAMILIES = {family.name: family for family in COVERED if family.layout in LAYOUTS}
#: Beyond the table: settings that change what attention does.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "rembert, decoder": ("rembert", {"is_decoder": True}),
    "xlm, sinusoids": ("xlm", {"sinusoidal_embeddings": True}),
    "convbert, wide kernel": ("convbert", {"conv_kernel_size": 9}),
    "convbert, one head": ("convbert", {"num_attention_heads": 2, "head_ratio": 4}),
    "squeezebert, one group": ("squeezebert", {"q_groups": 1, "k_groups": 1, "v_groups": 1}),
    "squeezebert, mixed": ("squeezebert", {"q_groups": 1, "k_groups": 2, "v_groups": 8}),
    "mobilebert, narrow": ("mobilebert", {"use_bottleneck_attention": True}),
    "mobilebert, wide": (
        "mobilebert",
        {"key_query_shared_bottleneck": False, "intra_bottleneck_size": 32},
    ),
    "mobilebert, no bottleneck": ("mobilebert", {"use_bottleneck": False}),
}
IDS = torch.randint(5, 61, (3, 9), generator=torch.Generator().manual_seed(1))
VALID = torch.ones_like(IDS)
VALID[1, 4:] = 0
VALID[2, 7:] = 0
REAL = VALID.bool()
#: Some of a layer, all of a layer, and the first head of another.
SOME = [(0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]

each_family = pytest.mark.parametrize("name", FAMILIES)


def tiny(name: str, dtype: str = "float32", **more: Any) -> Any:
    base, changes = VARIANTS.get(name, (name, {}))
    family: Family = FAMILIES[base]
    if "16" in dtype:  # absolute tolerances: activations of the usual size
        more["initializer_range"] = min(0.15, family.changes.get("initializer_range", 0.3))
    return family.model(dtype, **{**changes, **more})


def plain(loaded: LoadedModel) -> Tensor:
    with torch.no_grad():
        return loaded.forward(IDS, VALID)[REAL]


# --- the certificate --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCES)
@each_family
def test_each_family_validates(name: str, dtype: str) -> None:
    loaded = headscope.wrap(tiny(name, dtype))
    assert {site.layout.name for site in loaded.sites} == {FAMILIES[name].layout}
    assert loaded.stacks == FAMILIES[name].stacks
    result = validate_model(loaded)
    assert result.passed, result.reasons
    assert [check.calls for check in result.layers] == [1, 1, 1]
    assert result.mask_reached
    assert result.padded > 0


@pytest.mark.parametrize("name", VARIANTS)
def test_each_setting_validates(name: str) -> None:
    loaded = headscope.wrap(tiny(name, "float64"))
    assert loaded.stacks == (("decoder",) if "decoder" in name else ("encoder",))
    assert loaded.n_heads == (1 if "one head" in name else 4)
    result = validate_model(loaded)
    assert result.passed, result.reasons


def test_states_of_any_size_are_compared() -> None:
    """MobileBERT has no LayerNorm: its states may be large, and float32 rounds them as it must.

    By 20 a layer: by 300 scores reach thousands, whose rounding in another order of summation
    moves a pattern by 2e-4.
    """
    model = tiny("mobilebert")
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.output.bottleneck.LayerNorm.weight *= 20.0
            for bottleneck in (layer.bottleneck.input, layer.bottleneck.attention):
                bottleneck.LayerNorm.weight /= 20.0
            layer.attention.self.value.weight /= 20.0
    loaded = headscope.wrap(model)
    assert float(plain(loaded).abs().max()) > 1e3
    result = validate_model(loaded)
    assert result.passed, result.reasons


def test_large_states_are_compared_relative_to_their_size() -> None:
    real = torch.tensor([[True, True, False]])
    theirs = torch.tensor([[[1e7], [-3.0], [9e9]]])
    for ours, expected in ((theirs + 20.0, 2e-5), (theirs * 1.5, 5.0)):
        gap = largest_gap([(ours, theirs, real)])
        assert gap == pytest.approx(expected, rel=1e-3)
    small = torch.tensor([[[9.0], [-3.0], [0.0]]])
    assert largest_gap([(small + 0.25, small, real)]) == 0.25


# --- layer 0 by hand --------------------------------------------------------------------------


def state_of(model: Any, prefix: str) -> Callable[[str], Array]:
    """Return what reads a weight of layer 0 by its name in the checkpoint."""
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return lambda name: state[f"{prefix}.{name}"]


def mapped(get: Callable[[str], Array], name: str, x: Array) -> Array:
    return x @ get(f"{name}.weight").T + get(f"{name}.bias")


def soft(row: Array) -> Array:
    weight = np.exp(row - row.max())
    return weight / weight.sum()


def attended(
    q: Array, k: Array, v: Array, allowed: Callable[[int, int, int], bool], n_heads: int
) -> tuple[Array, Array]:
    """Attend head by head and query by query: pattern and all heads' z."""
    batch, n, width = q.shape
    d_head = width // n_heads
    pattern, z = np.zeros((batch, n_heads, n, n)), np.zeros((batch, n, width))
    for b, h, i in np.ndindex(batch, n_heads, n):
        cut = slice(h * d_head, (h + 1) * d_head)
        keys = [j for j in range(n) if allowed(b, i, j)]
        scores = np.array([q[b, i, cut] @ k[b, j, cut] / np.sqrt(d_head) for j in keys])
        for j, weight in zip(keys, soft(scores), strict=True):
            pattern[b, h, i, j] = weight
            z[b, i, cut] += weight * v[b, j, cut]
    return pattern, z


def unpadded(b: int, i: int, j: int) -> bool:
    return bool(REAL[b, j])


def rembert_by_hand(model: Any, x: Array) -> tuple[Array, Array]:
    get = state_of(model, "encoder.layer.0.attention")
    q, k, v = (mapped(get, f"self.{name}", x) for name in ("query", "key", "value"))
    pattern, z = attended(q, k, v, unpadded, 4)
    return pattern, mapped(get, "output.dense", z)


def turned(x: Array, n_heads: int = 4) -> Array:
    """Turn entry pairs (2i, 2i + 1) of every head as complex numbers."""
    by_head = x.reshape(*x.shape[:2], n_heads, -1)
    numbers = by_head[..., 0::2] + 1j * by_head[..., 1::2]
    pairs = numbers.shape[-1]
    for pos, i in np.ndindex(x.shape[1], pairs):
        numbers[:, pos, :, i] *= np.exp(1j * pos / 10000 ** (i / pairs))
    return np.stack([numbers.real, numbers.imag], axis=-1).reshape(x.shape)


def roformer_by_hand(model: Any, x: Array) -> tuple[Array, Array]:
    get = state_of(model, "encoder.layer.0.attention")
    q, k, v = (mapped(get, f"self.{name}", x) for name in ("query", "key", "value"))
    v = turned(v) if model.config.rotary_value else v
    pattern, z = attended(turned(q), turned(k), v, unpadded, 4)
    return pattern, mapped(get, "output.dense", z)


def xlm_by_hand(model: Any, x: Array) -> tuple[Array, Array]:
    get = state_of(model, "attentions.0")
    q, k, v = (mapped(get, name, x) for name in ("q_lin", "k_lin", "v_lin"))
    # A causal XLM lets padding be seen by what comes after it.
    allowed = (lambda b, i, j: j <= i) if model.config.causal else unpadded
    pattern, z = attended(q, k, v, allowed, 4)
    return pattern, mapped(get, "out_lin", z)


def convbert_by_hand(model: Any, x: Array) -> tuple[Array, Array]:
    get = state_of(model, "encoder.layer.0.attention")
    q, k, v = (mapped(get, f"self.{name}", x) for name in ("query", "key", "value"))
    pattern, z = attended(q, k, v, unpadded, 4)
    deep = get("self.key_conv_attn_layer.depthwise.weight")[:, 0]  # (channels, kernel)
    across = get("self.key_conv_attn_layer.pointwise.weight")[:, :, 0]
    size, n = deep.shape[1], x.shape[1]
    values = mapped(get, "self.conv_out_layer", x)
    beside = np.zeros_like(z)
    d_head = z.shape[-1] // 4
    for b, i in np.ndindex(*x.shape[:2]):
        near = [(t, i + t - size // 2) for t in range(size) if 0 <= i + t - size // 2 < n]
        mixed = np.sum([deep[:, t] * x[b, j] for t, j in near], axis=0)
        keys = across @ mixed + get("self.key_conv_attn_layer.bias")[:, 0]
        logits = mapped(get, "self.conv_kernel_layer", keys * q[b, i]).reshape(4, size)
        for h in range(4):
            cut, kernel = slice(h * d_head, (h + 1) * d_head), soft(logits[h])
            beside[b, i, cut] = np.sum([kernel[t] * values[b, j, cut] for t, j in near], axis=0)
    return pattern, mapped(get, "output.dense", np.concatenate([z, beside], axis=-1))


def squeezebert_by_hand(model: Any, x: Array) -> tuple[Array, Array]:
    """Its x is (batch, channels, pos)."""
    get = state_of(model, "encoder.layers.0")

    def grouped(name: str, groups: int) -> Array:
        weight, bias = get(f"attention.{name}.weight")[:, :, 0], get(f"attention.{name}.bias")
        out = np.zeros((x.shape[0], x.shape[2], 32))
        rows, columns = 32 // groups, 32 // groups
        for row in range(32):
            first = row // rows * columns
            out[:, :, row] = bias[row]
            for column in range(columns):
                out[:, :, row] += weight[row, column] * x[:, first + column]
        return out

    config = model.config
    q, k = grouped("query", config.q_groups), grouped("key", config.k_groups)
    pattern, z = attended(q, k, grouped("value", config.v_groups), unpadded, 4)
    W_O, b_O = get("post_attention.conv1d.weight")[:, :, 0], get("post_attention.conv1d.bias")
    return pattern, (z @ W_O.T + b_O).transpose(0, 2, 1)


def mobilebert_by_hand(model: Any, x: Array, x_k: Array, x_v: Array) -> tuple[Array, Array]:
    get = state_of(model, "encoder.layer.0.attention")
    q, k, v = (
        mapped(get, f"self.{name}", given)
        for name, given in (("query", x), ("key", x_k), ("value", x_v))
    )
    assert v.shape == q.shape
    pattern, z = attended(q, k, v, unpadded, 4)
    return pattern, mapped(get, "output.dense", z)


BY_HAND = {
    "rembert": rembert_by_hand,
    "megatron-bert": rembert_by_hand,
    "roformer": roformer_by_hand,
    "roformer, rotated values": roformer_by_hand,
    "xlm": xlm_by_hand,
    "xlm, causal": xlm_by_hand,
    "convbert": convbert_by_hand,
    "convbert, wide kernel": convbert_by_hand,
    "squeezebert": squeezebert_by_hand,
    "squeezebert, mixed": squeezebert_by_hand,
    "mobilebert": mobilebert_by_hand,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_layer_0_by_hand(name: str) -> None:
    """The model's own run, and the run through ours, are what plain loops compute."""
    model = tiny(name, "float64")
    loaded = headscope.wrap(model)
    site = loaded.sites[0]
    entered: list[Tensor] = []
    left: list[Tensor] = []

    def keep(_: nn.Module, args: Any, kwargs: Any) -> None:
        given = [*args, *kwargs.values()]
        entered.extend(given[: 3 if "mobile" in name else 1])

    with (
        site.module.register_forward_pre_hook(keep, with_kwargs=True),
        site.projections.out.module.register_forward_hook(lambda *args: left.append(args[2])),
    ):
        plain(loaded)
    pattern, out = BY_HAND[name](model, *(x.numpy() for x in entered))
    ours = run_ours(loaded, Probe("right-padded", IDS, VALID)).site(site)
    real, own, by_hand = REAL, left[0], torch.from_numpy(out)
    if "squeeze" in name:
        own, by_hand = own.transpose(1, 2), by_hand.transpose(1, 2)
    assert ours.pattern is not None
    # RoFormer's sines and XLM's softmax are of float32, whatever the model is.
    near = {"rtol": 0, "atol": 1e-6 if name.startswith(("roformer", "xlm")) else 1e-10}
    torch.testing.assert_close(own[real], by_hand[real], **near)
    torch.testing.assert_close(ours.out[real], by_hand[real], **near)
    theirs = torch.from_numpy(pattern).transpose(1, 2)
    torch.testing.assert_close(ours.pattern.transpose(1, 2)[real], theirs[real], **near)


# --- removed heads ----------------------------------------------------------------------------


def zeroed(model: Any, heads: list[tuple[int, int]]) -> Tensor:
    """Run a copy whose W_O has zeros where the heads' z enter."""
    names = {
        "xlm": "attentions.{}.out_lin",
        "squeezebert": "encoder.layers.{}.post_attention.conv1d",
    }
    kind = "xlm" if model.config.model_type == "flaubert" else model.config.model_type
    path = names.get(kind, "encoder.layer.{}.attention.output.dense")
    changed = copy.deepcopy(model)
    for layer, head in heads:
        weight = changed.get_submodule(path.format(layer)).weight
        # ConvBERT's and MobileBERT's heads are of four entries: half the state is convolution.
        d_head = 4 if kind in ("convbert", "mobilebert") else 8
        weight.data[:, head * d_head : (head + 1) * d_head] = 0
    with torch.no_grad():
        return changed(IDS, attention_mask=VALID).last_hidden_state[REAL]


@each_family
def test_removed_is_zeroed_in_the_models_own_run(name: str) -> None:
    model = tiny(name)
    loaded = headscope.wrap(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    once = headscope.remove_heads(loaded, SOME)
    twice = headscope.remove_heads(once, [(0, 3), (2, 2)])
    for compact, heads in ((once, SOME), (twice, [*SOME, (0, 3), (2, 2)])):
        assert sorted(heads) == list(removed_heads(compact))
        result = validate_model(compact)
        assert result.passed, result.reasons
        for implementation in ("eager", "sdpa")[: 1 + ("mobile" in name)]:
            compact.model.set_attn_implementation(implementation)
            model.set_attn_implementation(implementation)
            torch.testing.assert_close(plain(compact), zeroed(model, heads), rtol=0, atol=1e-5)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    sizes = [sum(p.numel() for p in m.model.parameters()) for m in (loaded, once, twice)]
    assert sizes[0] > sizes[1] > sizes[2]


@each_family
def test_a_saved_model_is_the_same_model(name: str, tmp_path: Path) -> None:
    compact = headscope.remove_heads(headscope.wrap(tiny(name), name="source"), SOME)
    headscope.save(compact, tmp_path / "compact")
    headscope.save_dense(compact, tmp_path / "dense")
    for folder in (tmp_path / "compact", tmp_path / "dense"):
        again = headscope.load(str(folder), need_tokenizer=False)
        torch.testing.assert_close(plain(again), plain(compact), rtol=0, atol=1e-5)
        result = validate_model(again)
        assert result.passed, result.reasons
        assert again.n_heads == 4 if folder.name == "dense" else 3
    again = headscope.load(str(tmp_path / "compact"), need_tokenizer=False)
    assert [site.head_ids for site in again.sites] == [site.head_ids for site in compact.sites]
    rest = headscope.remove_heads(again, [(2, 3)])
    torch.testing.assert_close(
        plain(rest), plain(headscope.remove_heads(compact, [(2, 3)])), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["xlm", "flaubert"])
def test_a_language_model_of_another_name_has_its_head(kind: str, tmp_path: Path) -> None:
    config = tiny(kind).config
    network = AutoModelForMaskedLM.from_config(config).eval()
    compact = headscope.remove_heads(headscope.wrap(network), SOME)
    headscope.save(compact, tmp_path / "x")
    again = headscope.load(str(tmp_path / "x"), need_tokenizer=False, task_head="auto")
    assert (compact.task_head, again.task_head) == ("mlm", "mlm")
    with torch.no_grad():
        expected, found = (model.run(IDS, VALID)[1] for model in (compact, again))
    assert expected is not None
    assert expected.shape == (3, 9, 61)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["squeezebert, mixed", "convbert, wide kernel"])
def test_other_settings_lose_heads_too(name: str) -> None:
    model = tiny(name)
    compact = headscope.remove_heads(headscope.wrap(model), SOME)
    torch.testing.assert_close(plain(compact), zeroed(model, SOME), rtol=0, atol=1e-5)


def test_convbert_keeps_every_query_for_the_convolution() -> None:
    compact = headscope.remove_heads(headscope.wrap(tiny("convbert")), SOME)
    module: Any = compact.sites[0].module
    assert module.query.weight.shape == (16, 32)
    assert module.key.weight.shape == (12, 32)
    assert compact.sites[0].projections.out.weight.shape == (32, 12 + 16)
    assert compact.sites[0].weights().W_Q.shape == (3, 32, 4)


# --- wrong readings ---------------------------------------------------------------------------


def assert_fails(name: str, what: str, **changes: Any) -> None:
    result = validate_model(headscope.wrap(tiny(name, "float64", **changes)))
    assert not result.passed
    assert any(re.search(what, reason) for reason in result.reasons), result.reasons


rotated = roformer.rotated


def halves(x: Tensor, table: Tensor) -> Tensor:
    """Rotate pairs (i, i + d_head / 2), as other families do."""
    sin, cos = table.chunk(2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def backwards(x: Tensor, table: Tensor) -> Tensor:
    sin, cos = table.chunk(2, dim=-1)
    return rotated(x, torch.cat([-sin, cos], dim=-1))


@pytest.mark.parametrize("wrong", [lambda x, table: x, backwards, halves])
def test_rotation_that_is_forgotten_or_wrong(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roformer, "rotated", wrong)
    assert_fails("roformer", "encoder layer 0: max .pattern")


def test_values_that_are_not_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    place = roformer.RoFormerLayout.place

    def forgetful(self: Any, site: Any, heads: Any, inputs: Any) -> Any:
        return place(self, site, heads, inputs)._replace(v=heads.v)

    monkeypatch.setattr(roformer.RoFormerLayout, "place", forgetful)
    assert_fails("roformer, rotated values", "encoder layer 0: max .out")


@pytest.mark.parametrize(
    "wrong",
    [lambda found: found * 0, lambda found: found * (1 + 1e-6), lambda found: found.flip(2)],
)
def test_convolution_that_is_forgotten_or_wrong(
    wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = convbert.convolution
    monkeypatch.setattr(convbert, "convolution", lambda module, x: wrong(right(module, x)))
    assert_fails("convbert", "encoder layer 0: max .out")


def test_convbert_with_the_queries_of_other_heads() -> None:
    model = tiny("convbert", "float64")
    compact = headscope.remove_heads(headscope.wrap(model), [(0, 1)])
    vars(compact.sites[0].module)["headscope_kept"] = (0, 1, 3)
    wrong = plain(compact)
    assert not torch.allclose(wrong, zeroed(model, [(0, 1)]), atol=1e-3)


def test_groups_that_are_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    right = squeezebert.GroupedMap.weight.fget
    assert right is not None

    def mixed(self: squeezebert.GroupedMap) -> Tensor:
        weight: Tensor = right(self)
        return weight.roll(16, 1) if self.module.groups > 1 else weight

    monkeypatch.setattr(squeezebert.GroupedMap, "weight", property(mixed))
    assert_fails("squeezebert", "encoder layer 0: max .pattern")


def test_channels_and_positions_that_are_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        squeezebert.SqueezeBertLayout,
        "answer",
        lambda self, site, z, inputs: {"context_layer": z.flip(1).transpose(1, 2)},
    )
    assert_fails("squeezebert", "encoder layer 0: max .out")


@pytest.mark.parametrize(
    ("width", "what"), [(32, "encoder layer 0: max .out - model's. is "), (16, "not comparable")]
)
def test_values_of_mobilebert_made_from_the_keys_input(
    width: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that has another width too, which must not raise anything."""
    right = mobilebert.MobileBertLayout.read

    def forgetful(*args: Any) -> Any:
        inputs = right(*args)
        return type(inputs)(inputs.x_q, inputs.x_k, inputs.mask, inputs.given)

    monkeypatch.setattr(mobilebert.MobileBertLayout, "read", forgetful)
    assert_fails("mobilebert", what, intra_bottleneck_size=width)


def test_mask_of_xlm_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    right = xlm.XlmLayout.read

    def forgetful(*args: Any) -> Any:
        inputs = right(*args)
        return type(inputs)(inputs.x_q, inputs.x_k, None, inputs.given)

    monkeypatch.setattr(xlm.XlmLayout, "read", forgetful)
    assert_fails("xlm", "padding mask did not reach")


@pytest.mark.parametrize(
    ("name", "layout"),
    [("xlm, causal", xlm.XlmLayout), ("rembert, decoder", rembert.RemBertLayout)],
)
def test_direction_that_is_overlooked(
    name: str, layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "causal", lambda self, module: False)
    assert_fails(name, "encoder layer 0: max .pattern")


def test_arguments_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reason, and nothing raised."""
    monkeypatch.setattr(
        rembert.RemBertLayout, "place", lambda self, site, heads, inputs: inputs.given["positions"]
    )
    assert_fails("rembert", "rembert does not run through our attention: 'positions'")


def test_plain_scores_are_not_roformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """RoFormer has BERT's maps: read as RemBERT's, the certificate must notice."""
    monkeypatch.setattr(roformer.RoFormerLayout, "match", lambda *_: None)
    loaded = headscope.wrap(tiny("roformer", "float64"))
    assert {site.layout.name for site in loaded.sites} == {"rembert"}
    assert_fails("roformer", "encoder layer 0: max .pattern")


# --- what cannot be done ----------------------------------------------------------------------


def test_output_map_in_groups_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="works in 2 groups"):
        headscope.wrap(tiny("squeezebert", post_attention_groups=2))


def test_family_that_wants_more_than_token_ids() -> None:
    """Its convolution of even width does not run in transformers either."""
    with pytest.raises(
        UnsupportedModelError, match=r"\(convbert\) does not run on token ids alone"
    ):
        headscope.wrap(tiny("convbert", conv_kernel_size=4))
