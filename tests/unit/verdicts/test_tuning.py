"""Claims 8 to 10 from planted numbers: each rule comes out every way, and on both sides."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from headscope.results import (
    TransferDifference,
    TransferMissed,
    TransferResult,
    TransferSpread,
    ValidationSummary,
)
from headscope.verdicts.insights import frozen, small_set, unstable
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.thresholds import InsightThresholds

T = InsightThresholds()
Ends = tuple[float, float | None, float | None]


def difference(other: str, ends: Ends, weights: str = "pretrained") -> TransferDifference:
    """LayerNorm alone minus another cell."""
    return TransferDifference("layernorm", "pretrained", other, weights, 64, 3, *ends)


def result(*differences: TransferDifference, **fields: Any) -> TransferResult:
    plain = {
        "schema": 2,
        "provenance": {},
        "validation": ValidationSummary(passed=True),
        "task": "planted",
        "classes": ("a", "b"),
        "sizes": (64,),
        "validation_examples": 16,
        "test_examples": 100,
        "dropped": 0,
        "seeds": 3,
        "spread_seeds": 3,
        "steps": 8,
        "batch": 16,
        "budget": 60.0,
        "cells": (),
        "baselines": (),
        "spreads": (),
        "runs": (),
        "searched": (),
        "missed": (),
        "not_possible": {},
    }
    return TransferResult(**{**plain, "differences": differences, **fields})


# --- claim 8 ------------------------------------------------------------------------------------


def eighth(biases: Ends, weights: Ends) -> Finding:
    found = result(difference("biases", biases), difference("weights", weights))
    return small_set.judge(Evidence(transfer=found), T)


@pytest.mark.parametrize(
    ("biases", "weights", "verdict"),
    [
        ((5.0, 0.1, 9.9), (8.0, 2.0, 14.0), "holds"),
        ((5.0, 0.0, 10.0), (8.0, 2.0, 14.0), "mixed"),  # the interval touches 0
        ((-5.0, -9.0, -1.0), (8.0, 2.0, 14.0), "does not hold"),  # beaten by one is enough
        ((-5.0, -9.0, 0.0), (-2.0, -4.0, 0.0), "does not hold"),
        ((1.0, -3.0, 5.0), (2.0, -1.0, 5.0), "mixed"),
        ((5.0, None, None), (8.0, None, None), "not measured"),  # a single seed
    ],
)
def test_layernorm_against_as_many_others(biases: Ends, weights: Ends, verdict: str) -> None:
    assert eighth(biases, weights).verdict == verdict


def test_a_set_that_was_not_reached_is_unknown_and_one_that_is_not_there_does_not_count() -> None:
    weights = difference("weights", (8.0, 2.0, 14.0))
    missed = small_set.judge(Evidence(transfer=result(weights)), T)
    assert missed.verdict == "not measured"
    none = result(weights, not_possible={"biases": "it has none"})
    assert small_set.judge(Evidence(transfer=none), T).verdict == "holds"


def test_without_a_run_nothing_is_said() -> None:
    for judge in (small_set.judge, frozen.judge, unstable.judge):
        assert judge(Evidence(), T).verdict == "not measured yet"
        missed = (TransferMissed("layernorm", "pretrained", 64, 0),)
        nothing = judge(Evidence(transfer=result(missed=missed)), T)
        assert nothing.verdict == "not measured"


# --- claim 9 ------------------------------------------------------------------------------------


def ninth(gap: Ends, over: Ends, **thresholds: float) -> Finding:
    """``gap``: everything minus LayerNorm alone; ``over``: pretrained minus random weights."""
    mean, low, high = gap
    own = (-mean, None if high is None else -high, None if low is None else -low)
    found = result(
        difference("all", own),
        difference("layernorm", over, weights="random"),
        difference("x", own),
    )
    return frozen.judge(Evidence(transfer=found), dataclasses.replace(T, **thresholds))


ABOVE: Ends = (20.0, 10.0, 30.0)


@pytest.mark.parametrize(
    ("gap", "over", "verdict"),
    [
        ((1.9, -3.0, 7.0), ABOVE, "holds"),  # small, and not told from nothing
        ((1.0, 0.2, 1.8), ABOVE, "holds"),  # told from nothing, but surely small
        ((-4.0, -6.0, -2.0), ABOVE, "holds"),  # frozen is better
        ((2.0, 0.1, 4.0), ABOVE, "mixed"),  # just at the limit, and apart
        ((2.0, -1.0, 5.0), ABOVE, "mixed"),
        ((1.9, 0.1, 3.7), ABOVE, "mixed"),
        ((8.0, 4.0, 12.0), ABOVE, "mixed"),
        ((8.0, 4.0, 12.0), (-1.0, -3.0, 0.0), "does not hold"),
        ((1.0, -3.0, 5.0), (0.5, -2.0, 3.0), "mixed"),
        ((1.0, None, None), (20.0, None, None), "not measured"),
    ],
)
def test_frozen_against_tuned(gap: Ends, over: Ends, verdict: str) -> None:
    assert ninth(gap, over).verdict == verdict


def test_the_gap_is_a_threshold() -> None:
    wide = (8.0, 4.0, 12.0)
    assert ninth(wide, ABOVE).parts[0].verdict == "does not hold"
    assert ninth(wide, ABOVE, tuning_gap=13.0).parts[0].verdict == "holds"
    assert "8.00 [4.00, 12.00]" in ninth(wide, ABOVE).parts[0].measured


# --- claim 10 -----------------------------------------------------------------------------------


def tenth(ratio: Ends | None, more: Ends | None, bad: int = 0, **fields: Any) -> Finding:
    value, low, high = ratio or (None, None, None)
    share, share_low, share_high = more or (None, None, None)
    spread = TransferSpread(
        *("attention", "layernorm", 64, 6, 6, value, low, high),
        *(bad, 0, share, share_low, share_high),
    )
    return unstable.judge(Evidence(transfer=result(spreads=(spread,), **fields)), T)


@pytest.mark.parametrize(
    ("ratio", "more", "bad", "verdict"),
    [
        ((4.0, 1.01, 9.0), (0.0, -0.4, 0.4), 0, "holds"),
        ((4.0, 1.0, 9.0), (0.0, -0.4, 0.4), 0, "mixed"),  # the interval touches 1
        ((1.0, 0.3, 3.0), (0.8, 0.1, 0.9), 5, "holds"),
        ((1.0, 0.3, 3.0), (0.5, 0.0, 0.8), 3, "mixed"),
        ((0.2, 0.1, 1.0), (0.0, -0.4, 0.4), 0, "does not hold"),
        ((0.2, 0.1, 0.9), (0.2, -0.3, 0.6), 1, "mixed"),  # one went wrong: who knows
        ((0.2, 0.1, 0.9), (-0.8, -0.9, -0.1), 0, "does not hold"),
        (None, None, 0, "not measured"),
        (None, (0.8, 0.1, 0.9), 5, "holds"),
    ],
)
def test_divergence_or_spread(
    ratio: Ends | None, more: Ends | None, bad: int, verdict: str
) -> None:
    assert tenth(ratio, more, bad).verdict == verdict


def test_only_the_smallest_size_counts() -> None:
    found = tenth((4.0, 1.5, 9.0), (0.0, -0.4, 0.4), sizes=(32, 64))
    assert found.verdict == "not measured"
