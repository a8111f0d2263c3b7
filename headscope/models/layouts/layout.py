"""What an attention layout is: the steps from what four maps return to scores, and a call of it.

A family is covered by a layout, not by its name: families that share one (bert, roberta, electra,
xlm-roberta, camembert, ...) need nothing of their own. Recognising a layout proves nothing: the
certificate does, which compares our attention with the model's.

Four classes: a :class:`Step` between maps and scores; a :class:`Layout`, the description of a
family, whose first half, the names of its maps, is in :mod:`headscope.models.layouts.map_names`; an
:class:`AttentionModule`, a module of a model together with the layout that describes it; and an
:class:`AttentionSite`, that module as one layer of one stack, which is what measurements name and
index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscope.attention import AttentionWeights
from headscope.attention import project as project_by_head
from headscope.models.layouts.forwards import arguments_of, declares
from headscope.models.layouts.map_names import MapNames
from headscope.models.layouts.maps import (
    Attend,
    AttentionInput,
    HeadRows,
    Heads,
    LinearMap,
    Projections,
    UnknownMaps,
    bias_of,
    split,
)
from headscope.stats.planes import Planes


class Step:
    """One thing that a family does between its maps and its softmax, such as a rotation.

    A step overrides :meth:`change` or :meth:`bias`, which run; and what the weights alone tell of
    it, :meth:`fold` or :meth:`planes`. Those of several families are in ``steps.py``.
    """

    def change(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Return q, k and v after this step, each (batch, n_heads, pos, d_head)."""
        return heads

    def bias(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Tensor | None:
        """Return what is added to the scaled scores, (1 or batch, n_heads, query_pos, key_pos).

        ``heads`` are those after all steps.
        """
        return None

    def fold(self, site: AttentionSite, weights: AttentionWeights) -> AttentionWeights:
        """Return the weights with what the step multiplies q and k by at every position alike.

        The gain of a norm, say: ``with_gains`` in ``steps.py``. What the step divides a whole row
        of q or of k by stays out, since that changes no rank of W_Q W_K^T.
        """
        return weights

    def planes(self, site: AttentionSite, inputs: AttentionInput) -> Planes | None:
        """Return the planes in which the step turns q and k with their position; None if in none.

        ``inputs`` are those of a call on tokens in a row, from the first position on.
        """
        return None


@dataclass(frozen=True)
class Layout(MapNames):
    """Names of attributes, and a list of steps: where the maps are, and how they make scores.

    A family that does more in its forward than names
    and steps can say is a subclass, which overrides only what differs.
    """

    steps: tuple[Step, ...] = ()  # Between the maps and the softmax, in this order
    #: Whether its modules round q and k to float32 before their product, whatever their dtype.
    rounds_products: bool = False
    #: Whether their softmax has one axis for the heads of all examples, example by example.
    joins_examples: bool = False
    decoder_flag: str = "is_causal"  # The attribute that says that a query sees no later key
    one_way: bool = False  # Whether that is so though no attribute says it

    def under(self, config: Any) -> Layout:
        """Return the layout with what a model's configuration says of it; the same by default."""
        return self

    # --- how scores are made ------------------------------------------------------------------

    def scale(self, module: nn.Module, d_head: int) -> float | None:
        """Return what the scores are multiplied by; None for 1 / sqrt(d_head)."""
        scaling = getattr(module, "scaling", None)
        return float(scaling) if isinstance(scaling, int | float) else None

    def softcap(self, module: nn.Module) -> float | None:
        """Return what bounds the scaled scores (``attention.capped``); None for nothing."""
        softcap: float | None = getattr(module, "attn_logit_softcapping", None)
        return softcap

    def causal(self, module: nn.Module) -> bool:
        """Whether a query sees no later key.

        An embedder built on a decoder may lift that by its configuration (``is_causal``), which
        transformers follows as it makes the mask.
        """
        config = getattr(module, "config", None)
        lifted = getattr(config, "is_causal", None) is False
        flagged = getattr(module, self.decoder_flag, False) is True
        return (flagged or self.one_way) and not lifted

    def window(self, module: nn.Module) -> int | None:
        """Return how many positions away a key may be; None for any.

        Stated by the module, or by the configuration for all layers alike: one of a kind that has
        windows, as a folder may name one for a family that ignores it. Where layers are of several
        kinds, a module may state the window of the others (EXAONE 4).
        """
        config = getattr(module, "config", None)
        kinds: Sequence[str] | None = getattr(config, "layer_types", None)
        layer: int | None = getattr(module, "layer_idx", None)
        if kinds and layer is not None and "full_attention" in kinds[layer : layer + 1]:
            return None
        by_layer = kinds is not None
        stated_by = module if by_layer or hasattr(module, "sliding_window") else config
        # What is stated is the smallest distance that is invisible.
        first_invisible: int | None = getattr(stated_by, "sliding_window", None)
        if first_invisible is None:
            return None
        kind: Any = type(config)
        if stated_by is config and not declares(kind, "sliding_window"):
            return None
        return first_invisible - 1

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Read what one call of ``module`` attends from and to, and its mask."""
        arguments = arguments_of(module, args, kwargs)
        x = next(iter(arguments.values()))
        source = arguments.get("key_value_states")  # of cross-attention
        mask = arguments.get("attention_mask", arguments.get("mask"))
        return AttentionInput(
            x_q=x, x_k=x if source is None else source, mask=mask, arguments=arguments
        )

    def mended(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return other arguments for the module's own eager forward, where that has a fault.

        None for none: what every family but Falcon has.
        """
        return None

    def mend(self, module: nn.Module, dtype: torch.dtype) -> None:
        """Let a module run in the model's type, where its own forward cannot; most can."""

    # --- running a module whose forward is exchanged --------------------------------------------

    def run(
        self, site: AttentionSite, attend: Attend, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Do what the module's forward does, with our attention in it."""
        inputs = self.read(site.module, args, kwargs)
        return self.answer(site, site.mix(attend, inputs), inputs)

    def answer(self, site: AttentionSite, z: Tensor, inputs: AttentionInput) -> Any:
        """Turn z (batch, pos, n_heads * d_head) into what the module returns, the pattern as None.

        An output map outside the module (``..``) is applied by whoever called it.
        """
        if self.out.startswith(".."):
            return z, None
        return site.projections.out(z), None


@dataclass(frozen=True)
class AttentionModule:
    """A module of a known layout."""

    name: str  # Dotted path from the base model
    module: nn.Module  # The attention module of transformers; several layers may share one (ALBERT)
    layout: Layout
    projections: Projections  # Its four linear maps
    d_head: int  # Width of each head
    #: The original index of each head: what it is called even after others were removed.
    head_ids: tuple[int, ...]
    heads_before: int  # Heads that it had before any was removed

    @property
    def n_heads(self) -> int:
        """Heads that it has now."""
        return len(self.head_ids)

    @property
    def has_weights(self) -> bool:
        """Whether it is known where its maps are; else its heads are measured as handed over."""
        return not isinstance(self.projections, UnknownMaps)

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
    #: Its row in arrays of measurements and gates, (n_sites, n_heads): its index among the sites
    #: that are measured.
    row: int

    @property
    def scale(self) -> float | None:
        """What the module multiplies the scores by, or None for 1 / sqrt(d_head)."""
        return self.layout.scale(self.module, self.d_head)

    @property
    def softcap(self) -> float | None:
        """What bounds the scaled scores (``attention.capped``), or None for nothing."""
        return self.layout.softcap(self.module)

    @property
    def causal(self) -> bool:
        """Whether a query sees no later key."""
        return self.stack != "cross" and self.layout.causal(self.module)

    @property
    def window(self) -> int | None:
        """How many positions away a key may be; None for any."""
        return self.layout.window(self.module)

    def weights(self) -> AttentionWeights:
        """Return W_Q, ..., b_O by head: views where possible, zeros for biases that are absent."""
        p = self.projections
        return AttentionWeights(
            W_Q=self._weight(p.q),
            W_K=self._weight(p.k),
            W_V=self._weight(p.v),
            b_Q=self._bias(p.q),
            b_K=self._bias(p.k),
            b_V=self._bias(p.v),
            # (d_model, n_heads * d_head) -> (n_heads, d_head, d_model)
            W_O=self.output_weight.t().reshape(self.n_heads, self.d_head, p.out.out_features),
            b_O=bias_of(p.out),
        )

    @property
    def output_weight(self) -> Tensor:
        """The stored output map's columns of the heads, (d_model, n_heads * d_head): a view.

        ConvBERT's map has further columns, for its convolution.
        """
        return self.projections.out.weight[:, : self.n_heads * self.d_head]

    def folded(self, weights: AttentionWeights) -> AttentionWeights:
        """Return its weights with the gains that the steps multiply q and k by; the same if none.

        ``weights`` are those of :meth:`weights`, or these with a norm before them folded in.
        """
        for step in self.layout.steps:
            weights = step.fold(self, weights)
        return weights

    def planes(self, inputs: AttentionInput) -> Planes | None:
        """Return the planes in which q and k turn with their position; None if they do not."""
        for step in self.layout.steps:
            planes = step.planes(self, inputs)
            if planes is not None:
                return planes
        return None

    @property
    def key_of_head(self) -> tuple[int, ...] | None:
        """Which of the stored keys and values each head reads; None where each has its own."""
        kv_heads = self.layout.shared_by(self.module, self.head_ids)
        if kv_heads is None or self.projections.k.out_features == self.n_heads * self.d_head:
            return None
        return tuple(kv_heads)

    def by_stored_key(self, stored: Tensor) -> Tensor:
        """Give each head what belongs to the keys that it reads: (n_groups, ...) -> (n_heads, ...).

        Where each head has keys of its own, the same.
        """
        return self._per_head(stored)

    def project(self, inputs: AttentionInput) -> Heads:
        """Return q, k and v as W_Q, W_K and W_V make them, before any step.

        Each is (batch, n_heads, pos, d_head); where heads share keys and values, k and v have as
        many as the model stores.
        """
        p = self.projections
        return Heads(
            q=self.by_head(p.q(inputs.x_q)),
            k=self.by_head(p.k(inputs.x_k)),
            v=self.by_head(p.v(inputs.x_v)),
        )

    def canonical(self, inputs: AttentionInput, weights: AttentionWeights) -> Heads:
        """Return q, k and v as :meth:`project` does, but from the canonical weights.

        Here each head has keys and values of its own, also where heads share them.
        """
        w = weights
        return Heads(
            q=project_by_head(inputs.x_q, w.W_Q, w.b_Q),
            k=project_by_head(inputs.x_k, w.W_K, w.b_K),
            v=project_by_head(inputs.x_v, w.W_V, w.b_V),
        )

    def as_scored(self, heads: Heads, inputs: AttentionInput) -> Heads:
        """Take projected q, k and v through the steps of the layout, such as a rotation."""
        for step in self.layout.steps:
            heads = step.change(self, heads, inputs)
        return heads

    def bias(self, heads: Heads, inputs: AttentionInput) -> Tensor | None:
        """Return what the steps add to the scaled scores; None where they add nothing.

        ``heads`` as :meth:`as_scored` returns them -> (1 or batch, n_heads, query_pos, key_pos).
        """
        total: Tensor | None = None
        for step in self.layout.steps:
            bias = step.bias(self, heads, inputs)
            if bias is not None:
                total = bias if total is None else total + bias
        return total

    def mix(self, attend: Attend, inputs: AttentionInput) -> Tensor:
        """Return every head's z, side by side: (batch, pos, n_heads * d_head)."""
        heads = self.as_scored(self.project(inputs), inputs)
        bias = self.bias(heads, inputs)
        q, k, v = heads
        z = attend(q, k, v, inputs.mask, self.scale, bias)  # (batch, n_heads, pos, d_head)
        return z.transpose(1, 2).flatten(2)

    def by_head(self, projected: Tensor) -> Tensor:
        """Split by head: (batch, pos, heads * d_head) -> (batch, heads, pos, d_head)."""
        return split(projected, -1, self.d_head).transpose(1, 2)

    def _weight(self, linear: LinearMap) -> Tensor:
        """(n_heads * d_head, d_model), as nn.Linear keeps it, -> (n_heads, d_model, d_head)."""
        return self._per_head(split(linear.weight, 0, self.d_head).transpose(1, 2))

    def _bias(self, linear: LinearMap) -> Tensor:
        """(n_heads * d_head,) -> (n_heads, d_head)."""
        return self._per_head(split(bias_of(linear), 0, self.d_head))

    def _per_head(self, stored: Tensor) -> Tensor:
        """Repeat keys or values that heads share: (n_groups, ...) -> (n_heads, ...)."""
        kv_heads = self.layout.shared_by(self.module, self.head_ids)
        if kv_heads is None or len(stored) == self.n_heads:  # each head has its own
            return stored
        return stored[kv_heads]
