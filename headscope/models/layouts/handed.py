"""Attention whose weights nobody described: measured from q, k and v as a model hands them over.

A model that asks transformers for its attention hands over q, k and v as they are scored, a mask
and a scale. That is enough for everything that reads patterns and z. Where W_Q, W_K, W_V and W_O
are is not known: what needs them is refused (:class:`~headscope.models.layouts.maps.UnknownMaps`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from headscope.models.layouts.layout import AttentionModule, Layout
from headscope.models.layouts.maps import AttentionInput, UnknownMaps

NAME = "as handed over"


@dataclass(frozen=True)
class HandedLayout(Layout):
    """What one module handed over says of it."""

    scaling: float = 1.0  # What it multiplies the scores by
    cap: float | None = None  # What bounds them

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Read a call; cross-attention may name what it reads ``encoder_hidden_states``."""
        inputs = super().read(module, args, kwargs)
        encoded: Tensor | None = inputs.arguments.get("encoder_hidden_states")
        return inputs if encoded is None else replace(inputs, x_k=encoded)

    def scale(self, module: nn.Module, d_head: int) -> float:
        """Return the scale that was handed over."""
        return self.scaling

    def softcap(self, module: nn.Module) -> float | None:
        """Return the bound of the scores that was handed over."""
        return self.cap

    def causal(self, module: nn.Module) -> bool:
        """Return whether the mask hid every later key."""
        return self.one_way


def handed_module(name: str, module: nn.Module, layout: HandedLayout, z: Tensor) -> AttentionModule:
    """Describe a module by what one call handed over; ``z`` is (batch, n_heads, pos, d_v)."""
    n_heads = z.shape[1]
    return AttentionModule(
        name=name,
        module=module,
        layout=layout,
        projections=UnknownMaps(type(module).__name__),
        d_head=z.shape[3],
        head_ids=tuple(range(n_heads)),
        heads_before=n_heads,
    )
