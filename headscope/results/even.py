"""What it costs to remove the same number of heads in every layer, as values."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EvenPrice"]


@dataclass(frozen=True)
class EvenPrice:
    """A model that lost as many heads in every layer, beside one that did not have to."""

    method: str  # Of both models.
    repair: str
    per_layer: int  # Heads that every layer lost
    heads: int  # Heads that each of the two models lost
    #: The metric of the even model, and of the one whose layers may lose different numbers.
    value: float
    uneven: float
    difference: float  # Even minus uneven, in the metric's unit
    ci: tuple[float, ...] | None  # Paired 95% interval of the difference; None where it is unknown
