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

Where a family keeps these modules is looked up by structure; on which side of the sums its
LayerNorms stand is not guessed but watched in one pass. What is read here proves nothing by itself:
every run holds the full variant against the model's own states (:func:`own_states`).

Dong, Cordonnier & Loukas 2021, arXiv:2103.03404, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headscope.core.errors import UnsupportedModelError
from headscope.models.hooks import hooked, run_order
from headscope.models.intervene import watch_inputs
from headscope.models.layouts import AttentionInput, AttentionSite, Layout, follow
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router


@dataclass(frozen=True)
class Variant:
    """Which parts of a layer stay beside attention."""

    name: str  # What results call it.
    skip: bool  # The skip connection around attention.
    ffn: bool  # The feed-forward sublayer, with its own skip connection and LayerNorm.
    layernorm: bool = True  # The LayerNorms of the sublayers that stay.


@dataclass(frozen=True)
class BlockLayout:
    """Where one family's layer keeps its parts: dotted paths from the layer, BERT's by default."""

    name: str  # The family that it is known from
    #: The attention module that ``router`` answers, and the LayerNorm of its sublayer.
    attention: str = "attention.self"
    norm_attention: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"  # The feed-forward network and the LayerNorm of its sublayer.
    activation: str = "intermediate.intermediate_act_fn"
    down: str = "output.dense"
    norm_ffn: str = "output.LayerNorm"


_ALBERT = "attention.LayerNorm", "ffn", "activation", "ffn_output", "full_layer_layer_norm"
_DISTILBERT = "sa_layer_norm", "ffn.lin1", "ffn.activation", "ffn.lin2", "output_layer_norm"
_ROBERTA_XL = {"norm_attention": "attention.self_attn_layer_norm", "norm_ffn": "LayerNorm"}
_PRE_NORM = {"norm_attention": "attention.LayerNorm", "norm_ffn": "intermediate.LayerNorm"}
#: Tried in order; the first that fits wins.
LAYOUTS = (
    BlockLayout("bert"),
    BlockLayout("albert", "attention", *_ALBERT),
    BlockLayout("distilbert", "attention", *_DISTILBERT),
    BlockLayout("roberta-prelayernorm", **_PRE_NORM),
    BlockLayout("xlm-roberta-xl", **_ROBERTA_XL),
)
_BART = "self_attn", "self_attn_layer_norm", "fc1", "activation_fn", "fc2", "final_layer_norm"
_GPT2 = "attn", "ln_1", "mlp.c_fc", "mlp.act", "mlp.c_proj", "ln_2"
#: Known as well where one layer is looked at alone, whatever its attention adds to the scores.
MORE_LAYOUTS = (
    *LAYOUTS,
    BlockLayout("mpnet", "attention.attn", "attention.LayerNorm"),
    BlockLayout("megatron-bert", norm_attention="attention.ln", norm_ffn="ln"),
    BlockLayout("bart", *_BART),
    BlockLayout("gpt2", *_GPT2),
)


class Parts(NamedTuple):
    """The modules of one layer, by role."""

    layer: nn.Module
    norm_attention: nn.LayerNorm
    up: nn.Module
    activation: Callable[[Tensor], Tensor]
    down: nn.Module
    norm_ffn: nn.LayerNorm


@dataclass(frozen=True)
class Block:
    """One layer of the model, in parts."""

    #: Its attention; a module that serves several layers (ALBERT) has a block for each.
    site: AttentionSite
    parts: Parts  # The modules of its layer
    #: Pre-LN: each LayerNorm stands before its sublayer, not after the sum with the skip.
    norm_first: bool

    def attend(self, x: Tensor, variant: Variant, router: Router) -> Tensor:
        """Run the layer's attention on x (batch, pos, d_model), up to W_O and b_O."""
        first = self.norm_first and variant.layernorm
        return self._attend(self.parts.norm_attention(x) if first else x, router)

    def run(self, x: Tensor, attended: Tensor, variant: Variant) -> Tensor:
        """Run the rest of the layer with the parts that ``variant`` keeps; all (batch, pos, d)."""
        norm_attention: Callable[[Tensor], Tensor] = self.parts.norm_attention
        norm_ffn: Callable[[Tensor], Tensor] = self.parts.norm_ffn
        if not variant.layernorm:
            norm_attention = norm_ffn = nn.Identity()
        y = x + attended if variant.skip else attended
        if self.norm_first:
            return y + self._feed_forward(norm_ffn(y)) if variant.ffn else y
        y = norm_attention(y)
        return norm_ffn(y + self._feed_forward(y)) if variant.ffn else y

    def _attend(self, x: Tensor, router: Router) -> Tensor:
        """Run headscope's attention; every token of a window is real, so there is no mask."""
        heads = self.site.project(AttentionInput(x, x))
        z = router.attend(self.site.module, *heads, None, self.site.scale)
        return self.site.projections.out(z.transpose(1, 2).flatten(2))

    def _feed_forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.parts.down(self.parts.activation(self.parts.up(x)))
        return out


def run_variant(
    blocks: Sequence[Block],
    router: Router,
    x: Tensor,
    variant: Variant,
    shared: dict[bool, Tensor] | None = None,
) -> Iterator[Tensor]:
    """Yield ``x``, the embeddings, and then the state after each layer: n_layers + 1 tensors.

    ``shared`` keeps what the first attention makes of this ``x``: it is the same for all variants
    with a LayerNorm before it, and for all without.
    """
    shared = {} if shared is None else shared
    router.begin()
    yield x
    for i, block in enumerate(blocks):
        own, kind = {} if i else shared, block.norm_first and variant.layernorm
        if kind in own:
            router.skip([(block.site.stack, block.site.layer)])
        else:
            own[kind] = block.attend(x, variant, router)
        x = block.run(x, own[kind], variant)
        yield x
    router.check_calls()


def find_blocks(loaded: LoadedModel) -> tuple[Block, ...]:
    """Take every layer of the model apart, in order of execution."""
    known = _recognised(loaded.model, {site.module for site in loaded.sites})
    norms = [parts.norm_attention for parts in known.values()]
    watched = dict.fromkeys([*norms, *(site.projections.out.module for site in loaded.sites)])
    order = run_order(watched, loaded.run_tiny)
    unknown = [
        site
        for site in loaded.sites
        if site.module not in known or known[site.module].norm_attention not in order
    ]
    if unknown or not loaded.sites:
        where = f"layer {unknown[0].layer} of " if unknown else ""
        raise UnsupportedModelError(
            f"headscope does not know how to take {where}a {loaded.family} model apart into "
            "attention, skip connection, feed-forward network and LayerNorm; depth covers the "
            f"layer layouts {', '.join(layout.name for layout in LAYOUTS)} and their kin."
        )
    blocks = []
    for site in loaded.sites:
        kind, width = type(site.layout), site.n_heads * site.d_head
        plain = kind.place is Layout.place and kind.bias is Layout.bias
        if not plain or site.projections.out.in_features != width:
            raise UnsupportedModelError(
                f"depth does not cover {loaded.family}: its attention adds positions, a bias or a "
                "convolution to q k^T of the state, and depth runs it on the state alone."
            )
        parts, out = known[site.module], site.projections.out.module
        norm_first = order.index(parts.norm_attention) < order.index(out)
        blocks.append(Block(site, parts, norm_first))
    return tuple(blocks)


def norm_placement(blocks: Sequence[Block]) -> str:
    """Say where the LayerNorms stand: ``pre``, ``post``, or ``mixed`` if layers differ."""
    first = {block.norm_first for block in blocks}
    return "mixed" if len(first) > 1 else "pre" if first.pop() else "post"


class _EnteredError(Exception):
    """The first layer has been entered: nothing more was asked for."""


def own_states(
    loaded: LoadedModel, blocks: Sequence[Block], input_ids: Tensor, *, first_only: bool = False
) -> list[Tensor]:
    """Run the model as it is, with its own attention, and return the states between its layers.

    n_layers + 1 tensors (batch, pos, d_model): what enters the first layer, and what leaves each; a
    final LayerNorm after the last one (pre-LN) is not part of a layer. ``first_only`` stops at the
    first layer.
    """
    states: list[Tensor] = []

    def before(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if not states:
            states.append(args[0])
            if first_only:
                raise _EnteredError

    def after(module: nn.Module, args: object, output: Tensor | tuple[Tensor, ...]) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)

    layers = dict.fromkeys(block.parts.layer for block in blocks)
    hooks = [layer.register_forward_pre_hook(before) for layer in layers]
    hooks += [layer.register_forward_hook(after) for layer in layers]
    with hooked(hooks), torch.no_grad(), suppress(_EnteredError):
        loaded.forward(input_ids, torch.ones_like(input_ids))
    return states


def layer_around(loaded: LoadedModel, site: AttentionSite) -> tuple[Parts, bool] | None:
    """Return the parts of one site's layer, and whether its LayerNorms stand first.

    None where its parts are not where a known family keeps them, or where its LayerNorm does not
    run. That these are all its parts is for the caller to prove.
    """
    parts = _recognised(loaded.model, {site.module}, MORE_LAYOUTS).get(site.module)
    if parts is None:
        return None
    norm, out = parts.norm_attention, site.projections.out.module
    order = run_order((norm, out), loaded.run_tiny)
    return (parts, order.index(norm) < order.index(out)) if norm in order else None


def _recognised(
    model: nn.Module, attentions: set[nn.Module], layouts: Sequence[BlockLayout] = LAYOUTS
) -> dict[nn.Module, Parts]:
    """Map each attention module to the parts of the layer that holds it."""
    recognised: dict[nn.Module, Parts] = {}
    for layer in model.modules():
        for layout in layouts:
            attention = follow(layer, layout.attention)
            if isinstance(attention, nn.Module) and attention in attentions:
                parts = _match(layer, layout)
                if parts is not None:
                    recognised.setdefault(attention, parts)
    return recognised


def _match(layer: nn.Module, layout: BlockLayout) -> Parts | None:
    norms = [follow(layer, path) for path in (layout.norm_attention, layout.norm_ffn)]
    linears = [follow(layer, path) for path in (layout.up, layout.down)]
    act = follow(layer, layout.activation)
    match [*norms, *linears]:
        case [nn.LayerNorm() as n1, nn.LayerNorm() as n2, nn.Module() as up, nn.Module() as down]:
            known = all(isinstance(linear, nn.Linear | Conv1D) for linear in (up, down))
            return Parts(layer, n1, up, act, down, n2) if known and callable(act) else None
    return None


def preceding_norms(loaded: LoadedModel) -> dict[int, nn.LayerNorm]:
    """Find the LayerNorm whose output is the input of each layer's W_Q, by layer.

    Watched in one tiny forward pass, so post-LN and pre-LN models need no case of their own. A
    layer whose input comes from anything else (a projection of the embeddings, in ALBERT and
    ELECTRA) is missing.
    """
    written: dict[int, tuple[nn.LayerNorm, Tensor]] = {}
    found: dict[int, nn.LayerNorm] = {}

    def note(norm: nn.Module, _: object, out: Tensor) -> None:
        if isinstance(norm, nn.LayerNorm):
            # The tensor is kept, so that its address cannot be given to another one.
            written[out.data_ptr()] = (norm, out)

    def see(site: AttentionSite, inputs: AttentionInput) -> None:
        x = inputs.x_q
        norm, out = written.get(x.data_ptr(), (None, None))
        if norm is not None and out is not None and out.shape == x.shape:
            found[site.row] = norm

    norms = [module for module in loaded.model.modules() if isinstance(module, nn.LayerNorm)]
    notes = hooked(norm.register_forward_hook(note) for norm in norms)
    with notes, watch_inputs(loaded.sites, see):
        loaded.run_tiny()
    return found


def gain_and_shift(norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Return what a LayerNorm multiplies by and adds; ones and zeros where it has none."""
    like = torch.ones(norm.normalized_shape, dtype=torch.float64)
    gain: Tensor | None = norm.weight
    shift: Tensor | None = norm.bias
    return like if gain is None else gain, torch.zeros_like(like) if shift is None else shift
