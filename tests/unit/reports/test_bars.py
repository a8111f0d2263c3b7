"""The number that a claim leads with."""

from headscope.reports.claims.bars import bar_of
from headscope.reports.result import Insight


def claim(r2: float | None) -> Insight:
    values = {"r2_value": r2, "r2_value_random_weights": None}
    return Insight(1, "Heads pass on what they read.", "holds", "", "", "", values)


def test_a_claim_whose_number_was_not_measured_has_no_bar():
    """flow says nothing of what heads pass on where the text is too short, as in quick.toml."""
    bar = bar_of(claim(0.5))
    assert bar is not None
    assert bar.text == "share recovered 0.5"
    assert bar_of(claim(None)) is None
