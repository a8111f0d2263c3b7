"""T5, UMT5 and MPNet: a learned bias on the scores by relative position.

::

    attn_scores = q k^T * scale + bias[bucket(j - i)]       scale = 1 in T5 and UMT5

In T5 the first layer of a stack computes the bias of all heads and hands it to the others; in UMT5
every layer has a bias of its own. Either reaches our attention through transformers' interface. In
MPNet the encoder computes the bias and hands it to every layer. A module that has lost heads takes
the biases of those that remain.

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
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headscope.models.layouts.forwards import arguments_of, extend
from headscope.models.layouts.layout import AttentionSite, Layout
from headscope.models.layouts.maps import AttentionInput, Heads
from headscope.models.layouts.steps import HandedBias, take_heads


class T5Bias(HandedBias):
    """Add the bias that was handed over, or the one that a layer with a table of its own makes."""

    def bias(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Tensor | None:
        """Return these heads' biases, (1 or batch, n_heads, query_pos, key_pos)."""
        handed = super().bias(site, heads, inputs)
        module: Any = site.module
        if handed is not None or not module.has_relative_attention_bias:
            return handed
        computed: Tensor = module.compute_bias(inputs.x_q.shape[1], inputs.x_k.shape[1])
        return computed


@dataclass(frozen=True)
class T5Layout(Layout):
    """T5, whose layers share one bias."""

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let a module with fewer heads share the bias of all heads with the other layers."""
        extend(module, _FewerHeads)
        vars(module)["headscope_kept"] = tuple(remaining)
        vars(module)["headscope_total"] = total


@dataclass(frozen=True)
class UMT5Layout(T5Layout):
    """T5 with a bias in every layer, and another name for what cross-attention reads."""

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Read the arguments of one call."""
        inputs = super().read(module, args, kwargs)
        source = inputs.arguments.get("encoder_hidden_states")
        return inputs if source is None else replace(inputs, x_k=source)

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let a module with fewer heads take their biases of its own table."""
        extend(module, _FewerHeadsOwnBias)
        vars(module)["headscope_kept"] = tuple(remaining)


@dataclass(frozen=True)
class MPNetLayout(Layout):
    """MPNet, whose encoder hands one bias to every layer."""

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let a module with fewer heads take their biases of those of all."""
        extend(module, GivenBias)
        vars(module)["headscope_kept"] = tuple(remaining)


class _FewerHeads:
    """A T5 attention module without some of its heads.

    The bias of all heads, handed over or computed in the pass, waits in ``headscope_full_bias``.
    """

    headscope_extends = True
    headscope_kept: tuple[int, ...]
    headscope_total: int

    def forward(self, *args: Any, position_bias: Tensor | None = None, **kwargs: Any) -> Any:
        """Run the module's own forward with its heads' biases; return the bias of all heads."""
        vars(self)["headscope_full_bias"] = position_bias
        bias = None if position_bias is None else take_heads(position_bias, self.headscope_kept)
        out, used_bias, *rest = super().forward(  # type: ignore[misc]
            *args, position_bias=bias, **kwargs
        )
        full_bias = vars(self).pop("headscope_full_bias")
        if full_bias is None:  # cross-attention has no bias: zeros, for every head
            full_bias = used_bias.new_zeros(1, self.headscope_total, *used_bias.shape[2:])
        return (out, full_bias, *rest)

    def compute_bias(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the bias of all heads, and return that of these."""
        full_bias: Tensor = super().compute_bias(*args, **kwargs)  # type: ignore[misc]
        vars(self)["headscope_full_bias"] = full_bias
        return take_heads(full_bias, self.headscope_kept)


class _FewerHeadsOwnBias:
    """A UMT5 attention module without some of its heads."""

    headscope_extends = True
    headscope_kept: tuple[int, ...]
    key_value_proj_dim: int
    config: Any
    o: Any

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward, which fails without heads: return ``o`` of nothing then."""
        if self.headscope_kept:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        arguments = arguments_of(self, args, kwargs)  # type: ignore[arg-type]
        x_q = arguments["hidden_states"]
        source = arguments.get("encoder_hidden_states")
        x_k = x_q if source is None else source
        q = x_q.new_empty(len(x_q), 0, x_q.shape[1], self.key_value_proj_dim)
        k = x_k.new_empty(len(x_k), 0, x_k.shape[1], self.key_value_proj_dim)
        kind = self.config._attn_implementation
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(kind, _without_heads)
        z, pattern = attention(self, q, k, k, arguments.get("attention_mask"), scaling=1.0)
        return self.o(z.flatten(2)), pattern

    def compute_bias(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the bias of all heads, and return that of these."""
        full_bias: Tensor = super().compute_bias(*args, **kwargs)  # type: ignore[misc]
        return take_heads(full_bias, self.headscope_kept)


class GivenBias:
    """An MPNet attention module without some of its heads."""

    headscope_extends = True
    headscope_kept: tuple[int, ...]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward with its heads' biases."""
        arguments = arguments_of(self, args, kwargs)  # type: ignore[arg-type]
        if (bias := arguments.get("position_bias")) is not None:
            arguments["position_bias"] = take_heads(bias, self.headscope_kept)
        return super().forward(**arguments)  # type: ignore[misc]


def _without_heads(
    module: nn.Module, q: Tensor, k: Tensor, *_: object, **__: object
) -> tuple[Tensor, Tensor]:
    """Return z and pattern of no head, as transformers' eager attention returns them."""
    return q.transpose(1, 2), q.new_empty(*q.shape[:-1], k.shape[2])
