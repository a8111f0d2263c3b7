"""SqueezeBERT: its maps are convolutions of width one over (batch, channels, pos), in groups.

A map of G groups is a block diagonal matrix: group g makes its rows from the g-th part of x alone,
and only that part's weights are stored. A module that has lost heads has a different number of rows
in each group.

References
----------
Iandola et al. 2020, arXiv:2006.11316, section 3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headscope.core.errors import UnsupportedModelError
from headscope.models.layouts.layout import AttentionInput, Layout, Projections, extend, follow
from headscope.models.layouts.maps import LinearMap

if TYPE_CHECKING:
    from headscope.models.layouts.sites import AttentionSite


@dataclass(frozen=True)
class SqueezeBertLayout(Layout):
    """Plain scores from grouped maps, channels before positions."""

    out: str = "..post_attention.conv1d"

    bypasses = True

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Ask for convolutions of width one."""
        found = [getattr(module, name, None) for name in (self.q, self.k, self.v)]
        found.append(follow(parent, self.out.removeprefix("..")))
        maps = [GroupedMap(item) for item in found if _is_map(item)]
        if len(maps) < len(found):
            return None
        if maps[-1].module.groups > 1:
            raise UnsupportedModelError(
                f"The output map of {type(module).__name__} works in {maps[-1].module.groups} "
                "groups (post_attention_groups), so that no head reaches every part of the state; "
                "headscope covers one group there."
            )
        return Projections(*maps)

    def fit(self, module: nn.Module, kept: Collection[int], total: int) -> None:
        """Let each map compute as many rows of each group as are left."""
        width: Any = module.attention_head_size
        rows = torch.tensor([*kept], dtype=torch.long)[:, None] * width + torch.arange(width)
        for name in (self.q, self.k, self.v):
            conv: Any = getattr(module, name)
            of_group = rows.flatten() // (total * width // conv.groups)
            sizes = torch.bincount(of_group, minlength=conv.groups).tolist()
            extend(conv, _UnevenGroups)
            vars(conv)["headscope_sizes"] = tuple(sizes)

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Put channels last."""
        inputs = super().read(module, args, kwargs)
        x = inputs.x_q.transpose(1, 2)
        return replace(inputs, x_q=x, x_k=x)

    def answer(self, site: AttentionSite, z: Tensor, inputs: AttentionInput) -> Any:
        """Return z by name, channels first."""
        return {"context_layer": z.transpose(1, 2)}


@dataclass(frozen=True)
class GroupedMap(LinearMap):
    """A convolution of width one as a linear map."""

    @property
    def weight(self) -> Tensor:
        """The map, (n_out, n_in): a view where it has one group, else with zeros in between."""
        stored: Tensor = self.module.weight[:, :, 0]
        if self.module.groups == 1:
            return stored
        blocks = torch.split(stored, group_sizes(self.module))
        dense: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
        return dense

    @property
    def in_features(self) -> int:
        """Channels of x."""
        return int(self.module.weight.shape[1] * self.module.groups)

    @property
    def out_features(self) -> int:
        """Rows that are stored."""
        return int(self.module.weight.shape[0])

    def __call__(self, x: Tensor) -> Tensor:
        """Run the convolution on x (batch, pos, n_in)."""
        return self.leaving(self.module(self.entering(x)))

    def entering(self, given: Tensor) -> Tensor:
        """Exchange channels and positions."""
        return given.transpose(1, 2)

    def leaving(self, returned: Tensor) -> Tensor:
        """Exchange channels and positions."""
        return returned.transpose(1, 2)

    def fit(self) -> None:
        """Let a convolution without input channels return its bias."""
        extend(self.module, _PerhapsEmpty)


def group_sizes(conv: Any) -> list[int]:
    """Say how many rows each group of a convolution has."""
    equal = (conv.weight.shape[0] // conv.groups,) * conv.groups
    return list(getattr(conv, "headscope_sizes", equal))


def _is_map(item: object) -> bool:
    return isinstance(item, nn.Conv1d) and item.kernel_size == (1,)


class _UnevenGroups:
    """A convolution of width one whose groups have lost rows."""

    headscope_extends = True
    groups: int
    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """Compute each group's rows from its part of x (batch, channels, pos)."""
        blocks = torch.split(self.weight[:, :, 0], group_sizes(self))
        parts = zip(blocks, x.chunk(self.groups, dim=1), strict=True)
        out = torch.cat([block @ part for block, part in parts], dim=1)
        return out if self.bias is None else out + self.bias[:, None]


class _PerhapsEmpty:
    """A convolution of width one that may have lost all its input channels."""

    headscope_extends = True
    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """Return the bias at every position where there is nothing to multiply."""
        if self.weight.shape[1]:
            out: Tensor = super().forward(x)  # type: ignore[misc]
            return out
        zeros = x.new_zeros(len(x), len(self.weight), x.shape[-1])
        return zeros if self.bias is None else zeros + self.bias[:, None]
