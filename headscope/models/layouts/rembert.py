"""RemBERT and Megatron-BERT: BERT's maps, in modules that compute their attention themselves."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from headscope.models.layouts.layout import Layout


@dataclass(frozen=True)
class RemBertLayout(Layout):
    """Plain scores in a module that never asks transformers for its attention."""

    bypasses = True

    def causal(self, module: nn.Module) -> bool:
        """Decoders of these families say so in another attribute than BERT's."""
        return getattr(module, "is_decoder", False) is True
