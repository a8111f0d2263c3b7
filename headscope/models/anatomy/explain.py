"""What one attention layer does with one sentence in the model's own run, and with what weights.

Everything here is the model's own: its eager attention, its own maps and norms, seen through hooks.
What headscope computes itself is compared with it elsewhere.
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
from headscope.models.certificate.certificate import TOLERANCES
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
    #: The LayerNorm after the first sum; and, in a post-LN layer, the one after the second.
    norm: nn.LayerNorm
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
    """Run a sentence, and ``pads`` positions of padding behind it, through the model as it is."""
    # The sentence, and the calls that show what is explained.
    tokens = torch.tensor([[*ids, *[loaded.pad_id] * pads]], device=loaded.device)
    mask = torch.ones_like(tokens)
    mask[:, len(ids) :] = 0
    probe = Probe("sentence", tokens, mask)
    layer = None
    with suppress(UnsupportedModelError):
        layer = next(item for item in take_apart(loaded).layers if site in item.sites)
    # A module may run in several layers (ALBERT): its calls are counted.
    rows = [sharing.row for sharing in loaded.sites if sharing.module is site.module]
    number = rows.index(site.row)
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

    def returned(linear: LinearMap) -> Tensor:
        """Return what one of the maps of q, k and v returned, by head."""
        output = seen[ModuleTurn(linear.module, number)][1]
        return site.by_head(linear.leaving(output))

    q, k, v = map(returned, maps)
    patterns: dict[int, Tensor] = {}
    for shown in loaded.sites:
        pattern = recording.site(shown).pattern
        if pattern is not None:
            patterns[shown.row] = pattern[0]
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

    Two LayerNorms, two maps and a function between them, put together, must give its output.
    """
    # Its norms, its maps and the function between them.
    attention, *cross = layer.attention
    network = layer.network
    norm = network.before if layer.norm_first else attention.after
    last = network.before if layer.norm_first else network.after
    maps: list[nn.Module] = []
    functions: list[nn.Module] = []
    for call in network.modules:
        for module in call.module.modules():
            if isinstance(module, nn.Linear | Conv1D):
                maps.append(module)
            elif not list(module.children()) and not isinstance(module, nn.Dropout):
                functions.append(module)
    if cross or norm is None or last is None or len(maps) != 2 or len(functions) != 1:
        return None
    up, down = maps
    activation = functions[0]
    first = norm.module
    second = last.module
    if not (isinstance(first, nn.LayerNorm) and isinstance(second, nn.LayerNorm)):
        return None
    if sizes_of(up)[1] != sizes_of(down)[0]:
        return None

    # Put together, they must give its output.
    layer_in = seen[layer.enters][0]
    layer_out = seen[layer.leaves][1]
    assert record.out is not None
    with torch.no_grad():
        summed = layer_in + record.out
        hidden = first(summed)
        out = down(activation(up(hidden)))
        out = summed + out if layer.norm_first else second(hidden + out)
    near = slack * (1 + float(layer_out.abs().max()))
    if out.shape != layer_out.shape or not float((out - layer_out).abs().max()) < near:
        return None
    norm_in, norm_out = seen[norm]
    return AfterAttention(
        norm_first=layer.norm_first,
        norm=first,
        last=second,
        up=LinearMap(up),
        down=LinearMap(down),
        activation=activation,
        layer_in=layer_in,
        summed=norm_in,
        normed=norm_out,
        layer_out=layer_out,
    )
