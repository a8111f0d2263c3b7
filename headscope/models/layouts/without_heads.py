"""Modules that have lost every head, where a decoder keeps keys and values of earlier steps.

transformers counts the tokens in a cache by the keys of its first layer, and counts empty keys as
no token. With a first layer without heads, every step of generating would begin at position 0.
"""

from __future__ import annotations

from functools import partial
from typing import Any


class WithoutHeads:
    """An attention module without any head, which still counts what its cache holds."""

    headscope_extends = True
    layer_idx: int = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward; let the cache of its layer count tokens without keys."""
        output = super().forward(*args, **kwargs)  # type: ignore[misc]
        cache = kwargs.get("past_key_values")
        layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
        for layer in layers[self.layer_idx :][:1]:
            vars(layer)["get_seq_length"] = partial(_tokens, layer)
        return output


def _tokens(layer: Any) -> int:
    """Return how many tokens one layer of a cache holds, whatever its number of heads."""
    return int(layer.keys.shape[-2]) if layer.is_initialized and layer.keys.dim() > 1 else 0
