"""The residual stream of one run, taken apart: what each head and sublayer wrote to it.

With the scales of its normalisations held at their values in the run, everything after a write is
linear in it, position by position. A vector that reads the last states is carried back through the
normalisations, and its product with each write is what that write contributes::

    post-LayerNorm     y = N1(x + sum_h z_h W_O,h + b_O);  N2(y + f(y))
    pre-LayerNorm      y = x + sum_h z_h W_O,h + b_O;      y + f(N2(y));   a last norm at the end
    a decoder          self-attention and cross-attention write one after the other, then f
    a norm, held       N(u) = (u - mean u) g / s + c       RMSNorm: no mean, no c

Which of the two a layer is, and where it keeps its norms, is not read from names but watched in one
tiny pass: the sum of a layer's input and its attention must enter a norm of the layer, and what the
layer adds besides must be what one of its modules puts out. A layer with other parts is refused.
The sum of all contributions is held against the output in every run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headscope.attention import Mask, attention_pattern
from headscope.core.errors import UnsupportedModelError
from headscope.models.hooks import hooked
from headscope.models.intervene import intervene
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.task_heads import Select

_CLOSE = 1e-4  # Of the largest entry: float32 sums in another order; other parts differ by far more


class Place(NamedTuple):
    """One call of a module in every pass: the ``turn``-th, as ALBERT runs one several times."""

    module: nn.Module
    turn: int


@dataclass(frozen=True)
class StreamLayer:
    """Where one layer of the model writes to its residual stream."""

    #: Its attention; in a decoder that reads an encoder, self-attention and cross-attention.
    sites: tuple[AttentionSite, ...]
    layer: Place  # Its input and output are the stream.
    #: The norms that the stream itself passes, after each attention and after the feed-forward
    #: network; empty where the norms stand before the sublayers and the stream passes none.
    norms: tuple[Place, ...]


@dataclass(frozen=True)
class Stream:
    """The residual stream of a model: of an encoder-decoder's whole model its decoder's."""

    layers: tuple[StreamLayer, ...]
    last: Place | None  # The norm after the last layer

    @property
    def end(self) -> Place:
        """The module that puts out the last hidden state."""
        return self.last or self.layers[-1].layer


@dataclass(frozen=True)
class _Call:
    place: Place
    start: int
    x: Tensor | None
    y: Tensor


def find_stream(loaded: LoadedModel) -> Stream:
    """Find where every layer writes; refuses a model whose layers have parts of another kind."""
    calls, last_state = _watch(loaded)
    by_module: dict[nn.Module, list[_Call]] = defaultdict(list)
    for call in calls:
        by_module[call.place.module].append(call)
    names = {module: name for name, module in loaded.model.named_modules()}
    turns: dict[nn.Module, int] = defaultdict(int)
    layers: list[StreamLayer] = []
    before: Tensor | None = None
    for sites in _sites_by_layer(loaded):
        found, written, plain = None, [], True
        for site in sites:
            own = by_module[site.projections.out.module]
            turn = turns[site.module]
            turns[site.module] += 1
            written += own[turn : turn + 1]
            plain &= site.projections.out.in_features == site.n_heads * site.d_head
        parts = names.get(sites[0].module, "").split(".")
        where = f"{'decoder ' if len(sites) > 1 else ''}layer {sites[0].layer}"
        if len(written) == len(sites) and plain:
            for end in range(len(parts) - 1, 0, -1):
                around = loaded.model.get_submodule(".".join(parts[:end]))
                for call in by_module[around]:
                    if call.start < written[0].start:
                        found = _layer(sites, call, [w.y for w in written], calls) or found
                if found is not None:
                    break
        if found is None:
            raise _refused(loaded, where)
        call = by_module[found.layer.module][found.layer.turn]
        if before is not None and not _near(before, call.x):
            raise _refused(loaded, f"what stands before {where}")
        before = call.y
        layers.append(found)
    if not layers or before is None:
        raise _refused(loaded, "the model")
    if _near(before, last_state):
        return Stream(tuple(layers), None)
    norms = [c for c in calls if _is_norm(c.place.module) and _near(before, c.x)]
    norms = [c for c in norms if _near(last_state, c.y)]
    if not norms:
        raise _refused(loaded, "what follows the last layer")
    return Stream(tuple(layers), norms[-1].place)


def _sites_by_layer(loaded: LoadedModel) -> list[tuple[AttentionSite, ...]]:
    """Group the sites whose writes one layer adds up; of an encoder-decoder, the decoder's."""
    if not {"decoder", "cross"} <= set(loaded.stacks):
        return [(site,) for site in loaded.sites]
    layers: dict[int, list[AttentionSite]] = defaultdict(list)
    for site in loaded.sites:
        if site.stack != "encoder":
            layers[site.layer].append(site)
    return [tuple(sites) for _, sites in sorted(layers.items())]


def _refused(loaded: LoadedModel, where: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"attribute cannot take {where} of {loaded.name} ({loaded.family}) apart into attention, "
        "feed-forward network and normalisations that follow or precede them, so its output is no "
        "sum of what heads wrote; use a model of the BERT, ALBERT, DistilBERT, MPNet, GPT-2, BART, "
        "ModernBERT or T5 kind."
    )


def _watch(loaded: LoadedModel) -> tuple[list[_Call], Tensor]:
    """Run a few tokens; returns every module's calls in the order of their starts."""
    calls: list[_Call] = []
    open_: list[tuple[nn.Module, int]] = []
    count, turns = 0, defaultdict[nn.Module, int](int)

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        nonlocal count
        open_.append((module, count))
        count += 1

    def after(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        start = open_.pop()[1]
        x = next((a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)), None)
        y = output[0] if isinstance(output, tuple) else output
        if isinstance(y, Tensor):
            calls.append(_Call(Place(module, turns[module]), start, x, y))
        turns[module] += 1

    modules = [module for module in loaded.model.modules() if module is not loaded.model]
    hooks = [m.register_forward_pre_hook(before, with_kwargs=True) for m in modules]
    hooks += [m.register_forward_hook(after, with_kwargs=True) for m in modules]
    # Tokens whose embedding is not zero: else every sum equals its parts.
    used = loaded.model.get_input_embeddings().weight.detach().any(1).nonzero()[:, 0].tolist()
    ids = [[used[-1], used[len(used) // 3], used[len(used) // 2]]] if used else [[0, 0, 0]]
    with hooked(hooks), torch.no_grad():
        reads = loaded.start_id is not None and "decoder" in loaded.stacks
        last = loaded.forward(*loaded.pad(ids), *(loaded.pad(ids) if reads else ()))
    return sorted(calls, key=lambda call: call.start), last


def _layer(
    sites: tuple[AttentionSite, ...],
    around: _Call,
    written: Sequence[Tensor],
    calls: Sequence[_Call],
) -> StreamLayer | None:
    """Take the call of a module apart as one layer; None where it is not what we know."""
    if around.x is None or any(around.x.shape != w.shape for w in (*written, around.y)):
        return None
    inside = set(around.place.module.modules())
    own = [c for c in calls if c.place.module in inside and c.start > around.start]
    norms = [c for c in own if _is_norm(c.place.module) and c.x is not None]
    for stream_passes in (True, False):
        state, passed, norm = around.x, list[_Call](), None
        for write in written:
            summed, start = state + write, norm.start if norm else 0
            norm = next((c for c in norms if c.start > start and _near(summed, c.x)), None)
            if norm is None:
                break
            state = norm.y if stream_passes else summed
            passed += [norm] * stream_passes
        if norm is None:
            continue
        out: Tensor | None = around.y
        if stream_passes:
            last = [c for c in norms if c.start > norm.start and _near(around.y, c.y)]
            out, passed = last[0].x if last else None, [*passed, *last[:1]]
        if out is not None and any(_near(out - state, c.y) for c in own if c.start > norm.start):
            return StreamLayer(sites, around.place, tuple(call.place for call in passed))
    return None


def _near(a: Tensor, *others: Tensor | None) -> bool:
    """Whether tensors have one shape and, the first two, equal numbers up to rounding."""
    if any(b is None or b.shape != a.shape for b in others):
        return False
    b = others[0]
    assert b is not None
    return float((a - b).abs().max()) <= _CLOSE * max(1e-6, float(a.abs().max()))


def _is_norm(module: nn.Module) -> bool:
    named = type(module).__name__.endswith(("RMSNorm", "LayerNorm"))
    return isinstance(module, nn.LayerNorm) or (named and hasattr(module, "weight"))


# --- one batch ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldNorm:
    """A norm whose scale stays what it was in the run: ``(u - mean u) gain / s + shift``."""

    gain: Tensor  # (d_model,)
    shift: Tensor  # (d_model,): zeros where it has none
    scale: Tensor  # (batch, pos, 1): 1 / s
    centred: bool  # LayerNorm takes the mean of u away, RMSNorm does not.

    @classmethod
    def of(cls, norm: Any, x: Tensor, y: Tensor) -> HeldNorm | None:
        """Read the scale from what a norm made of x; None where it did something else."""
        weight = y.new_ones(y.shape[-1]) if norm.weight is None else norm.weight.detach().to(y)
        bias = getattr(norm, "bias", None)
        shift = torch.zeros_like(weight) if bias is None else bias.detach().to(y)
        gains = (weight, 1 + weight)  # Gemma stores what its gain has beyond 1.
        for centred in (True, False):
            u = x - x.mean(-1, keepdim=True) if centred else x
            for gain in gains:
                raw = u * gain
                scale = ((y - shift) * raw).sum(-1, keepdim=True)
                scale = scale / (raw * raw).sum(-1, keepdim=True).clamp(min=1e-300)
                if float((raw * scale + shift - y).abs().max()) <= 1e-6 * float(y.abs().max()):
                    return cls(gain, shift, scale, centred)
        return None

    def linear(self, u: Tensor) -> Tensor:
        """Apply the linear part to u (batch, pos, ..., d_model)."""
        between = (1,) * (u.dim() - 3)
        scale = self.scale.reshape(*self.scale.shape[:2], *between, 1)
        return (u - u.mean(-1, keepdim=True) if self.centred else u) * scale * self.gain

    def back(self, readout: Tensor) -> Tensor:
        """Carry a readout (batch, pos, d_model) to before the norm: the transpose of the above."""
        before = readout * self.gain * self.scale
        return before - before.mean(-1, keepdim=True) if self.centred else before


@dataclass(frozen=True)
class Contributions:
    """What every part of the stream contributes to one number of each row of a batch."""

    embeddings: Tensor  # (batch, pos): by the position that they stand at
    heads: Tensor  # (batch, n_layers, n_heads, pos): by the token that is read, or by position
    feed_forward: Tensor  # (batch, n_layers, pos)
    biases: Tensor  # (batch,): b_O and the shifts of norms
    #: (batch, pos, source_pos): what all cross-attention heads together read from each source
    #: token at each position, where tokens are told apart.
    cross: Tensor | None = None

    def total(self) -> Tensor:
        """Sum of all of them, (batch,)."""
        heads, forward = self.heads.sum((1, 2, 3)), self.feed_forward.sum((1, 2))
        return self.embeddings.sum(1) + heads + forward + self.biases

    def absolute(self) -> Tensor:
        """Sum of the parts' absolute values, each layer's and head's for itself, (batch,)."""
        heads, forward = self.heads.sum(3).abs().sum((1, 2)), self.feed_forward.sum(2).abs().sum(1)
        return self.embeddings.sum(1).abs() + heads + forward + self.biases.abs()


@dataclass
class _Heads:
    """What the heads of one site wrote, before W_O."""

    site: AttentionSite
    z: Tensor  # (batch, n_heads, pos, d_head)
    #: (batch, n_heads, query_pos, key_pos) and v, where tokens are told apart
    pattern: Tensor | None
    v: Tensor | None
    W_O: Tensor  # (n_heads, d_head, d_model)
    b_O: Tensor  # (d_model,)

    def by_source(self) -> tuple[Tensor, Tensor]:
        """Return the pattern and v that the run has kept."""
        assert self.pattern is not None
        assert self.v is not None
        return self.pattern, self.v


@dataclass
class _Written:
    """What one layer wrote."""

    attention: list[_Heads]  # One site, or a decoder's self-attention and cross-attention
    feed_forward: Tensor  # (batch, pos, d_model)
    norms: list[HeldNorm]  # One after each of them, or none


@dataclass
class RecordedRun:
    """One batch in the model's own run with our attention, ready to be taken apart."""

    hidden: Tensor  # (batch, pos, d_model): the last states
    logits: Tensor | None
    real: Tensor  # (batch, pos)
    start: Tensor = field(repr=False)  # What enters the first layer
    layers: list[_Written] = field(repr=False)
    last: HeldNorm | None
    n_layers: int  # Rows of sites, those included that write nothing to this stream
    n_heads: int

    def contributions(self, readout: Tensor, *, by_source: bool = False) -> Contributions:
        """Take apart the number ``sum(readout * hidden)`` of each row.

        ``readout`` is (batch, pos, d_model). Heads' parts are by the query's position, or, where
        the run kept its patterns, by the token read: P_ij (v_j + b_V) W_O.
        """
        g = readout * self.real[..., None].to(readout)
        biases = g.new_zeros(len(g))
        heads: dict[int, Tensor] = {}
        forward: dict[int, Tensor] = {}
        cross = None
        if self.last is not None:
            biases = biases + (g * self.last.shift).sum((1, 2))
            g = self.last.back(g)
        for written in reversed(self.layers):
            norms = list(written.norms)
            if norms:
                biases, g = biases + (g * norms[-1].shift).sum((1, 2)), norms.pop().back(g)
            forward[written.attention[0].site.row] = (g * written.feed_forward).sum(-1)
            for wrote in reversed(written.attention):
                if norms:
                    biases, g = biases + (g * norms[-1].shift).sum((1, 2)), norms.pop().back(g)
                biases = biases + (g * wrote.b_O).sum((1, 2))
                read = torch.einsum("bqm,hdm->bhqd", g, wrote.W_O)
                if by_source:
                    pattern, v = wrote.by_source()
                    found = pattern * (read @ v.transpose(-1, -2))  # (batch, heads, query, key)
                    if wrote.site.stack == "cross":
                        cross = found.sum(1) if cross is None else cross + found.sum(1)
                    heads[wrote.site.row] = found.sum(2)
                else:
                    heads[wrote.site.row] = (wrote.z * read).sum(-1)
        longest = max(found.shape[-1] for found in heads.values())
        all_heads = g.new_zeros(len(g), self.n_layers, self.n_heads, longest)
        all_forward = g.new_zeros(len(g), self.n_layers, g.shape[1])
        for row, found in heads.items():  # layers differ once heads are removed
            all_heads[:, row, : found.shape[1], : found.shape[2]] = found
        for row, found in forward.items():
            all_forward[:, row] = found
        embeddings = (g * self.start).sum(-1)
        return Contributions(embeddings, all_heads, all_forward, biases, cross)

    def source_states(self) -> tuple[Tensor, Tensor]:
        """Split the last states by source token: (batch, pos, source_pos, d_model), and biases.

        A head's write goes to the token that it reads, everything else to the token it stands at;
        b_O and the shifts of norms are apart, (batch, pos, d_model).
        """
        n = self.start.shape[1]
        own = torch.eye(n, dtype=self.start.dtype, device=self.start.device)[None, :, :, None]
        states, biases = own * self.start[:, :, None], torch.zeros_like(self.start)
        for written in self.layers:
            (wrote,) = written.attention  # of one stack: a decoder's heads read two texts
            pattern, v = wrote.by_source()
            values = v @ wrote.W_O  # (batch, n_heads, key_pos, d_model)
            states = states + torch.einsum("bhqk,bhkm->bqkm", pattern, values)
            biases = biases + wrote.b_O
            for i in range(max(1, len(written.norms))):
                if i == len(written.norms) - 1 or not written.norms:
                    states = states + own * written.feed_forward[:, :, None]
                if written.norms:
                    norm = written.norms[i]
                    states, biases = norm.linear(states), norm.linear(biases) + norm.shift
        if self.last is not None:
            states, biases = self.last.linear(states), self.last.linear(biases) + self.last.shift
        return states, biases


def record(
    loaded: LoadedModel,
    stream: Stream,
    ids: Tensor,
    real: Tensor,
    types: Tensor | None = None,
    *,
    decoder: Mapping[str, Tensor] | None = None,
    patterns: bool = False,
    select: Select | None = None,
) -> RecordedRun:
    """Run one batch through our attention, and keep what every part of it wrote.

    ``decoder`` is what the decoder of an encoder-decoder reads, by name of the argument; ``select``
    picks what the task head gets.
    """
    heads: dict[int, tuple[Tensor, Tensor | None, Tensor | None]] = {}
    seen: dict[Place, tuple[Tensor, Tensor]] = {}
    turns: dict[nn.Module, int] = defaultdict(int)

    def attend(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        pattern = attention_pattern(q, k, scale=scale, mask=mask)
        z = pattern @ v
        heads[site.row] = (z, pattern, v) if patterns else (z, None, None)
        return z

    def keep(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        x = next(a for a in (*args, *kwargs.values()) if isinstance(a, Tensor))
        y = output[0] if isinstance(output, tuple) else output
        seen[Place(module, turns[module])] = (x, y)
        turns[module] += 1

    places = [place for layer in stream.layers for place in (layer.layer, *layer.norms)]
    watched = dict.fromkeys(place.module for place in (*places, stream.end))
    hooks = [module.register_forward_hook(keep, with_kwargs=True) for module in watched]
    more: dict[str, Any] = {"select": select, **(decoder or {})}
    with hooked(hooks), intervene(loaded, attention=attend) as router:
        hidden, logits = router.checked(loaded.run, ids, real, types, **more)
    layers = []
    for layer in stream.layers:
        (x, y), held = seen[layer.layer], [_held(loaded, p, *seen[p]) for p in layer.norms]
        attention = []
        for site in layer.sites:
            weights = site.weights()
            W_O, b_O = (w.detach().to(hidden) for w in (weights.W_O, weights.b_O))
            attention.append(_Heads(site, *heads[site.row], W_O, b_O))
        if layer.norms:
            added = seen[layer.norms[-1]][0] - seen[layer.norms[-2]][1]
        else:
            added = y - x
            for wrote in attention:
                added = added - torch.einsum("bhqd,hdm->bqm", wrote.z, wrote.W_O) - wrote.b_O
        layers.append(_Written(attention, added, held))
    last = None if stream.last is None else _held(loaded, stream.last, *seen[stream.last])
    start = seen[stream.layers[0].layer][0]
    if decoder is not None:
        real = decoder["decoder_attention_mask"]
    sizes = loaded.n_layers, loaded.n_heads
    return RecordedRun(hidden, logits, real, start, layers, last, *sizes)


def _held(loaded: LoadedModel, place: Place, x: Tensor, y: Tensor) -> HeldNorm:
    held = HeldNorm.of(place.module, x, y)
    if held is None:
        raise _refused(loaded, f"the {type(place.module).__name__}")
    return held
