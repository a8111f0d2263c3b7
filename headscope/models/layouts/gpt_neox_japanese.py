"""GPT-NeoX Japanese, whose modules compute their attention themselves."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headscope.models.layouts.forwards import add_only_bias, extend
from headscope.models.layouts.layout import AttentionSite, Layout
from headscope.models.layouts.maps import AttentionInput


@dataclass(frozen=True)
class JapaneseNeoXLayout(Layout):
    """GPT-NeoX Japanese: the module hands a bias, which the last layer alone has, to its layer."""

    def answer(self, site: AttentionSite, z: Tensor, inputs: AttentionInput) -> Any:
        """Return the output, the pattern as None, and the bias that the layer adds."""
        module: Any = site.module
        return site.projections.out(z), None, module.dense_bias

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let a module run without any head, where its own forward cannot."""
        if not remaining:
            extend(module, _NoHeads)


class _NoHeads:
    """An extension: a module of GPT-NeoX Japanese that has no heads."""

    headscope_extends = True
    dense: nn.Module
    dense_bias: Tensor | None

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return zeros, an empty pattern, and the bias that the layer adds."""
        out, pattern = add_only_bias(self.dense, hidden_states, n_keys=hidden_states.shape[1])
        return out, pattern, self.dense_bias
