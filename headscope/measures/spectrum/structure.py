"""What a model's scores hold besides q k^T where nothing is padded: a bias, a direction, a window.

Cheap forms must keep it. A window over keys leaves the bias of a pair of positions as it is; a form
that attends to means of several keys has no pair of positions left to take the bias of.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from headscope.attention import Mask


@dataclass
class Structure:
    """Which keys a query may see in each layer, and whether anything is added to the scores.

    Attributes
    ----------
    seen : dict of int to Tensor, (n, n), boolean
        By layer (row of the site), where not every query may see every key.
    biased : bool
        Whether any layer adds something to its scores.
    layers : list of int
        Those that were looked at.
    """

    seen: dict[int, Tensor] = field(default_factory=dict)
    biased: bool = False
    layers: list[int] = field(default_factory=list)

    @property
    def plain(self) -> bool:
        """Whether scores are ``q k^T * scale`` and nothing else."""
        return not (self.biased or self.seen)

    def note(self, layer: int, mask: Mask) -> None:
        """Look at the mask of one layer, of sequences without padding."""
        self.layers.append(layer)
        mask = without_padding(mask)
        if mask is None:
            return
        seen = allowed(mask)
        self.biased |= mask.dtype != torch.bool and bool(mask.masked_fill(~seen, 0.0).any())
        if not bool(seen.all()):
            self.seen[layer] = seen.flatten(0, -3)[0].cpu()


def without_padding(mask: Mask) -> Mask:
    """Return a mask, or None if it forbids nothing and adds nothing."""
    if mask is None or bool((mask if mask.dtype == torch.bool else mask == 0).all()):
        return None
    return mask


def allowed(mask: Tensor) -> Tensor:
    """Say which keys a boolean or additive mask leaves, in its own shape."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def looks_back(seen: Tensor) -> bool:
    """Whether no query sees a later key; ``seen`` is (n, n)."""
    return not bool(seen.triu(1).any())
