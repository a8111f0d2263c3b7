r"""DeBERTa: scores from content and from relative position, kept apart and added.

::

    attn_scores = (q_i k_j + q_i pos_k[r] + k_j pos_q[r]) * scale
    scale       = 1 / sqrt(d_head * (1 + number of position terms))
    r           = row of the table of relative positions for the distance i - j

``q_i pos_k[r]`` is content to position (``c2p``), ``k_j pos_q[r]`` position to content (``p2c``). A
model may have both, one or none of them. pos_k and pos_q are made from the table by the maps of k
and q themselves (DeBERTa-v3) or by maps of their own. Distances beyond the table fall on its first
or last row; DeBERTa-v2 also puts long distances into buckets whose widths grow geometrically.

References
----------
He et al. 2021, DeBERTa, arXiv:2006.03654, section 3.1; He et al. 2023, DeBERTaV3, arXiv:2111.09543.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscope.core.errors import UnsupportedModelError
from headscope.models.layouts.layout import AttentionSite, Layout, arguments_of, extend
from headscope.models.layouts.maps import (
    AttentionInput,
    HeadRows,
    Heads,
    LinearMap,
    Projections,
    columns_of_linear,
    rows_of_linear,
)

_TERMS = ("c2p", "p2c")


@dataclass(frozen=True)
class DisentangledLayout(Layout):
    """DeBERTa-v2 and v3: separate maps, and scores with terms by relative position."""

    needs: str = "pos_att_type"  # Its list of position terms
    #: Attributes of the attention module: the maps of relative positions, where they are not k's
    #: and q's own.
    pos_k: str = "pos_key_proj"
    pos_q: str = "pos_query_proj"

    bypasses = True

    def stored(self, module: nn.Module, projections: Projections, d_head: int) -> list[HeadRows]:
        """Add the maps of relative positions."""
        linears = [linear for linear in self._own_maps(module) if linear is not None]
        position = [rows for linear in linears for rows in rows_of_linear(linear, d_head)]
        return [*super().stored(module, projections, d_head), *position]

    def fit(self, module: nn.Module, kept: Collection[int], total: int) -> None:
        """Let a module without heads run; its own forward would divide by zero."""
        extend(module, _PerhapsNoHeads)

    def scale(self, module: nn.Module, d_head: int) -> float:
        """Return 1 / sqrt(d_head * (1 + number of position terms))."""
        # The models take the root in float32, whatever their dtype.
        return 1 / float(torch.tensor(d_head * (1.0 + self.terms_counted(module))).sqrt())

    def terms_counted(self, module: Any) -> int:
        """Return how many position terms the scale counts, whether they are computed or not."""
        return sum(term in module.pos_att_type for term in _TERMS)

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Read the arguments; the mask is that of the keys alone.

        The models mask pairs of tokens, so that a padded query has no key. What a padded query
        attends to is never used; with the real keys it is at least defined.
        """
        inputs = super().read(module, args, kwargs)
        if inputs.mask is None:
            return inputs
        return replace(inputs, mask=inputs.mask.bool().any(dim=-2, keepdim=True))

    def bias(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Tensor | None:
        """Return both position terms, scaled, (batch, n_heads, query_pos, key_pos)."""
        module: Any = site.module
        table = inputs.given.get("rel_embeddings")
        if not module.relative_attention or table is None:
            return None
        rows = self.rows(module, heads.q.shape[2], heads.k.shape[2]).to(table.device)
        first = int(rows.min())
        last = int(rows.max())
        pos_k, pos_q = self._positions(site, table[first : last + 1])
        rows = rows - first
        terms = []
        if "c2p" in module.pos_att_type:
            terms.append(_picked(heads.q, pos_k, rows))
        if "p2c" in module.pos_att_type:
            terms.append(_picked(heads.k, pos_q, rows.t()).transpose(-1, -2))
        return sum(terms[1:], terms[0]) * self.scale(module, site.d_head) if terms else None

    def rows(self, module: Any, n_q: int, n_k: int) -> Tensor:
        """Return the row of the table for each query and key, (query_pos, key_pos)."""
        far = module.max_relative_positions
        buckets = getattr(module, "position_buckets", -1)
        span = buckets if buckets > 0 else far
        distance = torch.arange(1 - n_k, n_q)
        if buckets > 0:
            distance = bucketed(distance, buckets, far)
        by_distance = (distance + span).clamp(0, 2 * span - 1)
        return by_distance[torch.arange(n_q)[:, None] - torch.arange(n_k) + n_k - 1]

    def _own_maps(self, module: nn.Module) -> tuple[nn.Linear | None, nn.Linear | None]:
        """Return the maps of relative positions; None for one that the module does not have."""
        return getattr(module, self.pos_k, None), getattr(module, self.pos_q, None)

    def _positions(self, site: AttentionSite, table: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return pos_k and pos_q, (1, n_heads, rows, d_head)."""
        maps: Sequence[Any] = self._own_maps(site.module)
        if getattr(site.module, "share_att_key", False):
            maps = site.projections.k, site.projections.q
        k, q = (None if m is None else site.by_head(m(table[None])) for m in maps)
        return k, q


@dataclass(frozen=True)
class InterleavedLayout(DisentangledLayout):
    """The first DeBERTa: one map for q, k and v, head by head, and biases for q and v beside it."""

    pos_k: str = "pos_proj"
    pos_q: str = "pos_q_proj"

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Match modules with the fused map; refuse heads that are mixed with each other."""
        fused = getattr(module, "in_proj", None)
        output = getattr(parent, "output", None)
        out = getattr(output, "dense", None)
        known = isinstance(fused, nn.Linear) and isinstance(out, nn.Linear)
        if not (known and hasattr(module, self.needs)):
            return None
        if getattr(module, "talking_head", False):
            raise UnsupportedModelError(
                "This model's config has talking_head: it mixes the scores of all heads before and "
                "after the softmax, so that no pattern belongs to one head. headscope does not "
                "cover that."
            )
        names = ("q_bias", None, "v_bias")
        q, k, v = (HeadwiseMap(fused, i, 3, module, name) for i, name in enumerate(names))
        return Projections(q, k, v, LinearMap(out))

    def stored(self, module: nn.Module, projections: Projections, d_head: int) -> list[HeadRows]:
        """List the fused map, in which a head has three times d_head rows, and the biases."""
        linears = [linear for linear in self._own_maps(module) if linear is not None]
        return [
            HeadRows(projections.q.module, "weight", 3 * d_head),
            *(HeadRows(module, name, d_head) for name in ("q_bias", "v_bias")),
            *(rows for linear in linears for rows in rows_of_linear(linear, d_head)),
            columns_of_linear(projections.out.module, d_head),
        ]

    def terms_counted(self, module: Any) -> int:
        """Count whatever the config lists."""
        return len(module.pos_att_type)


@dataclass(frozen=True)
class HeadwiseMap(LinearMap):
    """One of several maps of which each head's rows lie side by side: q0 k0 v0 q1 k1 v1 ..."""

    owner: Any = None  # The attention module
    bias_name: str | None = None  # Its attribute that is this map's bias

    @property
    def weight(self) -> Tensor:
        """The map as ``nn.Linear`` has it, (n_out, n_in): a copy."""
        stored: Tensor = self.module.weight
        d_head: int = self.owner.attention_head_size
        n_heads = len(stored) // (self.parts * d_head)
        by_head = stored.reshape(n_heads, self.parts, d_head, stored.shape[1])
        return by_head[:, self.part].flatten(0, 1)

    @property
    def bias(self) -> Tensor | None:
        """Its bias, (n_out,), which is stored beside the map."""
        stored: Tensor | None = getattr(self.owner, self.bias_name) if self.bias_name else None
        return stored

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``x W + b`` for x (..., n_in)."""
        return F.linear(x, self.weight, self.bias)

    def leaving(self, returned: Tensor) -> Tensor:
        """Pick this map's part of every head, and add the bias."""
        sizes = (*returned.shape[:-1], -1, self.parts, self.owner.attention_head_size)
        outputs: Tensor = returned.reshape(sizes)[..., self.part, :].flatten(-2)
        return outputs if self.bias is None else outputs + self.bias


def bucketed(distance: Tensor, buckets: int, far: int) -> Tensor:
    """Put distances, negative where the key comes later, into ``buckets`` of either sign.

    Distances up to half as many stay what they are; beyond, the buckets widen so that the last one
    ends at ``far - 1``, the distance that the table was made for.
    """
    half = buckets // 2
    # In float32, as the checkpoints were trained: which bucket a border falls in depends on it.
    ratio = (distance.abs().clamp(min=half) / half).log()
    widest = torch.tensor((far - 1) / half).log()
    beyond = half + (ratio / widest * (half - 1)).ceil().long()
    return torch.where(distance.abs() <= half, distance, beyond * distance.sign())


def _picked(content: Tensor, position: Tensor | None, rows: Tensor) -> Tensor:
    """Multiply content by the positions of each row: (batch, n_heads, *rows.shape).

    ``content`` is (batch, n_heads, pos, d_head), ``position`` (1, n_heads, table rows, d_head).
    """
    assert position is not None
    products = content @ position.to(content.dtype).transpose(-1, -2)
    return products.gather(-1, rows.expand(*products.shape[:2], *rows.shape))


class _PerhapsNoHeads:
    """An attention module of DeBERTa that may have lost all its heads."""

    headscope_extends = True
    num_attention_heads: int

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward if there is a head; else return a z of no width."""
        if self.num_attention_heads:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        x: Tensor = next(iter(arguments_of(self, args, kwargs).values()))  # type: ignore[arg-type]
        # Call a softmax even so: hooks on it then see this layer's empty pattern.
        pattern = torch.softmax(x.new_empty(len(x), 0, x.shape[1], x.shape[1]), dim=-1)
        return x.new_empty(*x.shape[:2], 0), pattern
