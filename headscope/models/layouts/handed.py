"""Attention whose weights nobody described: measured from q, k and v as a model hands them over.

A model that asks transformers for its attention hands over q, k and v as they are scored, a mask
and a scale. That is enough for everything that reads patterns and z. Where W_Q, W_K, W_V and W_O
are is not known: what needs them is refused (:class:`~headscope.models.layouts.maps.UnknownMaps`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from headscope.models.layouts.layout import AttentionModule, Layout
from headscope.models.layouts.maps import UnknownMaps

NAME = "as handed over"


@dataclass(frozen=True)
class HandedLayout(Layout):
    """What one module handed over says of it."""

    scaling: float = 1.0  # What it multiplies the scores by
    cap: float | None = None  # What bounds them
    one_way: bool = False  # Whether its mask hid every later key

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
