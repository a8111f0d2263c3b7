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


#: What adds this little to a score hides the key: some models write -10,000 for minus infinity.
HIDDEN = -1000.0


def visible(mask: Tensor) -> Tensor:
    """Say which keys a boolean or additive mask leaves, in its own shape.

    A softmax gives a key that is lower than all others by 1,000 a weight of exactly 0; whatever
    is no softmax needs to know.
    """
    return mask.bool() if not mask.is_floating_point() else mask > HIDDEN
