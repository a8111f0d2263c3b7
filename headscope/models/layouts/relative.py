"""T5: a learned bias on the scores by relative position, the same in every layer; no scaling.

::

    attn_scores = q k^T + bias[bucket(j - i)]

The first layer of a stack computes the bias of all heads and hands it to the others. It reaches our
attention through transformers' interface. A module that has lost heads takes its own heads' part of
the bias and hands the whole on.

References
----------
Raffel et al. 2020, arXiv:1910.10683, section 2.1.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from headscope.models.layouts.layout import AttentionInput, Heads, Layout, Projections, extend

if TYPE_CHECKING:
    from headscope.models.layouts.sites import AttentionSite


@dataclass(frozen=True)
class T5Layout(Layout):
    """Scores without a scale, and with a bias by relative position."""

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Ask for T5's width of a head besides the maps."""
        known = hasattr(module, "key_value_proj_dim")
        return super().match(module, parent) if known else None

    def bias(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Tensor | None:
        """Return the bias that was handed over, or what the first layer computes."""
        module: Any = site.module
        whole: Tensor | None = inputs.given.get("position_bias")
        if whole is not None:
            return own_heads(whole, site.head_ids)
        if not module.has_relative_attention_bias:
            return None
        bias: Tensor = module.compute_bias(inputs.x_q.shape[1], inputs.x_k.shape[1])
        return bias

    def pattern_in(self, output: object) -> Tensor | None:
        """T5 returns the bias second and the pattern third."""
        third = output[2] if isinstance(output, tuple) and len(output) > 2 else None
        return third if isinstance(third, Tensor) else None

    def fit(self, module: nn.Module, kept: Collection[int], total: int) -> None:
        """Let a module with fewer heads share the bias of all heads with the other layers."""
        extend(module, _FewerHeads)
        vars(module)["headscope_kept"], vars(module)["headscope_total"] = tuple(kept), total


def own_heads(bias: Tensor, kept: Collection[int]) -> Tensor:
    """Pick some heads of a bias (1 or batch, n_heads, query_pos, key_pos) for all of them."""
    return bias if bias.shape[1] in (1, len(kept)) else bias[:, list(kept)]


class _FewerHeads:
    """A T5 attention module without some of its heads."""

    headscope_extends = True
    headscope_kept: tuple[int, ...]
    headscope_total: int

    def forward(self, *args: Any, position_bias: Tensor | None = None, **kwargs: Any) -> Any:
        """Run the module's own forward with its heads' part of the bias; return the whole."""
        vars(self)["headscope_whole"] = position_bias
        own = None if position_bias is None else own_heads(position_bias, self.headscope_kept)
        out, made, *rest = super().forward(  # type: ignore[misc]
            *args, position_bias=own, **kwargs
        )
        whole = vars(self).pop("headscope_whole")
        if whole is None:  # cross-attention has no bias: zeros, for every head
            whole = made.new_zeros(1, self.headscope_total, *made.shape[2:])
        return (out, whole, *rest)

    def compute_bias(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the bias of all heads, and return these heads' part."""
        whole: Tensor = super().compute_bias(*args, **kwargs)  # type: ignore[misc]
        vars(self)["headscope_whole"] = whole
        return own_heads(whole, self.headscope_kept)
