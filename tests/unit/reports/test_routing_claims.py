"""Claims 1 and 6: every way that they can come out, from planted results and from a model."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from headscope.analyses.flow.result import (
    ChosenTrees,
    FlowControl,
    FlowResult,
    FlowSentences,
    Graph,
    HeadFlow,
    HeadGraph,
    Recovery,
    Trees,
    ValueControl,
)
from headscope.models.certificate.validation import ValidationSummary
from headscope.reports.claims.rule import Evidence, InsightThresholds
from headscope.reports.claims.run import decide
from headscope.reports.result import Insight
from headscope.stats.estimate import Estimate
from headscope.stats.ranks import ControlStatistics, MatrixRank, NumericalRank

UNKNOWN = Estimate(None)
SURE = Estimate.around(0.5, 0.01)


def width(effective: float | None, d_head: int = 10) -> MatrixRank:
    dims = dict.fromkeys(("90", "95", "99"), None if effective is None else d_head)
    return MatrixRank((1.0,) * d_head, NumericalRank(d_head, 0.1), effective, effective, dims)


def recovery(value: float = 0.6) -> Recovery:
    known = {"whole": 0.4, "directions": 0.5, "token": 0.1, "other": 0.0, "value": value}
    return Recovery(**{name: Estimate.around(number, 0.01) for name, number in known.items()})


def flow_result(
    widths: list[float | None],
    gain: Estimate | None,
    *,
    over_trees: Estimate | None = None,
    over_directions: Estimate = SURE,
    own: Estimate | None = None,
    over_gaussian: Estimate = SURE,
    token: Estimate = SURE,
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
        pair = ChosenTrees((("L0H0", "dep->head"),), SURE, SURE, over_trees, SURE)
        names = dict.fromkeys(("next", "random"), SURE)
        trees = Trees(pair, pair, names, names, "+1", "next")
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


def routing(*args: object, **fields: object) -> Insight:
    result = flow_result(*args, **fields)  # type: ignore[arg-type]
    return decide("routing", Evidence(flow=result))


ABOVE, BELOW, AROUND = (Estimate.around(value, 0.1) for value in (0.3, -0.3, 0.05))


@pytest.mark.parametrize(
    ("widths", "gain", "verdict"),
    [
        ([9.0, 9.5, 8.1], ABOVE, "holds"),
        ([9.0, 8.1, 2.0], ABOVE, "holds"),  # two of three heads are wide
        ([9.0, 8.0, 2.0], ABOVE, "mixed"),  # a width of exactly 0.8 is not above it
        ([9.0, 9.0, 9.0], Estimate.around(0.3, None), "not measured"),
        ([9.0, 9.0, 9.0], None, "not measured"),  # no random weights
        ([9.0, None, None], ABOVE, "holds"),  # heads whose W_V is zero do not count
        ([None], ABOVE, "not applicable"),
    ],
)
def test_width_and_the_top_word_decide(widths, gain, verdict):
    assert routing(widths, gain).verdict == verdict


NARROW = [2.0, 3.0]


def own(value: float) -> Estimate:
    return Estimate.around(value, 0.01)


#: (widths, gain), then the model's own patterns, over a Gaussian W_V, and tokens over directions.
@pytest.mark.parametrize(
    ("known", "others", "verdict"),
    [
        (([9.0], ABOVE), (own(0.52), ABOVE, ABOVE), "holds"),
        (([9.0], ABOVE), (own(0.505), ABOVE, ABOVE), "mixed"),
        (([9.0], ABOVE), (own(0.9), AROUND, ABOVE), "mixed"),
        ((NARROW, BELOW), (own(0.1), BELOW, BELOW), "does not hold"),
        (([9.0], ABOVE), (UNKNOWN, ABOVE, ABOVE), "not measured"),
        (([9.0], ABOVE), (own(0.9), UNKNOWN, ABOVE), "not measured"),
        # Narrow, and no better than a Gaussian W_V: mixed at most, however the rest comes out
        ((NARROW, ABOVE), (UNKNOWN, BELOW, ABOVE), "mixed"),
    ],
)
def test_all_five_parts_decide(known, others, verdict):
    names = ("own", "over_gaussian", "token")
    found = routing(*known, **dict(zip(names, others, strict=True)))
    assert found.verdict == verdict
    assert len([p for p in found.parts if "not counted" not in p.name]) == 5


def test_what_stands_beside_does_not_decide_and_controls_are_said():
    for gap, part in ((ABOVE, "holds"), (BELOW, "does not hold")):
        found = routing([9.0], ABOVE, over_trees=gap, over_directions=gap)
        assert found.verdict == "holds"
        beside = [p.verdict for p in found.parts if p.name.startswith("not counted")]
        assert beside == [part] * 2
    found = routing([9.0], ABOVE)
    assert "Random weights 10% of the word" in found.control
    assert "d_head random directions 50%" in found.control
    assert "Gaussian W_V use 0.98" in found.control
    assert "Random weights" not in routing([9.0], None).control
    short = routing([9.0], ABOVE, own=UNKNOWN, not_measured={"value": "too short"})
    assert short.verdict == "not measured"
    assert "not measured: too short" in short.parts[4].measured


# --- claim 6 ---

T = InsightThresholds()
PREDICTS = "key coherence predicts the error within layers"
WORSE = "the linear sum reads back worse than the head's own softmax"
MORE = "by more than with random weights"
UP, DOWN, BOTH = Estimate(0.4, 0.2, 0.6), Estimate(-0.4, -0.6, -0.2), Estimate(0.1, -0.1, 0.3)


def correlation(found: Estimate, number: str = "coherence") -> SimpleNamespace:
    known = {"number": number, "form": "linear", "fit": "scaled", "given": "", "p": 0.01}
    return SimpleNamespace(**known, heads=72, layers=6, spearman=found, pearson=found)


def linear(spearman: Estimate, own: Estimate, more: Estimate | None) -> Any:
    """Return what the judge looks at of a result."""
    form = SimpleNamespace(
        mean=SimpleNamespace(form="linear", scaled=Estimate(1.01)),
        whole_scaled=SimpleNamespace(cosine=Estimate(0.76)),
    )
    stored = {"linear": 0.3, "softmax": 0.1, "softmax_own": 0.1, "difference": 0.2}
    control = None
    if more is not None:
        random = SimpleNamespace(difference=Estimate(0.25))
        control = SimpleNamespace(
            over_random=more, stored=random, correlations=(correlation(BOTH),)
        )
    return SimpleNamespace(
        correlations=(
            correlation(spearman),
            correlation(BOTH, "coherence_centred"),
            correlation(BOTH, "entropy"),
        ),
        stored=SimpleNamespace(
            **{name: Estimate(value) for name, value in stored.items()}, difference_own=own
        ),
        form=lambda name: form,
        forms=(form,),
        control=control,
    )


def interference(
    spearman: Estimate, own: Estimate, more: Estimate | None, t: InsightThresholds = T
) -> Insight:
    return decide("interference", Evidence(linear=linear(spearman, own, more)), t)


def parts(found: Insight) -> dict[str, str]:
    return {part.name: part.verdict for part in found.parts}


@pytest.mark.parametrize(
    ("spearman", "own", "more", "verdict"),
    [
        (UP, UP, UP, "holds"),
        (DOWN, DOWN, DOWN, "does not hold"),
        (UP, UP, DOWN, "mixed"),
        (Estimate(None), UP, UP, "not measured"),
        (UP, UP, None, "not measured"),  # no random weights
    ],
)
def test_all_three_parts_decide(spearman, own, more, verdict):
    assert interference(spearman, own, more).verdict == verdict


def test_a_part_holds_with_its_whole_interval():
    for low, expected in ((0.001, "holds"), (0.0, "open"), (-0.001, "open")):
        found = interference(*[Estimate(0.2, low, 0.4)] * 3)
        assert parts(found) == dict.fromkeys((PREDICTS, WORSE, MORE), expected)
    for high, expected in ((0.0, "does not hold"), (0.001, "open")):
        assert parts(interference(Estimate(-0.2, -0.4, high), UP, UP))[PREDICTS] == expected
    strict = InsightThresholds(interference=0.25)
    assert set(parts(interference(UP, UP, UP, strict)).values()) == {"open"}
