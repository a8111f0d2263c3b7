"""MobileBERT: BERT's maps, called with a tensor for queries, one for keys and one for values.

In the published models queries and keys come from a narrow copy of the state, values from the state
itself, so that W_V has more inputs than W_Q and W_K.

References
----------
Sun et al. 2020, arXiv:2004.02984, section 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from headscope.models.layouts.layout import (
    AttentionInput,
    Layout,
    Projections,
    arguments_of,
    parameters_of,
)


@dataclass(frozen=True)
class MobileBertLayout(Layout):
    """Three inputs."""

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Ask for the argument that the other families lack."""
        fits = "value_tensor" in parameters_of(type(module))
        return super().match(module, parent) if fits else None

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Read the three inputs."""
        given = arguments_of(module, args, kwargs)
        x_q, x_k, x_v = (given[f"{name}_tensor"] for name in ("query", "key", "value"))
        return AttentionInput(x_q, x_k, given.get("attention_mask"), given, x_v)
