"""Rotary positions and fused maps: certificates, plain loops over one layer, surgery."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import COVERED, Family
from torch import Tensor

import headscope
from headscope.errors import UnsupportedModelError
from headscope.models.certificate import validate_model
from headscope.models.coverage import rotary
from headscope.models.gating import gated
from headscope.models.layouts import AttentionInput, Heads, Layout
from headscope.models.layouts.esm import EsmLayout
from headscope.models.layouts.fused import Gpt2Layout, ModernBertLayout
from headscope.models.layouts.rotary import RotaryLayout
from headscope.models.loaded import LoadedModel
from headscope.models.probes import Probe, probes
from headscope.models.recording import run_eager, run_ours

_GPT2 = {"scale_attn_by_inverse_layer_idx": True}
MAIN = {
    **{f.kind: f for f in COVERED if f.layout in ("rotary", "modernbert", "esm", "gpt2")},
    "esm, absolute": Family("esm", "esm", changes={"pad_token_id": 0, "mask_token_id": 4}),
    "gpt2, by layer": Family("gpt2", "gpt2", ("decoder",), changes=_GPT2),
}
#: A checkpoint may be configured otherwise: biases, one key for all heads, a key for every head.
OTHERS = {
    "modernbert, biases": {"attention_bias": True},
    "eurobert, one key": {"num_key_value_heads": 1, "attention_bias": True},
    "eurobert, own keys": {"num_key_value_heads": 4},
    "gpt2, unscaled": {"scale_attn_weights": False},
    "gpt2, reordered": {**_GPT2, "reorder_and_upcast_attn": True},
    "esm, masked tokens": {"token_dropout": True, "emb_layer_norm_before": True},
    "nomic_bert, far": {"rope_parameters": {"rope_type": "linear", "factor": 4.0}},
}
each = pytest.mark.parametrize("name", MAIN)
#: Local attention of ModernBERT in the table: this many positions to each side.
WINDOW = 4


def wrapped(name: str, dtype: str = "float32", **changes: Any) -> LoadedModel:
    return headscope.wrap(MAIN[name].model(dtype, **{"initializer_range": 0.2, **changes}))


def batch(loaded: LoadedModel, *lengths: int) -> Probe:
    """Random sentences of these lengths, right-padded."""
    draw = torch.Generator().manual_seed(3)
    rows = [torch.randint(5, 61, (n,), generator=draw).tolist() for n in lengths]
    return Probe("batch", *loaded.pad(rows))


# --- the certificate --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@each
def test_certificate(name: str, dtype: str) -> None:
    loaded = wrapped(name, dtype, initializer_range=0.15)
    result = validate_model(loaded)
    assert result.passed, result.reasons
    assert {site.layout.name for site in loaded.sites} == {MAIN[name].layout}
    assert loaded.stacks == MAIN[name].stacks
    assert {check.calls for check in result.layers} == {1}
    assert result.padded > 0
    assert result.mask_reached


@pytest.mark.parametrize("name", OTHERS)
def test_certificate_of_other_configurations(name: str) -> None:
    loaded = wrapped(name.partition(",")[0], **OTHERS[name])
    result = validate_model(loaded)
    assert result.passed, result.reasons


@pytest.mark.parametrize(
    ("changes", "window", "length"),
    [
        ({"local_attention": 128, "max_position_embeddings": 8192}, 64, 256),
        ({"local_attention": 256, "max_position_embeddings": 8192}, 128, 384),
        ({}, WINDOW, 64),
    ],
)
def test_the_long_probe_goes_beyond_the_window(
    changes: dict[str, int], window: int, length: int
) -> None:
    loaded = wrapped("modernbert", **changes)
    assert [site.window for site in loaded.sites] == [None, window, None, window]
    long = probes(loaded)[-1]
    assert long.input_ids.shape == (1, length)
    assert length > 2 * window


@pytest.mark.parametrize("lengths", [(40, 3), (6, 5), (WINDOW + 1, 2), (23,), (64, 30)])
def test_windows_are_those_of_the_models_own_patterns(lengths: tuple[int, ...]) -> None:
    """Inclusive on both sides; no layer but the sliding ones has any."""
    loaded = wrapped("modernbert")
    probe = batch(loaded, *lengths)
    theirs, ours = run_eager(loaded, probe), run_ours(loaded, probe)
    assert ours.failure is None
    for site in loaded.sites:
        for record in (theirs.site(site), ours.site(site)):
            assert record.pattern is not None
            for row, n in enumerate(lengths):
                position = torch.arange(n)
                near = (position[:, None] - position).abs() <= (site.window or n)
                seen = record.pattern[row, :, :n] > 0
                assert torch.equal(seen[..., :n], near.expand(4, n, n))
                assert not bool(seen[..., n:].any())


def test_padding_beyond_the_window_is_no_warning() -> None:
    """Padded queries have no key in their window; warnings are errors here."""
    loaded = wrapped("modernbert")
    probe = batch(loaded, 40, 3)
    with gated(loaded) as run:
        hidden = run(**probe.inputs)[0]
    assert bool(torch.isfinite(hidden).all())
    with torch.no_grad():
        torch.testing.assert_close(
            hidden[probe.real], loaded.forward(**probe.inputs)[probe.real], rtol=0, atol=1e-4
        )


# --- wrong readings ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class NotRotated(RotaryLayout):
    def place(self, site: Any, heads: Heads, inputs: AttentionInput) -> Heads:
        return super().place(site, heads, dataclasses.replace(inputs, given={}))


@dataclasses.dataclass(frozen=True)
class Backwards(RotaryLayout):
    def place(self, site: Any, heads: Heads, inputs: AttentionInput) -> Heads:
        cos, sin = inputs.given["position_embeddings"]
        given = {"position_embeddings": (cos, -sin.roll(1, dims=1))}
        return super().place(site, heads, dataclasses.replace(inputs, given=given))


@dataclasses.dataclass(frozen=True)
class OtherGroups(RotaryLayout):
    """Heads 0 and 2 read one key, 1 and 3 the other."""

    def shared_by(self, module: Any, head_ids: Any) -> list[int]:
        return [head % 2 for head in head_ids]


@dataclasses.dataclass(frozen=True)
class OtherAngles(ModernBertLayout):
    """Angles of the other type of layer."""

    def place(self, site: Any, heads: Heads, inputs: AttentionInput) -> Heads:
        kind = "full_attention" if site.window else "sliding_attention"
        where = torch.arange(inputs.x_q.shape[1])[None]
        angles = wrapped("modernbert").model.rotary_emb(inputs.x_q, where, kind)
        given = {"position_embeddings": angles}
        return super().place(site, heads, dataclasses.replace(inputs, given=given))


@dataclasses.dataclass(frozen=True)
class WiderWindow(ModernBertLayout):
    def window(self, module: Any) -> int | None:
        found = super().window(module)
        return None if found is None else found + 1


@dataclasses.dataclass(frozen=True)
class NarrowerWindow(ModernBertLayout):
    def window(self, module: Any) -> int | None:
        found = super().window(module)
        return None if found is None else found - 1


@dataclasses.dataclass(frozen=True)
class NoWindow(ModernBertLayout):
    def window(self, module: Any) -> int | None:
        return None


@dataclasses.dataclass(frozen=True)
class NotCausal(Gpt2Layout):
    def causal(self, module: Any) -> bool:
        return False


@dataclasses.dataclass(frozen=True)
class EqualLayers(Gpt2Layout):
    def scale(self, module: Any, d_head: int) -> float:
        return d_head**-0.5


@dataclasses.dataclass(frozen=True)
class ScaledTwice(EsmLayout):
    def scale(self, module: Any, d_head: int) -> float:
        return d_head**-0.5


@dataclasses.dataclass(frozen=True)
class EsmNotRotated(EsmLayout):
    def place(self, site: Any, heads: Heads, inputs: AttentionInput) -> Heads:
        return heads


WRONG = [
    ("nomic_bert", NotRotated("wrong")),
    ("jina_embeddings_v3", Backwards("wrong")),
    ("eurobert", OtherGroups("wrong")),
    ("modernbert", OtherAngles("wrong")),
    ("modernbert", WiderWindow("wrong")),
    ("modernbert", NarrowerWindow("wrong")),
    ("modernbert", NoWindow("wrong")),
    ("gpt2", NotCausal("wrong")),
    ("gpt2, by layer", EqualLayers("wrong")),
    ("esm", ScaledTwice("wrong")),
    ("esm", EsmNotRotated("wrong")),
]


@pytest.mark.parametrize(("name", "wrong"), WRONG, ids=lambda item: type(item).__name__)
def test_wrong_readings_fail(name: str, wrong: Layout) -> None:
    loaded = wrapped(name)
    sites = tuple(dataclasses.replace(site, layout=wrong) for site in loaded.sites)
    result = validate_model(dataclasses.replace(loaded, sites=sites, certificate=None))
    assert not result.passed
    assert any("pattern" in reason for reason in result.reasons)


@pytest.mark.parametrize("name", ["esm", "esm, absolute"])
def test_esm_is_not_bert(name: str) -> None:
    """Its W_Q as stored makes scores that are sqrt(d_head) times too large."""
    loaded = wrapped(name)
    plain = Layout("bert")
    sites = []
    for site in loaded.sites:
        parent = loaded.model.get_submodule(site.name.rpartition(".")[0])
        projections = plain.match(site.module, parent)
        assert projections is not None
        sites.append(dataclasses.replace(site, layout=plain, projections=projections))
    result = validate_model(dataclasses.replace(loaded, sites=tuple(sites), certificate=None))
    assert any("layer 0: max |pattern" in reason for reason in result.reasons)


# --- one layer by hand, from the state dict ---------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Hand:
    """Where a layer keeps its maps, and what its scores are made of.

    ``maps`` are q, k, v and out, or the fused map and out; ``heads_per_key`` heads share a key.
    """

    family: str
    layer: int
    prefix: str
    maps: tuple[str, ...]
    theta: float | None
    heads_per_key: int = 1
    window: int | None = None
    causal: bool = False
    transposed: bool = False
    factor: float = 8**-0.5


_SEPARATE = tuple(f"{part}_proj" for part in "qkvo")
_ESM = ("self.query", "self.key", "self.value", "output.dense")
HANDS = [
    Hand("nomic_bert", 1, "layers.1.self_attn", _SEPARATE, 1e3),
    Hand("gte", 0, "layers.0.self_attn", _SEPARATE, 16e4),
    Hand("eurobert", 2, "layers.2.self_attn", _SEPARATE, 1e4, heads_per_key=2),
    Hand("modernbert", 0, "layers.0.attn", ("Wqkv", "Wo"), 16e4),
    Hand("modernbert", 3, "layers.3.attn", ("Wqkv", "Wo"), 1e4, window=WINDOW),
    Hand("esm", 1, "encoder.layer.1.attention", _ESM, 1e4),
    Hand("esm, absolute", 0, "encoder.layer.0.attention", _ESM, None),
    Hand("gpt2", 1, "h.1.attn", ("c_attn", "c_proj"), None, causal=True, transposed=True),
    Hand(
        *("gpt2, by layer", 2, "h.2.attn", ("c_attn", "c_proj"), None),
        **{"causal": True, "transposed": True, "factor": 8**-0.5 / 3},
    ),
]


def maps_of(model: Any, hand: Hand) -> list[tuple[np.ndarray, np.ndarray | float]]:
    """W (n_in, n_out) and b of q, k, v and out."""
    state = {key: value.double().numpy() for key, value in model.state_dict().items()}
    found: list[Any] = []
    for name in hand.maps:
        W = state[f"{hand.prefix}.{name}.weight"]
        W = W if hand.transposed else W.T
        found.append((W, state.get(f"{hand.prefix}.{name}.bias", 0.0)))
    if len(found) == 2:
        (W, b), out = found
        b = b if isinstance(b, np.ndarray) else np.zeros(96)
        found = [(W[:, i : i + 32], b[i : i + 32]) for i in (0, 32, 64)] + [out]
    return found


def by_hand(model: Any, hand: Hand, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pattern (4, n, n) and output (n, 32) of one sentence without padding, pair by pair."""
    (Q, b_Q), (K, b_K), (V, b_V), (W_O, b_O) = maps_of(model, hand)
    n = len(x)
    pattern, out = np.zeros((4, n, n)), np.zeros((n, 32)) + b_O
    for h in range(4):
        key = h // hand.heads_per_key
        q = (x @ Q + b_Q)[:, 8 * h : 8 * h + 8]
        k, v = ((x @ W + b)[:, 8 * key : 8 * key + 8] for W, b in ((K, b_K), (V, b_V)))
        if hand.theta is not None:  # q_i* turned against k_j: the real part of a complex product
            speed = hand.theta ** -(np.arange(4) / 4)
            q, k = (
                (y[:, :4] + 1j * y[:, 4:]) * np.exp(1j * np.outer(np.arange(n), speed))
                for y in (q, k)
            )
        for i in range(n):
            seen = [
                j
                for j in range(n)
                if not (hand.causal and j > i)
                and not (hand.window is not None and abs(i - j) > hand.window)
            ]
            scores = np.array([np.vdot(q[i], k[j]).real * hand.factor for j in seen])
            weights = np.exp(scores - scores.max())
            pattern[h, i, seen] = weights / weights.sum()
        out += pattern[h] @ v @ W_O[8 * h : 8 * h + 8]
    return pattern, out


@pytest.mark.parametrize("hand", HANDS, ids=lambda hand: f"{hand.family} {hand.layer}")
def test_one_layer_by_hand(hand: Hand) -> None:
    loaded = wrapped(hand.family, "float64")
    lengths = (19, 11)
    probe = batch(loaded, *lengths)
    theirs, ours = (run(loaded, probe).site(loaded.sites[hand.layer]) for run in RUNS)
    assert theirs.inputs is not None
    for row, n in enumerate(lengths):
        x = theirs.inputs.x_q[row, :n].numpy()
        pattern, out = by_hand(loaded.model, hand, x)
        for record in (theirs, ours):
            assert record.pattern is not None
            assert record.out is not None
            # Angles are made in float32.
            np.testing.assert_allclose(record.pattern[row, :, :n, :n], pattern, atol=1e-5)
            np.testing.assert_allclose(record.out[row, :n], out, atol=1e-5)


RUNS = (run_eager, run_ours)


def test_heads_that_share_a_key_have_the_same_canonical_keys() -> None:
    weights = wrapped("eurobert").sites[0].weights()
    assert weights.W_K.shape == weights.W_V.shape == weights.W_Q.shape == (4, 32, 8)
    assert torch.equal(weights.W_K[0], weights.W_K[1])
    assert not torch.equal(weights.W_K[1], weights.W_K[2])


# --- surgery ----------------------------------------------------------------------------------

Place = tuple[int, int]
#: Some of the first layer, all of the second, and in the third another number.
UNEVEN: list[Place] = [(0, 1), (0, 2), *((1, h) for h in range(4)), (2, 0)]
#: Of the keys that two heads share: one goes whole, one in part.
GROUPS: list[Place] = [(0, 0), (0, 1), (0, 3), (1, 2), (2, 1), (2, 2)]


def zeroed(loaded: LoadedModel, heads: list[Place]) -> Tensor:
    """Run the whole model with gates of zero."""
    gates = torch.ones(loaded.n_layers, loaded.n_heads)
    for layer, head in heads:
        gates[layer, head] = 0
    probe = batch(loaded, 14, 3)
    with gated(loaded, gates) as run:
        return run(**probe.inputs)[0][probe.real]


def states(loaded: LoadedModel, attention: str) -> Tensor:
    """Run a model by its own forward."""
    loaded.network.set_attn_implementation(attention)
    probe = batch(loaded, 14, 3)
    with torch.no_grad():
        return loaded.run(**probe.inputs)[0][probe.real]


@pytest.mark.parametrize(
    ("name", "heads"), [*((name, UNEVEN) for name in MAIN), ("eurobert", GROUPS)]
)
def test_removed_heads_are_zeroed_heads(name: str, heads: list[Place], tmp_path: Path) -> None:
    loaded = wrapped(name)
    cut = headscope.remove_heads(loaded, heads)
    gone = [sum(layer == row for layer, _ in heads) for row in range(loaded.n_layers)]
    assert [site.n_heads for site in cut.sites] == [4 - n for n in gone]
    expected = zeroed(loaded, heads)
    assert float((expected - zeroed(loaded, [])).abs().max()) > 0.01
    for attention in ("eager", "sdpa"):
        torch.testing.assert_close(states(cut, attention), expected, rtol=0, atol=1e-5)
    result = validate_model(cut)
    assert result.passed, result.reasons
    for save in (headscope.save, headscope.save_dense):
        save(cut, tmp_path / save.__name__)
        opened = headscope.load(
            str(tmp_path / save.__name__), need_tokenizer=False, task_head="auto", device="cpu"
        )
        torch.testing.assert_close(states(opened, "sdpa"), expected, rtol=0, atol=1e-5)
        result = validate_model(opened)
        assert result.passed, result.reasons
    again = headscope.load(str(tmp_path / "save"), need_tokenizer=False, device="cpu")
    assert [site.head_ids for site in again.sites] == [site.head_ids for site in cut.sites]


@pytest.mark.parametrize("name", ["eurobert", "modernbert", "gpt2"])
def test_pruned_twice_is_pruned_at_once(name: str, tmp_path: Path) -> None:
    loaded = wrapped(name)
    once = headscope.remove_heads(loaded, GROUPS)
    headscope.save(headscope.remove_heads(loaded, GROUPS[::2]), tmp_path / "x")
    opened = headscope.load(str(tmp_path / "x"), need_tokenizer=False, device="cpu")
    twice = headscope.remove_heads(opened, GROUPS[1::2])
    assert [site.head_ids for site in once.sites] == [site.head_ids for site in twice.sites]
    shapes = [
        [(key, tensor.shape) for key, tensor in one.model.state_dict().items()]
        for one in (once, twice)
    ]
    assert shapes[0] == shapes[1]
    torch.testing.assert_close(states(once, "sdpa"), states(twice, "sdpa"), rtol=0, atol=1e-6)


def test_shared_keys_go_with_the_last_head_that_reads_them() -> None:
    """Heads 0 and 1 read the first key, 2 and 3 the second."""
    loaded = wrapped("eurobert")
    cut = headscope.remove_heads(loaded, GROUPS)
    kept = {0: [1], 1: [0, 1], 2: [0, 1]}
    for layer, groups in kept.items():
        before, after = (one.sites[layer].module for one in (loaded, cut))
        for name in ("k_proj", "v_proj"):
            stored = getattr(before, name).weight.unflatten(0, (2, 8))[groups]
            assert torch.equal(getattr(after, name).weight, stored.flatten(0, 1))
    weights, whole = (one.sites[2].weights() for one in (cut, loaded))
    assert torch.equal(weights.W_K, whole.W_K[[0, 3]])
    assert torch.equal(weights.W_V, whole.W_V[[0, 3]])


@pytest.mark.parametrize("kind", ["nomic_bert", "esm"])
def test_half_precision_is_stored_where_nothing_is_lost(kind: str, tmp_path: Path) -> None:
    """ESM keeps its angles, which float16 does not hold, among its weights."""
    loaded = wrapped(kind)
    for parameter in loaded.model.parameters():
        parameter.data = parameter.half().float()
    if kind == "esm":
        loaded.model.rotary_embeddings.inv_freq.fill_(1 / 3)
    headscope.save(headscope.remove_heads(loaded, [(0, 1)]), tmp_path / "x")
    again = headscope.load(str(tmp_path / "x"), need_tokenizer=False, device="cpu")
    assert again.stored_dtype == "float16"
    torch.testing.assert_close(states(again, "eager"), zeroed(loaded, [(0, 1)]), rtol=0, atol=1e-5)


# --- what rank covers -------------------------------------------------------------------------


@each
def test_rank_refuses_models_that_rotate(name: str) -> None:
    loaded = wrapped(name)
    turns = not name.startswith(("gpt2", "esm, absolute"))
    assert rotary(loaded.model) == turns
    if turns:
        with pytest.raises(UnsupportedModelError, match="rotates queries and keys"):
            headscope.rank(loaded)


def test_rank_of_esm_is_of_the_scaled_queries() -> None:
    """The spectral norm of W_Q W_K^T is what scores of a scale of 1 have."""
    site = wrapped("esm, absolute").sites[0]
    assert site.scale == 1.0
    module: Any = site.module
    stored = module.query.weight.detach().t().unflatten(1, (4, 8)).transpose(0, 1)
    torch.testing.assert_close(site.weights().W_Q, stored / 8**0.5)
