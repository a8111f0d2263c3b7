"""Verdicts from planted results: each rule can come out every way."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from headscope.errors import InputError
from headscope.measures.accumulator import Array
from headscope.measures.depth import TRENDS, VARIANTS, DepthSums, collapsed_after
from headscope.results import (
    ControlRank,
    ControlStatistics,
    Decomposition,
    DepthResult,
    HeadRank,
    InsightPart,
    KeptRoles,
    LayerControl,
    LayerRank,
    MatrixRank,
    MeanSem,
    NumericalRank,
    Overlap,
    RandomDraw,
    RandomWeights,
    RankResult,
    Sampling,
    SpectrumControl,
    SpectrumHead,
    SpectrumResult,
    Trend,
    ValidationSummary,
    Verdict,
)
from headscope.verdicts.insights import (
    asymmetry,
    collapse,
    labelled_heads,
    low_rank,
    shared_projections,
)
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import Estimate, common, every, mean_estimate
from headscope.verdicts.insights.scoreboard import CLAIMS, judge_of, scoreboard
from headscope.verdicts.insights.thresholds import InsightThresholds

T = InsightThresholds()
VALID = ValidationSummary(passed=True)


def judge_asymmetry(rank: RankResult, thresholds: InsightThresholds) -> Finding:
    return asymmetry.judge(Evidence(rank=rank), thresholds)


def judge_shared(rank: RankResult, thresholds: InsightThresholds) -> Finding:
    return shared_projections.judge(Evidence(rank=rank), thresholds)


def judge_roles(kept: KeptRoles, thresholds: InsightThresholds) -> Finding:
    return labelled_heads.judge(Evidence(kept=kept), thresholds)


def judge_low_rank(spectrum: SpectrumResult, thresholds: InsightThresholds) -> Finding:
    return low_rank.judge(Evidence(spectrum=spectrum), thresholds)


def judge_collapse(depth: DepthResult, thresholds: InsightThresholds) -> Finding:
    return collapse.judge(Evidence(depth=depth), thresholds)


def matrix(dims90: int) -> MatrixRank:
    return MatrixRank((1.0,), NumericalRank(1, 0.1), 1.0, 1.0, {"90": dims90, "95": 1, "99": 1})


def statistics(dims90: float) -> ControlStatistics:
    return ControlStatistics((1.0,), 1.0, 1.0, 1.0, {"90": dims90, "95": 1.0, "99": 1.0}, {}, 1)


def verdicts(found: Finding) -> dict[str, str]:
    return {part.name: part.verdict for part in found.parts}


def rank_result(
    asymmetry: float,
    pattern: float = 1.2,
    heads: int = 26,
    layers: int = 60,
    n_layers: int = 3,
    sem: float | None = 0.01,
) -> RankResult:
    """Two heads in every layer; the control has dims90 of 26 for a head and 140 for a layer."""
    names = ("qk", "ov", "w_q", "w_k")
    same = {name: matrix(heads) for name in names}
    whole = {name: matrix(layers) for name in names}
    alone = {name: statistics(26.0) for name in names}
    together = {name: statistics(140.0) for name in names}
    control = ControlRank((0,), (LayerControl(2, alone, together, 1.41, 1.41, {}),))
    return RankResult(
        heads=tuple(
            HeadRank(
                layer, head, **same, asymmetry=asymmetry, pattern_asymmetry=MeanSem(pattern, sem)
            )
            for layer in range(n_layers)
            for head in range(2)
        ),
        layers=tuple(
            LayerRank(layer, (0, 1), **whole, asymmetry=asymmetry, overlap=Overlap((), (), ()))
            for layer in range(n_layers)
        ),
        controls={"gaussian": control, "fresh": None},
        settings={},
        validation=VALID,
        provenance={},
        text={"lines": 30},
    )


def test_asymmetric_heads_make_a_directed_graph() -> None:
    found = judge_asymmetry(rank_result(1.3), T)
    assert found.verdict == "holds"
    assert found.values["below_gaussian"] == pytest.approx(1 - 1.3 / 1.41)


def test_tied_queries_and_keys_are_symmetric() -> None:
    assert judge_asymmetry(rank_result(0.0), T).verdict == "does not hold"


def test_one_symmetric_head_or_pattern_makes_it_mixed() -> None:
    result = rank_result(1.3)
    tied = dataclasses.replace(result.heads[0], asymmetry=0.0)
    one = dataclasses.replace(result, heads=(tied, *result.heads[1:]))
    assert judge_asymmetry(one, T).verdict == "mixed"
    assert judge_asymmetry(rank_result(1.3, pattern=0.11), T).verdict == "mixed"  # 0.11 - 2 * 0.01
    assert verdicts(judge_asymmetry(rank_result(1.3, pattern=0.11), T))[PATTERNS] == "open"
    assert verdicts(judge_asymmetry(rank_result(1.3, pattern=0.05), T))[PATTERNS] == "does not hold"


PATTERNS = "every head's pattern is asymmetric"


def test_one_line_of_text_leaves_the_patterns_unknown() -> None:
    found = judge_asymmetry(rank_result(1.3, sem=None), T)
    assert found.verdict == "not measured"
    assert verdicts(found)[PATTERNS] == "not measured"
    assert "[no interval]" in found.parts[1].measured
    # Symmetric weights are exact, whatever the patterns.
    assert judge_asymmetry(rank_result(0.0, sem=None), T).verdict == "does not hold"


def test_without_text_the_patterns_are_unknown() -> None:
    result = rank_result(1.3)
    heads = tuple(dataclasses.replace(head, pattern_asymmetry=None) for head in result.heads)
    found = judge_asymmetry(dataclasses.replace(result, heads=heads, text=None), T)
    assert found.verdict == "not measured"


def test_few_lines_have_a_wide_interval() -> None:
    """Two lines: t with one degree of freedom is 12.7, not 1.96."""
    two = dataclasses.replace(rank_result(1.3, pattern=0.2), text={"lines": 2})
    assert judge_asymmetry(rank_result(1.3, pattern=0.2), T).verdict == "holds"
    assert judge_asymmetry(two, T).verdict == "mixed"


def test_symmetric_scores_are_a_part_that_waits() -> None:
    found = judge_asymmetry(rank_result(1.3), T)
    assert found.verdict == "holds"
    assert "symmetric scores move the output more than random changes" in verdicts(found)
    assert (
        verdicts(found)["symmetric scores move the output more than random changes"]
        == "not measured yet"
    )
    assert "where that is measured" in found.rule


def kept(value: float, random: tuple[float, ...], half: float = 0.01, **fields: Any) -> KeptRoles:
    difference = value - fields.get("baseline", 1.0)
    known: dict[str, Any] = {
        "roles": ("positional", "syntactic", "rare"),
        "kept": ((0, 1), (1, 0)),
        "n_heads": 24,
        "classified_on": "a",
        "measured_on": "b",
        "examples": 10,
        "metric": "cosine",
        "higher_is_better": True,
        "baseline": 1.0,
        "value": value,
        "difference_ci": (difference - half, difference + half),
        "random": random,
        "sets": 144,
    }
    return KeptRoles(**{**known, **fields})


def draws(
    value: float, *, as_well: int = 0, of: int = 39, better: float = 0.995
) -> tuple[float, ...]:
    return (value,) * (of - as_well) + (better,) * as_well


@pytest.mark.parametrize(
    ("value", "random", "verdict"),
    [
        (0.99, draws(0.5), "holds"),
        (0.99, draws(0.5, as_well=1), "holds"),  # p = 2 / 40
        (0.99, draws(0.5, as_well=2), "mixed"),  # p = 3 / 40
        (0.99, draws(0.5, as_well=2, better=0.99), "mixed"),  # as well is enough
        (0.99, draws(0.5, as_well=2, better=0.99 - 1e-7), "mixed"),  # but for the last bits
        (0.60, draws(0.5), "mixed"),  # better than random, but too much is lost
        (0.40, draws(0.5), "does not hold"),
        (0.955, draws(0.5), "mixed"),  # the interval reaches beyond 5%
        (0.98, draws(0.99), "does not hold"),  # little is lost, yet random heads do better
        (0.99, (0.99,) * 39, "mixed"),  # heads that do nothing: any will do
        (1.0, (1.0,) * 39, "mixed"),
    ],
)
def test_labelled_heads_against_random_ones(
    value: float, random: tuple[float, ...], verdict: str
) -> None:
    assert judge_roles(kept(value, random), T).verdict == verdict


def test_a_loss_is_better_when_lower() -> None:
    low = kept(2.02, draws(3.0), baseline=2.0, higher_is_better=False)
    high = kept(4.0, draws(3.0), baseline=2.0, higher_is_better=False)
    assert judge_roles(low, T).verdict == "holds"
    assert judge_roles(high, T).verdict == "does not hold"


def test_where_few_sets_have_as_many_heads_per_layer_nothing_is_told() -> None:
    """19 sets: the labelled heads are one of them, so that no p is below 1 / 19."""
    found = judge_roles(kept(0.99, draws(0.5), sets=19), T)
    assert found.verdict == "not measured"
    assert "only 19 sets" in found.parts[0].measured
    assert judge_roles(kept(0.99, draws(0.5), sets=20), T).verdict == "holds"
    assert "of all heads alike" in judge_roles(kept(0.99, draws(0.5), sets=None), T).control


@pytest.mark.parametrize(
    ("random", "said"),
    [
        (draws(0.5), "do better than random ones: 0 of 39 sets do as well."),
        (draws(0.9), "do worse than random ones: 39 of 39 random sets do as well"),
        (draws(0.5, as_well=5), "no better than random ones can: 5 of 39"),
    ],
)
def test_what_labelled_heads_do_beside_random_ones_is_said_plainly(
    random: tuple[float, ...], said: str
) -> None:
    assert said in judge_roles(kept(0.7, random), T).measured


def test_a_single_example_leaves_the_loss_unknown() -> None:
    alone = dataclasses.replace(kept(0.99, draws(0.5)), difference_ci=None, examples=1)
    found = judge_roles(alone, T)
    assert found.verdict == "not measured"
    assert "[no interval]" in found.measured


@pytest.mark.parametrize(("value", "verdict"), [(0.99, "holds"), (0.90, "mixed")])
def test_a_loss_that_all_examples_agree_on_needs_no_interval(value: float, verdict: str) -> None:
    alike = dataclasses.replace(kept(value, draws(0.5)), difference_ci=None)
    assert judge_roles(alike, T).verdict == verdict


def test_without_labelled_heads_there_is_nothing_to_compare() -> None:
    none = dataclasses.replace(kept(1.0, ()), kept=(), value=None, difference_ci=None)
    assert judge_roles(none, T).verdict == "not applicable"


@pytest.mark.parametrize(
    ("heads", "layers", "verdict"),
    [(26, 60, "holds"), (26, 138, "does not hold"), (10, 60, "mixed")],
)
def test_shared_projections(heads: int, layers: int, verdict: str) -> None:
    assert judge_shared(rank_result(1.3, heads=heads, layers=layers), T).verdict == verdict


def test_one_layer_has_no_interval_over_layers() -> None:
    found = judge_shared(rank_result(1.3, n_layers=1), T)
    assert found.verdict == "not measured"
    assert "layers at 0.43 [no interval] of it" in found.control
    assert found.values["gaussian"]["layer_ratio"]["low"] is None


def spectrum_result(
    shares: list[float], half: float | None = 0.01, random: RandomWeights | None = None
) -> SpectrumResult:
    flat = SpectrumControl(0.25, 0.25, (0.25,), (0.25,))
    return SpectrumResult(
        schema=1,
        provenance={},
        validation=VALID,
        length=128,
        sequences=10,
        k=32,
        sampling=Sampling("fixed", 10, 10, None, None, half, 8),
        verdict=Verdict(0.9, 0.5, (), (), ()),
        heads=tuple(
            SpectrumHead(
                0, i, MeanSem(s, 0.01), MeanSem(s, 0.01), half, (s,), (s,), (0.01,), -1, 0.9
            )
            for i, s in enumerate(shares)
        ),
        controls={"random-logits": flat, "identity": flat},
        random_weights=random,
    )


def random_weights(share: float, half: float | None = 0.01) -> RandomWeights:
    draw = RandomDraw(0, 2, share, share, share, 3 if share > 0.9 else 0)
    return RandomWeights(
        (draw,) * 5, 3, MeanSem(share, 0.01), MeanSem(share, 0.01), half, (share,), (share,)
    )


def test_low_rank_names_positional_heads() -> None:
    measured = spectrum_result([0.95, 0.95, 0.3])
    named = dataclasses.replace(measured.heads[2], role="positional")
    by_spectrum = dataclasses.replace(measured, heads=(*measured.heads[:2], named))
    classified: Any = SimpleNamespace(heads=[SimpleNamespace(name="L0H2", primary="positional")])
    for evidence in (
        Evidence(spectrum=measured, classify=classified),
        Evidence(spectrum=by_spectrum),
    ):
        found = low_rank.judge(evidence, T)
        assert found.verdict == "holds"
        assert found.values["positional_exceptions"] == ["L0H2"]
        assert "L0H2" in found.measured


def test_low_rank_needs_whole_intervals() -> None:
    assert judge_low_rank(spectrum_result([0.3, 0.3, 0.95]), T).verdict == "does not hold"
    assert judge_low_rank(spectrum_result([0.905] * 3, half=0.02), T).verdict == "mixed"


def test_one_sequence_says_nothing_of_low_rank() -> None:
    for shares in ([0.99] * 3, [0.3] * 3):
        assert judge_low_rank(spectrum_result(shares, half=None), T).verdict == "not measured"


def test_most_may_be_another_share() -> None:
    """With 80% wanted, 40% at or below it are enough against the claim; 10% are not."""
    wanted = InsightThresholds(most=0.8)
    for low, verdict in ((6, "does not hold"), (9, "holds"), (8, "does not hold")):
        shares = [0.95] * low + [0.3] * (10 - low)
        assert judge_low_rank(spectrum_result(shares), wanted).verdict == verdict


@pytest.mark.parametrize(
    ("share", "half", "said"),
    [
        (0.97, 0.01, "low rank is no sign of learning"),
        (0.80, 0.01, "lower in rank than an untrained model"),
        (0.95, 0.01, "cannot be told apart"),
        (0.97, None, "nothing about learning"),
    ],
)
def test_random_weights_stand_in_the_verdict(share: float, half: float | None, said: str) -> None:
    found = judge_low_rank(spectrum_result([0.95] * 3, random=random_weights(share, half)), T)
    assert found.verdict == "holds"
    assert f"Random weights: mean share {share:.2f}" in found.control
    assert said in found.control
    assert found.values["random_weights"] == share


def test_without_random_weights_nothing_is_said_of_learning() -> None:
    found = judge_low_rank(spectrum_result([0.95] * 3), T)
    assert "Random weights were not measured" in found.control


def depth_result(
    alone: list[float],
    skip: float | list[float] = 0.8,
    bare: list[float] | None = None,
    ffn: list[float] | None = None,
    *,
    windows: int = 16,
    spread: float = 0.01,
    floor: float = 1e-15,
) -> DepthResult:
    """Curves of windows that scatter about given ones, summed as depth sums them."""
    n = len(alone)
    curves: dict[str, list[float]] = {
        "attention": alone,
        "attention+ffn": ffn or [min(1.0, 2 * value) for value in alone],
        "attention+skip": skip if isinstance(skip, list) else [1.0, *[skip] * (n - 1)],
        "attention-without-layernorm": bare or alone,
    }
    noise = 1 + spread * np.random.default_rng(0).standard_normal((len(VARIANTS), n, windows))
    noise[:, 0] = 1.0
    means = np.array([curves.get(v.name, [1.0, *[0.9] * (n - 1)]) for v in VARIANTS])
    sums = DepthSums(n - 1, floor)
    sums.update(means[..., None] * noise)
    variants = {v.name: tuple(row.tolist()) for v, row in zip(VARIANTS, means, strict=True)}
    without = variants.pop("attention-without-layernorm")
    zero = (0.0,) * n
    return DepthResult(
        variants=variants,
        std=dict.fromkeys(variants, zero),
        trends=_trends(sums),
        attention_without_layernorm=without,
        attention_without_layernorm_std=zero,
        protected=(),
        collapsed_after={"attention": collapsed_after(np.array(alone))},
        schema=1,
        provenance={},
        validation=VALID,
        decomposition=Decomposition(0.0, 1e-4),
        layer_norm="post",
        length=128,
        sequences=windows,
        available=windows,
        floor=floor,
    )


def _trends(sums: DepthSums) -> dict[str, Trend]:
    def curve(values: Array) -> tuple[float | None, ...]:
        return tuple(float(x) if np.isfinite(x) else None for x in values)

    m = sums.trend_moments()
    return {
        name: Trend(curve(m.mean[i]), curve(m.low[i]), curve(m.high[i]), tuple(m.windows[i]))
        for i, name in enumerate(TRENDS)
    }


FALLING = [1, 0.1, 0.01, 0.001]
STEPS, SKIP = "at least as fast as exponentially", "the skip connection prevents it"
FFN, LAYERNORM = "the feed-forward network slows it", "LayerNorm plays no role"


def test_a_collapse_that_the_skip_prevents() -> None:
    found = judge_collapse(depth_result(FALLING), T)
    assert set(verdicts(found).values()) == {"holds"}
    assert found.verdict == "holds"


def test_doubly_exponential_holds_and_a_fall_that_slows_down_does_not() -> None:
    """The theory's own curve is far from log-linear; one that levels off is no exponential."""
    doubly = judge_collapse(depth_result([1, 0.3, 0.02, 1e-4, 1e-9]), T)
    assert verdicts(doubly)[STEPS] == "holds"
    levels = judge_collapse(depth_result([1, 0.01, 0.0095, 0.009, 0.0085]), T)
    assert verdicts(levels)["attention alone collapses"] == "holds"
    assert verdicts(levels)[STEPS] == "does not hold"
    assert levels.verdict == "mixed"


def test_rounding_is_no_step() -> None:
    found = judge_collapse(depth_result([1, 0.1, 1e-3, 1e-16, 1e-16, 1e-16]), T)
    assert verdicts(found)[STEPS] == "holds"
    fast = judge_collapse(depth_result([1, 1e-3, 1e-16, 1e-16]), T)
    assert verdicts(fast)[STEPS] == "not measured"
    assert fast.verdict == "not measured"


def test_no_collapse_refutes_the_claim_whatever_else() -> None:
    assert judge_collapse(depth_result([1, 0.9, 0.8, 0.7]), T).verdict == "does not hold"


def test_an_interval_about_the_limit_leaves_the_fall_open() -> None:
    found = judge_collapse(depth_result([1, 0.2, 0.05, 0.01], spread=0.3), T)
    assert verdicts(found)["attention alone collapses"] == "open"
    assert found.verdict == "mixed"


def test_a_skip_that_collapses_too() -> None:
    found = judge_collapse(depth_result(FALLING, 0.001), T)
    assert verdicts(found)[SKIP] == "does not hold"
    assert found.verdict == "mixed"
    dip = judge_collapse(depth_result(FALLING, [1, 0.8, 0.001, 0.8]), T)  # at one layer only
    assert verdicts(dip)[SKIP] == "does not hold"


def test_layernorm_that_matters_or_overflows() -> None:
    found = judge_collapse(depth_result(FALLING, bare=[1, 0.6, 0.3, 0.2]), T)
    assert verdicts(found)[LAYERNORM] == "does not hold"
    assert "0.500 [" in found.parts[-1].measured
    assert found.verdict == "mixed"
    over = judge_collapse(depth_result(FALLING, bare=[1, 0.1, float("nan"), float("nan")]), T)
    assert verdicts(over)[LAYERNORM] == "not measured"
    assert over.verdict == "not measured"


@pytest.mark.parametrize(
    ("ffn", "verdict"),
    [
        ([1, 0.05, 0.005, 0.0005], "does not hold"),
        ([1, 0.2, 0.005, 0.002], "mixed"),
        ([1, 0.2, 0.0101, 0.002], "open"),
        ([1, 0.2, 0.02, 0.002], "holds"),
    ],
)
def test_feed_forward_slows_it_or_not(ffn: list[float], verdict: str) -> None:
    found = judge_collapse(depth_result(FALLING, ffn=ffn), T)
    assert verdicts(found)[FFN] == verdict
    assert found.verdict == ("holds" if verdict == "holds" else "mixed")


def test_one_layer_or_one_window_decides_nothing() -> None:
    assert judge_collapse(depth_result([1, 0.001]), T).verdict == "not measured"
    assert judge_collapse(depth_result(FALLING, windows=1), T).verdict == "not measured"
    assert judge_collapse(depth_result([1, 0.9, 0.8, 0.7], windows=1), T).verdict == "not measured"


# --- the parts ----------------------------------------------------------------------------------


def test_one_value_has_no_interval() -> None:
    one = mean_estimate([0.5])
    assert one is not None
    assert (one.low, one.high) == (None, None)
    for outcome in (one.above(0.1), one.below(0.9), one.within(0.1, 0.9)):
        assert outcome == "not measured"
    assert mean_estimate([]) is None
    values = [0.1, 0.4, 0.2, 0.7]
    found = mean_estimate(values)
    assert found is not None
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_sides_of_a_limit() -> None:
    found = Estimate.around(0.5, 0.1)
    assert [found.above(x) for x in (0.3, 0.5, 0.6)] == ["holds", "open", "does not hold"]
    assert [found.below(x) for x in (0.7, 0.5, 0.4)] == ["holds", "open", "does not hold"]
    sides = [found.within(*x) for x in ((0.3, 0.7), (0.5, 0.7), (0.7, 0.9))]
    assert sides == ["holds", "open", "does not hold"]
    assert every(["holds", "not measured", "does not hold"]) == "does not hold"
    assert every(["holds", "not measured", "open"]) == "not measured"
    assert every([]) == common([]) == "not measured"
    assert common(["holds", "does not hold"]) == "mixed"
    assert common(["holds", "open"]) == "open"


@pytest.mark.parametrize(
    ("parts", "verdict"),
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
def test_parts_make_a_verdict(parts: tuple[str, ...], verdict: str) -> None:
    made = [InsightPart(str(i), part, "") for i, part in enumerate(parts)]
    assert Finding.concluded(made, "", "", "", {}).verdict == verdict
    refuted = Finding.concluded(made, "", "", "", {}, refuted=True)
    assert refuted.verdict == "does not hold"


def test_every_claim_is_listed_once_whatever_was_measured() -> None:
    found = scoreboard(T, Evidence())
    assert [insight.number for insight in found] == list(range(11))
    assert [insight.claim for insight in found] == [claim.text for claim in CLAIMS]
    assert {insight.verdict for insight in found} == {"not measured yet"}


def test_every_claim_has_a_judge() -> None:
    for claim in CLAIMS:
        assert callable(judge_of(claim.judge)), claim.number


def test_thresholds_are_checked() -> None:
    assert InsightThresholds.parse({"most": "0.6"}).most == 0.6
    with pytest.raises(InputError, match="did you mean 'most'"):
        InsightThresholds.parse({"mostt": 0.6})
    with pytest.raises(InputError, match=r"low_rank is 1\.5"):
        InsightThresholds.parse({"low_rank": 1.5})
