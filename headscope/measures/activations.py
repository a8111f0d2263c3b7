"""What an attention site hands to the measurements."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Activations:
    """One chunk of one attention site of one batch: read it, measure it, forget it."""

    stack: str  # ``encoder``, ``decoder`` or ``cross``
    layer: int  # Zero-based, within the stack
    #: The site's place among all sites that are measured: its row in arrays (rows, n_heads).
    row: int
    rows: slice  # Which examples of the batch and which heads of the layer this chunk holds.
    heads: slice
    n_heads: int  # Heads of the layer in all
    #: (rows, heads, pos, d_head): queries at query positions, keys and values at key positions.
    q: Tensor
    k: Tensor
    v: Tensor
    pattern: Tensor  # (rows, heads, query_pos, key_pos): rows sum to 1; padded keys are exactly 0
    z: Tensor  # (rows, heads, query_pos, d_head): ``pattern @ v``, before any gate
