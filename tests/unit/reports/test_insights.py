"""Claims 0, 2 to 5 and 7 from planted results, and how parts make a verdict."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from headscope.analyses.depth.curves import curves_of
from headscope.analyses.depth.measure import VARIANTS
from headscope.analyses.depth.result import DepthResult
from headscope.analyses.rank.result import RankResult
from headscope.analyses.spectrum.result import SpectrumResult
from headscope.core.serialise import from_dict
from headscope.models.certificate.validation import ValidationSummary
from headscope.pruning.result import Area, AreaGap, Baseline, Curve, DataInfo, Point, PruneResult
from headscope.pruning.stacks import CompleteCurve, areas_of
from headscope.reports.claims.intervals import (
    above,
    below,
    common,
    every,
    mean_estimate,
    within,
)
from headscope.reports.claims.registry import claims, decide
from headscope.reports.claims.rule import Evidence, Rule
from headscope.reports.claims.survivors import judge_survivors
from headscope.reports.claims.thresholds import BOUNDS, InsightThresholds
from headscope.reports.claims.view import bar_of
from headscope.reports.result import Insight, InsightPart, KeptRoles, WithoutSinks
from headscope.stats.estimate import Estimate

T = InsightThresholds()
SURE = Estimate(1.2, 1.18, 1.22)


def outcomes(insight: Insight) -> dict[str, str]:
    """The outcome of each part of a claim, by the part's name."""
    return {p.name: p.verdict for p in insight.parts}


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
    insight = decide("asymmetry", Evidence(rank=dataclasses.replace(ranked, heads=heads)))
    assert insight.verdict == verdict
    if patterns is not None:
        assert outcomes(insight)["every head's pattern is asymmetric"] == patterns


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
    insight = decide("low_rank", Evidence(spectrum=measured), InsightThresholds(most=most))
    assert insight.verdict == verdict
    assert ("positional exceptions: L1H3" in insight.measured) == (verdict == "holds")


def labelled(
    value: float, random: tuple[float, ...], half: float = 0.01, **fields: Any
) -> KeptRoles:
    """What is left with only the labelled heads, and with each set of random ones."""
    difference = value - fields.get("baseline", 1.0)
    known = KeptRoles(
        roles=("positional", "syntactic", "rare"),
        kept=((0, 1), (1, 0)),
        n_heads=24,
        classified_on="a",
        measured_on="b",
        examples=10,
        metric="cosine",
        higher_is_better=True,
        baseline=1.0,
        value=value,
        difference_ci=(difference - half, difference + half),
        random=random,
        sets=144,
        units=fields.get("examples", 10),
    )
    return dataclasses.replace(known, **fields)


def draws(value: float = 0.5, *, as_well: int = 0, better: float = 0.995) -> tuple[float, ...]:
    """The metric of 39 random sets, of which some do as well as the labelled heads."""
    return (value,) * (39 - as_well) + (better,) * as_well


def roles_judged(kept_roles: KeptRoles) -> Insight:
    return decide("labelled_heads", Evidence(kept_roles=kept_roles))


LOSS = {"baseline": 2.0, "higher_is_better": False}


@pytest.mark.parametrize(
    ("kept_roles", "verdict"),
    [
        (labelled(0.99, draws(as_well=1)), "holds"),  # p = 2 / 40
        (labelled(0.99, draws(as_well=2)), "mixed"),  # p = 3 / 40
        (labelled(0.99, draws(as_well=2, better=0.99 - 1e-7)), "mixed"),  # but for the last bits
        (labelled(0.955, draws()), "mixed"),  # the interval reaches beyond 5%
        (
            labelled(0.98, draws(0.99)),
            "does not hold",
        ),  # little is lost, yet random heads do better
        (labelled(2.02, draws(3.0), **LOSS), "holds"),  # a loss is better when lower
        (labelled(4.0, draws(3.0), **LOSS), "does not hold"),
        # 19 sets: the labelled heads are one of them, so that no p is below 1 / 19.
        (labelled(0.99, draws(), sets=19), "not measured"),
        (labelled(0.99, draws(), difference_ci=None, examples=1), "not measured"),
        (labelled(0.99, draws(), difference_ci=None, examples=40, units=5), "not measured"),
        # An interval of no width is unknown, also where all examples lose as much.
        (labelled(0.90, draws(), difference_ci=None), "not measured"),
        (dataclasses.replace(labelled(1.0, ()), kept=(), value=None), "not applicable"),
    ],
)
def test_labelled_heads_against_random_ones(kept_roles, verdict):
    insight = roles_judged(kept_roles)
    assert insight.verdict == verdict
    assert ("cannot be told from" in insight.measured) == (kept_roles.sets == 19)
    assert "sink" not in insight.measured


def test_sinks_and_induction_heads_are_counted_beside_the_verdict():
    without_sinks = WithoutSinks(kept=3, value=0.9, difference_ci=None, random=draws(as_well=2))
    counts = {"positional": 1, "induction": 2, "first_token": 9}
    kept_roles = labelled(0.99, draws(), counts=counts, without_sinks=without_sinks)
    insight = roles_judged(kept_roles)
    assert insight.verdict == "holds"
    assert (
        "Among them are 2 induction heads and 9 first-token sinks; with the 3 that have another "
        "role than sink alone it is 0.9 (2 of 39 random sets do as well)."
    ) in insight.measured
    # Without a sink there is nothing to leave out.
    no_sink = labelled(0.99, draws(), counts={"induction": 2, "first_token": 0})
    assert "2 induction heads and 0 first-token sinks. " in roles_judged(no_sink).measured + " "


def test_where_an_estimate_lies_by_its_interval():
    one = mean_estimate([0.5])
    assert (one.value, one.low, one.high) == (0.5, None, None)
    assert {above(one, 0.1), below(one, 0.9), within(one, 0.1, 0.9)} == {"not measured"}
    assert mean_estimate([]) == Estimate(None)
    values = [0.1, 0.4, 0.2, 0.7]
    estimate = mean_estimate(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (estimate.low, estimate.high) == (pytest.approx(low), pytest.approx(high))

    estimate = Estimate.around(0.5, 0.1)
    three = ["holds", "open", "does not hold"]
    assert [above(estimate, x) for x in (0.3, 0.5, 0.6)] == three
    assert [below(estimate, x) for x in (0.7, 0.5, 0.4)] == three
    assert [within(estimate, *x) for x in ((0.3, 0.7), (0.5, 0.7), (0.7, 0.9))] == three
    assert every(["holds", "not measured", "does not hold"]) == "does not hold"
    assert every(["holds", "not measured", "open"]) == "not measured"
    assert every([]) == common([]) == "not measured"
    assert common(["holds", "does not hold"]) == "mixed"
    assert common(["holds", "open"]) == "open"


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("holds", "holds"), "holds"),
        (("does not hold", "does not hold"), "does not hold"),
        (("holds", "does not hold"), "mixed"),
        (("holds", "open"), "mixed"),
        (("holds", "not measured"), "not measured"),
        (("not measured", "not measured"), "not measured"),
        (("holds", "not measured yet"), "holds"),
        (("holds", "does not hold", "not measured"), "mixed"),  # whichever way it came out
    ],
)
def test_parts_make_a_verdict(verdicts, expected):
    rule = Rule(claims()["asymmetry"])
    counted = [InsightPart(str(i), verdict, "") for i, verdict in enumerate(verdicts)]
    assert rule.concluded(counted, "", "", {}).verdict == expected
    assert rule.concluded(counted, "", "", {}, refuted=True).verdict == "does not hold"
    not_counted = [InsightPart("beside", verdict, "") for verdict in ("holds", "does not hold")]
    insight = rule.concluded(counted, "", "", {}, not_counted=not_counted)
    assert (insight.verdict, insight.parts) == (expected, (*counted, *not_counted))


def test_every_claim_is_listed_once_in_order_whatever_was_measured():
    insights = [decide(name, Evidence()) for name in claims()]
    assert [insight.number for insight in insights] == list(range(11))
    assert [insight.claim for insight in insights] == [claim.text for claim in claims().values()]
    assert {insight.verdict for insight in insights} == {"not measured yet"}


def test_every_bound_of_a_claim_is_a_threshold():
    bounds: dict[str, float] = {}
    for table in BOUNDS.values():
        bounds |= table
    assert dataclasses.asdict(T) == bounds


def test_what_decides_a_part_is_what_is_written_of_it():
    usual = Rule(claims()["collapse"])
    other = Rule(claims()["collapse"], dataclasses.replace(T, collapsed=0.3))
    assert "what is left of its start after attention alone is below 1%;" in usual.sentence
    assert "what is left of its start after attention alone is below 30%;" in other.sentence
    remaining = Estimate(0.1, 0.05, 0.2)
    assert usual.part("falls", remaining, "").verdict == "does not hold"
    assert other.part("falls", remaining, "").verdict == "holds"
    shared = Rule(claims()["shared_projections"], dataclasses.replace(T, layer_below=0.25))
    ratios = [Estimate(0.6, 0.5, 0.7), Estimate(0.8, 0.78, 0.9)]
    assert shared.part("fewer", ratios, "").verdict == "mixed"
    assert shared.part("fewer", ratios[:1], "").verdict == "holds"


def test_bars_of_claims():
    """An interval is in the unit of its number; what was not measured has no bar."""
    values = {"r2_value": None, "r2_value_random_weights": None}
    first = Insight(1, "Heads pass on what they read.", "holds", "", "", "", values)
    assert bar_of(first) is None
    assert bar_of(dataclasses.replace(first, values={**values, "r2_value": 0.5})) is not None
    # The share of an accuracy that is lost is no accuracy: 90.1 less 9.9 to 15.4 percent of it.
    fields = {"kept": ((0, 1), (0, 2)), "n_heads": 12, "metric": "accuracy", "baseline": 90.1}
    kept_roles = labelled(78.7, (70.0, 72.0), difference_ci=(-13.9, -8.9), **fields)
    bar = bar_of(roles_judged(kept_roles))
    assert bar.text == "with only the 2 labelled heads 79 [76, 81]; as many random heads 71"
    assert (bar.low, bar.high) == pytest.approx((76.2, 81.2))
    assert bar.shares[0] == pytest.approx(78.7 / 90.1)  # drawn as a share of the whole model's


# --- claim 7 from planted curves: each part comes out every way

STEPS = "at least as fast as exponentially"
SKIP = "the skip connection prevents it"
FFN = "the feed-forward network slows it"
LAYERNORM = "LayerNorm plays no role"
ALONE = "attention alone collapses"


def depth_result(
    documents: Any, *, windows: int = 16, spread: float = 0.01, **curves: list[float]
) -> DepthResult:
    """Windows that scatter about these curves, summed as depth sums them."""
    alone = curves.get("attention", [1, 0.1, 0.01, 0.001])
    n = len(alone)
    measured = from_dict(DepthResult, documents["depth"])
    mean_curves = {
        "attention": alone,
        "attention+ffn": [min(1.0, 2 * value) for value in alone],
        "attention+skip": [1.0, *[0.8] * (n - 1)],
        "attention-without-layernorm": alone,
        **curves,
    }
    noise = 1 + spread * np.random.default_rng(0).standard_normal((len(VARIANTS), n, windows))
    noise[:, 0] = 1.0
    means = np.array([mean_curves.get(v.name, [1.0, *[0.9] * (n - 1)]) for v in VARIANTS])
    trends = curves_of(means[..., None] * noise, 1e-15).trends
    variants = dict.fromkeys(measured.variants, tuple(alone))
    return dataclasses.replace(measured, variants=variants, trends=trends, sequences=windows)


@pytest.mark.parametrize(
    ("curves", "verdict", "expected"),
    [
        # The theory's own curve is far from log-linear.
        ({"attention": [1, 0.3, 0.02, 1e-4, 1e-9]}, "holds", {STEPS: "holds"}),
        # Rounding is no step.
        ({"attention": [1, 0.1, 1e-3, 1e-16, 1e-16, 1e-16]}, "holds", {STEPS: "holds"}),
        ({"attention": [1, 1e-3, 1e-16, 1e-16]}, "not measured", {STEPS: "not measured"}),
        ({"attention": [1, 0.2, 0.05, 0.01], "spread": 0.3}, "mixed", {ALONE: "open"}),
        # A skip that collapses too, at one layer only.
        ({"attention+skip": [1, 0.8, 0.001, 0.8]}, "mixed", {SKIP: "does not hold"}),
        # States that overflow without LayerNorm.
        (
            {"attention-without-layernorm": [1, 0.1, math.nan, math.nan]},
            "not measured",
            {LAYERNORM: "not measured"},
        ),
        ({"attention+ffn": [1, 0.2, 0.005, 0.002]}, "mixed", {FFN: "mixed"}),
        ({"attention+ffn": [1, 0.2, 0.0101, 0.002]}, "mixed", {FFN: "open"}),
        # One layer or one window decides nothing.
        ({"attention": [1, 0.001]}, "not measured", {}),
        ({"windows": 1}, "not measured", {}),
    ],
)
def test_every_part_of_the_collapse(curves, verdict, expected, documents):
    insight = decide("collapse", Evidence(depth=depth_result(documents, **curves)))
    assert insight.verdict == verdict
    assert outcomes(insight).items() >= expected.items()


# --- claim 4 from planted curves, and where heads survive: each comes out every way

STACKS = ("encoder", "decoder", "cross")
#: Middle and half-width of the inner gap of cross-attention to each other stack.
Gaps = dict[str, tuple[float, float]]


def pruned(
    gaps: Gaps, *, higher: bool = True, stacks: tuple[str, ...] = STACKS, methods=("random", "x")
) -> PruneResult:
    """A translator with each stack pruned alone: equal areas, and these gaps."""
    areas: list[Area] = []
    for method in methods:
        areas += [Area(stack, method, "none", Estimate(70.0, 69.0, 71.0)) for stack in stacks]
    return PruneResult(
        schema=2,
        provenance={},
        validation=ValidationSummary(passed=True),
        task="seq2seq",
        metric="token_accuracy",
        higher_is_better=higher,
        n_heads=144,
        shared_layers=False,
        calibration=None,
        stack="all",
        baseline=Baseline(Estimate(80.0, 79.0, 81.0), {}),
        data=DataInfo("pairs.tsv", "0", "seq2seq", 600, 0),
        curves=(),
        areas=tuple(areas),
        gaps=tuple(
            AreaGap("cross", other, "x", "none", Estimate.around(gap, half))
            for other, (gap, half) in gaps.items()
        ),
    )


def judged(result: PruneResult | None) -> Insight:
    return decide("cross_attention", Evidence(prune=result, stacks=STACKS))


@pytest.mark.parametrize(
    ("encoder", "decoder", "verdict"),
    [
        ((-20.0, 1.0), (-1.1, 1.0), "holds"),
        ((-20.0, 1.0), (-0.9, 1.0), "mixed"),
        ((-1e-6, 0.0), (-1e-6, 0.0), "mixed"),  # equal curves, but for rounding, are not below
    ],
)
def test_paired_gaps_of_inner_areas_decide(encoder, decoder, verdict):
    insight = judged(pruned({"encoder": encoder, "decoder": decoder}))
    assert insight.verdict == verdict
    assert "with heads removed by x" in insight.measured
    assert "Random heads" in insight.control
    assert [gap["other"] for gap in insight.values["gaps"]] == ["encoder", "decoder"]


def test_losses_and_curves_that_decide_nothing():
    gaps = {"encoder": (2.0, 0.1), "decoder": (1.0, 0.1)}
    assert judged(pruned(gaps, higher=False)).verdict == "holds"  # the larger area is the worse
    assert judged(pruned(gaps)).verdict == "does not hold"
    known = {"encoder": (-20.0, 1.0), "decoder": (-20.0, 1.0)}
    result = pruned(known)
    unknown = judged(dataclasses.replace(result, gaps=()))
    assert unknown.verdict == "not measured"
    assert "no point between" in unknown.parts[0].measured
    for result in (
        None,
        pruned(known, stacks=("encoder", "decoder")),
        pruned(known, methods=("random",)),
    ):
        assert judged(result).verdict == "not measured yet"
    assert decide("cross_attention", Evidence()).verdict == "not measured yet"
    assert decide("cross_attention", Evidence(stacks=("encoder",))).verdict == "not applicable"


def swept(shares: tuple[float, ...], means: tuple[float, ...], method: str = "x") -> CompleteCurve:
    examples = np.random.default_rng(0).normal(scale=0.5, size=200)  # one for all: paired
    values = np.asarray(means)[:, None] + np.array([0.0, *examples])
    return CompleteCurve(method, "none", np.array(shares), values)


QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


def test_curves_that_are_equal_up_to_the_last_point_are_equal():
    """With its last point cross-attention's area is the smallest by far; it does not count."""
    shared = (80.0, 79.0, 75.0, 70.0)
    curves = {
        stack: (swept(QUARTERS, (*shared, last)),)
        for stack, last in (("encoder", 60.0), ("decoder", 60.0), ("cross", 0.0))
    }
    areas, gaps = areas_of(curves)
    gap = {(gap.stack, gap.other): gap for gap in gaps}["cross", "encoder"]
    assert gap.inner == Estimate(0.0, 0.0, 0.0)
    result = dataclasses.replace(pruned({}), areas=areas, gaps=gaps)
    assert {p.verdict for p in judged(result).parts} == {"open"}
    assert judged(result).verdict == "mixed"


def test_areas_are_taken_over_the_shares_that_all_curves_have():
    """Six heads and four: from 1/4 to 3/4 of them, on straight lines between the points."""
    sixths = tuple(i / 6 for i in range(7))
    curves = {
        "encoder": (swept(sixths, tuple(90.0 - 60 * share for share in sixths)),),
        "cross": (swept(QUARTERS, (90.0, 80.0, 40.0, 20.0, 0.0)),),
    }
    areas, gaps = areas_of(curves)
    inner = {area.stack: area.inner.value for area in areas}
    assert inner["encoder"] == pytest.approx(90 - 60 * 0.5)  # a straight line: its middle
    assert inner["cross"] == pytest.approx((80 + 2 * 40 + 20) / 4)
    gap = next(gap for gap in gaps if gap.stack == "cross")
    assert gap.inner.value == pytest.approx(45 - 60)
    assert gap.inner.interval == pytest.approx((-15, -15))  # examples cancel: they are the same


def joint(remaining: list[int], heads_per_layer: int = 8, *, loss: float = -60.0) -> PruneResult:
    """Leave so many cross-attention heads by layer, at the middle of a joint curve."""
    removed = []
    all_heads: list[tuple[str, int, int]] = []
    for layer, count in enumerate(remaining):
        heads = [("cross", layer, head) for head in range(heads_per_layer)]
        all_heads += heads
        removed += heads[count:]
    points = [
        Point(share, tuple(heads), Estimate(80.0, 79.0, 81.0), Estimate.around(change, 1.0))
        for share, heads, change in (
            (0.0, [], 0.0),
            (0.5, removed, -10.0),
            (1.0, [*all_heads, ("decoder", 0, 0), ("encoder", 0, 0)], loss),
        )
    ]
    gaps = {"encoder": (-20.0, 1.0), "decoder": (-20.0, 1.0)}
    return dataclasses.replace(pruned(gaps), curves=(Curve("x", "none", tuple(points)),))


SURVIVING = "cross-attention survives in the last decoder layers"


@pytest.mark.parametrize(
    ("remaining", "heads_per_layer", "verdict"),
    [
        ([0, 1, 2, 6, 8, 8], 8, "holds"),
        ([4, 4, 4, 1, 6, 4], 8, "open"),  # an Arabic-English transliteration model
        ([0, 1], 1, "not measured"),  # one head of two: no choice of them is rare
        ([4], 8, "not measured"),  # one layer
        ([8, 8], 8, "not measured"),  # all are left
    ],
)
def test_survivors_lie_in_the_last_layers_or_not(remaining, heads_per_layer, verdict):
    result = joint(remaining, heads_per_layer)
    assert judge_survivors(result).outcome == verdict
    insight = decide("labelled_heads", Evidence(prune=result, stacks=STACKS))
    assert outcomes(insight) == {SURVIVING: verdict}
    assert insight.verdict == "not measured yet"  # nothing was classified
    assert decide("labelled_heads", Evidence(stacks=("encoder",))).parts == ()


def test_nothing_is_said_of_a_model_that_does_the_task_no_better_without_heads():
    """An untrained translator had the areas of claim 4, at an accuracy of 0.5%."""
    for loss, verdict in ((-60.0, "holds"), (-0.5, "not measured")):
        result = joint([0, 1, 2, 6, 8, 8], loss=loss)
        assert judged(result).verdict == verdict
        assert judge_survivors(result).outcome == verdict
