"""T5, UMT5 and MPNet: a learned bias on the scores by relative position.

::

    attn_scores = q k^T * scale + bias[bucket(j - i)]       scale = 1 in T5 and UMT5

Who makes the bias, and who takes it:

* T5: the first layer of a stack makes the biases of all heads and returns them; each further layer
  gets them as ``position_bias`` and returns them again;
* UMT5: every layer makes its own;
* MPNet: the encoder makes them once and gives them to every layer as ``position_bias``.

First the step and the layouts that measuring needs. Below them the *extensions*, classes put before
a module's own (:func:`~headscope.models.layouts.forwards.extend`), by which the family's forward
runs after heads were removed: a module with heads 0 and 3 of 4 left still gets, or makes, the
biases of all 4, (batch, 4, query_pos, key_pos), and must add those of heads 0 and 3.

References
----------
Raffel et al. 2020, arXiv:1910.10683, section 2.1; Chung et al. 2023, UniMax, arXiv:2304.09151;
Song et al. 2020, MPNet, arXiv:2004.09297.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from headscope.models.layouts.forwards import arguments_of, attend_without_heads, extend
from headscope.models.layouts.layout import AttentionSite, Layout
from headscope.models.layouts.maps import AttentionInput, Heads
from headscope.models.layouts.steps import HandedBias, take_heads


class T5Bias(HandedBias):
    """Add the bias that the model gave to the layer, or else the one that the layer makes."""

    def bias(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Tensor | None:
        """Return these heads' biases, (1 or batch, n_heads, query_pos, key_pos); None for none.

        Layers of cross-attention have no bias.
        """
        handed = super().bias(site, heads, inputs)
        if handed is not None:
            return handed
        module: Any = site.module
        if not module.has_relative_attention_bias:
            return None
        n_q = inputs.x_q.shape[1]
        n_k = inputs.x_k.shape[1]
        computed: Tensor = module.compute_bias(n_q, n_k)
        return computed


@dataclass(frozen=True)
class T5Layout(Layout):
    """T5, whose layers share one bias."""

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let a module with fewer heads share the bias of all heads with the other layers."""
        extend(module, _FewerHeads, headscope_kept=tuple(remaining), headscope_total=total)


@dataclass(frozen=True)
class UMT5Layout(T5Layout):
    """T5 with a bias in every layer; cross-attention reads ``encoder_hidden_states``."""

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Read the arguments of one call."""
        inputs = super().read(module, args, kwargs)
        source = inputs.arguments.get("encoder_hidden_states")
        return inputs if source is None else replace(inputs, x_k=source)

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let a module with fewer heads take their biases from its own table of all heads."""
        extend(module, _FewerHeadsOwnBias, headscope_kept=tuple(remaining))


@dataclass(frozen=True)
class MPNetLayout(Layout):
    """MPNet, whose encoder gives one bias to every layer."""

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let a module with fewer heads take their biases from those of all heads."""
        extend(module, GivenBias, headscope_kept=tuple(remaining))


class _FewerHeads:
    """An extension: a T5 attention module without some of its heads.

    The module itself adds the biases of the heads that it has; the next layer needs those of all
    heads. ``forward`` therefore returns all of them, which it was given, or which
    :meth:`compute_bias`, called by the module's own forward, leaves in ``headscope_full_bias``.
    """

    headscope_extends = True
    headscope_kept: tuple[int, ...]  # The heads that are left, by their original index
    headscope_total: int  # How many heads there were
    headscope_full_bias: Tensor | None  # (1 or batch, all heads, query_pos, key_pos), in a pass

    def forward(self, *args: Any, position_bias: Tensor | None = None, **kwargs: Any) -> Any:
        """Run the module's own forward with its heads' biases; return the bias of all heads."""
        self.headscope_full_bias = position_bias
        bias = None if position_bias is None else take_heads(position_bias, self.headscope_kept)
        # What it returns as bias is the one that it used, of the heads that are left.
        out, used_bias, *rest = super().forward(  # type: ignore[misc]
            *args, position_bias=bias, **kwargs
        )
        full_bias = self.headscope_full_bias
        del self.headscope_full_bias
        if full_bias is None:  # cross-attention has no bias: zeros, for every head
            full_bias = used_bias.new_zeros(1, self.headscope_total, *used_bias.shape[2:])
        return (out, full_bias, *rest)

    def compute_bias(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the bias of all heads, and return that of the heads that are left."""
        full_bias: Tensor = super().compute_bias(*args, **kwargs)  # type: ignore[misc]
        self.headscope_full_bias = full_bias
        return take_heads(full_bias, self.headscope_kept)


class _FewerHeadsOwnBias:
    """An extension: a UMT5 attention module without some of its heads."""

    headscope_extends = True
    headscope_kept: tuple[int, ...]  # The heads that are left, by their original index
    key_value_proj_dim: int  # Width of a head
    o: Any  # The output map

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward; where it has no head, do what that would do.

        Attention is called on empty q, k and v even then, so that whatever replaces it is called
        once in every layer.
        """
        if self.headscope_kept:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        arguments = arguments_of(self, args, kwargs)  # type: ignore[arg-type]
        x_q = arguments["hidden_states"]
        source = arguments.get("encoder_hidden_states")
        x_k = x_q if source is None else source
        z, pattern = attend_without_heads(
            self, x_q, x_k, mask=arguments.get("attention_mask"), d_head=self.key_value_proj_dim
        )
        return self.o(z.flatten(2)), pattern

    def compute_bias(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the bias of all heads, and return that of the heads that are left."""
        full_bias: Tensor = super().compute_bias(*args, **kwargs)  # type: ignore[misc]
        return take_heads(full_bias, self.headscope_kept)


class GivenBias:
    """An extension: an MPNet attention module without some of its heads."""

    headscope_extends = True
    headscope_kept: tuple[int, ...]  # The heads that are left, by their original index

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward with its heads' biases."""
        arguments = arguments_of(self, args, kwargs)  # type: ignore[arg-type]
        bias = arguments.get("position_bias")
        if bias is not None:
            arguments["position_bias"] = take_heads(bias, self.headscope_kept)
        return super().forward(**arguments)  # type: ignore[misc]
