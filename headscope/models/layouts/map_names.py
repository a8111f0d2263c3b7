"""Where a family keeps its four maps, and which of their rows belong to each head.

W_Q, W_K, W_V and W_O are linear maps of an attention module, under names that families choose;
some keep q, k and v in one. :class:`MapNames` finds them and says what a head owns of them, which
is all that taking heads out of a model asks. What happens to q and k on the way to the scores is
told in :mod:`headscope.models.layouts.layout`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from headscope.models.layouts.forwards import asks_interface, follow, parameters_of, reads
from headscope.models.layouts.fused import Fused
from headscope.models.layouts.grouped import group_size, groups_of, rows_of_groups, ungroup
from headscope.models.layouts.maps import (
    HeadRows,
    InputMaps,
    LinearMap,
    Projections,
    columns_of_linear,
    is_linear,
    rows_of_linear,
)

#: Attributes of attention modules: the width of one head, and how many heads there are.
_HEAD_WIDTHS = ("attention_head_size", "head_dim", "key_value_proj_dim", "head_size")
_HEAD_COUNTS = ("num_attention_heads", "num_heads", "n_heads")
#: By which a forward may cut what its maps return into heads.
_COUNTS_READ = ("num_heads", "num_key_value_heads")


@dataclass(frozen=True)
class MapNames:
    """Names of attributes: where the four maps of an attention module are.

    The defaults are those of BERT and its kin.
    """

    name: str  # The family that it is named after
    q: str = "query"  # Attributes of the attention module
    k: str = "key"
    v: str = "value"
    #: Dotted path from the attention module, or from its parent when it starts with ``..``.
    out: str = "..output.dense"
    fused: Fused | None = None  # The one map that the module has in the place of q, k and v
    #: An attribute of its modules, or an argument of their forward, that other families lack; empty
    #: where the names of the maps tell enough.
    needs: str = ""
    #: Whether its modules compute attention in their own forward, where others look a function up
    #: in transformers' table. While a model runs through our attention, the function in the table
    #: is ours; the forward of a module that bypasses the table is exchanged for ``Layout.run``.
    bypasses: bool = False

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Return the four maps if ``module``, which lies in ``parent``, has this layout."""
        kind: Any = type(module)
        if self.needs and not hasattr(module, self.needs) and self.needs not in parameters_of(kind):
            return None
        bypasses = not asks_interface(kind)
        if bypasses != self.bypasses:
            return None
        out = follow(parent if self.out.startswith("..") else module, self.out.removeprefix(".."))
        if not is_linear(out):
            return None
        maps = self._input_maps(module)
        if maps is None:
            return None
        q, k, v = maps
        projections = Projections(q, k, v, LinearMap(out))
        if self.fused and projections.q.out_features != projections.out.in_features:
            return None  # a map of that name that fuses other things than q, k and v
        return projections

    def _input_maps(self, module: nn.Module) -> InputMaps | None:
        """Return the maps of q, k and v; None if the module lacks one."""
        if self.fused is not None:
            d_head = width_of_head(module)
            return self.fused.maps(module, 1 if d_head is None else d_head)
        q = getattr(module, self.q, None)
        k = getattr(module, self.k, None)
        v = getattr(module, self.v, None)
        if not (is_linear(q) and is_linear(k) and is_linear(v)):
            return None
        return LinearMap(q), LinearMap(k), LinearMap(v)

    def d_head(self, module: nn.Module, projections: Projections) -> int:
        """Return the width of one head: stated, or all of q's by the number of heads stated."""
        width = width_of_head(module)
        if width is not None:
            return width
        for name in _HEAD_COUNTS:
            n_heads = getattr(module, name, None)
            if isinstance(n_heads, int):
                return projections.q.out_features // max(1, n_heads)
        return projections.q.out_features  # nothing stated: a single head

    def stored(self, module: nn.Module, projections: Projections, d_head: int) -> list[HeadRows]:
        """List every stored tensor in which a head owns rows."""
        p = projections
        columns = columns_of_linear(p.out.module, d_head)
        if self.fused is not None:
            return [*self.fused.rows(module, d_head), columns]
        heads_per_group = group_size(module)
        return [
            *rows_of_linear(p.q.module, d_head),
            *rows_of_groups(p.k.module, d_head, heads_per_group),
            *rows_of_groups(p.v.module, d_head, heads_per_group),
            columns,
        ]

    def shared_by(self, module: nn.Module, head_ids: Sequence[int]) -> list[int] | None:
        """Return which stored keys and values each head reads; None where each has its own.

        Groups of two, of which heads 0, 1 and 4 are left: keys of groups 0 and 2 are stored, so
        [0, 0, 1].
        """
        size = group_size(module)
        if size == 1:
            return None
        groups = groups_of(head_ids, size)
        return [groups.index(head // size) for head in head_ids]

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Make a module's own forward run with the ``remaining`` of ``total`` heads.

        Called when the other heads' rows have been cut off. Most modules run as they are: they ask
        for as many heads as the maps have rows for. Here, heads that share keys are given keys of
        their own, as transformers expects groups of one size, and a module whose forward reads how
        many heads there are (StableLM) is told.
        """
        kv_heads = self.shared_by(module, list(remaining))
        if kv_heads is not None:
            ungroup(module, [getattr(module, self.k), getattr(module, self.v)], kv_heads)
        kind: Any = type(module)
        for name in _COUNTS_READ:
            if reads(kind, name):
                setattr(module, name, len(remaining))


def width_of_head(module: nn.Module) -> int | None:
    """Return the width of one head where an attention module states it."""
    widths = (getattr(module, name, None) for name in _HEAD_WIDTHS)
    return next((width for width in widths if isinstance(width, int)), None)
