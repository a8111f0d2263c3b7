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

from headscope.core.errors import UnsupportedModelError
from headscope.models.layouts.forwards import arguments_of, extend, follow
from headscope.models.layouts.fused import FusedMap
from headscope.models.layouts.layout import AttentionSite, Layout, Step
from headscope.models.layouts.maps import (
    AttentionInput,
    HeadRows,
    Heads,
    LinearMap,
    Projections,
    columns_of_linear,
    is_linear,
    rows_of_linear,
)

_TERMS = ("c2p", "p2c")


class PositionTerms(Step):
    """Add the scores of content to position and of position to content, as the model has them."""

    def bias(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Tensor | None:
        """Return both terms, scaled, (batch, n_heads, query_pos, key_pos)."""
        module: Any = site.module
        table = inputs.arguments.get("rel_embeddings")
        if not module.relative_attention or table is None:
            return None
        # Only the rows of the table that these distances need go through the maps.
        row_of_pair = table_rows(module, heads.q.shape[2], heads.k.shape[2]).to(table.device)
        first = int(row_of_pair.min())
        last = int(row_of_pair.max())
        pos_k, pos_q = _positions(site, table[first : last + 1])
        rows = row_of_pair - first
        terms = []
        if "c2p" in module.pos_att_type:
            terms.append(_products(heads.q, pos_k, rows))
        if "p2c" in module.pos_att_type:
            terms.append(_products(heads.k, pos_q, rows.t()).transpose(-1, -2))
        if not terms:
            return None
        assert site.scale is not None
        return sum(terms[1:], terms[0]) * site.scale


def table_rows(module: Any, n_q: int, n_k: int) -> Tensor:
    """Return the row of the table for each query and key, (query_pos, key_pos)."""
    farthest = module.max_relative_positions
    buckets = getattr(module, "position_buckets", -1)
    distances = torch.arange(1 - n_k, n_q)  # Each once; below, those of all pairs
    half = farthest  # Rows of the table for either sign
    if buckets > 0:
        distances = bucketed(distances, buckets, farthest)
        half = buckets
    row_of_distance: Tensor = (distances + half).clamp(0, 2 * half - 1)
    return row_of_distance[torch.arange(n_q)[:, None] - torch.arange(n_k) + n_k - 1]


def bucketed(distance: Tensor, buckets: int, farthest: int) -> Tensor:
    """Put distances, negative where the key comes later, into ``buckets`` of either sign.

    Distances up to half as many stay what they are; beyond, the buckets widen so that the last one
    ends at ``farthest - 1``, the distance that the table was made for.
    """
    half = buckets // 2
    # In float32, as the checkpoints were trained: which bucket a border falls in depends on it.
    ratio = (distance.abs().clamp(min=half) / half).log()
    widest = torch.tensor((farthest - 1) / half).log()
    beyond = half + (ratio / widest * (half - 1)).ceil().long()
    return torch.where(distance.abs() <= half, distance, beyond * distance.sign())


def _positions(site: AttentionSite, table: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Make pos_k and pos_q, (1, n_heads, rows, d_head), of rows of the table (rows, d_model)."""
    key_map: Any
    query_map: Any
    key_map, query_map = _position_maps(site.module)
    if getattr(site.module, "share_att_key", False):
        key_map = site.projections.k
        query_map = site.projections.q
    pos_k = None if key_map is None else site.by_head(key_map(table[None]))
    pos_q = None if query_map is None else site.by_head(query_map(table[None]))
    return pos_k, pos_q


def _position_maps(module: Any) -> tuple[nn.Linear | None, nn.Linear | None]:
    """Return a module's own maps of relative positions to keys and to queries; None for none."""
    key_map = getattr(module, "pos_key_proj", getattr(module, "pos_proj", None))
    query_map = getattr(module, "pos_query_proj", getattr(module, "pos_q_proj", None))
    return key_map, query_map


def _position_rows(module: nn.Module, d_head: int) -> list[HeadRows]:
    """List what heads own of the maps of relative positions."""
    rows: list[HeadRows] = []
    for linear in _position_maps(module):
        if linear is not None:
            rows += rows_of_linear(linear, d_head)
    return rows


def _products(content: Tensor, position: Tensor | None, rows: Tensor) -> Tensor:
    """Multiply content by the position of each pair's row: (batch, n_heads, *rows.shape).

    ``content`` is (batch, n_heads, pos, d_head), ``position`` (1, n_heads, table rows, d_head).
    """
    assert position is not None
    products = content @ position.to(content.dtype).transpose(-1, -2)
    return products.gather(-1, rows.expand(*products.shape[:2], *rows.shape))


@dataclass(frozen=True)
class DisentangledLayout(Layout):
    """DeBERTa-v2 and v3: separate maps, and scores with terms by relative position."""

    def stored(self, module: nn.Module, projections: Projections, d_head: int) -> list[HeadRows]:
        """Add the maps of relative positions."""
        return [*super().stored(module, projections, d_head), *_position_rows(module, d_head)]

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let a module without heads run; its own forward would divide by zero."""
        extend(module, _PerhapsNoHeads)

    def scale(self, module: nn.Module, d_head: int) -> float:
        """Return 1 / sqrt(d_head * (1 + number of position terms))."""
        # The models take the root in float32, whatever their dtype.
        return 1 / float(torch.tensor(d_head * (1.0 + self.terms_counted(module))).sqrt())

    def terms_counted(self, module: Any) -> int:
        """Return how many position terms the scale counts, whether they are computed or not."""
        return len([term for term in _TERMS if term in module.pos_att_type])

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


@dataclass(frozen=True)
class InterleavedLayout(DisentangledLayout):
    """The first DeBERTa: one map for q, k and v, head by head, and biases for q and v beside it."""

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Match modules with the fused map; refuse heads that are mixed with each other."""
        attention: Any = module
        fused = getattr(module, "in_proj", None)
        out = follow(parent, "output.dense")
        if not (is_linear(fused) and is_linear(out) and hasattr(module, self.needs)):
            return None
        if getattr(module, "talking_head", False):
            raise UnsupportedModelError(
                "This model's config has talking_head: it mixes the scores of all heads before and "
                "after the softmax, so that no pattern belongs to one head. headscope does not "
                "cover that."
            )
        block = 3 * attention.attention_head_size
        return Projections(
            q=MapAndBias(fused, 0, block, owner=module, bias_name="q_bias"),
            k=MapAndBias(fused, 1, block),
            v=MapAndBias(fused, 2, block, owner=module, bias_name="v_bias"),
            out=LinearMap(out),
        )

    def stored(self, module: nn.Module, projections: Projections, d_head: int) -> list[HeadRows]:
        """List the fused map, in which a head has three times d_head rows, and the biases."""
        return [
            HeadRows(projections.q.module, "weight", 3 * d_head),
            HeadRows(module, "q_bias", d_head),
            HeadRows(module, "v_bias", d_head),
            *_position_rows(module, d_head),
            columns_of_linear(projections.out.module, d_head),
        ]

    def terms_counted(self, module: Any) -> int:
        """Count whatever the config lists."""
        return len(module.pos_att_type)


@dataclass(frozen=True)
class MapAndBias(FusedMap):
    """One of the maps fused by head, with a bias that the attention module keeps beside it."""

    owner: Any = None  # The attention module
    bias_name: str = ""  # Its attribute that is this map's bias; none where it is empty

    @property
    def bias(self) -> Tensor | None:
        """Its bias, (n_out,); None where it has none."""
        if not self.bias_name:
            return None
        stored: Tensor = getattr(self.owner, self.bias_name)
        return stored

    def leaving(self, returned: Tensor) -> Tensor:
        """Pick this map's outputs, and add the bias."""
        outputs = super().leaving(returned)
        return outputs if self.bias is None else outputs + self.bias


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
