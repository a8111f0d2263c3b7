"""What an attention site hands to the measurements: queries, keys, values, pattern and z.

A *site* is one attention layer of one stack of the model.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Activations:
    """One chunk of a site's work on one batch (some examples, some heads); not to be kept."""

    stack: str  # ``encoder``, ``decoder`` or ``cross``
    layer: int  # Zero-based, within the stack
    row: int  # The site's index in arrays of all sites that are measured, (n_sites, n_heads)
    examples: slice  # Which examples of the batch this chunk holds
    heads: slice  # Which heads of the layer it holds
    n_heads: int  # All heads of the layer
    q: Tensor  # (examples, heads, query_pos, d_head)
    k: Tensor  # (examples, heads, key_pos, d_head)
    v: Tensor  # (examples, heads, key_pos, d_head)
    #: (examples, heads, query_pos, key_pos): rows sum to 1; padded keys are exactly 0
    pattern: Tensor
    z: Tensor  # (examples, heads, query_pos, d_head): ``pattern @ v``, before any gate


#: An entry of an additive mask hides its key if it is this low or lower: some models write -10,000
#: for minus infinity.
HIDDEN = -1000.0


def visible(mask: Tensor) -> Tensor:
    """Return which keys a boolean or additive mask leaves visible, in the mask's shape.

    A softmax gives a key whose score lies 1,000 below the others a weight of exactly 0; attention
    without a softmax has to leave such keys out itself.
    """
    return mask > HIDDEN if mask.is_floating_point() else mask.bool()
