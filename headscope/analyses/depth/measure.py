r"""How much of the tokens' differences survives with depth: the residual, layer by layer.

A sequence's hidden states ``H`` (pos, d_model) are compared with the nearest matrix all of whose
rows are equal, ``1 mean(H)^T``::

    res(H) = H - 1 mean(H)^T                mean over positions
    ratio  = ||res(H)|| / ||H||             ||M|| = sqrt(max column abs-sum * max row abs-sum)

The ratio is 0 when every token has the same state (rank one), whatever that state is.
:mod:`~headscope.analyses.depth.curves` says what is computed from the ratios.

A layer is re-run without some of its parts. A *variant* names the parts that stay; attention is
always one of them. With ``a`` the attention of a layer up to W_O and b_O, ``f`` its feed-forward
network and ``N1``, ``N2`` its LayerNorms, a layer maps x to

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
equal tokens differ. Leaving out the feed-forward sublayer leaves out its skip and its LayerNorm. A
norm that is missing, or an RMSNorm instead of LayerNorm, changes nothing in this table. Every run
compares the full variant with the model's own states. Other inputs of attention, such as a bias by
position, are those of the model's own run.

A ``Layer`` names the modules of a layer: its attention and its feed-forward network, each with the
norm ``before`` and ``after`` it, or None. A ``ModuleTurn`` is a module in one of its calls, since
some families run one module in several layers. ``AttentionInput`` is what an attention module was
called with, and a ``Router`` runs our attention and counts its calls.

References
----------
Dong, Cordonnier & Loukas 2021, arXiv:2103.03404.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headscope.core.accumulator import Array, numpy
from headscope.core.widest import widest
from headscope.models.anatomy.layers import Layer
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput
from headscope.models.run.implementation import use_implementation
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.products import fast_products
from headscope.models.run.recording import Softmaxes, unrounded
from headscope.models.run.routing import Router
from headscope.models.run.site_hooks import watch_inputs
from headscope.models.run.watched import ModuleTurn, capture, is_norm


@dataclass(frozen=True)
class Variant:
    """Which parts of a layer stay besides attention."""

    name: str  # What results call it.
    skip: bool  # The skip connection around attention
    ffn: bool  # The feed-forward sublayer, with its own skip connection and LayerNorm
    layernorm: bool = True  # The LayerNorms of the sublayers that stay


#: The last one is for the share of LayerNorm alone, and has a field of its own in the result.
VARIANTS = (
    Variant("attention", skip=False, ffn=False),
    Variant("attention+ffn", skip=False, ffn=True),
    Variant("attention+skip", skip=True, ffn=False),
    Variant("full", skip=True, ffn=True),
    Variant("full-without-layernorm", skip=True, ffn=True, layernorm=False),
    Variant("attention-without-layernorm", skip=False, ffn=False, layernorm=False),
)


# --- layers without some of their parts -----------------------------------------------------------


class OwnRun(NamedTuple):
    """What the layers read and returned when the model itself ran."""

    #: (batch, pos, d_model): what enters the first layer, and what leaves each; a norm after the
    #: last one (pre-LN) is not part of a layer.
    states: list[Tensor]
    #: What each attention module was called with, by the row of its layer; without the states, of
    #: which every variant has its own.
    inputs: dict[int, AttentionInput]


def own_run(loaded: LoadedModel, layers: Sequence[Layer], input_ids: Tensor) -> OwnRun:
    """Run the model as it is, with its own attention, on windows (batch, pos) without padding."""
    inputs: dict[int, AttentionInput] = {}

    def see(site: AttentionSite, read: AttentionInput) -> None:
        """Keep what a module was called with; an empty tensor stands in for the states."""
        inputs[site.row] = with_states(read, read.x_q[:0])

    between_layers = [layers[0].enters, *(layer.leaves for layer in layers)]
    # Eager attention is given every mask; other implementations may get none.
    eager = use_implementation(loaded.model, "eager")
    seeing = watch_inputs(loaded.sites, see)
    with capture(between_layers) as seen, seeing, eager, torch.no_grad(), Softmaxes.of(loaded):
        loaded.forward(input_ids, torch.ones_like(input_ids))
    first_state, _ = seen[layers[0].enters]
    states = [first_state]
    for layer in layers:
        _, last_state = seen[layer.leaves]
        states.append(last_state)
    return OwnRun(states, inputs)


def run_variant(
    layers: Sequence[Layer],
    router: Router,
    run: OwnRun,
    variant: Variant,
    first_attended: dict[bool, Tensor] | None = None,
) -> Iterator[Tensor]:
    """Yield the embeddings of a run, and then the state after each layer: n_layers + 1 tensors.

    Each is (batch, pos, d_model). The first attention gives the same in all variants with a norm
    before it, and in all without: ``first_attended`` keeps it by that, for one and the same run.
    """

    def normed(norm: ModuleTurn | None, x: Tensor) -> Tensor:
        """Apply a norm, if the layer has one here and the variant keeps it."""
        if norm is None or not variant.layernorm:
            return x
        out: Tensor = norm.module(x)
        return out

    if first_attended is None:
        first_attended = {}
    router.begin()
    x = run.states[0]
    yield x
    for i, layer in enumerate(layers):
        # Attention
        (site,) = layer.sites
        (attention,) = layer.attention
        norm_before = variant.layernorm and attention.before is not None
        if i == 0 and norm_before in first_attended:
            attended = first_attended[norm_before]
            router.skip([(site.stack, site.layer)])
        else:
            attended = attend(site, normed(attention.before, x), run.inputs[site.row], router)
        if i == 0:
            first_attended[norm_before] = attended
        written = attention.factor * normed(attention.within, attended)
        network_reads = x  # where it runs beside attention
        summed = x + written if variant.skip else written
        x = normed(attention.after, summed)
        if not layer.parallel:
            network_reads = x

        # The feed-forward network
        if variant.ffn:
            network = layer.network
            hidden = normed(network.before, network_reads)
            for module_turn in network.modules:
                if variant.layernorm or not is_norm(module_turn.module):
                    hidden = module_turn.module(hidden)
            x = normed(network.after, x + network.factor * hidden)
        yield x
    router.check_calls()


def attend(site: AttentionSite, x: Tensor, read: AttentionInput, router: Router) -> Tensor:
    """Run attention on x (batch, pos, d_model), W_O and b_O included.

    ``read`` is what the model called it with (its masks and biases, say); ``router`` counts the
    call.
    """
    inputs = with_states(read, x)
    z = site.mix(partial(router.attend, site.module), inputs)
    out: Tensor = site.layout.answer(site, z, inputs)[0]
    if site.layout.out.startswith(".."):  # W_O lies outside of the attention module, whose out is z
        return site.projections.out(out)
    return out


def with_states(read: AttentionInput, x: Tensor) -> AttentionInput:
    """Return what self-attention was called with, with other states: its first argument."""
    first_argument = next(iter(read.arguments))
    arguments = {**read.arguments, first_argument: x}
    if "residual" in arguments:  # Bloom's module adds the skip connection, here the layer does
        arguments["residual"] = torch.zeros_like(x)
    return replace(read, x_q=x, x_k=x, arguments=arguments)


def measure_ratios(
    loaded: LoadedModel, layers: Sequence[Layer], run: OwnRun
) -> tuple[Array, float]:
    """Return ratios (variants, n_layers + 1, windows), and how far "full" is from the model.

    How far: the largest difference of any state, relative to the largest entry where that is above
    1.
    """
    router = Router(loaded.sites, unmeasured_sites=loaded.unmeasured_sites)
    gap = 0.0
    ratios: list[list[Array]] = []  # By variant and point
    first_attended: dict[bool, Tensor] = {}
    with torch.no_grad(), fast_products(loaded.model), unrounded(loaded):
        for variant in VARIANTS:
            by_point: list[Array] = []
            states = run_variant(layers, router, run, variant, first_attended)
            for point, hidden in enumerate(states):
                by_point.append(numpy(residual_ratio(hidden)))
                if variant.name == "full":
                    gap = max(gap, _relative_gap(hidden, run.states[point]))
            ratios.append(by_point)
    return np.array(ratios), gap


def _relative_gap(hidden: Tensor, expected: Tensor) -> float:
    """Return the largest difference of two states, relative to the largest entry if above 1."""
    exact = widest(expected)
    difference = (widest(hidden) - exact).abs().max() / exact.abs().max().clamp(min=1)
    return float(difference) if difference.isfinite() else math.inf


# --- the residual ---------------------------------------------------------------------------------


def composite_norm(matrix: Tensor) -> Tensor:
    """Return sqrt(max column abs-sum * max row abs-sum) of (..., rows, columns): (...)."""
    entries = matrix.abs()
    return (entries.sum(dim=-2).amax(dim=-1) * entries.sum(dim=-1).amax(dim=-1)).sqrt()


def residual_ratio(hidden: Tensor) -> Tensor:
    """Return how far the tokens of each sequence are from one common state, (batch,).

    Shapes: ``hidden`` (batch, pos, d_model).
    """
    hidden = widest(hidden)
    residual = hidden - hidden.mean(dim=-2, keepdim=True)
    return composite_norm(residual) / composite_norm(hidden)
