"""Claims 0, 2, 3 and 5 from planted results, and how parts make a verdict."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy import stats

from headscope.analyses.rank.result import ControlRank, HeadRank, LayerRank, Overlap, RankResult
from headscope.analyses.spectrum.result import (
    Sampling,
    SpectrumControl,
    SpectrumHead,
    SpectrumResult,
    Verdict,
)
from headscope.models.certificate.validation import ValidationSummary
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
from headscope.stats.ranks import (
    ControlStatistics,
    LayerControl,
    MatrixRank,
    NumericalRank,
)

T = InsightThresholds()
VALID = ValidationSummary(passed=True)


def verdicts(found: Insight) -> dict[str, str]:
    return {part.name: part.verdict for part in found.parts}


def rank_result(
    asymmetry: float = 1.3,
    pattern: float = 1.2,
    heads: int = 26,
    layers: int = 60,
    n_layers: int = 3,
    half: float | None = 0.02,
) -> RankResult:
    """Two heads in every layer; the control has dims90 of 26 for a head and 140 for a layer."""

    def matrices(dims90: int) -> dict[str, MatrixRank]:
        dims = {"90": dims90, "95": 1, "99": 1}
        one = MatrixRank((1.0,), NumericalRank(1, 0.1), 1.0, 1.0, dims)
        return dict.fromkeys(("qk", "ov", "w_q", "w_k"), one)

    def statistics(dims90: float) -> dict[str, ControlStatistics]:
        dims = {"90": dims90, "95": 1.0, "99": 1.0}
        one = ControlStatistics((1.0,), 1.0, 1.0, 1.0, dims, {}, 1)
        return dict.fromkeys(("qk", "ov", "w_q", "w_k"), one)

    control = LayerControl(2, statistics(26.0), statistics(140.0), 1.41, 1.41, {})
    own = {"asymmetry": asymmetry, "pattern_asymmetry": Estimate.around(pattern, half)}
    places = [(layer, head) for layer in range(n_layers) for head in range(2)]
    whole = {"asymmetry": asymmetry, "overlap": Overlap((), (), ()), **matrices(layers)}
    return RankResult(
        heads=tuple(HeadRank(*place, **matrices(heads), **own) for place in places),
        layers=tuple(LayerRank(layer, (0, 1), **whole) for layer in range(n_layers)),
        controls={"gaussian": ControlRank((0,), (control,)), "fresh": None},
        **{"settings": {}, "validation": VALID, "provenance": {}, "text": {"lines": 30}},
    )


PATTERNS = "every head's pattern is asymmetric"


def first_heads(count: int, **fields: Any) -> RankResult:
    result = rank_result()
    changed = [dataclasses.replace(head, **fields) for head in result.heads[:count]]
    return dataclasses.replace(result, heads=(*changed, *result.heads[count:]))


@pytest.mark.parametrize(
    ("rank", "verdict", "patterns"),
    [
        (rank_result(), "holds", "holds"),
        (first_heads(1, asymmetry=0.0), "mixed", "holds"),
        (rank_result(pattern=0.11), "mixed", "open"),  # 0.11 - 0.02
        (rank_result(half=None), "not measured", "not measured"),  # one line of text
        (rank_result(0.0, half=None), "does not hold", "not measured"),  # weights are exact
        (first_heads(6, pattern_asymmetry=None), "not measured", "not measured"),  # no text
    ],
)
def test_weights_and_patterns_of_asymmetric_heads(rank, verdict, patterns):
    found = decide("asymmetry", Evidence(rank=rank))
    assert found.verdict == verdict
    assert verdicts(found).get(PATTERNS, "not measured") == patterns
    if verdict == "holds":
        assert found.values["below_gaussian"] == pytest.approx(1 - 1.3 / 1.41)
    if rank.heads[0].pattern_asymmetry == Estimate(1.2):
        assert "[no interval]" in found.parts[1].measured


def kept(value: float, random: tuple[float, ...], half: float = 0.01, **fields: Any) -> KeptRoles:
    difference = value - fields.get("baseline", 1.0)
    known: dict[str, Any] = {"roles": ("positional", "syntactic", "rare"), "n_heads": 24}
    known |= {"classified_on": "a", "measured_on": "b", "examples": 10, "metric": "cosine"}
    known |= {"higher_is_better": True, "baseline": 1.0, "kept": ((0, 1), (1, 0)), "sets": 144}
    known |= {"value": value, "random": random}
    known["difference_ci"] = (difference - half, difference + half)
    return KeptRoles(**{**known, **fields})


def draws(value: float = 0.5, *, as_well: int = 0, better: float = 0.995) -> tuple[float, ...]:
    return (value,) * (39 - as_well) + (better,) * as_well


def roles_judged(found: KeptRoles) -> Insight:
    return decide("labelled_heads", Evidence(kept=found))


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
        # A loss that all examples agree on needs no interval.
        (kept(0.90, draws(), difference_ci=None), "mixed"),
        (dataclasses.replace(kept(1.0, ()), kept=(), value=None), "not applicable"),
    ],
)
def test_labelled_heads_against_random_ones(found, verdict):
    assert roles_judged(found).verdict == verdict


def test_shared_projections_of_one_layer_have_no_interval():
    found = decide("shared_projections", Evidence(rank=rank_result(n_layers=1)))
    assert found.verdict == "not measured"
    assert "layers at 0.43 [no interval] of it" in found.control
    assert found.values["gaussian"]["layer_ratio"]["low"] is None


def spectrum_result(shares: list[float], half: float | None = 0.01) -> SpectrumResult:
    flat = SpectrumControl(0.25, 0.25, (0.25,), (0.25,))
    heads = [
        SpectrumHead(0, i, *[Estimate.around(s, half)] * 2, (s,), (s,), (0.01,), -1, 0.9)
        for i, s in enumerate(shares)
    ]
    return SpectrumResult(
        **{"schema": 1, "provenance": {}, "validation": VALID},
        **{"length": 128, "sequences": 10, "k": 32},
        sampling=Sampling("fixed", 10, 10, None, None, half),
        verdict=Verdict(0.9, 0.5, (), (), ()),
        heads=tuple(heads),
        controls={"random-logits": flat, "identity": flat},
    )


def low_rank_judged(result: SpectrumResult, thresholds: InsightThresholds = T) -> Insight:
    return decide("low_rank", Evidence(spectrum=result), thresholds)


def test_low_rank_names_positional_heads():
    measured = spectrum_result([0.95, 0.95, 0.3])
    named = dataclasses.replace(measured.heads[2], role="positional")
    found = low_rank_judged(dataclasses.replace(measured, heads=(*measured.heads[:2], named)))
    assert found.verdict == "holds"
    assert found.values["positional_exceptions"] == ["L0H2"]
    assert "L0H2" in found.measured


@pytest.mark.parametrize(
    ("shares", "half", "most", "verdict"),
    [
        ([0.905] * 3, 0.02, 0.5, "mixed"),  # it needs whole intervals
        ([0.99] * 3, None, 0.5, "not measured"),  # one sequence
        # With 80% wanted, 20% at or below it are enough against the claim; 10% are not.
        ([0.95] * 8 + [0.3] * 2, 0.01, 0.8, "does not hold"),
        ([0.95] * 9 + [0.3], 0.01, 0.8, "holds"),
    ],
)
def test_low_rank(shares, half, most, verdict):
    thresholds = InsightThresholds(most=most)
    assert low_rank_judged(spectrum_result(shares, half), thresholds).verdict == verdict


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
                assert ("{bound}" in part.rule) == bool(part.direction)


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
