"""MobileBERT: queries, keys and values are made from inputs of their own.

References
----------
Sun et al. 2020, arXiv:2004.02984, section 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from headscope.models.layouts.forwards import arguments_of
from headscope.models.layouts.layout import Layout
from headscope.models.layouts.maps import AttentionInput


@dataclass(frozen=True)
class MobileBertLayout(Layout):
    """MobileBERT: separate inputs for queries, keys and values.

    In the published models queries and keys come from a narrow copy of the state, values from the
    state itself, so that W_V has more inputs than W_Q and W_K.
    """

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Read the three inputs."""
        arguments = arguments_of(module, args, kwargs)
        return AttentionInput(
            x_q=arguments["query_tensor"],
            x_k=arguments["key_tensor"],
            mask=arguments.get("attention_mask"),
            arguments=arguments,
            x_value=arguments["value_tensor"],
        )
