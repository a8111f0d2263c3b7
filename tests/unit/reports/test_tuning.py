"""Claims 8 to 10 from planted numbers: each rule comes out every way, and on both sides."""

import dataclasses
from typing import Any

import pytest

from headscope.analyses.transfer.result import (
    TransferCell,
    TransferDifference,
    TransferMissed,
    TransferResult,
    TransferSpread,
)
from headscope.models.certificate.validation import ValidationSummary
from headscope.reports.claims.rule import Evidence, InsightThresholds
from headscope.reports.claims.run import decide
from headscope.reports.result import Insight
from headscope.stats.estimate import Estimate

T = InsightThresholds()
Ends = tuple[float, float | None, float | None]


def difference(other: str, ends: Ends, weights: str = "pretrained") -> TransferDifference:
    """LayerNorm alone minus another cell."""
    return TransferDifference("layernorm", "pretrained", other, weights, 64, 3, Estimate(*ends))


def cells(optimum: str = "inside", **others: str) -> tuple[TransferCell, ...]:
    """One for each variant and start; ``optimum`` says where the best rates lie."""
    names = ("head", "layernorm", "biases", "weights", "lora", "attention", "all")
    return tuple(
        TransferCell(
            *(name, weights, 64, 10, 1e-3, 3, Estimate(80.0, 70.0, 90.0), 1.0, 0, 0),
            others.get(name if weights == "pretrained" else f"random_{name}", optimum),
        )
        for weights in ("pretrained", "random")
        for name in names
    )


def result(*differences: TransferDifference, **fields: Any) -> TransferResult:
    counts = {"validation_examples": 16, "test_examples": 100, "dropped": 0, "seeds": 3}
    counts |= {"spread_seeds": 3, "steps": 8, "batch": 16, "budget": 60.0}
    empty = dict.fromkeys(("baselines", "spreads", "runs", "searched", "missed"), ())
    plain = {
        **{"schema": 2, "provenance": {}, "validation": ValidationSummary(passed=True)},
        **{"task": "planted", "classes": ("a", "b"), "sizes": (64,), "not_possible": {}},
        **{"cells": cells(), **counts, **empty},
    }
    return TransferResult(**{**plain, "differences": differences, **fields})


WON: Ends = (8.0, 2.0, 14.0)


def eighth(biases: Ends, weights: Ends, lora: Ends = WON, **fields: Any) -> Insight:
    ends = {"biases": biases, "weights": weights, "lora": lora}
    found = result(*(difference(name, own) for name, own in ends.items()), **fields)
    return decide("layernorm", Evidence(transfer=found))


@pytest.mark.parametrize(
    ("biases", "weights", "lora", "verdict"),
    [
        ((5.0, 0.0, 10.0), WON, WON, "mixed"),  # the interval touches 0
        ((-5.0, -9.0, -1.0), WON, WON, "does not hold"),  # beaten by one is enough
        ((-5.0, -9.0, 0.0), (-2.0, -4.0, 0.0), (-1.0, -2.0, 0.0), "does not hold"),
        (*[(5.0, None, None)] * 3, "not measured"),  # a single seed
    ],
)
def test_layernorm_against_others(biases, weights, lora, verdict):
    assert eighth(biases, weights, lora).verdict == verdict


def test_a_set_that_was_not_reached_is_unknown_and_one_that_is_not_there_does_not_count():
    others = difference("weights", WON), difference("lora", WON)
    none = result(*others, not_possible={"biases": "it has none"})
    for found, verdict in ((result(*others), "not measured"), (none, "holds")):
        assert decide("layernorm", Evidence(transfer=found)).verdict == verdict
    missed = (TransferMissed("layernorm", "pretrained", 64, 0),)
    for name in ("layernorm", "frozen", "unstable"):
        assert decide(name, Evidence(transfer=result(missed=missed))).verdict == "not measured"


@pytest.mark.parametrize("optimum", ["edge", "not searched"])
def test_a_rate_that_is_no_known_optimum_leaves_its_claims_not_measured(optimum):
    concerned = {"layernorm": (True, True, True), "attention": (False, False, True)}
    concerned |= dict.fromkeys(("weights", "biases", "lora"), (True, False, False))
    concerned |= dict.fromkeys(("head", "all", "random_layernorm"), (False, True, False))
    concerned["random_head"] = (False, False, False)
    for name, expected in concerned.items():
        found = cells(**{name: optimum})
        told = (
            eighth(WON, WON, cells=found),
            ninth((1.0, 0.2, 1.8), ABOVE, cells=found),
            tenth((4.0, 1.5, 9.0), (0.0, -0.4, 0.4), cells=found),
        )
        assert tuple(f.verdict == "not measured" for f in told) == expected
        assert all(f.verdict == "holds" for f, lost in zip(told, expected, strict=True) if not lost)
    assert eighth(WON, WON, cells=cells("lowest")).verdict == "holds"


ABOVE: Ends = (20.0, 10.0, 30.0)


def ninth(
    gap: Ends, over: Ends, worth: Ends = ABOVE, thresholds: InsightThresholds = T, **fields: Any
) -> Insight:
    """Everything minus LayerNorm alone, pretrained minus random weights, everything minus head."""
    mean, low, high = gap
    own = (-mean, None if high is None else -high, None if low is None else -low)
    found = result(
        difference("all", own),
        difference("layernorm", over, weights="random"),
        dataclasses.replace(difference("head", worth), variant="all"),
        difference("x", own),
        **fields,
    )
    return decide("frozen", Evidence(transfer=found), thresholds)


@pytest.mark.parametrize(
    ("gap", "over", "worth", "verdict"),
    [
        ((1.0, 0.2, 1.8), ABOVE, ABOVE, "holds"),  # told from nothing, but surely small
        ((0.5, -1.0, 2.0), ABOVE, ABOVE, "mixed"),  # the interval touches the limit
        ((8.0, 4.0, 12.0), (-1.0, -3.0, 0.0), ABOVE, "does not hold"),
        ((1.0, 0.2, 1.8), (0.5, -2.0, 3.0), ABOVE, "mixed"),
        ((1.0, None, None), (20.0, None, None), ABOVE, "not measured"),
        ((1.0, 0.2, 1.8), ABOVE, (3.0, 0.0, 6.0), "not measured"),  # tuning gains nothing
    ],
)
def test_frozen_against_tuned(gap, over, worth, verdict):
    assert ninth(gap, over, worth).verdict == verdict


def test_the_gap_is_a_threshold():
    wide = (8.0, 4.0, 12.0)
    assert ninth(wide, ABOVE).parts[0].verdict == "does not hold"
    generous = dataclasses.replace(T, tuning_gap=13.0)
    assert ninth(wide, ABOVE, thresholds=generous).parts[0].verdict == "holds"
    assert "8.00 [4.00, 12.00]" in ninth(wide, ABOVE).parts[0].measured


def tenth(
    ratio: Ends | None, more: Ends | None, bad: int = 0, *, learned: bool = True, **fields: Any
) -> Insight:
    spread = TransferSpread(
        *("attention", "layernorm", 64, 6, 6, Estimate(*(ratio or (None,)))),
        *(bad, 0, Estimate(*(more or (None,))), 18, learned),
    )
    return decide("unstable", Evidence(transfer=result(spreads=(spread,), **fields)))


MORE: Ends = (0.0, -0.4, 0.4)


@pytest.mark.parametrize(
    ("ratio", "more", "bad", "verdict"),
    [
        ((4.0, 1.0, 9.0), MORE, 0, "mixed"),  # the interval touches 1
        ((1.0, 0.3, 3.0), (0.8, 0.1, 0.9), 5, "holds"),
        ((0.2, 0.1, 1.0), MORE, 0, "does not hold"),
        ((0.2, 0.1, 0.9), (0.2, -0.3, 0.6), 1, "mixed"),  # one went wrong: who knows
        (None, None, 0, "not measured"),
    ],
)
def test_divergence_or_spread(ratio, more, bad, verdict):
    assert tenth(ratio, more, bad).verdict == verdict


def test_runs_at_chance_and_larger_sizes_do_not_count():
    """A spread that attention has because it learned nothing does not make the claim hold."""
    wide = (4.0, 1.5, 9.0)
    assert tenth(wide, MORE).verdict == "holds"
    chance = tenth(wide, MORE, learned=False)
    assert chance.verdict == "mixed"
    assert "at chance" in chance.parts[1].measured
    assert tenth((0.2, 0.1, 0.9), MORE, learned=False).verdict == "does not hold"
    assert tenth(wide, MORE, sizes=(32, 64)).verdict == "not measured"
