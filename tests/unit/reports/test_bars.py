"""The number that a claim leads with."""

import pytest

from headscope.reports.claims.bars import bar_of
from headscope.reports.claims.finding import Evidence
from headscope.reports.claims.head_claims import judge_labelled_heads
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.result import Insight, KeptRoles


def claim(r2: float | None) -> Insight:
    values = {"r2_value": r2, "r2_value_random_weights": None}
    return Insight(1, "Heads pass on what they read.", "holds", "", "", "", values)


def test_a_claim_whose_number_was_not_measured_has_no_bar():
    """flow says nothing of what heads pass on where the text is too short, as in quick.toml."""
    bar = bar_of(claim(0.5))
    assert bar is not None
    assert bar.text == "share recovered 0.5"
    assert bar_of(claim(None)) is None


def test_an_interval_is_in_the_unit_of_its_number():
    """The share of an accuracy that is lost is no accuracy: 90.1 less 9.9 to 15.4 percent of it."""
    kept = KeptRoles(
        roles=("positional",),
        kept=((0, 1), (0, 2)),
        n_heads=12,
        classified_on="a",
        measured_on="b",
        examples=100,
        metric="accuracy",
        higher_is_better=True,
        baseline=90.1,
        value=78.7,
        difference_ci=(-13.9, -8.9),
        random=(70.0, 72.0),
    )
    finding = vars(judge_labelled_heads(Evidence(kept=kept), InsightThresholds()))
    bar = bar_of(Insight(2, "", rule="", **finding))
    assert bar is not None
    assert bar.text == "with only the 2 labelled heads 79 [76, 81]; as many random heads 71"
    assert (bar.low, bar.high) == pytest.approx((76.2, 81.2))
    assert bar.most == 90.1
