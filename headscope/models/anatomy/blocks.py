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

A norm that is missing, or an RMSNorm in place of LayerNorm, changes nothing in this table. The
parts are found by watching a run (:mod:`~headscope.models.anatomy.layers`), which proves nothing
by itself: every run compares the full variant with the model's own states (:func:`own_run`).
Other inputs of attention, such as a bias by position, are those of that run.

Dong, Cordonnier & Loukas 2021, arXiv:2103.03404, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from headscope.models.anatomy.layers import Layer
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput
from headscope.models.run.intervene import watch_inputs
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.recording import Softmaxes
from headscope.models.run.routing import Router, use_implementation
from headscope.models.run.watched import Place, kept


@dataclass(frozen=True)
class Variant:
    """Which parts of a layer stay besides attention."""

    name: str  # What results call it.
    skip: bool  # The skip connection around attention.
    ffn: bool  # The feed-forward sublayer, with its own skip connection and LayerNorm.
    layernorm: bool = True  # The LayerNorms of the sublayers that stay.


def attend(layer: Layer, x: Tensor, own: OwnRun, variant: Variant, router: Router) -> Tensor:
    """Run a layer's attention on x (batch, pos, d_model), up to W_O and b_O.

    Its other inputs are those of the model's own run.
    """
    (site,), (attention,) = layer.sites, layer.attention
    x, read = _normed(attention.before, x, variant), own.inputs[site.row]
    inputs = replace(read, x_q=x, x_k=x, given={**read.given, next(iter(read.given)): x})
    z = site.mix(partial(router.attend, site.module), inputs)
    out: Tensor = site.layout.answer(site, z, inputs)[0]
    return site.projections.out(out) if site.layout.out.startswith("..") else out


def follow(layer: Layer, x: Tensor, attended: Tensor, variant: Variant) -> Tensor:
    """Run the rest of a layer with the parts that ``variant`` keeps; all (batch, pos, d_model)."""
    (attention,), network = layer.attention, layer.network
    y = _normed(attention.after, x + attended if variant.skip else attended, variant)
    if not variant.ffn:
        return y
    hidden = _normed(network.before, y, variant)
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
    layers: Sequence[Layer],
    router: Router,
    own: OwnRun,
    variant: Variant,
    shared: dict[bool, Tensor] | None = None,
) -> Iterator[Tensor]:
    """Yield the embeddings of a run, and then the state after each layer: n_layers + 1 tensors.

    ``shared`` caches the output of the first attention: it is the same for all variants with a norm
    before it, and for all without.
    """
    shared = {} if shared is None else shared
    router.begin()
    x = own.states[0]
    yield x
    for i, layer in enumerate(layers):
        known, (site,) = {} if i else shared, layer.sites
        kind = variant.layernorm and layer.attention[0].before is not None
        if kind in known:
            router.skip([(site.stack, site.layer)])
        else:
            known[kind] = attend(layer, x, own, variant, router)
        x = follow(layer, x, known[kind], variant)
        yield x
    router.check_calls()


def norm_placement(layers: Sequence[Layer]) -> str:
    """Return where the norms stand: ``pre``, ``post``, or ``mixed`` if layers differ."""
    first = {layer.norm_first for layer in layers}
    return "mixed" if len(first) > 1 else "pre" if first.pop() else "post"


@dataclass(frozen=True)
class OwnRun:
    """What a model's own run gave its layers."""

    #: (batch, pos, d_model): what enters the first layer, and what leaves each; a norm after the
    #: last one (pre-LN) is not part of a layer.
    states: list[Tensor]
    #: What each attention module was called with, by the row of its site; the state left out.
    inputs: dict[int, AttentionInput]


def own_run(loaded: LoadedModel, layers: Sequence[Layer], input_ids: Tensor) -> OwnRun:
    """Run the model as it is, with its own attention, on windows (batch, pos) without padding."""
    inputs: dict[int, AttentionInput] = {}

    def see(site: AttentionSite, read: AttentionInput) -> None:
        name, nothing = next(iter(read.given)), read.x_q[:0]
        given = {**read.given, name: nothing}
        inputs[site.row] = replace(read, x_q=nothing, x_k=nothing, given=given)

    places = [layers[0].enters, *(layer.leaves for layer in layers)]
    # Eager attention is given every mask; other implementations know of some without one.
    eager, seeing = use_implementation(loaded.model, "eager"), watch_inputs(loaded.sites, see)
    with kept(places) as seen, seeing, eager, torch.no_grad(), Softmaxes():  # float64 all through
        loaded.forward(input_ids, torch.ones_like(input_ids))
    states = [seen[layers[0].enters][0], *(seen[layer.leaves][1] for layer in layers)]
    return OwnRun(states, inputs)
