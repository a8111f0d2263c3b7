"""Claims 0, 2, 3 and 5 from planted results, and how parts make a verdict."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy import stats

from headscope.analyses.rank.result import RankResult
from headscope.analyses.spectrum.result import (
    SpectrumResult,
)
from headscope.core.serialise import from_dict
from headscope.reports.claims.rule import (
    Evidence,
    InsightThresholds,
    Rule,
    above,
    below,
    claims,
    common,
    every,
    mean_estimate,
    within,
)
from headscope.reports.claims.run import JUDGES, decide
from headscope.reports.claims.view import bar_of
from headscope.reports.result import Insight, InsightPart, KeptRoles
from headscope.stats.estimate import Estimate

T = InsightThresholds()


SURE = Estimate(1.2, 1.18, 1.22)


@pytest.mark.parametrize(
    ("count", "fields", "verdict", "patterns"),
    [
        (0, {}, "holds", "holds"),
        (1, {"asymmetry": 0.0}, "mixed", "holds"),
        (8, {"pattern_asymmetry": Estimate(0.11, 0.09, 0.13)}, "mixed", "open"),
        (8, {"pattern_asymmetry": Estimate(1.2)}, "not measured", "not measured"),  # one line
        (8, {"asymmetry": 0.0, "pattern_asymmetry": Estimate(1.2)}, "does not hold", None),
        (8, {"pattern_asymmetry": None}, "not measured", "not measured"),  # no text
    ],
)
def test_weights_and_patterns_of_asymmetric_heads(count, fields, verdict, patterns, documents):
    ranked = from_dict(RankResult, documents["rank"])
    heads = [dataclasses.replace(h, asymmetry=1.3, pattern_asymmetry=SURE) for h in ranked.heads]
    changed = [dataclasses.replace(head, **fields) for head in heads[:count]]
    heads = (*changed, *heads[count:])
    found = decide("asymmetry", Evidence(rank=dataclasses.replace(ranked, heads=heads)))
    assert found.verdict == verdict
    own = {part.name: part.verdict for part in found.parts}["every head's pattern is asymmetric"]
    assert patterns in (None, own)


@pytest.mark.parametrize(
    ("shares", "half", "most", "verdict"),
    [
        ([0.905] * 8, 0.02, 0.5, "mixed"),  # it needs whole intervals
        ([0.99] * 8, None, 0.5, "not measured"),  # one sequence
        # With 75% wanted, 25% at or below it are enough against the claim; 12.5% are not.
        ([0.95] * 6 + [0.3] * 2, 0.01, 0.75, "does not hold"),
        ([0.95] * 7 + [0.3], 0.01, 0.75, "holds"),
    ],
)
def test_low_rank(shares, half, most, verdict, documents):
    measured = from_dict(SpectrumResult, documents["spectrum"])
    heads = tuple(
        dataclasses.replace(head, share_at_k=Estimate.around(share, half), role="positional")
        for head, share in zip(measured.heads, shares, strict=True)
    )
    measured = dataclasses.replace(measured, heads=heads)
    found = decide("low_rank", Evidence(spectrum=measured), InsightThresholds(most=most))
    assert found.verdict == verdict
    assert ("positional exceptions: L1H3" in found.measured) == (verdict == "holds")


def kept(value: float, random: tuple[float, ...], half: float = 0.01, **fields: Any) -> KeptRoles:
    difference = value - fields.get("baseline", 1.0)
    known: dict[str, Any] = {"roles": ("positional", "syntactic", "rare"), "n_heads": 24}
    known |= {"classified_on": "a", "measured_on": "b", "examples": 10, "metric": "cosine"}
    known |= {"higher_is_better": True, "baseline": 1.0, "kept": ((0, 1), (1, 0)), "sets": 144}
    known |= {"value": value, "random": random}
    known["units"] = fields.get("examples", 10)
    known["difference_ci"] = (difference - half, difference + half)
    return KeptRoles(**{**known, **fields})


def draws(value: float = 0.5, *, as_well: int = 0, better: float = 0.995) -> tuple[float, ...]:
    return (value,) * (39 - as_well) + (better,) * as_well


def roles_judged(found: KeptRoles) -> Insight:
    return decide("labelled_heads", Evidence(kept_roles=found))


LOSS = {"baseline": 2.0, "higher_is_better": False}


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (kept(0.99, draws(as_well=1)), "holds"),  # p = 2 / 40
        (kept(0.99, draws(as_well=2)), "mixed"),  # p = 3 / 40
        (kept(0.99, draws(as_well=2, better=0.99 - 1e-7)), "mixed"),  # but for the last bits
        (kept(0.955, draws()), "mixed"),  # the interval reaches beyond 5%
        (kept(0.98, draws(0.99)), "does not hold"),  # little is lost, yet random heads do better
        (kept(2.02, draws(3.0), **LOSS), "holds"),  # a loss is better when lower
        (kept(4.0, draws(3.0), **LOSS), "does not hold"),
        # 19 sets: the labelled heads are one of them, so that no p is below 1 / 19.
        (kept(0.99, draws(), sets=19), "not measured"),
        (kept(0.99, draws(), difference_ci=None, examples=1), "not measured"),
        (kept(0.99, draws(), difference_ci=None, examples=40, units=5), "not measured"),
        # A loss that all examples agree on needs no interval.
        (kept(0.90, draws(), difference_ci=None), "mixed"),
        (dataclasses.replace(kept(1.0, ()), kept=(), value=None), "not applicable"),
    ],
)
def test_labelled_heads_against_random_ones(found, verdict):
    insight = roles_judged(found)
    assert insight.verdict == verdict
    assert ("cannot be told from" in insight.measured) == (found.sets == 19)


def test_estimates_and_sides_of_a_limit():
    one = mean_estimate([0.5])
    assert (one.value, one.low, one.high) == (0.5, None, None)
    assert {above(one, 0.1), below(one, 0.9), within(one, 0.1, 0.9)} == {"not measured"}
    assert mean_estimate([]) == Estimate(None)
    values = [0.1, 0.4, 0.2, 0.7]
    found = mean_estimate(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))

    found = Estimate.around(0.5, 0.1)
    three = ["holds", "open", "does not hold"]
    assert [above(found, x) for x in (0.3, 0.5, 0.6)] == three
    assert [below(found, x) for x in (0.7, 0.5, 0.4)] == three
    assert [within(found, *x) for x in ((0.3, 0.7), (0.5, 0.7), (0.7, 0.9))] == three
    assert every(["holds", "not measured", "does not hold"]) == "does not hold"
    assert every(["holds", "not measured", "open"]) == "not measured"
    assert every([]) == common([]) == "not measured"
    assert common(["holds", "does not hold"]) == "mixed"
    assert common(["holds", "open"]) == "open"


def test_parts_make_a_verdict():
    for parts, verdict in {
        ("holds", "holds"): "holds",
        ("does not hold", "does not hold"): "does not hold",
        ("holds", "does not hold"): "mixed",
        ("holds", "open"): "mixed",
        ("holds", "not measured"): "not measured",
        ("not measured", "not measured"): "not measured",
        ("holds", "not measured yet"): "holds",
        ("holds", "does not hold", "not measured"): "mixed",  # whichever way it came out
    }.items():
        made = [InsightPart(str(i), part, "") for i, part in enumerate(parts)]
        rule = Rule("asymmetry")
        assert rule.concluded(made, "", "", {}).verdict == verdict, parts
        refuted = rule.concluded(made, "", "", {}, refuted=True)
        assert refuted.verdict == "does not hold"
        beside = [InsightPart("beside", side, "") for side in ("holds", "does not hold")]
        shown = rule.concluded(made, "", "", {}, not_counted=beside)
        assert (shown.verdict, shown.parts) == (verdict, (*made, *beside))


def test_every_claim_has_a_judge_and_is_listed_once_whatever_was_measured():
    found = [decide(name, Evidence()) for name in JUDGES]
    assert [insight.number for insight in found] == list(range(11))
    assert [insight.claim for insight in found] == [claim.text for claim in claims().values()]
    assert {insight.verdict for insight in found} == {"not measured yet"}


def test_the_sentence_of_a_rule_is_made_of_its_parts():
    """What decides a part is what is written of it: other thresholds change both."""
    assert list(JUDGES) == list(claims())
    assert [claim.number for claim in claims().values()] == list(range(11))
    usual, other = (Rule("collapse", dataclasses.replace(T, collapsed=c)) for c in (0.01, 0.3))
    assert "what is left of its start after attention alone is below 1%;" in usual.sentence
    assert "what is left of its start after attention alone is below 30%;" in other.sentence
    assert "a share of its start that is between -0.1 and 0.1" in usual.sentence
    left = Estimate(0.1, 0.05, 0.2)
    assert [rule.part("falls", left, "").verdict for rule in (usual, other)] == [
        *("does not hold", "holds"),
    ]
    shared = Rule("shared_projections", dataclasses.replace(T, layer_below=0.25))
    assert "is below 75%; the heads' is between 90% and 110%." in shared.sentence
    ratios = [Estimate(0.6, 0.5, 0.7), Estimate(0.8, 0.78, 0.9)]
    assert shared.part("fewer", ratios, "").verdict == "mixed"
    assert shared.part("fewer", ratios[:1], "").verdict == "holds"


def test_every_part_has_a_rule_in_words():
    for name in JUDGES:
        assert not set("{}") & set(Rule(name, T).sentence)
        for part in claims()[name].parts.values():
            if "not counted" not in part.name:
                assert part.rule
                assert ("{bound}" in part.rule) == bool(part.lies)


def first_claim(r2: float | None) -> Insight:
    values = {"r2_value": r2, "r2_value_random_weights": None}
    return Insight(1, "Heads pass on what they read.", "holds", "", "", "", values)


def test_a_claim_whose_number_was_not_measured_has_no_bar():
    """flow says nothing of what heads pass on where the text is too short, as in quick.toml."""
    bar = bar_of(first_claim(0.5))
    assert bar is not None
    assert bar.text == "share recovered 0.5"
    assert bar_of(first_claim(None)) is None


def test_an_interval_is_in_the_unit_of_its_number():
    """The share of an accuracy that is lost is no accuracy: 90.1 less 9.9 to 15.4 percent of it."""
    fields = {"kept": ((0, 1), (0, 2)), "n_heads": 12, "metric": "accuracy", "baseline": 90.1}
    found = kept(78.7, (70.0, 72.0), difference_ci=(-13.9, -8.9), **fields)
    bar = bar_of(roles_judged(found))
    assert bar is not None
    assert bar.text == "with only the 2 labelled heads 79 [76, 81]; as many random heads 71"
    assert (bar.low, bar.high) == pytest.approx((76.2, 81.2))
    assert bar.ends[0] == pytest.approx(78.7 / 90.1)  # drawn as a share of the whole model's
