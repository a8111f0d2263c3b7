"""Relative positions: mpnet, deberta, deberta-v2 and umt5, against plain loops and the models."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import Family
from tiny_models import tiny_tokenizer
from torch import Tensor

import headscope
from headscope.data.packing import pack
from headscope.data.plain import as_plain
from headscope.errors import UnsupportedModelError
from headscope.models.certificate import validate_model
from headscope.models.coverage import relative_terms
from headscope.models.gating import gated
from headscope.models.layouts import AttentionSite
from headscope.models.layouts.disentangled import (
    DisentangledLayout,
    InterleavedLayout,
    bucketed,
)
from headscope.models.layouts.relative import MPNetLayout
from headscope.models.loaded import LoadedModel
from headscope.models.probes import Probe
from headscope.models.recording import run_eager, run_ours
from headscope.models.routing import Router, routed

RELATIVE: dict[str, Any] = {"relative_attention": True, "position_biased_input": False}
BOTH = {**RELATIVE, "pos_att_type": ["c2p", "p2c"]}
AS_V3 = {**BOTH, "share_att_key": True, "norm_rel_ebd": "layer_norm", "conv_kernel_size": 3}
_UMT5 = {
    "vocab_size": 61,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
#: Every probe of 40 tokens or more goes beyond the tables and buckets of these.
MAIN = {
    "mpnet": Family("mpnet", "mpnet", changes={"max_position_embeddings": 202}),
    "deberta": Family("deberta", "deberta", changes={**BOTH, "max_relative_positions": 8}),
    "deberta-v2, as v3": Family(
        "deberta-v2",
        "deberta-v2",
        changes={**AS_V3, "position_buckets": 8, "max_relative_positions": 16},
    ),
    "deberta-v2, own maps": Family(
        "deberta-v2", "deberta-v2", changes={**BOTH, "max_relative_positions": 8}
    ),
    "umt5": Family("umt5", "umt5", ("encoder", "decoder", "cross"), changes=_UMT5),
}
_V2 = partial(Family, "deberta-v2", "deberta-v2")
_V1 = partial(Family, "deberta", "deberta")
#: Other ways to configure the two; the scale counts terms that are listed and not computed.
OTHERS = {
    "v1, c2p": _V1(changes={**RELATIVE, "pos_att_type": ["c2p"]}),
    "v1, p2c": _V1(changes={**RELATIVE, "pos_att_type": ["p2c"]}),
    "v1, plain": _V1(),
    "v1, listed": _V1(changes={"pos_att_type": ["c2p", "p2c"]}),
    "v2, c2p": _V2(changes={**RELATIVE, "pos_att_type": ["c2p"], "share_att_key": True}),
    "v2, p2c": _V2(changes={**RELATIVE, "pos_att_type": ["p2c"]}),
    "v2, no term": _V2(changes=RELATIVE),
    "v2, plain": _V2(),
    "v2, listed": _V2(changes={"pos_att_type": "c2p|p2c"}),
    "v2, buckets": _V2(changes={**BOTH, "position_buckets": 6}),
}
each = pytest.mark.parametrize("name", MAIN)


def wrapped(name: str, dtype: str = "float32", **changes: Any) -> LoadedModel:
    return headscope.wrap({**MAIN, **OTHERS}[name].model(dtype, **changes))


def probe(loaded: LoadedModel) -> Probe:
    """Two sentences of different lengths."""
    ids = loaded.pad([[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18], [21, 22, 23]])
    start = loaded.start_id
    return Probe("two", *ids, *(() if start is None else loaded.pad([[start, 6, 7], [start, 9]])))


# --- the certificate --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@each
def test_certificate(name: str, dtype: str) -> None:
    spread = {} if name == "umt5" else {"initializer_range": 0.15}
    loaded = wrapped(name, dtype, **spread)
    result = validate_model(loaded)
    assert result.passed, result.reasons
    assert {site.layout.name for site in loaded.sites} == {MAIN[name].layout}
    assert {check.calls for check in result.layers} == {1}
    assert result.padded > 0
    assert result.mask_reached


@pytest.mark.parametrize("name", OTHERS)
def test_certificate_of_other_configurations(name: str) -> None:
    result = validate_model(wrapped(name, "float64"))
    assert result.passed, result.reasons


def test_talking_heads_are_refused() -> None:
    model = _V1(changes={"talking_head": True}).model()
    with pytest.raises(UnsupportedModelError, match=r"talking_head.*mixes the scores"):
        headscope.wrap(model)


# --- wrong readings of the weights ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class OtherHeadsBias(MPNetLayout):
    def bias(self, *args: Any) -> Any:
        return super().bias(*args).roll(1, dims=1)


@dataclasses.dataclass(frozen=True)
class OtherHeadsTerms(DisentangledLayout):
    def bias(self, *args: Any) -> Any:
        return super().bias(*args).roll(1, dims=1)


@dataclasses.dataclass(frozen=True)
class Swapped(DisentangledLayout):
    def _positions(self, *args: Any) -> Any:
        return tuple(reversed(super()._positions(*args)))


@dataclasses.dataclass(frozen=True)
class SwappedFirst(InterleavedLayout):
    def _positions(self, *args: Any) -> Any:
        return tuple(reversed(super()._positions(*args)))


@dataclasses.dataclass(frozen=True)
class NoFactor(DisentangledLayout):
    def scale(self, module: Any, d_head: int) -> float:
        return d_head**-0.5


@dataclasses.dataclass(frozen=True)
class Backwards(DisentangledLayout):
    def rows(self, *args: Any) -> Tensor:
        return super().rows(*args).t()


@dataclasses.dataclass(frozen=True)
class NoBuckets(DisentangledLayout):
    def rows(self, module: Any, n_q: int, n_k: int) -> Tensor:
        span = module.position_buckets
        distance = torch.arange(n_q)[:, None] - torch.arange(n_k)
        return (distance + span).clamp(0, 2 * span - 1)


_NAMES = {"q": "query_proj", "k": "key_proj", "v": "value_proj"}
WRONG = [
    ("mpnet", OtherHeadsBias("wrong", q="q", k="k", v="v", out="o")),
    ("deberta", SwappedFirst("wrong")),
    *(
        ("deberta-v2, as v3", kind("wrong", **_NAMES))
        for kind in (OtherHeadsTerms, Swapped, NoFactor, Backwards, NoBuckets)
    ),
    ("deberta-v2, own maps", Swapped("wrong", **_NAMES)),
]


@pytest.mark.parametrize(("name", "wrong"), WRONG, ids=lambda item: type(item).__name__)
def test_wrong_readings_fail(name: str, wrong: Any) -> None:
    loaded = wrapped(name)
    sites = tuple(dataclasses.replace(site, layout=wrong) for site in loaded.sites)
    result = validate_model(dataclasses.replace(loaded, sites=sites, certificate=None))
    assert not result.passed
    assert any("pattern" in reason for reason in result.reasons)


# --- one layer by hand, from the state dict ---------------------------------------------------


def by_hand(model: Any, sentence: list[int], names: dict[str, str], score: Any) -> np.ndarray:
    """Patterns of the first layer, (n_heads, n, n), pair by pair."""
    state = {key: value.double().numpy() for key, value in model.state_dict().items()}
    with torch.no_grad():
        x = model.embeddings(torch.tensor([sentence]))[0].double().numpy()
    maps = {
        part: x @ state[f"{name}.weight"].T + state[f"{name}.bias"] for part, name in names.items()
    }
    n = len(sentence)
    pattern = np.zeros((4, n, n))
    for h in range(4):
        own = {part: values[:, 8 * h : 8 * h + 8] for part, values in maps.items()}
        for i in range(n):
            scores = [score(state, h, i, j, own["q"][i], own["k"][j]) for j in range(n)]
            weights = np.exp(np.array(scores) - max(scores))
            pattern[h, i] = weights / weights.sum()
    return pattern


def our_first_pattern(loaded: LoadedModel, sentence: list[int]) -> np.ndarray:
    batch = Probe("one", torch.tensor([sentence]), torch.ones(1, len(sentence), dtype=torch.long))
    found = run_ours(loaded, batch).site(loaded.sites[0]).pattern
    assert found is not None
    return found[0].numpy()


def test_mpnet_by_hand() -> None:
    """Buckets of MPNet: 8 for the nearest of each side, then ever wider up to 128 tokens away."""

    def bucket(away: int) -> int:
        side, away = (16 if away > 0 else 0), abs(away)
        if away < 8:
            return side + away
        return side + min(15, 8 + math.floor(8 * math.log2(away / 8) / 4))

    def score(state: Any, h: int, i: int, j: int, q: np.ndarray, k: np.ndarray) -> float:
        bias = state["encoder.relative_attention_bias.weight"][bucket(j - i), h]
        return float(q @ k / math.sqrt(8) + bias)

    loaded = wrapped("mpnet", "float64")
    sentence = [5 + (7 * i) % 50 for i in range(150)]
    names = {part: f"encoder.layer.0.attention.attn.{part}" for part in "qk"}
    expected = by_hand(loaded.model, sentence, names, score)
    np.testing.assert_allclose(our_first_pattern(loaded, sentence), expected, atol=1e-12)


def table_row(away: int, buckets: int, far: int) -> int:
    """Row of the table of relative positions for a key ``away`` tokens before the query."""
    span = buckets if buckets > 0 else far
    if buckets > 0 and abs(away) > buckets // 2:
        half = buckets // 2
        share = math.log(abs(away) / half) / math.log((far - 1) / half)
        away = int(math.copysign(half + math.ceil(share * (half - 1)), away))
    return min(max(away + span, 0), 2 * span - 1)


def disentangled(state: Any, pos_k: tuple[str, ...], pos_q: tuple[str, ...], normed: bool) -> Any:
    """Return pos_k and pos_q of all rows of the table, (rows, 32)."""
    table = state["encoder.rel_embeddings.weight"]
    if normed:
        table = (table - table.mean(1, keepdims=True)) / np.sqrt(table.var(1) + 1e-7)[:, None]
        table = table * state["encoder.LayerNorm.weight"] + state["encoder.LayerNorm.bias"]
    return [
        table @ state[f"{name[0]}.weight"].T + (state[f"{name[0]}.bias"] if name[1:] else 0)
        for name in (pos_k, pos_q)
    ]


SELF = "encoder.layer.0.attention.self."
DEBERTA_NAMES = {
    "deberta-v2, as v3": ("key_proj", "query_proj", 8, 16),
    "deberta-v2, own maps": ("pos_key_proj", "pos_query_proj", -1, 8),
}


@pytest.mark.parametrize("name", DEBERTA_NAMES)
def test_deberta_v2_by_hand(name: str) -> None:
    *maps, buckets, far = DEBERTA_NAMES[name]
    loaded = wrapped(name, "float64")
    state = {key: value.numpy() for key, value in loaded.model.state_dict().items()}
    pos_k, pos_q = disentangled(state, *((SELF + m, "bias") for m in maps), "v3" in name)

    def score(_: Any, h: int, i: int, j: int, q: np.ndarray, k: np.ndarray) -> float:
        row, own = table_row(i - j, buckets, far), slice(8 * h, 8 * h + 8)
        return float((q @ k + q @ pos_k[row, own] + k @ pos_q[row, own]) / math.sqrt(8 * 3))

    sentence = [5 + (7 * i) % 50 for i in range(30)]
    names = {"q": SELF + "query_proj", "k": SELF + "key_proj"}
    expected = by_hand(loaded.model, sentence, names, score)
    np.testing.assert_allclose(our_first_pattern(loaded, sentence), expected, atol=1e-7)


def test_first_deberta_by_hand() -> None:
    loaded = wrapped("deberta", "float64")
    state = {key: value.numpy() for key, value in loaded.model.state_dict().items()}
    pos_k, pos_q = disentangled(state, (SELF + "pos_proj",), (SELF + "pos_q_proj", "bias"), False)
    with torch.no_grad():
        x = loaded.model.embeddings(torch.tensor([[5 + (7 * i) % 50 for i in range(30)]]))[0]
    fused, b_Q = state[SELF + "in_proj.weight"], state[SELF + "q_bias"]
    ours = our_first_pattern(loaded, [5 + (7 * i) % 50 for i in range(30)])
    for h in range(4):
        rows = fused[24 * h : 24 * h + 24]  # q, k and v of this head
        own = slice(8 * h, 8 * h + 8)
        q, k = x.numpy() @ rows[:8].T + b_Q[own], x.numpy() @ rows[8:16].T
        for i in range(30):
            at = [table_row(i - j, -1, 8) for j in range(30)]
            scores = k @ q[i] + pos_k[at, own] @ q[i] + (k * pos_q[at, own]).sum(1)
            weights = np.exp(scores / math.sqrt(24))
            np.testing.assert_allclose(ours[h, i], weights / weights.sum(), atol=1e-7)


@pytest.mark.parametrize(("buckets", "far"), [(256, 512), (16, 40), (8, 16), (6, 40)])
def test_buckets_are_the_formulas(buckets: int, far: int) -> None:
    """As DeBERTa-v3 has them (256 of 512), far beyond the last one."""
    away = torch.arange(-700, 701)
    rows = (bucketed(away, buckets, far) + buckets).clamp(0, 2 * buckets - 1)
    assert rows.tolist() == [table_row(int(d), buckets, far) for d in away]


# --- pruning ----------------------------------------------------------------------------------


def uneven(loaded: LoadedModel) -> list[tuple[str, int, int]]:
    """Some heads of each layer, and all heads of the second."""
    return [
        (site.stack, site.layer, h)
        for site in loaded.sites
        for h in range(site.n_heads)
        if (site.row + h) % 3 == 0 or site.row == 1
    ]


def zeroed(loaded: LoadedModel, heads: list[tuple[str, int, int]]) -> Tensor:
    """Run a model with gates of zero; padding must not warn."""
    gates = torch.ones(loaded.n_layers, loaded.n_heads)
    row = {(site.stack, site.layer): site.row for site in loaded.sites}
    for stack, layer, head in heads:
        gates[row[stack, layer], head] = 0
    with gated(loaded, gates) as run:
        return run(**probe(loaded).inputs)[0][probe(loaded).real]


def states(loaded: LoadedModel, attention: str = "eager") -> Tensor | None:
    """Run a model by its own forward; None where it has no such attention."""
    try:
        loaded.network.set_attn_implementation(attention)
    except ValueError:
        return None
    with torch.no_grad():
        return loaded.run(**probe(loaded).inputs)[0][probe(loaded).real]


def close(one: Tensor | None, other: Tensor | None) -> None:
    assert one is not None
    assert other is not None
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@each
def test_removed_heads_are_zeroed_heads(name: str, tmp_path: Path) -> None:
    loaded = wrapped(name)
    heads = uneven(loaded)
    cut = headscope.remove_heads(loaded, heads)
    assert [site.n_heads for site in cut.sites[:2]] == [2, 0]
    expected = zeroed(loaded, heads)
    assert float((expected - zeroed(loaded, [])).abs().max()) > 0.05
    close(states(cut), expected)
    if (sdpa := states(cut, "sdpa")) is not None:
        close(sdpa, expected)
    assert validate_model(cut).passed
    for save in (headscope.save, headscope.save_dense):
        save(cut, tmp_path / save.__name__)
        opened = headscope.load(
            str(tmp_path / save.__name__), need_tokenizer=False, task_head="auto"
        )
        close(states(opened), expected)
        result = validate_model(opened)
        assert result.passed, result.reasons


@each
def test_pruned_twice_is_pruned_at_once(name: str) -> None:
    loaded = wrapped(name, "float64")
    heads = uneven(loaded)
    once = headscope.remove_heads(loaded, heads)
    twice = headscope.remove_heads(headscope.remove_heads(loaded, heads[::2]), heads[1::2])
    assert [site.head_ids for site in once.sites] == [site.head_ids for site in twice.sites]
    torch.testing.assert_close(states(once), states(twice), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["deberta", "deberta-v2, own maps"])
def test_maps_of_positions_lose_the_heads_rows_too(name: str) -> None:
    loaded = wrapped(name)
    cut = headscope.remove_heads(loaded, [(0, 0), (0, 2)])
    before, after = (dict(one.sites[0].module.named_parameters()) for one in (loaded, cut))
    assert len(before) >= 5
    for key, tensor in before.items():
        by_head = tensor.unflatten(0, (4, -1))[[1, 3]].flatten(0, 1)
        assert torch.equal(after[key], by_head), key


# --- the measurements -------------------------------------------------------------------------


def test_a_model_may_be_routed_while_it_is_routed() -> None:
    """As a task runs the unpruned model between two batches of the pruned one."""
    loaded = wrapped("mpnet")
    outer, inner = Router(loaded.sites), Router(loaded.sites)
    run = partial(loaded.forward, **probe(loaded).inputs)
    with routed(loaded.model, outer):
        first = outer.checked(run)
        with routed(loaded.model, inner):
            inner.checked(run)
        torch.testing.assert_close(outer.checked(run), first)
    assert not any("forward" in vars(site.module) for site in loaded.sites)


@each
def test_rank_says_what_it_does_not_cover(name: str) -> None:
    term = relative_terms(MAIN[name].model().config)
    assert term is not None
    result = headscope.rank(wrapped(name), control_seeds=2, fresh=False)
    assert result.not_covered == (term,)
    assert result.validation.passed


@pytest.mark.parametrize("name", OTHERS)
def test_rank_covers_models_without_relative_terms(name: str) -> None:
    plain = name.endswith(("plain", "listed", "no term"))
    assert (relative_terms(OTHERS[name].model().config) is None) == plain


LINES = ["the cat sat on the mat", "he saw a big dog in the red house and ran"] * 6


def kept_error(
    site: AttentionSite, pattern: np.ndarray, v: np.ndarray, keep: np.ndarray
) -> list[float]:
    """Error of each head's z with the pattern cut to some keys, mean over sequences."""
    found = []
    for h in range(site.n_heads):
        gaps = []
        for b in range(len(pattern)):
            own = pattern[b, h] * keep
            z, value = pattern[b, h] @ v[b, :, h], v[b, :, h]
            gap = own / own.sum(1, keepdims=True) @ value - z
            gaps.append(np.linalg.norm(gap) / np.linalg.norm(z))
        found.append(float(np.mean(gaps)))
    return found


@pytest.mark.parametrize("name", ["mpnet", "deberta-v2, as v3"])
def test_spectrum_and_windows_are_those_of_the_models_own_patterns(name: str) -> None:
    model = MAIN[name].model("float64", vocab_size=200)
    loaded = headscope.wrap(model, tiny_tokenizer(40))
    result = headscope.spectrum(loaded, LINES, length=16, sequences=4, efficient=True)
    windows = pack(as_plain(LINES), loaded, 16)
    assert result.efficient is not None
    assert result.efficient.sequences == min(16, len(windows))
    every = torch.from_numpy(windows.batch(windows.spread(len(windows))))
    seen = run_eager(loaded, Probe("windows", every, torch.ones_like(every)))
    assert {point.form for point in result.efficient.points} >= {"window", "truncated", "bound"}
    assert result.efficient.left_out == ("pooled",)
    position = np.arange(16)
    back = position[:, None] - position
    keep = (back <= 2) & (-back <= 1)  # four keys around the query
    for site in loaded.sites:
        record = seen.site(site)
        assert record.inputs is not None
        with torch.no_grad():
            v = site.projections.v(record.inputs.x_v).unflatten(-1, (4, 8)).numpy()
        expected = kept_error(site, record.pattern.numpy(), v, keep)
        ours = [
            head.error.mean
            for head in result.efficient.heads
            if (head.layer, head.form, head.size) == (site.layer, "window", 4)
        ]
        np.testing.assert_allclose(ours, expected, atol=1e-6)
