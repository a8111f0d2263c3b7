"""A number of heads that is confirmed to cost at most so much, as values."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DropLook", "DropPart", "MaxDrop", "OneMore"]


@dataclass(frozen=True)
class DropPart:
    """A pruned model on one part of the evaluation data.

    Attributes
    ----------
    heads : int
        Heads that it lost.
    examples : int
        Examples of the part.
    baseline, value : float
        The task's metric of the unpruned model and of this one, on these examples.
    difference, ci : float, tuple of two floats or None
        Value minus baseline, with its paired interval.
    level : float
        Of the interval: 0.95, or more where several models were looked at.
    """

    heads: int
    examples: int
    baseline: float
    value: float
    difference: float
    ci: tuple[float, ...] | None
    level: float


@dataclass(frozen=True)
class DropLook:
    """One model that was tried.

    Attributes
    ----------
    method, repair : str
        How it was made.
    heads : int
        Heads that it lost.
    part : str
        ``choosing`` or ``confirming``: the examples that it was judged by.
    lost, most_lost : float
        What it loses of the metric there, and the upper end of the interval.
    level : float
        Of that interval.
    allowed : bool
        Whether that end is at most what may be lost.
    """

    method: str
    repair: str
    heads: int
    part: str
    lost: float
    most_lost: float
    level: float
    allowed: bool


@dataclass(frozen=True)
class OneMore:
    """The model that lost one head more, on the examples that the curves were measured on.

    Attributes
    ----------
    heads : int
        Heads that it lost: one more, or one more of every layer where layers lose equally many, or
        one more of all layers that share their weights.
    value : float
        The task's metric.
    difference, ci : float, tuple of two floats or None
        Value minus the unpruned model's, with its paired 95% interval.
    step, step_ci : float, tuple of two floats or None
        Value minus that of the model that was found, with its paired 95% interval.
    """

    heads: int
    value: float
    difference: float
    ci: tuple[float, ...] | None
    step: float
    step_ci: tuple[float, ...] | None


@dataclass(frozen=True)
class MaxDrop:
    """A number of heads that costs at most ``wanted``: chosen on one part, confirmed on the other.

    A larger number may cost as little: it is one that is confirmed, not the largest there is.

    Attributes
    ----------
    wanted : float
        The most that may be lost, in the metric's unit.
    count : int
        Heads that were removed: the number that was confirmed.
    method, repair : str
        How they were chosen, and what was done to the others.
    chosen : DropPart
        The model that was chosen, on the part of the examples that it was chosen on.
    confirmed : DropPart
        The model that was found, on the other part. It lost fewer heads than the chosen one where
        that one was not confirmed.
    refused : DropPart or None
        The chosen model on the other part, where that did not confirm it.
    planned : int
        Smaller numbers that would be tried after a refusal, set before the first of them was; all
        together their intervals may fail as often as the first one.
    one_more : OneMore or None
        None where one more would be all of them.
    looks : tuple of DropLook
        Every model that was tried, in order.
    shared : int
        Sentences that stand in both parts, because too many examples hang together by them.
    per_layer : int or None
        Heads that every layer lost, where all were to lose equally many.
    measured_on : str
        ``confirming``: baseline, curves, ``one_more``, kept and saved models of the same result are
        measured on the part that had no say in the choice. ``all`` in results of earlier versions.
    """

    wanted: float
    count: int
    method: str
    repair: str
    chosen: DropPart
    confirmed: DropPart
    refused: DropPart | None
    planned: int
    one_more: OneMore | None
    looks: tuple[DropLook, ...] = ()
    shared: int = 0
    per_layer: int | None = None
    measured_on: str = "all"

    @property
    def refusals(self) -> tuple[DropLook, ...]:
        """Every number that the confirming part refused before it allowed one."""
        return tuple(x for x in self.looks if x.part == "confirming" and not x.allowed)
