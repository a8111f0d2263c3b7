"""Families near BERT whose modules compute attention themselves, or read or store maps otherwise.

References
----------
MobileBERT: Sun et al. 2020, arXiv:2004.02984, section 3.1. RoFormer: Su et al. 2021,
arXiv:2104.09864, section 3.2. ConvBERT: Jiang et al. 2020, arXiv:2008.02496, section 3.3.
SqueezeBERT: Iandola et al. 2020, arXiv:2006.11316, section 3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscope.core.errors import UnsupportedModelError
from headscope.models.layouts.layout import (
    AttentionSite,
    Layout,
    arguments_of,
    extend,
    follow,
)
from headscope.models.layouts.maps import (
    AttentionInput,
    HeadRows,
    Heads,
    LinearMap,
    Projections,
    columns_of_linear,
    rows_of_linear,
)


@dataclass(frozen=True)
class RemBertLayout(Layout):
    """RemBERT, Megatron-BERT: BERT's maps, in modules that compute their attention themselves."""

    bypasses = True

    def causal(self, module: nn.Module) -> bool:
        """Return whether a query sees no later key, from another attribute than BERT's."""
        return getattr(module, "is_decoder", False) is True


@dataclass(frozen=True)
class MobileBertLayout(Layout):
    """MobileBERT: separate inputs for queries, keys and values.

    In the published models queries and keys come from a narrow copy of the state, values from the
    state itself, so that W_V has more inputs than W_Q and W_K.
    """

    needs: str = "value_tensor"

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Read the three inputs."""
        arguments = arguments_of(module, args, kwargs)
        x_q, x_k, x_v = (arguments[f"{name}_tensor"] for name in ("query", "key", "value"))
        return AttentionInput(x_q, x_k, arguments.get("attention_mask"), arguments, x_v)


@dataclass(frozen=True)
class RoFormerLayout(RemBertLayout):
    """RoFormer: q and k, and v where the model says so, are rotated by their positions.

    Neighbouring entries are pairs, ``(x_2i cos - x_2i+1 sin, x_2i+1 cos + x_2i sin)``; the sines
    and cosines come as one argument, ``sinusoidal_pos``.
    """

    needs: str = "rotary_value"  # Whether values are rotated too

    def place(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Rotate q, k and perhaps v (batch, n_heads, pos, d_head)."""
        table: Tensor | None = inputs.given.get("sinusoidal_pos")
        if table is None:
            return heads
        v = rotated(heads.v, table) if site.module.rotary_value else heads.v
        return Heads(rotated(heads.q, table), rotated(heads.k, table), v)


def rotated(x: Tensor, table: Tensor) -> Tensor:
    """Rotate each pair of neighbouring entries.

    ``x`` (batch, n_heads, pos, d_head), ``table`` (1, 1, pos, d_head).
    """
    sin, cos = table.chunk(2, dim=-1)
    even = x[..., 0::2]
    odd = x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)


@dataclass(frozen=True)
class XlmLayout(Layout):
    """XLM, FlauBERT: DistilBERT's names, a mask of zeros and ones, perhaps one direction only.

    A causal model says so in its configuration alone, and hands over a mask (batch, query_pos,
    key_pos) in place of (batch, key_pos).
    """

    one_way: bool = False  # Whether a query sees no later key

    bypasses = True

    def under(self, config: Any) -> XlmLayout:
        """Return the layout with the direction that the configuration states."""
        return replace(self, one_way=bool(getattr(config, "causal", False)))

    def causal(self, module: nn.Module) -> bool:
        """Return whether the configuration makes the model causal."""
        return self.one_way

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Give the mask its missing axes."""
        inputs = super().read(module, args, kwargs)
        mask = inputs.mask
        assert mask is not None
        allowed = mask[:, None, None] if mask.dim() == 2 else mask[:, None]
        return replace(inputs, mask=allowed != 0)

    def fit(self, module: nn.Module, kept: Collection[int], total: int) -> None:
        """Let a module run without any head, where its own forward cannot."""
        if not kept:
            extend(module, _NoHeads)


class _NoHeads:
    """An XLM attention module that may have lost all its heads: b_O is what it then returns."""

    headscope_extends = True
    n_heads: int
    out_lin: nn.Linear

    def forward(self, input: Tensor, mask: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward if there is a head."""
        if self.n_heads:
            return super().forward(input, mask, *args, **kwargs)  # type: ignore[misc]
        batch, n_q, _ = input.shape
        out = self.out_lin(input.new_zeros(batch, n_q, 0))
        # The pattern of no head, through a softmax as that of any other layer.
        pattern = torch.softmax(input.new_zeros(batch, 0, n_q, mask.shape[-1]), dim=-1)
        return (out, pattern) if kwargs.get("output_attentions") else (out,)


@dataclass(frozen=True)
class ConvBertLayout(RemBertLayout):
    """ConvBERT: in each layer a convolution stands beside the heads, and both go through W_O.

    ``out = [z of all heads | convolution] W_O + b_O``. The convolution's kernel at a position is
    made from that position's *queries*, of all heads. A head that is removed therefore loses its
    rows of W_K and W_V and its columns of W_O, while W_Q stays whole.
    """

    needs: str = "conv_kernel_layer"

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Read W_Q of the heads that are left."""
        projections = super().match(module, parent)
        heads: tuple[int, ...] | None = getattr(module, "headscope_kept", None)
        if projections is None or heads is None:
            return projections
        width = self.d_head(module, projections)
        return replace(projections, q=_SomeHeads(projections.q.module, heads=heads, width=width))

    def stored(self, module: nn.Module, projections: Projections, d_head: int) -> list[HeadRows]:
        """Leave out W_Q, which the convolution needs."""
        p = projections
        inputs = [rows for m in (p.k, p.v) for rows in rows_of_linear(m.module, d_head)]
        return [*inputs, columns_of_linear(p.out.module, d_head)]

    def fit(self, module: nn.Module, kept: Collection[int], total: int) -> None:
        """Let a module attend with the queries of its own heads only."""
        extend(module, _FewerHeads)
        vars(module)["headscope_kept"] = tuple(kept)

    def answer(self, site: AttentionSite, z: Tensor, inputs: AttentionInput) -> Any:
        """Append the convolution's output to z."""
        return torch.cat([z, convolution(site.module, inputs.x_q)], dim=-1), None


@dataclass(frozen=True)
class _SomeHeads(LinearMap):
    """The part of a map that makes the queries of some heads of ``width`` entries each."""

    heads: tuple[int, ...] = ()
    width: int = 1

    @property
    def weight(self) -> Tensor:
        """Their rows, (n_heads * width, n_in)."""
        return self._part(super().weight)

    @property
    def bias(self) -> Tensor | None:
        """Their biases."""
        bias = super().bias
        return None if bias is None else self._part(bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply by these rows only."""
        return F.linear(x, self.weight, self.bias)

    def _part(self, tensor: Tensor) -> Tensor:
        by_head = tensor.reshape(-1, self.width, *tensor.shape[1:])
        return by_head[list(self.heads)].flatten(0, 1)


def convolution(module: Any, x: Tensor) -> Tensor:
    """Return the convolution's output, (batch, pos, width), from x (batch, pos, d_model).

    Every position mixes the values around it with a kernel of its own for each head.
    """
    size = module.conv_kernel_size
    width = module.attention_head_size
    keys = module.key_conv_attn_layer(x.transpose(1, 2)).transpose(1, 2)
    logits = module.conv_kernel_layer(keys * module.query(x))  # (batch, pos, n_heads * size)
    kernel = torch.softmax(logits.reshape(-1, size), dim=-1)
    kernel = kernel.view(*x.shape[:2], -1, size, 1)
    values = F.pad(module.conv_out_layer(x), (0, 0, size // 2, size // 2))
    around = values.unfold(1, size, 1)  # (batch, pos, n_heads * width, size)
    mixed: Tensor = around.reshape(*x.shape[:2], -1, width, size) @ kernel
    return mixed.flatten(2)


class _FewerHeads:
    """A ConvBERT attention module without some of its heads."""

    headscope_extends = True
    headscope_kept: tuple[int, ...]
    attention_head_size: int
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Attend with the heads that are left; the convolution keeps all queries."""
        x = hidden_states
        width = self.attention_head_size
        maps = self.query(x), self.key(x), self.value(x)
        q, k, v = (y.view(*y.shape[:2], -1, width).transpose(1, 2) for y in maps)
        scores = q[:, list(self.headscope_kept)] @ k.transpose(-1, -2) / width**0.5
        scores = scores if attention_mask is None else scores + attention_mask
        pattern = torch.softmax(scores, dim=-1)
        z = (pattern @ v).transpose(1, 2).flatten(2)
        return torch.cat([z, convolution(self, x)], dim=-1), pattern


@dataclass(frozen=True)
class SqueezeBertLayout(Layout):
    """SqueezeBERT: maps are convolutions of width one over (batch, channels, pos), in groups.

    A map of G groups is a block diagonal matrix: group g makes its rows from the g-th part of x
    alone, and only that part's weights are stored. A module that has lost heads has a different
    number of rows in each group.
    """

    out: str = "..post_attention.conv1d"

    bypasses = True

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Match modules whose maps are convolutions of width one."""
        modules = [getattr(module, name, None) for name in (self.q, self.k, self.v)]
        modules.append(follow(parent, self.out.removeprefix("..")))
        maps = [GroupedMap(item) for item in modules if _is_map(item)]
        if len(maps) < len(modules):
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

    def entering(self, argument: Tensor) -> Tensor:
        """Exchange channels and positions."""
        return argument.transpose(1, 2)

    def leaving(self, returned: Tensor) -> Tensor:
        """Exchange channels and positions."""
        return returned.transpose(1, 2)

    def fit(self) -> None:
        """Let a convolution without input channels return its bias."""
        extend(self.module, _PerhapsEmpty)


def group_sizes(conv: Any) -> list[int]:
    """Return how many rows each group of a convolution has."""
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
