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
    """XLM and FlauBERT: maps with DistilBERT's names, and a mask of zeros and ones.

    The mask is (batch, key_pos), or in a causal model (batch, query_pos, key_pos). That a model is
    causal is said by its configuration alone, not by its modules.
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
        """Make the mask boolean, (batch, 1, 1 or query_pos, key_pos)."""
        inputs = super().read(module, args, kwargs)
        mask = inputs.mask
        assert mask is not None
        if mask.dim() == 2:
            mask = mask[:, None]
        return replace(inputs, mask=mask[:, None] != 0)

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let a module run without any head, where its own forward cannot."""
        if not remaining:
            extend(module, _NoHeads)


class _NoHeads:
    """An extension: an XLM attention module that may have no heads, and then returns b_O."""

    headscope_extends = True
    n_heads: int
    out_lin: nn.Linear

    def forward(self, input: Tensor, mask: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward if there is a head."""
        if self.n_heads:
            return super().forward(input, mask, *args, **kwargs)  # type: ignore[misc]
        batch, n_q, _ = input.shape
        out = self.out_lin(input.new_zeros(batch, n_q, 0))
        # A softmax even so: who watches softmax calls sees this layer's empty pattern.
        pattern = torch.softmax(input.new_zeros(batch, 0, n_q, mask.shape[-1]), dim=-1)
        return (out, pattern) if kwargs.get("output_attentions") else (out,)
