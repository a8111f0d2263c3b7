"""One layer of every kind of attention, from the state dict alone, in plain loops."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny
from numpy.typing import NDArray
from torch import Tensor, nn

import headscope
from headscope.models.layouts.disentangled import bucketed
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.recording import Probe, run_eager, run_ours

Array = NDArray[Any]
Score = Callable[[int, int, int, Array, Array], float]


@dataclass(frozen=True)
class Hand:
    """Where a layer keeps its maps, and what its scores are made of."""

    family: str
    layer: int
    prefix: str
    maps: str = "self.query self.key self.value output.dense"  # or the fused map and W_O
    theta: float | None = None  # of rotary positions, whose pairs are the halves of a head
    interleaved: bool = False  # pairs (2i, 2i + 1) instead
    rotated_values: bool = False
    heads_per_key: int = 1
    window: int | None = None
    causal: bool = False
    transposed: bool = False
    factor: float | None = None  # of the scores; None: 1 / sqrt(d_head)
    stack: str = ""  # of a model that has several
    lengths: tuple[int, ...] = (9, 4, 7)
    atol: float = 1e-10

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.family, self.stack, str(self.layer))))


_BERT = "encoder.layer.{}.attention"
_SEPARATE = "q_proj k_proj v_proj o_proj"
_PLAIN = "query key value"
_ALBERT = "encoder.albert_layer_groups.0.albert_layers.0.attention"
_DISENTANGLED = "self.query_proj self.key_proj self.value_proj output.dense"
_SQUEEZE = "attention.query attention.key attention.value post_attention.conv1d"
_HALVES = {"lengths": (19, 11), "atol": 1e-5}  # angles are made in float32
_ROFORMER = {"theta": 1e4, "interleaved": True, "atol": 1e-6}  # and so are RoFormer's sines
_BART = "q_proj k_proj v_proj out_proj"
_T5 = {"factor": 1.0, "lengths": (30, 7), "atol": 1e-6}  # wide buckets, and a softmax of float32
_GPT2 = {"causal": True, "transposed": True, "lengths": (19, 11), "atol": 1e-10}
HANDS = [
    Hand("bert", 0, _BERT),
    Hand("distilbert", 0, "transformer.layer.0.attention", "q_lin k_lin v_lin out_lin"),
    Hand("albert", 0, _ALBERT, f"{_PLAIN} dense"),
    Hand("rembert", 0, _BERT),
    Hand("roformer, rotated values", 0, _BERT, rotated_values=True, **_ROFORMER),
    # XLM's softmax is of float32; a causal one lets padding be seen by what comes after it.
    Hand("xlm, causal", 0, "attentions.0", "q_lin k_lin v_lin out_lin", causal=True, atol=1e-6),
    Hand("convbert, wide kernel", 0, _BERT),
    Hand("squeezebert, mixed", 0, "encoder.layers.0", _SQUEEZE),
    Hand("mobilebert", 0, _BERT),
    Hand("nomic_bert", 1, "layers.1.self_attn", _SEPARATE, 1e3, **_HALVES),
    Hand(
        *("eurobert, shared keys", 2, "layers.2.self_attn", _SEPARATE, 1e4),
        **{"heads_per_key": 2, **_HALVES},
    ),
    Hand("modernbert", 0, "layers.0.attn", "Wqkv Wo", 16e4, **_HALVES),
    Hand("modernbert", 3, "layers.3.attn", "Wqkv Wo", 1e4, window=4, **_HALVES),
    Hand("esm", 1, _BERT, theta=1e4, **_HALVES),
    Hand("gpt2, by layer", 2, "h.2.attn", "c_attn c_proj", factor=8**-0.5 / 3, **_GPT2),
    Hand("bart", 1, "decoder.layers.{}.self_attn", _BART, stack="decoder", causal=True),
    Hand("bart", 0, "decoder.layers.{}.encoder_attn", _BART, stack="cross"),
    Hand("t5", 0, "encoder.block.{}.layer.0.SelfAttention", "q k v o", stack="encoder", **_T5),
    Hand(
        *("t5", 1, "decoder.block.{}.layer.0.SelfAttention", "q k v o"),
        **{"stack": "decoder", "causal": True, **_T5},
    ),
    Hand("t5", 1, "decoder.block.{}.layer.1.EncDecAttention", "q k v o", stack="cross", **_T5),
    Hand("mpnet, long", 0, _BERT, "attn.q attn.k attn.v attn.o", lengths=(150, 7)),
    Hand("deberta, short", 0, _BERT, "self.in_proj output.dense", lengths=(30, 7), atol=1e-7),
    Hand("deberta-v2, as v3, short", 0, _BERT, _DISENTANGLED, lengths=(30, 7), atol=1e-7),
    Hand("deberta-v2, own maps, short", 0, _BERT, _DISENTANGLED, lengths=(30, 7), atol=1e-7),
]


class Layer:
    """Weights of a layer by their names in the checkpoint."""

    def __init__(self, model: Any, hand: Hand) -> None:
        self.hand, self.config = hand, model.config
        self.state = {key: value.double().numpy() for key, value in model.state_dict().items()}
        self.prefix = hand.prefix.format(hand.layer)

    def __call__(self, name: str) -> Array:
        return self.state[f"{self.prefix}.{name}"]

    def mapped(self, name: str, x: Array) -> Array:
        W = self(f"{name}.weight")
        W = W if self.hand.transposed else W.T
        if W.ndim == 3 and "post_attention" in name:  # SqueezeBERT's maps are convolutions
            W = W[0]
        elif W.ndim == 3:
            W = self._grouped(W[0], x.shape[-1])
        return x @ W + self.state.get(f"{self.prefix}.{name}.bias", 0.0)

    def _grouped(self, W: Array, n_in: int) -> Array:
        """Each group of outputs reads its own group of inputs, and nothing of the others."""
        size, n_out = W.shape  # inputs of a group, all outputs
        whole = np.zeros((n_in, n_out))
        for out in range(n_out):
            first = out // (n_out // (n_in // size)) * size
            whole[first : first + size, out] = W[:, out]
        return whole

    def qkv(self, xs: list[Array], n_heads: int) -> list[Array]:
        """(batch, pos, heads, d_head) each, or of as many heads as there are keys."""
        *names, _ = self.hand.maps.split()
        if names == ["self.in_proj"]:  # q, k and v of each head side by side, biases apart
            fused = self.mapped("self.in_proj", xs[0]).reshape(*xs[0].shape[:2], n_heads, 3, -1)
            q_bias, v_bias = (self(f"self.{p}_bias").reshape(n_heads, -1) for p in "qv")
            return [fused[..., 0, :] + q_bias, fused[..., 1, :], fused[..., 2, :] + v_bias]
        if len(names) == 1:
            parts = np.split(self.mapped(names[0], xs[0]), 3, axis=-1)
        else:
            parts = [self.mapped(name, x) for name, x in zip(names, xs, strict=True)]
        d_head = parts[0].shape[-1] // n_heads
        return [part.reshape(*part.shape[:2], -1, d_head) for part in parts]

    def turned(self, x: Array) -> Array:
        """Pairs of entries as complex numbers, turned by their positions."""
        if self.hand.interleaved:
            x = x[..., 0::2] + 1j * x[..., 1::2]
        else:
            x = x[..., : x.shape[-1] // 2] + 1j * x[..., x.shape[-1] // 2 :]
        speed = self.hand.theta ** -(np.arange(x.shape[-1]) / x.shape[-1])
        angles: Array = np.exp(1j * np.outer(np.arange(x.shape[1]), speed))
        return x * angles[:, None]

    def score(self, d_head: int) -> Score:
        """Return the score of head h for query i and key j."""
        factor = d_head**-0.5 if self.hand.factor is None else self.hand.factor
        kind = self.config.model_type
        if kind == "mpnet":
            table = self.state["encoder.relative_attention_bias.weight"]
            return lambda h, i, j, q, k: float(q @ k * factor + table[mpnet_bucket(j - i), h])
        if kind == "t5" and self.hand.stack != "cross":  # no bias where the decoder reads
            first = f"{self.hand.stack}.block.0.layer.0.SelfAttention"
            table = self.state[f"{first}.relative_attention_bias.weight"]
            bucket = t5_decoder_bucket if self.hand.causal else t5_encoder_bucket
            return lambda h, i, j, q, k: float(q @ k + table[bucket(i, j), h])
        if kind in ("deberta", "deberta-v2"):
            at = deberta_row(self.hand.family)
            pos_k, pos_q = (
                p.reshape(len(p), -1, d_head) for p in positions(self.state, self.hand.family)
            )
            return lambda h, i, j, q, k: float(
                (q @ k + q @ pos_k[at(i - j), h] + k @ pos_q[at(i - j), h]) / math.sqrt(3 * d_head)
            )
        return lambda h, i, j, q, k: float(np.vdot(q, k).real * factor)


def mpnet_bucket(away: int) -> int:
    """8 for the nearest of each side, then ever wider up to 128 tokens away."""
    side, away = (16 if away > 0 else 0), abs(away)
    if away < 8:
        return side + away
    return side + min(15, 8 + math.floor(8 * math.log2(away / 8) / 4))


def t5_decoder_bucket(i: int, j: int) -> int:
    """Of 32 for keys that lie behind: one each up to 15, then wider ones up to 128."""
    back = i - j
    return back if back < 16 else min(31, 16 + int(math.log(back / 16) / math.log(8) * 16))


def t5_encoder_bucket(i: int, j: int) -> int:
    """Of 32: 16 for keys that lie behind (or here), 16 for those ahead."""
    away, ahead = abs(i - j), 16 if j > i else 0
    if away < 8:
        return ahead + away
    return ahead + min(15, 8 + int(math.log(away / 8) / math.log(16) * 8))


def table_row(away: int, buckets: int, far: int) -> int:
    """Row of the table of relative positions for a key ``away`` tokens before the query."""
    span = buckets if buckets > 0 else far
    if buckets > 0 and abs(away) > buckets // 2:
        half = buckets // 2
        share = math.log(abs(away) / half) / math.log((far - 1) / half)
        away = int(math.copysign(half + math.ceil(share * (half - 1)), away))
    return min(max(away + span, 0), 2 * span - 1)


def deberta_row(family: str) -> Callable[[int], int]:
    buckets, far = (8, 16) if "v3" in family else (-1, 8)
    return lambda away: table_row(away, buckets, far)


def positions(state: dict[str, Array], family: str) -> tuple[Array, Array]:
    """Return pos_k and pos_q of all rows of DeBERTa's table, (rows, 32)."""
    table, self_ = state["encoder.rel_embeddings.weight"], "encoder.layer.0.attention.self."
    if "v3" in family:  # normed, and mapped as words are
        table = (table - table.mean(1, keepdims=True)) / np.sqrt(table.var(1) + 1e-7)[:, None]
        table = table * state["encoder.LayerNorm.weight"] + state["encoder.LayerNorm.bias"]
        names = ("key_proj", "query_proj")
    else:
        names = ("pos_key_proj", "pos_query_proj") if "v2" in family else ("pos_proj", "pos_q_proj")
    pos_k, pos_q = (
        table @ state[f"{self_}{name}.weight"].T + state.get(f"{self_}{name}.bias", 0.0)
        for name in names
    )
    return pos_k, pos_q


def soft(row: Array) -> Array:
    weight = np.exp(row - row.max())
    return weight / weight.sum()


def by_hand(layer: Layer, xs: list[Array], real: Array, n_heads: int) -> tuple[Array, Array]:
    """Attend head by head and query by query: pattern (batch, heads, n_q, n_k) and output.

    ``real`` says which keys are no padding.
    """
    hand = layer.hand
    q, k, v = layer.qkv(xs, n_heads)
    score = layer.score(q.shape[-1])
    if hand.theta is not None:
        q, k, v = layer.turned(q), layer.turned(k), layer.turned(v) if hand.rotated_values else v
    (batch, n_q), n_k = q.shape[:2], real.shape[1]
    pattern = np.zeros((batch, n_heads, n_q, n_k))
    z = np.zeros((batch, n_q, n_heads, v.shape[-1]), v.dtype)
    for b, h, i in np.ndindex(batch, n_heads, n_q):
        key = h // hand.heads_per_key
        keys = [
            j
            for j in range(n_k)
            if (j <= i if hand.causal else real[b, j])
            and (hand.window is None or abs(i - j) <= hand.window)
        ] or [i]
        weights = soft(np.array([score(h, i, j, q[b, i, h], k[b, j, key]) for j in keys]))
        pattern[b, h, i, keys] = weights
        z[b, i, h] = weights @ v[b, keys, key]
    if hand.rotated_values:
        z = np.stack([z.real, z.imag], axis=-1)
    flat = z.reshape(batch, n_q, -1)
    if layer.config.model_type == "convbert":
        flat = np.concatenate([flat, beside_convbert(layer, xs[0], n_heads)], axis=-1)
    return pattern, layer.mapped(hand.maps.split()[-1], flat)


def beside_convbert(layer: Layer, x: Array, n_heads: int) -> Array:
    """What its convolution, whose kernels queries make, puts beside the heads' z."""
    q, values = layer.mapped("self.query", x), layer.mapped("self.conv_out_layer", x)
    deep = layer("self.key_conv_attn_layer.depthwise.weight")[:, 0]  # (channels, kernel)
    across = layer("self.key_conv_attn_layer.pointwise.weight")[:, :, 0]
    size, n = deep.shape[1], x.shape[1]
    beside = np.zeros_like(q)
    d_head = q.shape[-1] // n_heads
    for b, i in np.ndindex(*x.shape[:2]):
        near = [(t, i + t - size // 2) for t in range(size) if 0 <= i + t - size // 2 < n]
        mixed = np.sum([deep[:, t] * x[b, j] for t, j in near], axis=0)
        keys = across @ mixed + layer("self.key_conv_attn_layer.bias")[:, 0]
        logits = layer.mapped("self.conv_kernel_layer", keys * q[b, i]).reshape(n_heads, size)
        for h in range(n_heads):
            cut, kernel = slice(h * d_head, (h + 1) * d_head), soft(logits[h])
            beside[b, i, cut] = np.sum([kernel[t] * values[b, j, cut] for t, j in near], axis=0)
    return beside


def batch(loaded: LoadedModel, *lengths: int) -> Probe:
    """Random sentences of these lengths, right-padded; a decoder reads them in another order."""
    draw = torch.Generator().manual_seed(3)
    rows = [torch.randint(5, 61, (n,), generator=draw).tolist() for n in lengths]
    decoder = () if loaded.start_id is None else ([[loaded.start_id, *r] for r in rows[::-1]],)
    return Probe("batch", *loaded.pad(rows), *(x for r in decoder for x in loaded.pad(r)))


def own_run(loaded: LoadedModel, site: AttentionSite, probe: Probe) -> tuple[list[Any], Tensor]:
    """What an attention module is given in the model's own run, and what leaves its W_O."""
    entered: list[Any] = []
    left: list[Tensor] = []

    def keep(_: nn.Module, args: Any, kwargs: Any) -> None:
        entered.extend([*args, *kwargs.values()])

    with (
        site.module.register_forward_pre_hook(keep, with_kwargs=True),
        site.projections.out.module.register_forward_hook(lambda *args: left.append(args[2])),
        torch.no_grad(),
    ):
        loaded.forward(**probe.inputs)
    return entered, left[0]


@pytest.mark.parametrize("hand", HANDS, ids=lambda hand: hand.name)
def test_one_layer_by_hand(hand):
    """The model's own run, and the run through ours, are what plain loops compute."""
    spread = {"initializer_range": 0.2} if hand.lengths == (19, 11) else {}
    model = tiny(hand.family, "float64", **spread)
    loaded = headscope.wrap(model)
    site = [s for s in loaded.sites if hand.stack in ("", s.stack)][hand.layer]
    probe = batch(loaded, *hand.lengths)
    entered, own = own_run(loaded, site, probe)
    squeezed = "squeeze" in hand.family  # its states are (batch, channels, pos)
    states = [x for x in entered[:3] if isinstance(x, Tensor) and x.dim() == 3]
    x, *others = (x.transpose(1, 2).numpy() if squeezed else x.numpy() for x in states)
    xs = [x, *others] if "mobile" in hand.family else [x, x, x]
    if hand.stack == "cross":
        xs = [x, *others * 2]
    keys = probe.real_keys(site.stack).numpy()
    pattern, out = by_hand(Layer(model, hand), xs, keys, site.n_heads)
    theirs, ours = (run(loaded, probe).site(site) for run in (run_eager, run_ours))
    near = {"rtol": 0, "atol": hand.atol}
    real = probe.real_queries(site.stack).numpy()
    size = max(1.0, float(np.abs(out[real]).max()))
    own_out = (own.transpose(1, 2) if squeezed else own).numpy()
    np.testing.assert_allclose(own_out[real] / size, out[real] / size, **near)
    for record in (theirs, ours):
        np.testing.assert_allclose(record.out.numpy()[real] / size, out[real] / size, **near)
        found = record.pattern.numpy().swapaxes(1, 2)[real]
        np.testing.assert_allclose(found, pattern.swapaxes(1, 2)[real], **near)


@pytest.mark.parametrize(("buckets", "far"), [(256, 512), (8, 16)])
def test_buckets_are_the_formulas(buckets, far):
    """As DeBERTa-v3 has them (256 of 512), far beyond the last one."""
    away = torch.arange(-700, 701)
    rows = (bucketed(away, buckets, far) + buckets).clamp(0, 2 * buckets - 1)
    assert rows.tolist() == [table_row(int(d), buckets, far) for d in away]
