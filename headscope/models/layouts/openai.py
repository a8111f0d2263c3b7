"""The first GPT: GPT-2's maps, in a module that computes its attention itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headscope.models.layouts.forwards import add_only_bias, extend
from headscope.models.layouts.gpt2 import Gpt2Layout
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import HEADS_BEFORE, AttentionInput, Projections


@dataclass(frozen=True)
class OpenAiLayout(Gpt2Layout):
    """The first GPT, whose modules state the number of their heads and no width."""

    def d_head(self, module: Any, projections: Projections) -> int:
        """Return the width of one head; it had ``n_head`` of them before any was removed."""
        n_heads: int = getattr(module, HEADS_BEFORE, module.n_head)
        return projections.out.out_features // n_heads

    def read(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> AttentionInput:
        """Read the arguments; the module itself hides later keys."""
        inputs = super().read(module, args, kwargs)
        n_pos = inputs.x_q.shape[1]
        visible: Tensor = module.bias[:, :, :n_pos, :n_pos] != 0
        mask = inputs.mask
        if mask is not None:
            visible = visible & (mask > torch.finfo(mask.dtype).min / 2)
        # A padded query may see no token. Its output is never used, so it may see every key.
        return replace(inputs, mask=visible | ~visible.any(dim=-1, keepdim=True))

    def answer(self, site: AttentionSite, z: Tensor, inputs: AttentionInput) -> Any:
        """Return a list, without a pattern."""
        return [site.projections.out(z)]

    def fit(self, module: Any, remaining: Collection[int], total: int) -> None:
        """Set the width of a head, by which GPT-2 cuts; let a module run without any head."""
        module.head_dim = module.c_proj.nf // total
        super().fit(module, remaining, total)
        if not remaining:
            extend(module, _NoHeads)


class _NoHeads:
    """An extension: a module of the first GPT that has no heads, and only adds b_O."""

    headscope_extends = True
    c_proj: nn.Module

    def forward(
        self, x: Tensor, attention_mask: Tensor | None = None, output_attentions: bool = False
    ) -> list[Tensor]:
        """Return b_O at every position."""
        out, pattern = add_only_bias(self.c_proj, x, n_keys=x.shape[1])
        return [out, pattern] if output_attentions else [out]
