r"""DeBERTa: scores from content and from relative position, kept apart and added.

A model has one table of learned vectors, one row for each distance ``i - j`` between query and
key::

    attn_scores = (q_i k_j + q_i pos_k[r] + k_j pos_q[r]) * scale
    scale       = 1 / sqrt(d_head * (1 + number of position terms))
    r           = row of the table for the distance i - j
    pos_k       = table W_K        pos_q = table W_Q        in DeBERTa-v3; others have own maps

``q_i pos_k[r]`` is content to position (``c2p``), ``k_j pos_q[r]`` position to content (``p2c``). A
model may have both, one or none of them. Distances beyond the table fall on its first or last row;
DeBERTa-v2 also puts long distances into buckets whose widths grow geometrically.

In this file: the step that adds the two terms, with its helpers; the layouts of DeBERTa-v2 and v3
and of the first DeBERTa, which stores q, k and v in one map; and what runs a module without heads.

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
        table = inputs.arguments.get("rel_embeddings")  # (rows, d_model)
        if not module.relative_attention or table is None:
            return None

        # Only the rows of the table that these distances need go through the maps.
        n_q = heads.q.shape[2]
        n_k = heads.k.shape[2]
        rows = table_rows(module, n_q, n_k).to(table.device)  # (query_pos, key_pos)
        first_row = int(rows.min())
        last_row = int(rows.max())
        table = table[first_row : last_row + 1]
        rows = rows - first_row

        terms = []
        if "c2p" in module.pos_att_type:
            pos_k = _positions_by_head(site, _key_map(site), table)
            terms.append(_scores_of_rows(heads.q, pos_k, rows))
        if "p2c" in module.pos_att_type:
            pos_q = _positions_by_head(site, _query_map(site), table)
            by_key = _scores_of_rows(heads.k, pos_q, rows.t())  # (..., key_pos, query_pos)
            terms.append(by_key.transpose(-1, -2))
        if not terms:
            return None
        assert site.scale is not None
        return sum(terms[1:], terms[0]) * site.scale


def table_rows(module: Any, n_q: int, n_k: int) -> Tensor:
    """Return the row of the table for each query i and key j, (query_pos, key_pos).

    A table for distances up to 3 has 6 rows: distance i - j = -3 -> row 0, 0 -> 3, 2 -> 5; what is
    farther away gets row 0 or 5.
    """
    farthest = module.max_relative_positions
    buckets = getattr(module, "position_buckets", -1)  # -1: no buckets

    # The row of each distance that occurs.
    shortest_distance = 1 - n_k  # of the first query and the last key
    distances = torch.arange(shortest_distance, n_q)
    zero_row = farthest  # that of the distance 0
    if buckets > 0:
        distances = bucketed(distances, buckets, farthest)
        zero_row = buckets
    row_of_distance: Tensor = (distances + zero_row).clamp(0, 2 * zero_row - 1)

    # The row of each pair.
    distance_of_pair = torch.arange(n_q)[:, None] - torch.arange(n_k)
    return row_of_distance[distance_of_pair - shortest_distance]


def bucketed(distance: Tensor, buckets: int, farthest: int) -> Tensor:
    """Put distances, negative where the key comes later, into ``buckets`` of either sign.

    Distances up to ``buckets / 2`` keep a bucket each; beyond, buckets widen so that the last one
    ends at ``farthest - 1``. With 8 buckets for distances up to 16: 0-4 keep their own, 5 and 6
    -> 5, 7 to 9 -> 6, 10 to 15 -> 7.
    """
    half = buckets // 2
    # In float32, as the checkpoints were trained: which bucket a border falls in depends on it.
    ratio = (distance.abs().clamp(min=half) / half).log()
    widest = torch.tensor((farthest - 1) / half).log()
    beyond_half = half + (ratio / widest * (half - 1)).ceil().long()
    return torch.where(distance.abs() <= half, distance, beyond_half * distance.sign())


def _key_map(site: AttentionSite) -> Any:
    """Return the map from the table to pos_k: W_K itself, or one of its own."""
    if getattr(site.module, "share_att_key", False):
        return site.projections.k
    key_map, _ = _position_maps(site.module)
    return key_map


def _query_map(site: AttentionSite) -> Any:
    """Return the map from the table to pos_q: W_Q itself, or one of its own."""
    if getattr(site.module, "share_att_key", False):
        return site.projections.q
    _, query_map = _position_maps(site.module)
    return query_map


def _positions_by_head(site: AttentionSite, position_map: Any, table: Tensor) -> Tensor:
    """Map rows of the table (rows, d_model) to pos_k or pos_q, (1, n_heads, rows, d_head)."""
    assert position_map is not None  # a model that has a term has its map
    return site.by_head(position_map(table[None]))


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


def _scores_of_rows(content: Tensor, position: Tensor, rows: Tensor) -> Tensor:
    """Multiply each content vector by the position vectors of its rows.

    ``content`` (batch, n_heads, pos, d_head), ``position`` (1, n_heads, table rows, d_head) and
    ``rows`` (pos, other pos), row numbers -> (batch, n_heads, pos, other pos).
    """
    every_row = content @ position.to(content.dtype).transpose(-1, -2)
    batch, n_heads, _, _ = every_row.shape  # (batch, n_heads, pos, table rows)
    return every_row.gather(-1, rows.expand(batch, n_heads, *rows.shape))


@dataclass(frozen=True)
class DisentangledLayout(Layout):
    """DeBERTa-v2 and v3: separate maps, and scores with terms by relative position."""

    def stored(self, module: nn.Module, projections: Projections, d_head: int) -> list[HeadRows]:
        """List the usual tensors, and the maps of relative positions."""
        return [*super().stored(module, projections, d_head), *_position_rows(module, d_head)]

    def fit(self, module: nn.Module, remaining: Collection[int], total: int) -> None:
        """Let a module without heads run; its own forward would divide by zero."""
        extend(module, _PerhapsNoHeads)

    def scale(self, module: nn.Module, d_head: int) -> float:
        """Return 1 / sqrt(d_head * (1 + number of position terms))."""
        # The models take the root in float32, whatever their dtype.
        return 1 / float(torch.tensor(d_head * (1.0 + self.terms_counted(module))).sqrt())

    def terms_counted(self, module: Any) -> int:
        """Return how many position terms the scale counts, whether they are computed or not.

        A config may name terms of other models besides; those do not count.
        """
        return len([term for term in _TERMS if term in module.pos_att_type])

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Read the arguments; let padded queries see the real keys too.

        The models' mask (batch, 1, query_pos, key_pos) allows a padded query no key at all. What it
        attends to is never used; with the real keys it is at least defined. A key is real where any
        query sees it.
        """
        inputs = super().read(module, args, kwargs)
        if inputs.mask is None:
            return inputs
        real_keys = inputs.mask.bool().any(dim=-2, keepdim=True)  # (batch, 1, 1, key_pos)
        return replace(inputs, mask=real_keys)


@dataclass(frozen=True)
class InterleavedLayout(DisentangledLayout):
    """The first DeBERTa: q, k and v in one map without bias; biases of q and v stand beside it.

    The rows of the map are head by head: q, k, v of head 0, then q, k, v of head 1, ...
    """

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
        block = 3 * attention.attention_head_size  # rows of one head: q, k and v
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
        """Count whatever the config lists, known or not."""
        return len(module.pos_att_type)


@dataclass(frozen=True)
class MapAndBias(FusedMap):
    """One of the maps fused by head, with a bias that the attention module keeps beside it."""

    owner: Any = None  # The attention module
    bias_name: str | None = None  # Its attribute that is this map's bias

    @property
    def bias(self) -> Tensor | None:
        """Its bias, (n_out,); None where it has none."""
        if self.bias_name is None:
            return None
        stored: Tensor = getattr(self.owner, self.bias_name)
        return stored

    def leaving(self, returned: Tensor) -> Tensor:
        """Pick this map's outputs, and add the bias."""
        outputs = super().leaving(returned)
        return outputs if self.bias is None else outputs + self.bias


class _PerhapsNoHeads:
    """An extension: an attention module of DeBERTa that may have lost all its heads."""

    headscope_extends = True
    num_attention_heads: int

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward if there is a head; else return a z of no width."""
        if self.num_attention_heads:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        arguments = arguments_of(self, args, kwargs)  # type: ignore[arg-type]
        x: Tensor = next(iter(arguments.values()))
        batch, n_pos, _ = x.shape
        # A softmax even so: who watches softmax calls sees this layer's empty pattern.
        pattern = torch.softmax(x.new_empty(batch, 0, n_pos, n_pos), dim=-1)
        return x.new_empty(batch, n_pos, 0), pattern
