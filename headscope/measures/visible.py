"""Which keys a mask leaves, for formulas that do without the softmax."""

from __future__ import annotations

from torch import Tensor

#: What adds this little to a score hides the key: some models write -10,000 for minus infinity.
HIDDEN = -1000.0


def visible(mask: Tensor) -> Tensor:
    """Say which keys a boolean or additive mask leaves, in its own shape.

    A softmax gives a key that is lower than all others by 1,000 a weight of exactly 0; whatever
    is no softmax has to be told.
    """
    return mask.bool() if not mask.is_floating_point() else mask > HIDDEN
