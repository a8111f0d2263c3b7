"""MPT: a bias on the scores that falls with the distance (ALiBi), and a mask of what is hidden."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from headscope.models.layouts.forwards import extend
from headscope.models.layouts.layout import AttentionSite, Layout, Step
from headscope.models.layouts.maps import AttentionInput, Heads, Projections


class Alibi(Step):
    """Add the bias by distance that the model hands to every layer."""

    def bias(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Tensor | None:
        """Cut the bias of all heads and of the longest sequence to these heads and positions."""
        n_q = heads.q.shape[2]
        n_k = heads.k.shape[2]
        longest: Tensor = inputs.arguments["position_bias"]  # (heads of the model, 1, positions)
        return longest[list(site.head_ids), :, -n_k:].expand(-1, n_q, -1)[None]


@dataclass(frozen=True)
class MptLayout(Layout):
    """Causal attention; the forward of its modules is exchanged."""

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Leave out modules that clip q, k and v: that would be another step."""
        return None if getattr(module, "clip_qkv", None) else super().match(module, parent)

    def scale(self, module: nn.Module, d_head: int) -> float | None:
        """Return what the module multiplies the scores by."""
        attention: Any = module
        return float(attention.softmax_scale)

    def causal(self, module: nn.Module) -> bool:
        """Say that a query sees no later key: nothing in the module tells."""
        return True

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Turn the mask round: MPT marks what is hidden, we mark what is seen."""
        inputs = super().read(module, args, kwargs)
        return inputs if inputs.mask is None else replace(inputs, mask=~inputs.mask)

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let a module with fewer heads pick their biases when it runs by itself."""
        extend(module, _FewerHeads)
        vars(module)["headscope_kept"] = list(remaining)


class _FewerHeads:
    """An attention module of MPT without some of its heads."""

    headscope_extends = True
    headscope_kept: list[int]
    out_proj: nn.Linear

    def forward(self, x: Tensor, position_bias: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward with its heads' biases; without heads, W_O of nothing."""
        if not self.headscope_kept:
            return self.out_proj(x[..., :0]), None
        bias = position_bias[self.headscope_kept]
        return super().forward(x, bias, *args, **kwargs)  # type: ignore[misc]
