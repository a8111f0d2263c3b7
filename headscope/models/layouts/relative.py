"""T5, UMT5 and MPNet: a learned bias on the scores by relative position.

::

    attn_scores = q k^T * scale + bias[bucket(j - i)]       scale = 1 in T5 and UMT5

In T5 the first layer of a stack computes the bias of all heads and hands it to the others; in UMT5
every layer has a bias of its own. Either reaches our attention through transformers' interface. In
MPNet the encoder computes the bias and hands it to every layer. A module that has lost heads takes
its own heads' part of the bias.

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

from headscope.models.layouts.layout import (
    AttentionSite,
    Layout,
    arguments_of,
    extend,
)
from headscope.models.layouts.maps import AttentionInput, Heads


@dataclass(frozen=True)
class T5Layout(Layout):
    """Scores without a scale, and with a bias by relative position."""

    needs: str = "key_value_proj_dim"  # T5's attribute for the width of a head

    def bias(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Tensor | None:
        """Return the bias that was handed over, or what the first layer computes."""
        module: Any = site.module
        position_bias: Tensor | None = inputs.given.get("position_bias")
        if position_bias is not None:
            return take_heads(position_bias, site.head_ids)
        if not module.has_relative_attention_bias:
            return None
        bias: Tensor = module.compute_bias(inputs.x_q.shape[1], inputs.x_k.shape[1])
        return bias

    def fit(self, module: nn.Module, kept: Collection[int], total: int) -> None:
        """Let a module with fewer heads share the bias of all heads with the other layers."""
        extend(module, _FewerHeads)
        vars(module)["headscope_kept"] = tuple(kept)
        vars(module)["headscope_total"] = total


@dataclass(frozen=True)
class UMT5Layout(T5Layout):
    """T5 with a bias in every layer, and another name for what cross-attention reads."""

    needs: str = "encoder_hidden_states"

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Read the arguments of one call."""
        inputs = super().read(module, args, kwargs)
        source = inputs.given.get("encoder_hidden_states")
        return inputs if source is None else replace(inputs, x_k=source)

    def fit(self, module: nn.Module, kept: Collection[int], total: int) -> None:
        """Let a module with fewer heads take their part of its bias."""
        extend(module, _FewerHeadsOwnBias)
        vars(module)["headscope_kept"] = tuple(kept)


@dataclass(frozen=True)
class MPNetLayout(Layout):
    """Scaled scores, and a bias that the encoder hands to every layer."""

    needs: str = "position_bias"

    bypasses = True

    def bias(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Tensor | None:
        """Return these heads' part of the bias that was handed over."""
        position_bias: Tensor | None = inputs.given.get("position_bias")
        return None if position_bias is None else take_heads(position_bias, site.head_ids)

    def fit(self, module: nn.Module, kept: Collection[int], total: int) -> None:
        """Let a module with fewer heads take their part of the bias of all."""
        extend(module, GivenBias)
        vars(module)["headscope_kept"] = tuple(kept)


def take_heads(bias: Tensor, heads: Collection[int]) -> Tensor:
    """Pick some heads' part of the bias of all, (1 or batch, n_heads, query_pos, key_pos)."""
    return bias if bias.shape[1] in (1, len(heads)) else bias[:, list(heads)]


class _FewerHeads:
    """A T5 attention module without some of its heads."""

    headscope_extends = True
    headscope_kept: tuple[int, ...]
    headscope_total: int

    def forward(self, *args: Any, position_bias: Tensor | None = None, **kwargs: Any) -> Any:
        """Run the module's own forward with its heads' part of the bias; return the whole bias."""
        vars(self)["headscope_full_bias"] = position_bias
        bias = None if position_bias is None else take_heads(position_bias, self.headscope_kept)
        out, made, *rest = super().forward(  # type: ignore[misc]
            *args, position_bias=bias, **kwargs
        )
        full_bias = vars(self).pop("headscope_full_bias")
        if full_bias is None:  # cross-attention has no bias: zeros, for every head
            full_bias = made.new_zeros(1, self.headscope_total, *made.shape[2:])
        return (out, full_bias, *rest)

    def compute_bias(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the bias of all heads, and return these heads' part."""
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
        """Run the module's own forward; that fails without heads: then return ``o`` of no input."""
        if self.headscope_kept:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        arguments = arguments_of(self, args, kwargs)  # type: ignore[arg-type]
        x = arguments["hidden_states"]
        source = arguments.get("encoder_hidden_states")
        q, k = (
            at.new_empty(len(at), 0, at.shape[1], self.key_value_proj_dim)
            for at in (x, x if source is None else source)
        )
        kind = self.config._attn_implementation
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(kind, _without_heads)
        z, pattern = attention(self, q, k, k, arguments.get("attention_mask"), scaling=1.0)
        return self.o(z.flatten(2)), pattern

    def compute_bias(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the bias of all heads, and return these heads' part."""
        full_bias: Tensor = super().compute_bias(*args, **kwargs)  # type: ignore[misc]
        return take_heads(full_bias, self.headscope_kept)


class GivenBias:
    """An MPNet attention module without some of its heads."""

    headscope_extends = True
    headscope_kept: tuple[int, ...]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward with its heads' part of the bias."""
        arguments = arguments_of(self, args, kwargs)  # type: ignore[arg-type]
        if (bias := arguments.get("position_bias")) is not None:
            arguments["position_bias"] = take_heads(bias, self.headscope_kept)
        return super().forward(**arguments)  # type: ignore[misc]


def _without_heads(
    module: nn.Module, q: Tensor, k: Tensor, *_: object, **__: object
) -> tuple[Tensor, Tensor]:
    """Return z and pattern of no head, as transformers' eager attention returns them."""
    return q.transpose(1, 2), q.new_empty(*q.shape[:-1], k.shape[2])
