"""GPT-BigCode (StarCoder): GPT-2 with one key for all heads, or keys beside their queries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headscope.models.layouts.forwards import attend_without_heads, extend
from headscope.models.layouts.layout import Layout


@dataclass(frozen=True)
class GptBigCodeLayout(Layout):
    """GPT-BigCode, whose forward cuts its fused output by attributes of the module."""

    def shared_by(self, module: Any, head_ids: Sequence[int]) -> list[int] | None:
        """Return that all heads read the one key, where there is one."""
        return [0] * len(head_ids) if module.multi_query else None

    def fit(self, module: Any, remaining: Collection[int], total: int) -> None:
        """State the width of the heads that are left; let a module run without any."""
        module.embed_dim = len(remaining) * module.head_dim
        if module.multi_query:
            module.num_key_value_groups = len(remaining)
        if not remaining:
            extend(module, _NoHeads)


def one_group(module: Any) -> int:
    """Return how many heads share a key: more than there are, or one."""
    return 1 << 30 if module.multi_query else 1


class _NoHeads:
    """An extension: a GPT-BigCode attention module that has no heads, and only adds b_O."""

    headscope_extends = True
    head_dim: int
    c_proj: nn.Module

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        """Return b_O at every position."""
        x = hidden_states
        z, pattern = attend_without_heads(self, x, x, mask=attention_mask, d_head=self.head_dim)
        return self.c_proj(z.flatten(2)), pattern
