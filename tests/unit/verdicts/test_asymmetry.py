"""Claim 0 by function, from planted results: symmetric scores beside random changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headscope.results.estimated import Estimated
from headscope.verdicts.insights import asymmetry
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.thresholds import InsightThresholds

OUTPUT = "symmetric scores move the output more than random changes"
SCORES = "every head's scores are asymmetric"
RANDOM = Estimated(0.9, 0.88, 0.92)
SURE = Estimated(1.2, 1.1, 1.3)


def symmetric(cosine: Estimated, scores: Estimated = SURE, **other: Any) -> Any:
    changes = {"noise": Estimated(0.97, 0.96, 0.98), "shuffled": RANDOM, **other}
    whole = {"symmetric": cosine, **changes, "removed": Estimated(0.5), "pairs": Estimated(0.95)}
    head = SimpleNamespace(name="L0H0", asymmetry=scores)
    drawn = {name: SimpleNamespace(cosine=found) for name, found in whole.items() if found}
    return SimpleNamespace(whole=drawn, equivalent_heads=Estimated(40.0), heads=[head] * 72)


def rank(value: float) -> Any:
    head = SimpleNamespace(
        name="L0H0", asymmetry=value, pattern_asymmetry=SimpleNamespace(mean=1.2, sem=0.01)
    )
    return SimpleNamespace(heads=[head], text={"lines": 30}, controls={})


def judged(found: Any, weights: float | None = 1.3) -> Finding:
    ranked = None if weights is None else rank(weights)
    return asymmetry.judge(Evidence(rank=ranked, symmetric=found), InsightThresholds())


def part(found: Finding, name: str = OUTPUT) -> str:
    return next(part.verdict for part in found.parts if part.name == name)


@pytest.mark.parametrize(
    ("found", "outcome", "verdict"),
    [
        (symmetric(Estimated(0.7, 0.6, 0.879)), "holds", "holds"),
        (symmetric(Estimated(0.8, 0.7, 0.88)), "open", "mixed"),  # reaches what shuffling does
        (symmetric(Estimated(0.94, 0.92, 0.95)), "does not hold", "mixed"),
        (
            symmetric(Estimated(0.7, 0.6, 0.8), noise=Estimated(0.5, 0.4, 0.6)),
            "does not hold",
            "mixed",
        ),
        (symmetric(Estimated(0.7)), "not measured", "not measured"),
        (symmetric(Estimated(None)), "not measured", "not measured"),
        (symmetric(Estimated(0.7, 0.6, 0.8), shuffled=None), "not measured yet", "holds"),
    ],
)
def test_random_changes_decide(found: Any, outcome: str, verdict: str) -> None:
    assert part(judged(found)) == outcome
    assert judged(found).verdict == verdict
    assert judged(found, weights=0.05).verdict == "does not hold"


def test_changes_that_move_nothing_but_the_last_bits_do_not_differ() -> None:
    """Cosines of 1 minus rounding: which is the lower says nothing, on any machine."""
    one, lower = Estimated(1.0, 1.0, 1.0), Estimated(1 - 3e-7, 1 - 4e-7, 1 - 2e-7)
    for own, random in ((one, lower), (lower, one)):
        assert part(judged(symmetric(own, noise=random, shuffled=random))) == "does not hold"


def test_the_same_number_of_heads_removed_stands_beside_it() -> None:
    found = judged(symmetric(Estimated(0.7, 0.6, 0.8)))
    assert "all heads removed 0.500" in found.control
    assert "about 40 random heads of 72" in found.parts[2].measured


@pytest.mark.parametrize(
    ("scores", "outcome", "verdict"),
    [
        (Estimated(1.2, 1.1, 1.3), "holds", "holds"),
        (Estimated(0.2, 0.05, 0.35), "open", "mixed"),
        (Estimated(0.05, 0.04, 0.06), "does not hold", "does not hold"),
        (Estimated(1.2), "not measured", "not measured"),
    ],
)
def test_without_weights_the_scores_decide(scores: Estimated, outcome: str, verdict: str) -> None:
    found = judged(symmetric(Estimated(0.7, 0.6, 0.8), scores), weights=None)
    assert part(found, SCORES) == outcome
    assert found.verdict == verdict
    assert judged(None, weights=None).verdict == "not measured yet"
