"""Attention sites: where attention runs in a model, found by watching one tiny forward pass.

Which modules run, in which order, how often (ALBERT runs one module in every layer) and on which
sequences (cross-attention) is not guessed but watched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscope.attention import AttentionWeights, project
from headscope.models.hooks import hooked
from headscope.models.layouts.layout import (
    Attend,
    AttentionInput,
    HeadRows,
    Heads,
    Layout,
    LinearMap,
    Projections,
    bias_of,
)
from headscope.models.layouts.registry import LAYOUTS

#: Attributes of an attention module whose heads were removed: the original indices of the rest,
#: and how many there were.
HEAD_IDS, HEADS_BEFORE = "headscope_head_ids", "headscope_heads_before"
#: Attribute of an attention module whose model has lost layers: the original number of its layer.
LAYER = "headscope_layer"
#: The stacks that a model may have, in the order of their sites.
STACKS = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class AttentionModule:
    """A module of a known layout."""

    name: str  # Dotted path from the base model
    module: nn.Module  # The attention module of transformers; several layers may share one (ALBERT)
    layout: Layout  # How its family keeps weights and makes scores
    projections: Projections  # Its four linear maps
    d_head: int  # Width of each head
    #: The original index of each head: what it is called even after others were removed.
    head_ids: tuple[int, ...]
    heads_before: int  # Heads that it had before any was removed

    @property
    def n_heads(self) -> int:
        """Heads that it has now."""
        return len(self.head_ids)

    def stored(self) -> list[HeadRows]:
        """List every stored tensor in which a head owns rows."""
        return self.layout.stored(self.module, self.projections, self.d_head)


@dataclass(frozen=True)
class AttentionSite(AttentionModule):
    """One place where attention runs: a module in its role as one layer of one stack."""

    stack: str  # ``encoder``, ``decoder`` or ``cross``
    #: Zero-based, in the order of execution within the stack; its original number where layers have
    #: been removed.
    layer: int
    #: Its row in the arrays (rows, n_heads) of measurements and gates: its place among the sites
    #: that are measured.
    row: int

    @property
    def scale(self) -> float | None:
        """What the module multiplies the scores by, or None for 1 / sqrt(d_head)."""
        return self.layout.scale(self.module, self.d_head)

    @property
    def causal(self) -> bool:
        """Whether a query sees no later key."""
        return self.stack != "cross" and self.layout.causal(self.module)

    @property
    def window(self) -> int | None:
        """How many positions away a key may be; None for any."""
        return self.layout.window(self.module)

    def weights(self) -> AttentionWeights:
        """Return the canonical weights (views where possible), biases as zeros where absent."""
        p = self.projections
        W_Q, W_K, W_V = map(self._split_in, (p.q, p.k, p.v))
        b_Q, b_K, b_V = map(self._split_bias, (p.q, p.k, p.v))
        # (d_model, n_heads * d_head) -> (n_heads, d_head, d_model)
        W_O = self.output_weight.t().reshape(self.n_heads, self.d_head, p.out.out_features)
        return AttentionWeights(W_Q, W_K, W_V, b_Q, b_K, b_V, W_O, bias_of(p.out))

    @property
    def output_weight(self) -> Tensor:
        """The heads' part of the stored output map, (d_model, n_heads * d_head): a view."""
        return self.projections.out.weight[:, : self.n_heads * self.d_head]

    def project(self, inputs: AttentionInput) -> Heads:
        """Return q, k and v as W_Q, W_K and W_V make them, without positions.

        Each is (batch, n_heads, pos, d_head); where heads share keys and values, k and v have as
        many as the model stores.
        """
        p = self.projections
        return Heads(
            self.by_head(p.q(inputs.x_q)),
            self.by_head(p.k(inputs.x_k)),
            self.by_head(p.v(inputs.x_v)),
        )

    def mix(self, attend: Attend, inputs: AttentionInput) -> Tensor:
        """Return every head's z, side by side: (batch, pos, n_heads * d_head)."""
        heads = self.layout.place(self, self.project(inputs), inputs)
        bias = self.layout.bias(self, heads, inputs)
        return attend(*heads, inputs.mask, self.scale, bias).transpose(1, 2).flatten(2)

    def canonical(self, inputs: AttentionInput, weights: AttentionWeights) -> Heads:
        """Return what :meth:`project` does, from the canonical weights."""
        w = weights
        return Heads(
            project(inputs.x_q, w.W_Q, w.b_Q),
            project(inputs.x_k, w.W_K, w.b_K),
            project(inputs.x_v, w.W_V, w.b_V),
        )

    def by_head(self, projected: Tensor) -> Tensor:
        """(batch, pos, heads * d_head) -> (batch, heads, pos, d_head)."""
        return split(projected, -1, self.d_head).transpose(1, 2)

    def _split_in(self, linear: LinearMap) -> Tensor:
        # nn.Linear keeps (out, in): (n_heads * d_head, d_model) -> (n_heads, d_model, d_head)
        by_head = split(linear.weight, 0, self.d_head).transpose(1, 2)
        return self._shared(by_head)

    def _split_bias(self, linear: LinearMap) -> Tensor:
        return self._shared(split(bias_of(linear), 0, self.d_head))

    def _shared(self, by_head: Tensor) -> Tensor:
        """Give every head its keys or values where several heads share them."""
        places = self.layout.shared_by(self.module, self.head_ids)
        return by_head if places is None or len(by_head) == self.n_heads else by_head[places]


def split(tensor: Tensor, axis: int, d_head: int) -> Tensor:
    """Cut an axis of n_heads * d_head into two, (..., n_heads, d_head, ...); there may be none."""
    axis %= tensor.dim()
    sizes = (tensor.shape[axis] // d_head, d_head)
    return tensor.reshape(*tensor.shape[:axis], *sizes, *tensor.shape[axis + 1 :])


def find_sites(
    model: nn.Module, run: Callable[[], object], encoder: nn.Module | None = None
) -> tuple[AttentionSite, ...]:
    """List the attention sites of a base model: stack by stack, in the order of execution."""
    known = {item.module: item for item in attention_modules(model)}
    encoding = set(known if encoder is None else encoder.modules())
    found: dict[str, list[AttentionModule]] = {stack: [] for stack in STACKS}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        item = known[module]
        inputs = item.layout.read(module, args, kwargs)
        causal = item.layout.causal(module) or module not in encoding
        stack = "cross" if inputs.crossed else "decoder" if causal else "encoder"
        found[stack].append(item)

    notes = (module.register_forward_pre_hook(note, with_kwargs=True) for module in known)
    with hooked(notes), torch.no_grad():
        run()
    return numbered(
        AttentionSite(**_fields(item), stack=stack, layer=getattr(item.module, LAYER, place), row=0)
        for stack in STACKS
        for place, item in enumerate(found[stack])
    )


def numbered(sites: Iterator[AttentionSite] | Sequence[AttentionSite]) -> tuple[AttentionSite, ...]:
    """Give sites their rows."""
    return tuple(dataclasses.replace(site, row=row) for row, site in enumerate(sites))


def _fields(item: AttentionModule) -> dict[str, Any]:
    return {part.name: getattr(item, part.name) for part in dataclasses.fields(AttentionModule)}


def attention_modules(model: nn.Module) -> list[AttentionModule]:
    """List the modules of ``model`` that have a known layout, in the order of registration."""
    found = []
    config = getattr(model, "config", None)
    for name, module in model.named_modules():
        if next(module.children(), None) is None:  # no map of its own
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        for layout in LAYOUTS:
            if (projections := layout.match(module, parent)) is not None:
                found.append(_module(name, module, layout.under(config), projections))
                break
    return found


def _module(
    name: str, module: nn.Module, layout: Layout, projections: Projections
) -> AttentionModule:
    d_head = layout.d_head(module, projections)
    every = tuple(range(projections.q.out_features // d_head))
    before, ids = getattr(module, HEADS_BEFORE, len(every)), getattr(module, HEAD_IDS, every)
    return AttentionModule(name, module, layout, projections, d_head, ids, before)
