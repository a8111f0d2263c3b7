"""Pruned models on a curve: what was removed and what is left of the metric, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Curve", "Draw", "Point"]


@dataclass(frozen=True)
class Draw:
    """One random set of heads and what the model is worth without it.

    Attributes
    ----------
    seed : int
        Of the draw.
    heads_removed : tuple of (layer, head) or (stack, layer, head)
        As many as the point's fraction makes.
    value : float
        The task's metric.
    """

    seed: int
    heads_removed: tuple[tuple[Any, ...], ...]
    value: float


@dataclass(frozen=True)
class Point:
    """The model without some heads.

    Attributes
    ----------
    fraction : float
        Share of the model's heads that is removed.
    heads_removed : tuple of (layer, head) or (stack, layer, head)
        With the stack for a model that has a decoder. For ``random``: of its first draw.
    value : float
        The task's metric; for ``random`` the mean over draws.
    ci : tuple of two floats, or None
        95% interval over examples; for ``random`` the lowest and highest draw. None where it is
        unknown.
    difference, difference_ci, p_value : float, tuple of two floats, float, or None
        Value minus the unpruned model's on the same examples, with its paired interval and
        two-sided p-value; None for ``random``. The interval is None, and p is 1, where it is
        unknown, and where no head is removed: there the difference is 0 by definition.
    metrics : dict
        Every metric of the task.
    roles_left : dict of str to int
        Kept heads with each role; None where the model was not classified.
    draws : tuple of Draw
        Empty unless ``random``.
    spread : float or None
        Standard deviation over draws.
    level : float
        Of ``difference_ci``: higher where smaller numbers of heads were tried after a refusal.
    """

    fraction: float
    heads_removed: tuple[tuple[Any, ...], ...]
    value: float
    ci: tuple[float, ...] | None
    difference: float | None = None
    difference_ci: tuple[float, ...] | None = None
    p_value: float | None = None
    metrics: dict[str, float] | None = None
    roles_left: dict[str, int] | None = None
    draws: tuple[Draw, ...] = ()
    spread: float | None = None
    level: float = 0.95


@dataclass(frozen=True)
class Curve:
    """One method with one repair.

    Attributes
    ----------
    method, repair : str
        As on the command line; ``none`` where nothing was repaired.
    points : tuple of Point
        From few heads removed to many.
    """

    method: str
    repair: str
    points: tuple[Point, ...]

    @property
    def name(self) -> str:
        """``fisher + scale``; the method alone where nothing was repaired."""
        return self.method if self.repair == "none" else f"{self.method} + {self.repair}"
