"""A number of heads that is confirmed to cost at most so much, as values."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DropLook", "DropPart", "MaxDrop", "OneMore"]


@dataclass(frozen=True)
class DropPart:
    """A pruned model on one part of the evaluation data."""

    heads: int  # Heads that it lost
    examples: int  # Examples of the part
    baseline: float  # The task's metric of the unpruned model and of this one, on these examples.
    value: float
    difference: float  # Value minus baseline, with its paired interval.
    ci: tuple[float, ...] | None
    level: float  # Of the interval: 0.95, or more where several models were looked at


@dataclass(frozen=True)
class DropLook:
    """One model that was tried."""

    method: str  # How it was made.
    repair: str
    heads: int  # Heads that it lost
    part: str  # ``choosing`` or ``confirming``: the examples that it was judged by
    lost: float  # What it loses of the metric there, and the upper end of the interval.
    most_lost: float
    level: float  # Of that interval
    allowed: bool  # Whether that end is at most what may be lost


@dataclass(frozen=True)
class OneMore:
    """The model that lost one head more, on the examples that the curves were measured on."""

    #: Heads that it lost: one more, or one more of every layer where layers lose equally many, or
    #: one more of all layers that share their weights.
    heads: int
    value: float  # The task's metric
    difference: float  # Value minus the unpruned model's, with its paired 95% interval.
    ci: tuple[float, ...] | None
    step: float  # Value minus that of the model that was found, with its paired 95% interval.
    step_ci: tuple[float, ...] | None


@dataclass(frozen=True)
class MaxDrop:
    """A number of heads that costs at most ``wanted``: chosen on one part, confirmed on the other.

    A larger number may cost as little: it is one that is confirmed, not the largest there is.
    """

    wanted: float  # The most that may be lost, in the metric's unit
    count: int  # Heads that were removed: the number that was confirmed
    method: str  # How they were chosen, and what was done to the others.
    repair: str
    chosen: DropPart  # The model that was chosen, on the part of the examples that it was chosen on
    #: The model that was found, on the other part. It lost fewer heads than the chosen one where
    #: that one was not confirmed.
    confirmed: DropPart
    refused: DropPart | None  # The chosen model on the other part, where that did not confirm it
    #: Smaller numbers that would be tried after a refusal, set before the first of them was; all
    #: together their intervals may fail as often as the first one.
    planned: int
    one_more: OneMore | None  # None where one more would be all of them
    looks: tuple[DropLook, ...] = ()  # Every model that was tried, in order
    #: Sentences that stand in both parts, because too many examples hang together by them.
    shared: int = 0
    per_layer: int | None = None  # Heads that every layer lost, where all were to lose equally many
    #: ``confirming``: baseline, curves, ``one_more``, kept and saved models of the same result are
    #: measured on the part that had no say in the choice. ``all`` in results of earlier versions.
    measured_on: str = "all"

    @property
    def refusals(self) -> tuple[DropLook, ...]:
        """Every number that the confirming part refused before it allowed one."""
        return tuple(x for x in self.looks if x.part == "confirming" and not x.allowed)
