"""XLM and FlauBERT: another kind of mask, and a direction that the configuration alone states."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from headscope.models.layouts.forwards import add_only_bias, extend
from headscope.models.layouts.layout import Layout
from headscope.models.layouts.maps import AttentionInput


@dataclass(frozen=True)
class XlmLayout(Layout):
    """XLM and FlauBERT: maps with DistilBERT's names, and a mask of zeros and ones.

    The mask is (batch, key_pos), or in a causal model (batch, query_pos, key_pos). That a model is
    causal is said by its configuration alone, not by its modules.
    """

    def under(self, config: Any) -> XlmLayout:
        """Return the layout with the direction that the configuration states."""
        return replace(self, one_way=bool(getattr(config, "causal", False)))

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
        out, pattern = add_only_bias(self.out_lin, input, n_keys=mask.shape[-1])
        return (out, pattern) if kwargs.get("output_attentions") else (out,)
