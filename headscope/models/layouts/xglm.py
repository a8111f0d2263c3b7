"""XGLM and MVP: BART's maps, in modules that compute their attention themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscope.core.errors import UnsupportedModelError
from headscope.models.layouts.forwards import add_only_bias, extend, reads
from headscope.models.layouts.layout import Layout
from headscope.models.layouts.maps import AttentionInput


@dataclass(frozen=True)
class XglmLayout(Layout):
    """XGLM and MVP, whose forward joins z to the width that the module states."""

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Read the arguments; MVP may put learned keys and values before those of the text."""
        inputs = super().read(module, args, kwargs)
        if inputs.arguments.get("attn_prompt") is not None:
            raise UnsupportedModelError(
                f"{type(module).__name__} adds prompts (use_prompt) to its keys and values, which "
                "headscope does not cover."
            )
        return inputs

    def mend(self, module: nn.Module, dtype: torch.dtype) -> None:
        """Let XGLM run in float64, of whose smallest number its forward makes a float32."""
        kind: Any = type(module)
        if dtype == torch.float64 and reads(kind, "full"):
            extend(module, _InFloat64)

    def fit(self, module: Any, remaining: Collection[int], total: int) -> None:
        """State the width of the heads that are left; let a module run without any."""
        module.embed_dim = len(remaining) * module.head_dim
        if not remaining:
            extend(module, _NoHeads)


class _InFloat64:
    """An extension: an XGLM attention module whose forward makes its constants in float64."""

    headscope_extends = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward."""
        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            torch.set_default_dtype(usual)


class _NoHeads:
    """An extension: a module of XGLM or MVP that has no heads, and only adds b_O."""

    headscope_extends = True
    out_proj: nn.Module

    def forward(
        self, hidden_states: Tensor, key_value_states: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Return b_O at every position."""
        x = hidden_states
        other_states = x if key_value_states is None else key_value_states
        return add_only_bias(self.out_proj, x, n_keys=other_states.shape[1])
