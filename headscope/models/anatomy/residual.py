"""The residual stream of one run, taken apart: what each head and sublayer wrote to it.

With the scales of its normalisations held at their values in the run, everything after a write is
linear in it, position by position. A vector that reads the last states is carried back through the
normalisations, and its product with each write is what that write contributes::

    post-LayerNorm     y = N1(x + sum_h z_h W_O,h + b_O);  N2(y + f(y))
    pre-LayerNorm      y = x + sum_h z_h W_O,h + b_O;      y + f(N2(y));   a last norm at the end
    a decoder          self-attention and cross-attention write one after the other, then f
    a norm, held       N(u) = (u - mean u) g / s + c       RMSNorm: no mean, no c

Which of the two a layer is, and where its norms are, :mod:`~headscope.models.anatomy.layers` says.
Every run compares the sum of all contributions with the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headscope.attention import Mask, attention_pattern
from headscope.core.errors import UnsupportedModelError
from headscope.models.anatomy.layers import Anatomy, take_apart
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.intervene import intervene
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import Select
from headscope.models.run.watched import ModuleTurn, capture


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


@dataclass(frozen=True)
class HeadsWrite:
    """What the heads of one site write to the stream: ``z_h W_O,h`` each, and b_O."""

    site: AttentionSite
    z: Tensor  # (batch, n_heads, pos, d_head)
    W_O: Tensor  # (n_heads, d_head, d_model)
    b_O: Tensor  # (d_model,)
    #: The pattern, (batch, n_heads, query_pos, key_pos), and v, where tokens are told apart
    sources: tuple[Tensor, Tensor] | None


@dataclass(frozen=True)
class NetworkWrite:
    """What a feed-forward network writes to the stream."""

    row: int  # Of the first site of its layer
    out: Tensor  # (batch, pos, d_model)


@dataclass(frozen=True)
class RecordedRun:
    """One batch in the model's own run with our attention, ready to be taken apart."""

    hidden: Tensor  # (batch, pos, d_model): the last states
    logits: Tensor | None
    real: Tensor  # (batch, pos)
    start: Tensor = field(repr=False)  # What enters the first layer
    #: What happens to the stream from there to the last states, in order.
    stream: list[HeadsWrite | NetworkWrite | HeldNorm] = field(repr=False)
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
        cross = None
        feed_forward = g.new_zeros(len(g), self.n_layers, g.shape[1])
        for step in reversed(self.stream):
            if isinstance(step, HeldNorm):
                biases = biases + (g * step.shift).sum((1, 2))
                g = step.back(g)
            elif isinstance(step, NetworkWrite):
                feed_forward[:, step.row] = (g * step.out).sum(-1)
            else:
                biases = biases + (g * step.b_O).sum((1, 2))
                read = torch.einsum("bqm,hdm->bhqd", g, step.W_O)
                if by_source:
                    assert step.sources is not None
                    pattern, v = step.sources
                    pairs = pattern * (read @ v.transpose(-1, -2))  # (batch, heads, query, key)
                    if step.site.stack == "cross":
                        cross = pairs.sum(1) if cross is None else cross + pairs.sum(1)
                    heads[step.site.row] = pairs.sum(2)
                else:
                    heads[step.site.row] = (step.z * read).sum(-1)
        longest = max(parts.shape[-1] for parts in heads.values())
        all_heads = g.new_zeros(len(g), self.n_layers, self.n_heads, longest)
        for row, parts in heads.items():  # layers differ once heads are removed
            all_heads[:, row, : parts.shape[1], : parts.shape[2]] = parts
        return Contributions((g * self.start).sum(-1), all_heads, feed_forward, biases, cross)

    def source_states(self) -> tuple[Tensor, Tensor]:
        """Split the last states by source token: (batch, pos, source_pos, d_model), and biases.

        A head's write goes to the token that it reads, everything else to the token it stands at;
        b_O and the shifts of norms are apart, (batch, pos, d_model).
        """
        n = self.start.shape[1]
        here = torch.eye(n, dtype=self.start.dtype, device=self.start.device)[None, :, :, None]
        states = here * self.start[:, :, None]
        biases = torch.zeros_like(self.start)
        for step in self.stream:
            if isinstance(step, HeldNorm):
                states = step.linear(states)
                biases = step.linear(biases) + step.shift
            elif isinstance(step, NetworkWrite):
                states = states + here * step.out[:, :, None]
            else:
                assert step.sources is not None
                pattern, v = step.sources
                values = v @ step.W_O  # (batch, n_heads, key_pos, d_model)
                states = states + torch.einsum("bhqk,bhkm->bqkm", pattern, values)
                biases = biases + step.b_O
        return states, biases


def find_stream(loaded: LoadedModel) -> Anatomy:
    """Find where every layer writes.

    Raises
    ------
    UnsupportedModelError
        If a layer cannot be taken apart, or something else than heads writes through their W_O.
    """
    anatomy = take_apart(loaded)
    for site in (site for layer in anatomy.layers for site in layer.sites):
        if site.projections.out.in_features != site.n_heads * site.d_head:
            raise UnsupportedModelError(
                f"The output map of layer {site.layer} of {loaded.name} ({loaded.family}) reads "
                "something beside its heads, such as a convolution, so that what it writes is no "
                "sum of what heads wrote."
            )
    return anatomy


def record(
    loaded: LoadedModel,
    anatomy: Anatomy,
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
    heads: dict[int, tuple[Tensor, tuple[Tensor, Tensor] | None]] = {}

    def attend(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        pattern = attention_pattern(q, k, scale=scale, mask=mask)
        z = pattern @ v
        heads[site.row] = z, (pattern, v) if patterns else None
        return z

    norms = [part.after for layer in anatomy.layers for part in layer.sublayers if part.after]
    ends = [turn for layer in anatomy.layers for turn in (layer.enters, layer.leaves)]
    more: dict[str, Any] = {"select": select, **(decoder or {})}
    watching = capture((*norms, *ends, anatomy.end))
    with watching as seen, intervene(loaded, attention=attend) as router:
        hidden, logits = router.checked(loaded.run, ids, real, types, **more)

    def held(norm: ModuleTurn | None) -> list[HeldNorm]:
        if norm is None:
            return []
        if (at_its_scale := HeldNorm.of(norm.module, *seen[norm])) is None:
            raise UnsupportedModelError(
                f"{loaded.name} ({loaded.family}) has a {type(norm.module).__name__} that is "
                "neither a LayerNorm nor an RMSNorm, so attribute cannot hold its scale."
            )
        return [at_its_scale]

    stream: list[HeadsWrite | NetworkWrite | HeldNorm] = []
    for layer in anatomy.layers:
        state = seen[layer.enters][0]
        for site, part in zip(layer.sites, layer.attention, strict=True):
            weights = site.weights()
            (z, sources) = heads[site.row]
            W_O, b_O = (w.detach().to(hidden) for w in (weights.W_O, weights.b_O))
            stream += [HeadsWrite(site, z, W_O, b_O, sources), *held(part.after)]
            if part.after is None:
                state = state + torch.einsum("bhqd,hdm->bqm", z, W_O) + b_O
            else:
                state = seen[part.after][1]
        end = layer.network.after
        out = seen[layer.leaves][1] if end is None else seen[end][0]
        stream += [NetworkWrite(layer.sites[0].row, out - state), *held(end)]
    stream += held(anatomy.last)
    start = seen[anatomy.layers[0].enters][0]
    if decoder is not None:
        real = decoder["decoder_attention_mask"]
    return RecordedRun(hidden, logits, real, start, stream, loaded.n_layers, loaded.n_heads)
