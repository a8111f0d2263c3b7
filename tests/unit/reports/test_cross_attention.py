"""Claim 4 from planted curves, and where heads survive: each comes out every way."""

import dataclasses

import numpy as np
import pytest

from headscope.models.certificate.validation import ValidationSummary
from headscope.pruning.curves import Swept, areas_of
from headscope.pruning.result import Area, AreaGap, Baseline, Curve, DataInfo, Point, PruneResult
from headscope.reports.claims.head_claims import judge_survivors
from headscope.reports.claims.rule import Evidence, InsightThresholds, Rule
from headscope.reports.claims.run import decide
from headscope.reports.result import Insight
from headscope.stats.estimate import Estimate

STACKS = ("encoder", "decoder", "cross")
T = InsightThresholds()
#: Middle and half-width of the inner gap of cross-attention to each other stack.
Gaps = dict[str, tuple[float, float]]


def pruned(
    gaps: Gaps, *, higher: bool = True, stacks: tuple[str, ...] = STACKS, methods=("random", "x")
):
    areas = tuple(
        Area(stack, method, "none", Estimate(70.0, 69.0, 71.0))
        for method in methods
        for stack in stacks
    )
    made = tuple(
        AreaGap("cross", other, "x", "none", Estimate.around(gap, half))
        for other, (gap, half) in gaps.items()
    )
    return PruneResult(
        **{"schema": 2, "provenance": {}, "validation": ValidationSummary(passed=True)},
        **{"task": "seq2seq", "metric": "token_accuracy", "higher_is_better": higher},
        **{"n_heads": 144, "shared_layers": False, "calibration": None, "stack": "all"},
        baseline=Baseline(Estimate(80.0, 79.0, 81.0), {}),
        data=DataInfo("pairs.tsv", "0", "seq2seq", 600, 0),
        curves=(),
        areas=areas,
        gaps=made,
    )


def judged(found: PruneResult | None) -> Insight:
    return decide("cross_attention", Evidence(prune=found, stacks=STACKS))


@pytest.mark.parametrize(
    ("encoder", "decoder", "verdict"),
    [
        ((-20.0, 1.0), (-1.1, 1.0), "holds"),
        ((-20.0, 1.0), (-0.9, 1.0), "mixed"),
        ((-1e-6, 0.0), (-1e-6, 0.0), "mixed"),  # equal curves, but for rounding, are not below
    ],
)
def test_paired_gaps_of_inner_areas_decide(encoder, decoder, verdict):
    found = judged(pruned({"encoder": encoder, "decoder": decoder}))
    assert found.verdict == verdict
    assert "with heads removed by x" in found.measured
    assert "Random heads" in found.control
    assert [gap["other"] for gap in found.values["gaps"]] == ["encoder", "decoder"]


def test_losses_and_curves_that_decide_nothing():
    gaps = {"encoder": (2.0, 0.1), "decoder": (1.0, 0.1)}
    assert judged(pruned(gaps, higher=False)).verdict == "holds"  # the larger area is the worse
    assert judged(pruned(gaps)).verdict == "does not hold"
    known = {"encoder": (-20.0, 1.0), "decoder": (-20.0, 1.0)}
    found = pruned(known)
    unknown = judged(dataclasses.replace(found, gaps=()))
    assert unknown.verdict == "not measured"
    assert "no point between" in unknown.parts[0].measured
    for found in (
        None,
        pruned(known, stacks=("encoder", "decoder")),
        pruned(known, methods=("random",)),
    ):
        assert judged(found).verdict == "not measured yet"
    assert decide("cross_attention", Evidence()).verdict == "not measured yet"
    assert decide("cross_attention", Evidence(stacks=("encoder",))).verdict == "not applicable"


def swept(shares: tuple[float, ...], means: tuple[float, ...], method: str = "x") -> Swept:
    examples = np.random.default_rng(0).normal(scale=0.5, size=200)  # one for all: paired
    values = np.asarray(means)[:, None] + np.array([0.0, *examples])
    return Swept(method, "none", np.array(shares), values)


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
    found = dataclasses.replace(pruned({}), areas=areas, gaps=gaps)
    assert {part.verdict for part in judged(found).parts} == {"open"}
    assert judged(found).verdict == "mixed"


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


def joint(left: list[int], of: int = 8, *, loss: float = -60.0) -> PruneResult:
    """Encode so many cross-attention heads left by layer, at the middle of a joint curve."""
    every = [("cross", layer, head) for layer in range(len(left)) for head in range(of)]
    gone = [place for place in every if place[2] >= left[place[1]]]
    points = [
        Point(share, tuple(heads), Estimate(80.0, 79.0, 81.0), Estimate.around(change, 1.0))
        for share, heads, change in (
            (0.0, [], 0.0),
            (0.5, gone, -10.0),
            (1.0, [*every, ("decoder", 0, 0), ("encoder", 0, 0)], loss),
        )
    ]
    gaps = {"encoder": (-20.0, 1.0), "decoder": (-20.0, 1.0)}
    return dataclasses.replace(pruned(gaps), curves=(Curve("x", "none", tuple(points)),))


SURVIVING = "cross-attention survives in the last decoder layers"


@pytest.mark.parametrize(
    ("left", "of", "verdict"),
    [
        ([0, 1, 2, 6, 8, 8], 8, "holds"),
        ([4, 4, 4, 1, 6, 4], 8, "open"),  # an Arabic-English transliteration model
        ([0, 1], 1, "not measured"),  # one head of two: no choice of them is rare
        ([4], 8, "not measured"),  # one layer
        ([8, 8], 8, "not measured"),  # all are left
    ],
)
def test_survivors_lie_in_the_last_layers_or_not(left, of, verdict):
    assert judge_survivors(Rule("labelled_heads"), joint(left, of))[0].verdict == verdict
    found = decide("labelled_heads", Evidence(prune=joint(left, of), stacks=STACKS))
    assert {part.name: part.verdict for part in found.parts} == {SURVIVING: verdict}
    assert found.verdict == "not measured yet"  # nothing was classified
    assert decide("labelled_heads", Evidence(stacks=("encoder",))).parts == ()


def test_nothing_is_said_of_a_model_that_does_the_task_no_better_without_heads():
    """An untrained translator had the areas of claim 4, at an accuracy of 0.5%."""
    for loss, verdict in ((-60.0, "holds"), (-0.5, "not measured")):
        found = joint([0, 1, 2, 6, 8, 8], loss=loss)
        assert judged(found).verdict == verdict
        assert judge_survivors(Rule("labelled_heads"), found)[0].verdict == verdict
