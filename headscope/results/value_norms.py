"""Which labels of the attention pattern are left when each key counts by what it contributes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RoleSurvival", "ValueNorms"]


@dataclass(frozen=True)
class RoleSurvival:
    """One role of one stack, by the pattern and by the norms of what it adds up."""

    role: str  # Key of the role; ``encoder``, ``decoder`` or ``cross``.
    stack: str
    heads: int  # That have it by the pattern
    #: Of those, the ones that have it by norms too; and heads that have it by norms alone.
    kept: tuple[str, ...]
    gained: tuple[str, ...]
    #: 95% Wilson interval of the share that is kept; empty where no head has the role.
    interval: tuple[float, ...]
    #: Of special and punctuation: mean share that such tokens have by the pattern and by norms,
    #: over the heads that have the role by the pattern.
    mass: float | None = None
    norm_mass: float | None = None
    #: The same counts with random weights; None unless they were asked for.
    control_heads: int | None = None
    control_kept: int | None = None


@dataclass(frozen=True)
class ValueNorms:
    """How the labels of a run by norms differ from those of the same run by the pattern."""

    #: In the order of priority, stack by stack; roles that no head has either way are left out.
    roles: tuple[RoleSurvival, ...]
