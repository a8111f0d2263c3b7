"""XLM and FlauBERT: another kind of mask, and a direction that the configuration alone states."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headscope.models.layouts.forwards import extend
from headscope.models.layouts.layout import Layout
from headscope.models.layouts.maps import AttentionInput


@dataclass(frozen=True)
class XlmLayout(Layout):
    """XLM, FlauBERT: DistilBERT's names, a mask of zeros and ones, perhaps one direction only.

    A causal model says so in its configuration alone, and hands over a mask (batch, query_pos,
    key_pos) in place of (batch, key_pos).
    """

    one_way: bool = False  # Whether a query sees no later key

    def under(self, config: Any) -> XlmLayout:
        """Return the layout with the direction that the configuration states."""
        return replace(self, one_way=bool(getattr(config, "causal", False)))

    def causal(self, module: nn.Module) -> bool:
        """Return whether the configuration makes the model causal."""
        return self.one_way

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Give the mask its missing axes."""
        inputs = super().read(module, args, kwargs)
        mask = inputs.mask
        assert mask is not None
        allowed = mask[:, None, None] if mask.dim() == 2 else mask[:, None]
        return replace(inputs, mask=allowed != 0)

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let a module run without any head, where its own forward cannot."""
        if not remaining:
            extend(module, _NoHeads)


class _NoHeads:
    """An XLM attention module that may have lost all its heads: b_O is what it then returns."""

    headscope_extends = True
    n_heads: int
    out_lin: nn.Linear

    def forward(self, input: Tensor, mask: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward if there is a head."""
        if self.n_heads:
            return super().forward(input, mask, *args, **kwargs)  # type: ignore[misc]
        batch, n_q, _ = input.shape
        out = self.out_lin(input.new_zeros(batch, n_q, 0))
        # The pattern of no head, through a softmax as that of any other layer.
        pattern = torch.softmax(input.new_zeros(batch, 0, n_q, mask.shape[-1]), dim=-1)
        return (out, pattern) if kwargs.get("output_attentions") else (out,)
