"""What one attention layer does with one sentence in the model's own run, and with what weights.

Everything here is the model's own: its eager attention, its own maps and norms, seen through hooks.
What headscope computes itself is compared with it elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headscope.attention import AttentionWeights
from headscope.core.errors import UnsupportedModelError
from headscope.models.anatomy.feed_forward import sizes_of
from headscope.models.anatomy.layers import Layer as LayerParts
from headscope.models.anatomy.layers import Sublayer, take_apart
from headscope.models.certificate.certificate import TOLERANCES
from headscope.models.certificate.evidence import allowed_keys, beside_heads
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput, Heads, LinearMap, bias_of
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.recording import Probe, SiteRecord, run_eager
from headscope.models.run.watched import Kept, Place, gain_and_shift, kept

__all__ = ["Layer", "Linear", "Norm", "Rest", "Run", "every_map", "run_sentence"]


class Norm(NamedTuple):
    """A LayerNorm: gain and shift, (d_model,), and what it adds to the variance."""

    gain: Tensor
    shift: Tensor
    epsilon: float


class Linear(NamedTuple):
    """A map ``x W + b``: W (n_in, n_out) and b (n_out,)."""

    W: Tensor
    b: Tensor


@dataclass(frozen=True)
class Rest:
    """What follows attention in a layer: skip, LayerNorm and feed-forward network."""

    #: Pre-LN: each LayerNorm stands before its sublayer, not after the sum with the skip.
    norm_first: bool
    #: The LayerNorm after the first sum; and, in a post-LN layer, the one after the second.
    norm: Norm
    last: Norm
    up: Linear  # The feed-forward network.
    down: Linear
    activation: Any  # Between the two: the model's own function
    #: (batch, pos, d_model): the layer's input, the sum of skip and attention, the same after its
    #: LayerNorm, and the layer's output, as the model has them.
    layer_in: Tensor
    summed: Tensor
    normed: Tensor
    layer_out: Tensor


@dataclass(frozen=True)
class Layer:
    """One attention layer in the model's own run."""

    site: AttentionSite  # Where it is
    #: What its attention module was called with, its scores, pattern, z and output.
    record: SiteRecord
    own: Heads  # q, k and v as the model's own maps returned them, by head and without positions
    #: (batch, query_pos, key_pos): which keys each query may see, from padding, direction and
    #: window alone.
    allowed: Tensor
    #: What follows attention; None where headscope cannot take this family's layer apart.
    rest: Rest | None

    @property
    def inputs(self) -> AttentionInput:
        """What the attention module was called with."""
        assert self.record.inputs is not None
        return self.record.inputs

    def weights(self) -> AttentionWeights:
        """Return W_Q, b_Q and so on of all heads; where heads share keys, each has its own copy."""
        return self.site.weights()

    def parameters(self) -> int:
        """Count the stored entries of W_Q, W_K, W_V and W_O, without biases."""
        return sum(m.module.weight.numel() // m.parts for m in every_map(self.site))

    def own_of_each(self) -> Heads:
        """Return the model's own q, k and v of every head, where heads share keys and values."""
        places = self.site.layout.shared_by(self.site.module, self.site.head_ids)
        q, k, v = self.own
        if places is None or k.shape[1] == q.shape[1]:
            return self.own
        return Heads(q, k[:, places], v[:, places])

    def placed(self, heads: Heads) -> Heads:
        """Put positions into q and k, as rotary models do; the same in others."""
        return self.site.layout.place(self.site, heads, self.inputs)

    def bias(self, heads: Heads) -> Tensor | None:
        """Return what the family adds to the scaled scores, (1 or batch, n_heads, query, key)."""
        return self.site.layout.bias(self.site, heads, self.inputs)

    def beside(self) -> Tensor | None:
        """Return what goes through W_O besides the heads' z (ConvBERT); None in most families."""
        return beside_heads(self.site, self.record.z)


@dataclass(frozen=True)
class Run:
    """One sentence in the model's own run."""

    layer: Layer  # The layer that is explained
    patterns: dict[int, Tensor]  # (n_heads, query_pos, key_pos): every layer's, by the site's row


def every_map(site: AttentionSite) -> tuple[LinearMap, ...]:
    """Return the maps W_Q, W_K, W_V and W_O of a site."""
    p = site.projections
    return p.q, p.k, p.v, p.out


def run_sentence(loaded: LoadedModel, site: AttentionSite, ids: Sequence[int], pads: int) -> Run:
    """Run a sentence, and ``pads`` positions of padding behind it, through the model as it is."""
    tokens = torch.tensor([[*ids, *[loaded.pad_id] * pads]], device=loaded.device)
    mask = torch.ones_like(tokens)
    mask[:, len(ids) :] = 0
    probe = Probe("sentence", tokens, mask)
    layer = _layer_of(loaded, site)
    maps = every_map(site)[:3]
    turn = [other.row for other in loaded.sites if other.module is site.module].index(site.row)
    places = [Place(linear.module, turn) for linear in maps]
    if layer is not None:
        norms = [norm for part in layer.sublayers for norm in (part.before, part.after) if norm]
        places += [layer.enters, layer.leaves, *norms]
    with kept(places) as seen, torch.no_grad():
        recording = run_eager(loaded, probe, scores=True)
    returned = [m.leaving(seen[p][1]) for m, p in zip(maps, places, strict=False)]
    own = Heads(*map(site.by_head, returned))
    patterns = {
        other.row: pattern[0]
        for other in loaded.sites
        if (pattern := recording.site(other).pattern) is not None
    }
    record = recording.site(site)
    slack = max(1e-2, TOLERANCES[loaded.dtype]["hidden"])
    rest = None if layer is None else _rest(layer, record, seen, slack)
    return Run(Layer(site, record, own, allowed_keys(site, probe), rest), patterns)


def _layer_of(loaded: LoadedModel, site: AttentionSite) -> LayerParts | None:
    """Find the parts of one site's layer; None where it cannot be taken apart."""
    with suppress(UnsupportedModelError):
        layers = take_apart(loaded).layers
        return next(layer for layer in layers if site in layer.sites)
    return None


def _rest(layer: LayerParts, record: SiteRecord, seen: Kept, slack: float) -> Rest | None:
    """Describe what follows attention in a layer; None if it is not the plain kind explained here.

    Two LayerNorms, two maps and a function between them, put together, must give its output.
    """
    (attention, *others), network = layer.attention, layer.network
    norm = network.before if layer.norm_first else attention.after
    last, parts = network.before if layer.norm_first else network.after, _leaves(network)
    maps = [part for part in parts if isinstance(part, nn.Linear | Conv1D)]
    functions = [part for part in parts if part not in maps]
    if others or norm is None or last is None or len(maps) != 2 or len(functions) != 1:
        return None
    (up, down), (activation,) = maps, functions
    first, second = norm.module, last.module
    if not (isinstance(first, nn.LayerNorm) and isinstance(second, nn.LayerNorm)):
        return None
    if sizes_of(up)[1] != sizes_of(down)[0]:
        return None
    layer_in, layer_out = seen[layer.enters][0], seen[layer.leaves][1]
    assert record.out is not None
    with torch.no_grad():
        summed = layer_in + record.out
        hidden = first(summed)
        out = down(activation(up(hidden)))
        out = summed + out if layer.norm_first else second(hidden + out)
    near = slack * (1 + float(layer_out.abs().max()))
    if out.shape != layer_out.shape or not float((out - layer_out).abs().max()) < near:
        return None
    return Rest(
        layer.norm_first,
        _norm(first),
        _norm(second),
        _linear(up),
        _linear(down),
        activation,
        layer_in,
        *seen[norm],
        layer_out,
    )


def _leaves(network: Sublayer) -> list[nn.Module]:
    """List the modules of a network that have no modules in them and do something."""
    every = [module for place in network.modules for module in place.module.modules()]
    return [m for m in every if not (list(m.children()) or isinstance(m, nn.Dropout))]


def _norm(norm: nn.LayerNorm) -> Norm:
    gain, shift = gain_and_shift(norm)
    return Norm(gain.detach(), shift.detach(), norm.eps)


def _linear(module: nn.Module) -> Linear:
    linear = LinearMap(module)
    return Linear(linear.weight.detach().t(), bias_of(linear).detach())
