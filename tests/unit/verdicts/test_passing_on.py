"""The verdict of claim 1 from planted results: every part can come out either way."""

from __future__ import annotations

import dataclasses

import pytest

from headscope.results import (
    ChosenTrees,
    ControlStatistics,
    Estimated,
    FlowControl,
    FlowResult,
    FlowSentences,
    Graph,
    HeadFlow,
    HeadGraph,
    MatrixRank,
    NumericalRank,
    Recovery,
    Trees,
    ValidationSummary,
    ValueControl,
)
from headscope.verdicts.insights import passing_on
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.thresholds import InsightThresholds

T = InsightThresholds()
SURE = Estimated.around(0.5, 0.01)


def width(effective: float | None, d_head: int = 10) -> MatrixRank:
    dims = dict.fromkeys(("90", "95", "99"), None if effective is None else d_head)
    return MatrixRank((1.0,) * d_head, NumericalRank(d_head, 0.1), effective, effective, dims)


def recovery(value: float | None = 0.6, half: float | None = 0.01, **others: float) -> Recovery:
    known = {"whole": 0.4, "directions": 0.5, "token": 0.1, "other": 0.0, **others}
    found = {name: Estimated.around(number, half) for name, number in known.items()}
    return Recovery(value=Estimated.around(value, half), **found)


def chosen(gap: Estimated) -> ChosenTrees:
    return ChosenTrees((("L0H0", "dep->head"),), SURE, SURE, gap, SURE)


def flow_result(
    widths: list[float | None],
    gain: Estimated | None,
    *,
    over_trees: Estimated | None = None,
    over_directions: Estimated = SURE,
    own: Estimated | None = None,
    over_gaussian: Estimated = SURE,
    token: Estimated = SURE,
    not_measured: dict[str, str] | None = None,
) -> FlowResult:
    """Make a result of as many heads as widths, whose value R^2 is ``gain`` above the control's."""
    known = recovery()
    known = known if own is None else dataclasses.replace(known, value=own)
    statistics = ControlStatistics((1.0,), 10, 5.0, 9.8, {"90": 8.0}, {}, 5)
    control = trees = None
    if gain is not None:
        gains = dataclasses.replace(recovery(), value=gain)
        control = FlowControl(0, recovery(0.1), gains, SURE, None, None)
    if over_trees is not None:
        pair = chosen(over_trees), chosen(over_trees)
        names = dict.fromkeys(("next", "random"), SURE)
        trees = Trees(*pair, names, names, "+1", "next")
    graph = HeadGraph(SURE, "[CLS]", SURE, 0.1)
    return FlowResult(
        schema=2,
        provenance={},
        validation=ValidationSummary(passed=True),
        sentences=FlowSentences("a", 10, 10, 0, 0),
        heads=tuple(
            HeadFlow(0, i, 10, width(w), width(w), recovery(), graph, None)
            for i, w in enumerate(widths)
        ),
        spectra={"gaussian": (ValueControl(10, statistics, statistics),)},
        recovery=known,
        over_directions=over_directions,
        over_gaussian=over_gaussian,
        token_over_directions=token,
        not_measured=not_measured or {},
        graph=Graph(SURE, 0.2, ()),
        trees=trees,
        control=control,
    )


def judged(*args: object, **fields: object) -> Finding:
    result = flow_result(*args, **fields)  # type: ignore[arg-type]
    return passing_on.judge(Evidence(flow=result), T)


ABOVE, BELOW, AROUND = (
    Estimated.around(0.3, 0.1),
    Estimated.around(-0.3, 0.1),
    Estimated.around(0.05, 0.1),
)


@pytest.mark.parametrize(
    ("widths", "gain", "verdict"),
    [
        ([9.0, 9.5, 8.1], ABOVE, "holds"),
        ([9.0, 8.1, 2.0], ABOVE, "holds"),  # two of three heads are wide
        ([9.0, 8.0, 2.0], ABOVE, "mixed"),  # a width of exactly 0.8 is not above it
        ([9.0, 8.1, 2.0, 2.0], ABOVE, "mixed"),  # half of the heads are not most
        ([9.0, 9.0, 9.0], AROUND, "mixed"),
        ([9.0, 9.0, 9.0], BELOW, "mixed"),
        ([2.0, 3.0, 9.0], BELOW, "mixed"),
        ([9.0, 9.0, 9.0], Estimated.around(0.3, None), "not measured"),
        ([9.0, 9.0, 9.0], Estimated(None), "not measured"),
        ([9.0, 9.0, 9.0], None, "not measured"),  # no random weights
        ([9.0, None, None], ABOVE, "holds"),  # heads whose W_V is zero do not count
        ([None], ABOVE, "not applicable"),
    ],
)
def test_width_and_the_top_word_decide(
    widths: list[float | None], gain: Estimated | None, verdict: str
) -> None:
    assert judged(widths, gain).verdict == verdict


NARROW = [2.0, 3.0]


@pytest.mark.parametrize(
    ("widths", "gain", "own", "over_gaussian", "token", "verdict"),
    [
        ([9.0], ABOVE, Estimated.around(0.52, 0.01), ABOVE, ABOVE, "holds"),
        ([9.0], ABOVE, Estimated.around(0.505, 0.01), ABOVE, ABOVE, "mixed"),
        ([9.0], ABOVE, Estimated.around(0.45, 0.01), ABOVE, ABOVE, "mixed"),
        ([9.0], ABOVE, Estimated.around(0.9, 0.01), AROUND, ABOVE, "mixed"),
        ([9.0], ABOVE, Estimated.around(0.9, 0.01), ABOVE, BELOW, "mixed"),
        (NARROW, BELOW, Estimated.around(0.1, 0.01), BELOW, BELOW, "does not hold"),
        ([9.0], ABOVE, Estimated(None), ABOVE, ABOVE, "not measured"),
        ([9.0], ABOVE, Estimated.around(0.9, 0.01), Estimated(None), ABOVE, "not measured"),
        # Results of older versions hold neither of the two.
        ([9.0], ABOVE, None, Estimated(None), Estimated(None), "not measured"),
        # Narrow, and no better than a Gaussian W_V: mixed at most, however the rest comes out
        (NARROW, ABOVE, Estimated(None), BELOW, ABOVE, "mixed"),
    ],
)
def test_all_five_parts_decide(
    widths: list[float | None],
    gain: Estimated,
    own: Estimated | None,
    over_gaussian: Estimated,
    token: Estimated,
    verdict: str,
) -> None:
    found = judged(widths, gain, own=own, over_gaussian=over_gaussian, token=token)
    assert found.verdict == verdict
    assert len([p for p in found.parts if "beside" not in p.name]) == 5


def test_why_a_number_is_not_measured_is_said() -> None:
    found = judged([9.0], ABOVE, own=Estimated(None), not_measured={"value": "too short"})
    assert found.verdict == "not measured"
    assert "not measured: too short" in found.parts[4].measured


def test_thresholds_move_the_verdict() -> None:
    result = flow_result([9.0, 8.5], ABOVE)
    strict = InsightThresholds(value_width=0.95)
    assert passing_on.judge(Evidence(flow=result), strict).verdict == "mixed"
    assert passing_on.judge(Evidence(flow=result), InsightThresholds(most=0.99)).verdict == "holds"


@pytest.mark.parametrize(("gap", "part"), [(ABOVE, "holds"), (BELOW, "does not hold")])
def test_what_stands_beside_does_not_decide(gap: Estimated, part: str) -> None:
    found = judged([9.0], ABOVE, over_trees=gap, over_directions=gap)
    assert found.verdict == "holds"
    beside = {p.name: p.verdict for p in found.parts if p.name.startswith("beside the verdict")}
    assert len(beside) == 2
    assert set(beside.values()) == {part}


def test_controls_are_said() -> None:
    found = judged([9.0], ABOVE)
    assert "Random weights 10% of the word" in found.control
    assert "d_head random directions 50%" in found.control
    assert "Gaussian W_V use 0.98" in found.control
    assert "Random weights" not in judged([9.0], None).control


def test_without_the_section_nothing_is_measured() -> None:
    assert passing_on.judge(Evidence(), T).verdict == "not measured yet"
