"""An encoder layer taken apart, so that it can be run without some of its parts.

With ``a`` the attention of a layer up to W_O and b_O, ``f`` its feed-forward network and ``N1``,
``N2`` its LayerNorms, a layer maps x to

============================  ======================================  =========================
variant                       LayerNorm after each sum (post)         before each sublayer (pre)
============================  ======================================  =========================
full                          y = N1(x + a(x));  N2(y + f(y))         y = x + a(N1(x)); y + f(N2(y))
attention+skip                N1(x + a(x))                            x + a(N1(x))
attention+ffn                 y = N1(a(x));      N2(y + f(y))         y = a(N1(x));     y + f(N2(y))
attention                     N1(a(x))                                a(N1(x))
full-without-layernorm        y = x + a(x);      y + f(y)             the same
attention-without-layernorm   a(x)                                    the same
============================  ======================================  =========================

Without the skip, attention keeps its own LayerNorm: it acts on each token alone and so cannot make
equal tokens differ. Leaving out the feed-forward sublayer leaves out its skip and its LayerNorm.

A norm that is missing, or an RMSNorm in place of LayerNorm, changes nothing in this table. What
the parts are is watched (:mod:`~headscope.models.anatomy`), and that proves nothing by itself:
every run holds the full variant against the model's own states (:func:`own_run`). What attention
reads beside the state, such as a bias by position, is what it was given in that run.

Dong, Cordonnier & Loukas 2021, arXiv:2103.03404, section 3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headscope.models.anatomy import Layer, take_apart
from headscope.models.hooks import hooked
from headscope.models.intervene import watch_inputs
from headscope.models.layouts import AttentionInput, AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router, use_implementation
from headscope.models.watched import Place


@dataclass(frozen=True)
class Variant:
    """Which parts of a layer stay beside attention."""

    name: str  # What results call it.
    skip: bool  # The skip connection around attention.
    ffn: bool  # The feed-forward sublayer, with its own skip connection and LayerNorm.
    layernorm: bool = True  # The LayerNorms of the sublayers that stay.


@dataclass(frozen=True)
class Block:
    """One layer of the model, in parts."""

    #: Its attention; a module that serves several layers (ALBERT) has a block for each.
    site: AttentionSite
    parts: Layer  # The modules of its layer

    def attend(self, x: Tensor, read: AttentionInput, variant: Variant, router: Router) -> Tensor:
        """Run the layer's attention on x (batch, pos, d_model), up to W_O and b_O.

        Whatever else than the state it reads (positions, a mask) is what it was called with in the
        model's own run, ``read``.
        """
        (attention,) = self.parts.attention
        x = _normed(attention.before, x, variant)
        site, (name, *_) = self.site, read.given
        inputs = replace(read, x_q=x, x_k=x, given={**read.given, name: x})
        z = site.mix(partial(router.attend, site.module), inputs)
        out: Tensor = site.layout.answer(site, z, inputs)[0]
        return site.projections.out(out) if site.layout.out.startswith("..") else out

    def run(self, x: Tensor, attended: Tensor, variant: Variant) -> Tensor:
        """Run the rest of the layer with the parts that ``variant`` keeps; all (batch, pos, d)."""
        (attention,), network = self.parts.attention, self.parts.network
        y = _normed(attention.after, x + attended if variant.skip else attended, variant)
        if not variant.ffn:
            return y
        hidden = _normed(network.before, x if network.parallel else y, variant)
        for place in network.modules:
            hidden = place.module(hidden)
        return _normed(network.after, y + hidden, variant)


def _normed(norm: Place | None, x: Tensor, variant: Variant) -> Tensor:
    """Apply a norm where the layer has one there and the variant keeps it."""
    if norm is None or not variant.layernorm:
        return x
    out: Tensor = norm.module(x)
    return out


def run_variant(
    blocks: Sequence[Block],
    router: Router,
    own: OwnRun,
    variant: Variant,
    shared: dict[bool, Tensor] | None = None,
) -> Iterator[Tensor]:
    """Yield the embeddings of a run, and then the state after each layer: n_layers + 1 tensors.

    ``shared`` keeps what the first attention makes of them: it is the same for all variants with a
    norm before it, and for all without.
    """
    shared = {} if shared is None else shared
    router.begin()
    x = own.states[0]
    yield x
    for i, block in enumerate(blocks):
        known = {} if i else shared
        kind = variant.layernorm and block.parts.attention[0].before is not None
        if kind in known:
            router.skip([(block.site.stack, block.site.layer)])
        else:
            known[kind] = block.attend(x, own.inputs[block.site.row], variant, router)
        x = block.run(x, known[kind], variant)
        yield x
    router.check_calls()


def find_blocks(loaded: LoadedModel) -> tuple[Block, ...]:
    """Take every layer of an encoder, or of a decoder without encoder, apart, in order."""
    return tuple(Block(layer.sites[0], layer) for layer in take_apart(loaded).layers)


def norm_placement(blocks: Sequence[Block]) -> str:
    """Say where the norms stand: ``pre``, ``post``, or ``mixed`` if layers differ."""
    first = {block.parts.norm_first for block in blocks}
    return "mixed" if len(first) > 1 else "pre" if first.pop() else "post"


class _EnteredError(Exception):
    """The first layer has been entered: nothing more was asked for."""


#: What each attention module was called with, by the row of its site; the state left out.
Inputs = Mapping[int, AttentionInput]


@dataclass(frozen=True)
class OwnRun:
    """What a model's own run gave its layers."""

    #: (batch, pos, d_model): what enters the first layer, and what leaves each; a norm after the
    #: last one (pre-LN) is not part of a layer.
    states: list[Tensor]
    inputs: Inputs


def own_run(
    loaded: LoadedModel, blocks: Sequence[Block], input_ids: Tensor, known: Inputs | None = None
) -> OwnRun:
    """Run the model as it is, with its own attention, on windows (batch, pos) without padding.

    ``known`` are the inputs of other windows, as many and as long: positions and masks are the same
    for all. With them the run ends where the first layer begins.
    """
    states: dict[int, Tensor] = {}
    inputs: dict[int, AttentionInput] = {}
    turns = defaultdict[nn.Module, int](int)
    ends = {block.parts.leaves: row + 1 for row, block in enumerate(blocks)}
    first = blocks[0].parts.enters

    def enters(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not states:
            states[0] = next(a for a in (*args, *kwargs.values()) if isinstance(a, Tensor))
            if known is not None:
                raise _EnteredError

    def leaves(module: nn.Module, args: object, output: Any) -> None:
        place = Place(module, turns[module])
        turns[module] += 1
        if place in ends:
            states[ends[place]] = output[0] if isinstance(output, tuple) else output

    def see(site: AttentionSite, read: AttentionInput) -> None:
        name, nothing = next(iter(read.given)), read.x_q[:0]
        given = {**read.given, name: nothing}
        inputs[site.row] = replace(read, x_q=nothing, x_k=nothing, given=given)

    hooks = [first.module.register_forward_pre_hook(enters, with_kwargs=True)]
    hooks += [m.register_forward_hook(leaves) for m in dict.fromkeys(p.module for p in ends)]
    # Eager attention is given every mask; other implementations know of some without one.
    own = use_implementation(loaded.model, "eager")
    seeing, ended = watch_inputs(loaded.sites, see), suppress(_EnteredError)
    with hooked(hooks), seeing, own, torch.no_grad(), ended:
        loaded.forward(input_ids, torch.ones_like(input_ids))
    points = range(1 if known else len(blocks) + 1)
    return OwnRun([states[point] for point in points], known or inputs)
