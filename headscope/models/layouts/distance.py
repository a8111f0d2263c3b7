"""Bloom and Falcon: biases on the scores by distance (ALiBi), and maps fused group by group.

::

    attn_scores = q k^T * scale + slope of the head * position of the key

As a softmax does not change when a row is moved, this is the same as a penalty that grows with the
distance between query and key. Falcon's first models rotate q and k instead. Its bias is scaled as
the scores are.

References
----------
Press et al. 2022, arXiv:2108.12409, section 3; Almazrouei et al. 2023, arXiv:2311.16867.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headscope.models.layouts.forwards import add_only_bias, arguments_of, extend
from headscope.models.layouts.fused import ByGroup
from headscope.models.layouts.grouped import GROUP, groups_of
from headscope.models.layouts.layout import AttentionSite, Layout
from headscope.models.layouts.maps import AttentionInput, Heads
from headscope.models.layouts.steps import Rotation, take_heads


@dataclass(frozen=True)
class DistanceBias(Rotation):
    """Add the bias that the model hands over as ``alibi``; without one, turn q and k."""

    scaled: bool = False  # Whether it is divided by sqrt(d_head), as the scores are

    def tables(self, site: AttentionSite, inputs: AttentionInput) -> tuple[Tensor, Tensor] | None:
        """Return cos and sin, (1 or batch, pos, width), where there is no bias."""
        if inputs.arguments.get("alibi") is not None:
            return None
        return super().tables(site, inputs)

    def bias(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Tensor | None:
        """Return these heads' biases, (batch, n_heads, query_pos, key_pos)."""
        handed: Tensor | None = inputs.arguments.get("alibi")
        if handed is None:
            return None
        by_key = take_heads(_by_head(handed, len(inputs.x_q)), site.head_ids)
        if self.scaled:
            by_key = by_key * site.d_head**-0.5
        return by_key.expand(-1, -1, inputs.x_q.shape[1], -1)


def _by_head(alibi: Tensor, batch: int) -> Tensor:
    """Turn biases (batch * n_heads, 1, key_pos) into (batch, n_heads, 1, key_pos)."""
    return alibi.reshape(batch, -1, 1, alibi.shape[-1])


@dataclass(frozen=True)
class BloomLayout(Layout):
    """Bloom, whose attention module adds the skip connection itself."""

    def answer(self, site: AttentionSite, z: Tensor, inputs: AttentionInput) -> Any:
        """Add what the layer hands over as ``residual``."""
        return inputs.arguments["residual"] + site.projections.out(z), None

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let a module with fewer heads take their biases from those of all heads."""
        extend(module, _FewerBiases, headscope_kept=tuple(remaining))


@dataclass(frozen=True)
class FalconLayout(Layout):
    """Falcon: keys of all heads, of groups or of each head, beside their queries in one map."""

    def shared_by(self, module: nn.Module, head_ids: Sequence[int]) -> list[int] | None:
        """Return which stored keys each head reads."""
        size = heads_per_group(module)
        groups = groups_of(head_ids, size)
        return None if size == 1 else [groups.index(head // size) for head in head_ids]

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Read the arguments; take the biases, which the model adds there, out of the mask."""
        inputs = super().read(module, args, kwargs)
        mask = inputs.mask
        if mask is None or mask.dtype == torch.bool:
            return inputs
        # It hides the same keys from all heads, of which the module may have lost some.
        return replace(inputs, mask=mask[:, :1] > torch.finfo(mask.dtype).min / 2)

    def mended(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Take the biases out of the mask: transformers 5's eager forward adds them once more.

        Its SDPA forward, which it runs by default, and the published models add them once.
        """
        inputs = self.read(module, args, kwargs)
        arguments = dict(inputs.arguments)
        if arguments.get("alibi") is None or inputs.mask is None:
            return None
        dtype = inputs.x_q.dtype
        blank = torch.zeros(inputs.mask.shape, dtype=dtype, device=inputs.mask.device)
        arguments["attention_mask"] = blank.masked_fill(~inputs.mask, torch.finfo(dtype).min)
        return (), arguments

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let a module whose groups are uneven give each head its keys and values."""
        attention: Any = module
        size = heads_per_group(module, total)
        setattr(attention, GROUP, size)
        attention.new_decoder_architecture = False
        attention.multi_query = False
        attention.num_kv_heads = len(remaining)
        if size > 1 and remaining:
            assert isinstance(self.fused, ByGroup)
            self.fused.ungroup(module, list(remaining), size, attention.head_dim)
        extend(module, _FewerBiases, headscope_kept=tuple(remaining))


def heads_per_group(module: Any, n_heads: int | None = None) -> int:
    """Return how many of Falcon's heads share a key, or shared one before any was removed."""
    size_before: int | None = getattr(module, GROUP, None)
    if size_before is not None:
        return size_before
    total: int = module.num_heads if n_heads is None else n_heads
    if module.new_decoder_architecture:
        return total // int(module.num_kv_heads)
    return total if module.multi_query else 1


class _FewerBiases:
    """An extension: a module of Bloom or Falcon without some of its heads."""

    headscope_extends = True
    headscope_kept: tuple[int, ...]  # The heads that are left, by their original index
    num_heads: int
    dense: Any  # The output map

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward with its heads' biases; without a head, only add b_O."""
        arguments = arguments_of(self, args, kwargs)  # type: ignore[arg-type]
        x: Tensor = arguments["hidden_states"]
        alibi = arguments.get("alibi")
        if not self.headscope_kept:
            residual = arguments.get("residual")  # Bloom's skip connection
            out, pattern = add_only_bias(self.dense, x, n_keys=x.shape[1])
            return (out if residual is None else out + residual), pattern
        if alibi is not None:
            by_head = take_heads(_by_head(alibi, len(x)), self.headscope_kept)
            arguments["alibi"] = by_head.flatten(0, 1)
            mask = arguments.get("attention_mask")
            if mask is not None:
                arguments["attention_mask"] = take_heads(mask, self.headscope_kept)
        return super().forward(**arguments)  # type: ignore[misc]
