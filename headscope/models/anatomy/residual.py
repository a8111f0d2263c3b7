"""The residual stream of one run, taken apart: what each head and sublayer wrote to it.

With the scales of its normalisations held at their values in the run, everything after a write is
linear in it, position by position. A vector that reads the last states is carried back through the
normalisations, and its product with each write is what that write contributes::

    post-LayerNorm     y = N1(x + sum_h z_h W_O,h + b_O);  N2(y + f(y))
    pre-LayerNorm      y = x + sum_h z_h W_O,h + b_O;      y + f(N2(y));   a last norm at the end
    a decoder          self-attention and cross-attention write one after the other, then f
    norms within       y = x + c N(sum_h z_h W_O,h + b_O), with a factor c, or N, or neither
    a norm, held       N(u) = (u - mean u) g / s + c       RMSNorm: no mean, no c

Which of the two a layer is, and where its norms are, :mod:`~headscope.models.anatomy.layers` says.
Every run compares the sum of all contributions with the output.

To read: :func:`record` runs a batch and returns a :class:`RecordedRun`, whose ``stream`` lists the
writes and norms in order; :meth:`RecordedRun.contributions` goes backwards through that list. A
*site* is the attention of one layer; its row is its index in arrays of results.
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
from headscope.models.run.watched import Captured, ModuleTurn, capture


@dataclass(frozen=True)
class HeldNorm:
    """A norm whose scale stays what it was in the run: ``(u - mean u) gain / s + shift``."""

    gain: Tensor  # (d_model,)
    shift: Tensor  # (d_model,): zeros where it has none
    scale: Tensor  # (batch, pos, 1): 1 / s
    centred: bool  # LayerNorm takes the mean of u away, RMSNorm does not.

    @classmethod
    def of(cls, norm: Any, x: Tensor, y: Tensor) -> HeldNorm | None:
        """Read the scale from what a norm made of x, both (batch, pos, d_model).

        None where y is no LayerNorm or RMSNorm of x.
        """
        stored = getattr(norm, "weight", None)
        weight = y.new_ones(y.shape[-1]) if stored is None else stored.detach().to(y)
        bias = getattr(norm, "bias", None)
        shift = torch.zeros_like(weight) if bias is None else bias.detach().to(y)
        # What fits is found by trying: centred or not, with either kind of gain.
        for centred in (True, False):
            u = x - x.mean(-1, keepdim=True) if centred else x
            for gain in (weight, 1 + weight):  # Gemma stores what its gain has beyond 1
                unscaled = u * gain
                # The factor that leads from ``unscaled`` to y best, position by position.
                projection = ((y - shift) * unscaled).sum(-1, keepdim=True)
                square = (unscaled * unscaled).sum(-1, keepdim=True)
                scale = projection / square.clamp(min=1e-300)
                error = (unscaled * scale + shift - y).abs().max()
                if float(error) <= 1e-6 * float(y.abs().max()):
                    return cls(gain, shift, scale, centred)
        return None

    def linear(self, u: Tensor) -> Tensor:
        """Apply the linear part to u (batch, pos, ..., d_model)."""
        scale = self.scale
        while scale.dim() < u.dim():
            scale = scale.unsqueeze(2)
        centred = u - u.mean(-1, keepdim=True) if self.centred else u
        return centred * scale * self.gain

    def back(self, readout: Tensor) -> Tensor:
        """Carry a readout (batch, pos, d_model) to before the norm: the transpose of `linear`."""
        before = readout * self.gain * self.scale
        return before - before.mean(-1, keepdim=True) if self.centred else before


@dataclass(frozen=True)
class Contributions:
    """What every write to the stream contributes to one number of each example, such as a logit.

    Together they are the number.
    """

    embeddings: Tensor  # (batch, pos): what enters the first layer, by its position
    #: (batch, n_layers, n_heads, pos): by the token that is read, or by the query's position.
    heads: Tensor
    feed_forward: Tensor  # (batch, n_layers, pos)
    biases: Tensor  # (batch,): b_O and the shifts of norms
    #: (batch, pos, source_pos): what all cross-attention heads together read from each source
    #: token at each position, where tokens are told apart.
    cross: Tensor | None = None


#: By which what heads write is split by the tokens that they read: the pattern, (batch, n_heads,
#: query_pos, key_pos), and v, (batch, n_heads, key_pos, d_head).
Sources = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class HeadsWrite:
    """What the heads of one site write to the stream: ``z_h W_O,h`` each, and b_O."""

    site: AttentionSite
    z: Tensor  # (batch, n_heads, pos, d_head)
    W_O: Tensor  # (n_heads, d_head, d_model)
    b_O: Tensor  # (d_model,)
    sources: Sources | None  # None where the tokens that heads read are not told apart
    within: HeldNorm | None = None  # What it passes before it is added
    factor: float = 1.0  # By which it is multiplied then

    def added(self, u: Tensor) -> Tensor:
        """Return what the linear part of the stream gets of u (batch, pos, ..., d_model)."""
        return self.factor * (u if self.within is None else self.within.linear(u))

    def shift(self) -> Tensor:
        """Return what is added whatever the heads write, (batch, pos, d_model) or (d_model,)."""
        if self.within is None:
            return self.factor * self.b_O
        b_O = self.b_O.expand(*self.within.scale.shape[:2], -1)
        return self.factor * (self.within.linear(b_O) + self.within.shift)

    def back(self, readout: Tensor) -> Tensor:
        """Carry a readout (batch, pos, d_model) to the sum over heads: `added`, transposed."""
        return self.factor * (readout if self.within is None else self.within.back(readout))


@dataclass(frozen=True)
class NetworkWrite:
    """What a feed-forward network writes to the stream."""

    row: int  # That of the first site of its layer
    out: Tensor  # (batch, pos, d_model)


@dataclass(frozen=True)
class RecordedRun:
    """One batch in the model's own run with our attention, ready to be taken apart."""

    hidden: Tensor  # (batch, pos, d_model): the last states
    logits: Tensor | None  # Of the task head; None without one
    real: Tensor  # (batch, pos): 1 or True for tokens, 0 for padding
    start: Tensor = field(repr=False)  # What enters the first layer
    #: What happens to the stream from there to the last states, in order.
    stream: list[HeadsWrite | NetworkWrite | HeldNorm] = field(repr=False)
    n_layers: int  # How many sites the model has, those included that write to another stream
    n_heads: int  # Of the site that has most

    def contributions(self, readout: Tensor, *, by_source: bool = False) -> Contributions:
        """Take apart the number ``sum(readout * hidden)`` of each example.

        ``readout`` is (batch, pos, d_model). What heads contribute is by the query's position, or,
        where the run kept its patterns, by the token read: P_ij (v_j + b_V) W_O.
        """
        # Backwards through the stream: g (batch, pos, d_model) is what the number reads of the
        # stream as it was before each step, and so of what that step wrote.
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
                biases = biases + (g * step.shift()).sum((1, 2))
                # What the number reads of each head's z: (batch, n_heads, query_pos, d_head).
                g_z = torch.einsum("bqm,hdm->bhqd", step.back(g), step.W_O)
                if by_source:
                    assert step.sources is not None
                    pattern, v = step.sources
                    # (batch, n_heads, query_pos, key_pos)
                    by_query_and_key = pattern * (g_z @ v.transpose(-1, -2))
                    heads[step.site.row] = by_query_and_key.sum(2)
                    if step.site.stack == "cross":
                        all_heads_cross = by_query_and_key.sum(1)
                        cross = all_heads_cross if cross is None else cross + all_heads_cross
                else:
                    heads[step.site.row] = (step.z * g_z).sum(-1)

        # One array of all heads; layers have fewer where heads were removed.
        longest = max(by_position.shape[-1] for by_position in heads.values())
        all_heads = g.new_zeros(len(g), self.n_layers, self.n_heads, longest)
        for row, by_position in heads.items():
            _, n_heads, n_positions = by_position.shape
            all_heads[:, row, :n_heads, :n_positions] = by_position
        return Contributions(
            embeddings=(g * self.start).sum(-1),
            heads=all_heads,
            feed_forward=feed_forward,
            biases=biases,
            cross=cross,
        )

    def source_states(self) -> tuple[Tensor, Tensor]:
        """Split the last states by source token.

        What a head writes counts for the token that it reads, everything else for the token at
        that position; b_O and the shifts of norms are kept apart.

        Returns
        -------
        states : Tensor, (batch, pos, source_pos, d_model)
        biases : Tensor, (batch, pos, d_model)
            ``states.sum(2) + biases`` is the last states.
        """
        n = self.start.shape[1]
        identity = torch.eye(n, dtype=self.start.dtype, device=self.start.device)
        diagonal = identity[None, :, :, None]  # 1 where the source is the position itself
        states = diagonal * self.start[:, :, None]
        biases = torch.zeros_like(self.start)
        for step in self.stream:
            if isinstance(step, HeldNorm):
                states = step.linear(states)
                biases = step.linear(biases) + step.shift
            elif isinstance(step, NetworkWrite):
                states = states + diagonal * step.out[:, :, None]
            else:
                assert step.sources is not None
                pattern, v = step.sources
                values = v @ step.W_O  # (batch, n_heads, key_pos, d_model)
                states = states + step.added(torch.einsum("bhqk,bhkm->bqkm", pattern, values))
                biases = biases + step.shift()
        return states, biases


def find_stream(loaded: LoadedModel) -> Anatomy:
    """Take every layer apart, and check that heads alone write through their output maps.

    Raises
    ------
    UnsupportedModelError
        If a layer cannot be taken apart, or something else than heads writes through their W_O.
    """
    anatomy = take_apart(loaded)
    for layer in anatomy.layers:
        for site in layer.sites:
            if site.projections.out.in_features != site.n_heads * site.d_head:
                raise UnsupportedModelError(
                    f"The output map of layer {site.layer} of {loaded.name} ({loaded.family}) "
                    "reads something beside its heads, such as a convolution, so that what it "
                    "writes is no sum of what heads wrote."
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

    ``ids`` and ``real`` (batch, pos), 0 for padding in ``real``; ``types`` are token types.
    ``decoder`` is what the decoder of an encoder-decoder reads, by name of the argument;
    ``patterns`` keeps what tells apart the tokens that heads read; ``select`` picks what the task
    head gets.
    """
    z_and_sources: dict[int, tuple[Tensor, Sources | None]] = {}  # By row

    def attend(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        pattern = attention_pattern(q, k, scale=scale, softcap=site.softcap, mask=mask)
        z = pattern @ v
        sources = (pattern, v) if patterns else None
        z_and_sources[site.row] = (z, sources)
        return z

    # Run the batch, and capture the stream wherever a norm or the end of a layer shows it.
    watched = [anatomy.end]
    for layer in anatomy.layers:
        watched += [layer.enters, layer.leaves]
        for sublayer in layer.sublayers:
            norms = (sublayer.within, sublayer.after)
            watched += [norm for norm in norms if norm is not None]
    options: dict[str, Any] = {"select": select, **(decoder or {})}
    with capture(watched) as captured, intervene(loaded, attention=attend) as router:
        hidden, logits = router.checked(loaded.run, ids, real, types, **options)
    # Some families norm all tokens of a batch on one axis (OPT).
    seen = {
        turn: (x.reshape(hidden.shape), y.reshape(hidden.shape))
        for turn, (x, y) in captured.items()
    }

    return RecordedRun(
        hidden=hidden,
        logits=logits,
        real=real if decoder is None else decoder["decoder_attention_mask"],
        start=seen[anatomy.layers[0].enters][0],
        stream=_stream(loaded, anatomy, z_and_sources, seen),
        n_layers=loaded.n_layers,
        n_heads=loaded.n_heads,
    )


def _stream(
    loaded: LoadedModel,
    anatomy: Anatomy,
    z_and_sources: Mapping[int, tuple[Tensor, Sources | None]],
    seen: Captured,
) -> list[HeadsWrite | NetworkWrite | HeldNorm]:
    """List what a run wrote to the stream, and the norms that it passed, in order."""
    stream: list[HeadsWrite | NetworkWrite | HeldNorm] = []
    for layer in anatomy.layers:
        state = seen[layer.enters][0]
        for site, sublayer in zip(layer.sites, layer.attention, strict=True):
            z, sources = z_and_sources[site.row]
            weights = site.weights()
            W_O = weights.W_O.detach().to(state)
            b_O = weights.b_O.detach().to(state)
            within = None if sublayer.within is None else _held(loaded, sublayer.within, seen)
            write = HeadsWrite(site, z, W_O, b_O, sources, within, sublayer.factor)
            stream.append(write)
            if sublayer.after is None:
                state = state + write.added(torch.einsum("bhqd,hdm->bqm", z, W_O)) + write.shift()
            else:
                stream.append(_held(loaded, sublayer.after, seen))
                state = seen[sublayer.after][1]
        last_norm = layer.network.after
        summed = seen[layer.leaves][1] if last_norm is None else seen[last_norm][0]
        stream.append(NetworkWrite(layer.sites[0].row, summed - state))
        if last_norm is not None:
            stream.append(_held(loaded, last_norm, seen))
    if anatomy.last is not None:
        stream.append(_held(loaded, anatomy.last, seen))
    return stream


def _held(loaded: LoadedModel, norm: ModuleTurn, seen: Captured) -> HeldNorm:
    """Hold a norm at the scale that it had in the run."""
    x, y = seen[norm]
    held = HeldNorm.of(norm.module, x, y)
    if held is None:
        raise UnsupportedModelError(
            f"{loaded.name} ({loaded.family}) has a {type(norm.module).__name__} that is "
            "neither a LayerNorm nor an RMSNorm, so attribute cannot hold its scale."
        )
    return held
