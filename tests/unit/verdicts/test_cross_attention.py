"""Claim 4 from planted areas: it comes out every way, on both sides of its rule."""

from __future__ import annotations

import pytest

from headscope.results import PruneResult, ValidationSummary
from headscope.results.prune import Area, AreaGap, Baseline, DataInfo
from headscope.verdicts.insights.cross_attention import judge
from headscope.verdicts.insights.finding import Evidence
from headscope.verdicts.insights.thresholds import InsightThresholds

STACKS = ("encoder", "decoder", "cross")
#: Middle and half-width of each stack's area.
Areas = dict[str, tuple[float, float]]


def pruned(areas: Areas, *, higher: bool = True, methods: tuple[str, ...] = ("random", "x")):
    made = tuple(
        Area(stack, method, "none", middle, (middle - half, middle + half))
        for method in methods
        for stack, (middle, half) in areas.items()
    )
    return PruneResult(
        schema=2,
        provenance={},
        validation=ValidationSummary(passed=True),
        task="seq2seq",
        metric="token_accuracy",
        higher_is_better=higher,
        baseline=Baseline(80.0, (79.0, 81.0), {}),
        data=DataInfo("pairs.tsv", "0", "seq2seq", 600, 0),
        calibration=None,
        n_heads=144,
        shared_layers=False,
        curves=(),
        stack="all",
        areas=made,
        gaps=(AreaGap("cross", "encoder", "x", "none", -9.0, (-10.0, -8.0)),),
    )


@pytest.mark.parametrize(
    ("areas", "verdict"),
    [
        ({"encoder": (70.0, 1.0), "decoder": (60.0, 1.0), "cross": (50.0, 1.0)}, "holds"),
        ({"encoder": (70.0, 1.0), "decoder": (52.1, 1.0), "cross": (50.0, 1.0)}, "holds"),
        ({"encoder": (70.0, 1.0), "decoder": (51.9, 1.0), "cross": (50.0, 1.0)}, "mixed"),
        ({"encoder": (70.0, 1.0), "decoder": (40.0, 1.0), "cross": (50.0, 1.0)}, "mixed"),
        ({"encoder": (40.0, 1.0), "decoder": (30.0, 1.0), "cross": (50.0, 1.0)}, "does not hold"),
    ],
)
def test_intervals_decide(areas: Areas, verdict: str) -> None:
    found = judge(Evidence(prune=pruned(areas), stacks=STACKS), InsightThresholds())
    assert found.verdict == verdict
    assert "x" in found.measured
    assert "Random heads" in found.control
    assert found.values["gaps"] == [
        {"stack": "cross", "other": "encoder", "difference": -9.0, "ci": [-10.0, -8.0]}
    ]


def test_of_a_loss_the_larger_area_is_the_worse() -> None:
    areas = {"encoder": (1.0, 0.1), "decoder": (2.0, 0.1), "cross": (3.0, 0.1)}
    evidence = Evidence(prune=pruned(areas, higher=False), stacks=STACKS)
    assert judge(evidence, InsightThresholds()).verdict == "holds"


def test_without_the_curves_nothing_is_decided() -> None:
    known = {"encoder": (70.0, 1.0), "decoder": (60.0, 1.0)}
    for prune in (
        None,
        pruned({}),
        pruned(known),
        pruned({**known, "cross": (1.0, 0.1)}, methods=("random",)),
    ):
        found = judge(Evidence(prune=prune, stacks=STACKS), InsightThresholds())
        assert found.verdict == "not measured yet"
    assert judge(Evidence(), InsightThresholds()).verdict == "not measured yet"
    assert judge(Evidence(stacks=("encoder",)), InsightThresholds()).verdict == "not applicable"
