"""The numbers that turn a measurement into a label, each with its source."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from headscope.core.errors import InputError
from headscope.core.thresholds import ThresholdSet

__all__ = ["Thresholds"]


@dataclass(frozen=True)
class Thresholds(ThresholdSet):
    """When a head earns a label; every field is an option and a TOML key.

    Attributes
    ----------
    positional : float
        Least hit rate at one offset (Voita et al. 2019: 0.90).
    syntactic : float
        Least gain in accuracy over every baseline, on both halves (Voita et al. over the best
        offset: 0.10).
    syntactic_relative : bool
        Whether that gain is relative to the baseline's accuracy instead of absolute.
    min_trials : int
        Fewest trials a relation needs on each half.
    q : float
        False discovery rate of the Benjamini-Hochberg adjustment.
    rare : float
        Least rate on the rarest word (Voita report 0.66 for their one such head).
    rare_gain : float
        Least gain of that rate over uniform attention (as for syntactic heads: 0.10).
    special, punctuation : float
        Least mean mass on special tokens, on punctuation (Clark et al. 2019 show more than half).
    broad_relative : float
        Least mean row entropy as a share of ln n, over sequences of 20 tokens or more (the 3.8 nats
        of Clark et al. are 0.78 of ln 128, and no sentence of 40 tokens reaches them).
    self : float
        Least share of rows whose largest content weight is the diagonal (as for an offset).
    duplicate : float
        Least share of repeated tokens that look at another copy of themselves.
    monotonic : float
        Least rank correlation, in either direction, between target and source positions of a
        cross-attention head.
    monotonic_gain : float
        Least gain of its confidence over uniform attention (as for syntactic heads: 0.10): the
        largest of nearly even weights says nothing.
    sharp : float
        Least confidence of a cross-attention head.
    """

    positional: float = 0.90
    syntactic: float = 0.10
    syntactic_relative: bool = False
    min_trials: int = 50
    q: float = 0.05
    rare: float = 0.50
    rare_gain: float = 0.10
    special: float = 0.60
    punctuation: float = 0.60
    broad_relative: float = 0.80
    self: float = 0.90
    duplicate: float = 0.50
    monotonic: float = 0.60
    monotonic_gain: float = 0.10
    sharp: float = 0.80

    def __post_init__(this) -> None:  # noqa: N805  (a field is called self)
        for field in dataclasses.fields(this):
            value = getattr(this, field.name)
            unbounded = field.name in ("min_trials", "syntactic")
            if not (0 <= value < math.inf and (unbounded or value <= 1)):
                raise InputError(
                    f"The threshold {field.name} is {value}; give a number of 0 or more"
                    f"{'' if unbounded else ', at most 1'}."
                )
