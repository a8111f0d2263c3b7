"""What one attention layer does with one sentence in the model's own run, and with what weights.

Everything here is the model's own: its eager attention, its own maps and norms, seen through hooks.
What headscope computes itself is compared with it elsewhere.

A *site* is one layer's attention. What comes from elsewhere::

    SiteRecord                  what was seen of a site in a run
    ModuleTurn(module, 2)       the third call of a module in a run: ALBERT calls one for each layer
    seen[turn]                  -> (input, output), the first tensor of each, of such a call
    layer.enters, .leaves       the calls that the stream goes into and comes out of
    layer.attention, .network   the sublayers of a layer, each with the norms before and after it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headscope.core.errors import UnsupportedModelError
from headscope.models.anatomy.feed_forward import sizes_of
from headscope.models.anatomy.layers import Layer, take_apart
from headscope.models.certificate.canonical import allowed_keys
from headscope.models.certificate.verdict import TOLERANCES
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput, Heads, LinearMap
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.probes import Probe
from headscope.models.run.recording import SiteRecord, run_eager
from headscope.models.run.watched import Captured, ModuleTurn, capture


@dataclass(frozen=True)
class AfterAttention:
    """What follows attention in a layer: skip, LayerNorm and feed-forward network."""

    #: Pre-LN: each LayerNorm stands before its sublayer, not after the sum with the skip.
    norm_first: bool
    #: The LayerNorm that takes the sum of skip and attention: in a post-LN layer the one after
    #: attention, in a pre-LN layer the one before the feed-forward network.
    norm: nn.LayerNorm
    #: In a post-LN layer the LayerNorm after the network; in a pre-LN layer ``norm`` again.
    last: nn.LayerNorm
    up: LinearMap  # The feed-forward network.
    down: LinearMap
    activation: Callable[[Tensor], Tensor]  # Between the two: the model's own function
    #: (batch, pos, d_model): the layer's input, the sum of skip and attention, the same after its
    #: LayerNorm, and the layer's output, as the model has them.
    layer_in: Tensor
    summed: Tensor
    normed: Tensor
    layer_out: Tensor


@dataclass(frozen=True)
class SentenceRun:
    """One sentence in the model's own run, and the layer that is explained."""

    site: AttentionSite  # Of the layer
    #: What its attention module was called with, its scores, pattern, z and output.
    record: SiteRecord
    heads: Heads  # q, k and v as the model's own maps returned them, by head and without positions
    #: (batch, query_pos, key_pos): which keys each query may see, from padding, direction and
    #: window alone.
    allowed: Tensor
    #: What follows attention; None where headscope cannot take this family's layer apart.
    after: AfterAttention | None
    patterns: dict[int, Tensor]  # (n_heads, query_pos, key_pos): every layer's, by the site's row

    @property
    def inputs(self) -> AttentionInput:
        """What the attention module was called with."""
        assert self.record.inputs is not None
        return self.record.inputs


def run_sentence(
    loaded: LoadedModel, site: AttentionSite, ids: Sequence[int], pads: int
) -> SentenceRun:
    """Run a sentence, and ``pads`` positions of padding behind it, through the model as it is.

    ``ids`` are the sentence's tokens, and ``site`` the attention of the layer to explain.
    """
    # The sentence.
    padding = [loaded.pad_id] * pads
    tokens = torch.tensor([[*ids, *padding]], device=loaded.device)  # (1, pos)
    mask = torch.ones_like(tokens)
    mask[:, len(ids) :] = 0
    probe = Probe("sentence", tokens, mask)

    # The calls that show what is explained.
    layer = None
    with suppress(UnsupportedModelError):  # then what follows attention is not explained
        layers = take_apart(loaded).layers
        layer = next(layer for layer in layers if site in layer.sites)
    rows_of_module = [other.row for other in loaded.sites if other.module is site.module]
    number = rows_of_module.index(site.row)  # of the call, where several layers share the module
    maps = (site.projections.q, site.projections.k, site.projections.v)
    watched = [ModuleTurn(linear.module, number) for linear in maps]
    if layer is not None:
        watched += [layer.enters, layer.leaves]
        for sublayer in layer.sublayers:
            watched += [norm for norm in (sublayer.before, sublayer.after) if norm is not None]

    # Run it, and read q, k, v and every layer's pattern.
    with capture(watched) as seen, torch.no_grad():
        recording = run_eager(loaded, probe, scores=True)
    record = recording.site(site)

    q_k_v = []  # Each (batch, n_heads, pos, d_head)
    for linear in maps:
        _, output = seen[ModuleTurn(linear.module, number)]
        # ``leaving`` picks the map's own outputs, where one module makes q, k and v together.
        q_k_v.append(site.by_head(linear.leaving(output)))
    q, k, v = q_k_v
    patterns: dict[int, Tensor] = {}
    for any_site in loaded.sites:
        pattern = recording.site(any_site).pattern
        if pattern is not None:
            patterns[any_site.row] = pattern[0]

    # 1% lies above the model's rounding, and below what a part of the layer that was missed adds.
    slack = max(1e-2, TOLERANCES[loaded.dtype]["hidden"])
    return SentenceRun(
        site=site,
        record=record,
        heads=Heads(q, k, v),
        allowed=allowed_keys(site, probe),
        after=None if layer is None else _after_attention(layer, record, seen, slack),
        patterns=patterns,
    )


def _after_attention(
    layer: Layer, record: SiteRecord, seen: Captured, slack: float
) -> AfterAttention | None:
    """Describe what follows attention in a layer; None if it is not the plain kind explained here.

    LayerNorms, two maps and a function between them, put together, must give the layer's output, up
    to ``slack``, a share of its largest entry.
    """
    # Its norms, its maps and the function between them.
    attention, *cross = layer.attention  # a decoder has cross-attention behind self-attention
    network = layer.network
    # The calls of the norms ``norm`` and ``last`` of the result. A pre-LN layer has one LayerNorm
    # behind attention, before its network: it is both. A post-LN layer has one after each sublayer.
    norm_call = network.before if layer.norm_first else attention.after
    last_norm_call = network.before if layer.norm_first else network.after
    maps: list[nn.Module] = []
    functions: list[nn.Module] = []
    for turn in network.modules:
        for module in turn.module.modules():
            if isinstance(module, nn.Linear | Conv1D):
                maps.append(module)
            elif not list(module.children()) and not isinstance(module, nn.Dropout):
                functions.append(module)
    if cross or norm_call is None or last_norm_call is None:
        return None
    if len(maps) != 2 or len(functions) != 1:
        return None
    up, down = maps
    activation = functions[0]
    norm = norm_call.module
    last = last_norm_call.module
    if not (isinstance(norm, nn.LayerNorm) and isinstance(last, nn.LayerNorm)):
        return None
    _, up_out = sizes_of(up)
    down_in, _ = sizes_of(down)
    if up_out != down_in:  # gate and up in one map
        return None

    # Put together, they must give its output.
    layer_in, _ = seen[layer.enters]
    _, layer_out = seen[layer.leaves]
    assert record.out is not None
    with torch.no_grad():
        summed = layer_in + record.out
        normed = norm(summed)
        network_out = down(activation(up(normed)))
        again = summed + network_out if layer.norm_first else last(normed + network_out)
    allowed = slack * (1 + float(layer_out.abs().max()))
    if again.shape != layer_out.shape or not float((again - layer_out).abs().max()) < allowed:
        return None
    norm_in, norm_out = seen[norm_call]
    return AfterAttention(
        norm_first=layer.norm_first,
        norm=norm,
        last=last,
        up=LinearMap(up),
        down=LinearMap(down),
        activation=activation,
        layer_in=layer_in,
        summed=norm_in.view_as(summed),  # OPT's norms see the tokens of all examples in one row
        normed=norm_out.view_as(summed),
        layer_out=layer_out,
    )
