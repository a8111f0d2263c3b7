"""SqueezeBERT: maps that are convolutions of width one, in groups of channels.

References
----------
Iandola et al. 2020, arXiv:2006.11316, section 3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headscope.core.errors import UnsupportedModelError
from headscope.models.layouts.forwards import extend, follow
from headscope.models.layouts.layout import AttentionSite, Layout
from headscope.models.layouts.maps import AttentionInput, LinearMap, Projections


@dataclass(frozen=True)
class SqueezeBertLayout(Layout):
    """SqueezeBERT: maps are convolutions of width one over (batch, channels, pos), in groups.

    A map of G groups is a block diagonal matrix: group g makes its rows from the g-th slice of x
    alone, and only the weights of that slice are stored. In a module that has lost heads, the
    groups differ in their number of rows.
    """

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Match modules whose maps are convolutions of width one."""
        input_maps = [getattr(module, name, None) for name in (self.q, self.k, self.v)]
        out: Any = follow(parent, self.out.removeprefix(".."))
        if not all(map(_is_map, [*input_maps, out])):
            return None
        if out.groups > 1:
            raise UnsupportedModelError(
                f"The output map of {type(module).__name__} works in {out.groups} "
                "groups (post_attention_groups), so that no head reaches every part of the state; "
                "headscope covers one group there."
            )
        q, k, v = map(GroupedMap, input_maps)
        return Projections(q, k, v, GroupedMap(out))

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let each map compute as many rows of each group as are left.

        Of 4 heads of width 2 in 2 groups, group 0 makes rows 0-3 and group 1 rows 4-7. Heads 0, 2
        and 3 own rows 0, 1, 4, 5, 6 and 7, so that the groups keep 2 and 4 rows.
        """
        width: Any = module.attention_head_size
        first_rows = torch.tensor([*remaining], dtype=torch.long) * width
        rows = (first_rows[:, None] + torch.arange(width)).flatten()
        for name in (self.q, self.k, self.v):
            conv: Any = getattr(module, name)
            rows_of_group = total * width // conv.groups
            sizes = torch.bincount(rows // rows_of_group, minlength=conv.groups).tolist()
            extend(conv, _UnevenGroups, headscope_sizes=tuple(sizes))

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Read the arguments, in which x is (batch, d_model, pos), and put channels last."""
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
        blocks = torch.split(stored, group_sizes(self.module))  # each (rows, channels of a group)
        dense: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
        return dense

    @property
    def in_features(self) -> int:
        """Channels of x."""
        return int(self.module.weight.shape[1] * self.module.groups)

    @property
    def out_features(self) -> int:
        """Rows of the map, those that heads have lost not counted."""
        return int(self.module.weight.shape[0])

    def __call__(self, x: Tensor) -> Tensor:
        """Run the convolution on x, (batch, pos, n_in) -> (batch, pos, n_out)."""
        channels_first: Tensor = self.module(x.transpose(1, 2))
        return channels_first.transpose(1, 2)

    def entering(self, argument: Tensor) -> Tensor:
        """Turn the convolution's input, (batch, n_in, pos), into x (batch, pos, n_in)."""
        return argument.transpose(1, 2)

    def leaving(self, returned: Tensor) -> Tensor:
        """Turn the convolution's output, (batch, n_out, pos), into (batch, pos, n_out)."""
        return returned.transpose(1, 2)

    def fit(self) -> None:
        """Let the output map return its bias when no head is left to feed it."""
        extend(self.module, _PerhapsEmpty)


def group_sizes(conv: Any) -> list[int]:
    """Return how many rows each group of a convolution has: equally many, if no head was lost."""
    rows_of_group = conv.weight.shape[0] // conv.groups
    return list(getattr(conv, "headscope_sizes", [rows_of_group] * conv.groups))


def _is_map(module: object) -> bool:
    """Whether a module is a convolution of width one, which mixes no positions."""
    return isinstance(module, nn.Conv1d) and module.kernel_size == (1,)


class _UnevenGroups:
    """An extension: a convolution of width one whose groups have lost rows."""

    headscope_extends = True
    groups: int
    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """Compute each group's rows from its channels of x (batch, channels, pos)."""
        blocks = torch.split(self.weight[:, :, 0], group_sizes(self))
        channels = x.chunk(self.groups, dim=1)
        rows = [block @ x_group for block, x_group in zip(blocks, channels, strict=True)]
        out = torch.cat(rows, dim=1)
        return out if self.bias is None else out + self.bias[:, None]


class _PerhapsEmpty:
    """An extension: a convolution of width one that may have lost all its input channels."""

    headscope_extends = True
    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """Return the bias at every position where there is nothing to multiply."""
        if self.weight.shape[1]:
            out: Tensor = super().forward(x)  # type: ignore[misc]
            return out
        zeros = x.new_zeros(len(x), len(self.weight), x.shape[-1])  # (batch, n_out, pos)
        return zeros if self.bias is None else zeros + self.bias[:, None]
