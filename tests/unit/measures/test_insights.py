"""Verdicts from planted results: each rule can come out every way."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from headscope.errors import InputError
from headscope.measures.insights.asymmetry import judge_asymmetry
from headscope.measures.insights.collapse import judge_collapse, log_linear
from headscope.measures.insights.low_rank import judge_low_rank
from headscope.measures.insights.roles import judge_roles
from headscope.measures.insights.scoreboard import scoreboard
from headscope.measures.insights.shared import judge_shared
from headscope.measures.insights.thresholds import InsightThresholds
from headscope.results import (
    ControlRank,
    ControlStatistics,
    Decomposition,
    DepthResult,
    HeadRank,
    KeptRoles,
    LayerControl,
    LayerRank,
    MatrixRank,
    MeanSem,
    NumericalRank,
    Overlap,
    RankResult,
    Sampling,
    SpectrumControl,
    SpectrumHead,
    SpectrumResult,
    ValidationSummary,
    Verdict,
)

T = InsightThresholds()
VALID = ValidationSummary(passed=True)


def matrix(dims90: int) -> MatrixRank:
    return MatrixRank((1.0,), NumericalRank(1, 0.1), 1.0, 1.0, {"90": dims90, "95": 1, "99": 1})


def statistics(dims90: float) -> ControlStatistics:
    return ControlStatistics((1.0,), 1.0, 1.0, 1.0, {"90": dims90, "95": 1.0, "99": 1.0}, {}, 1)


def rank_result(
    asymmetry: float, pattern: float = 1.2, heads: int = 26, layers: int = 60, n_layers: int = 3
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
            HeadRank(layer, head, **same, asymmetry=asymmetry,
                     pattern_asymmetry=MeanSem(pattern, 0.01))
            for layer in range(n_layers) for head in range(2)
        ),
        layers=tuple(
            LayerRank(layer, (0, 1), **whole, asymmetry=asymmetry, overlap=Overlap((), (), ()))
            for layer in range(n_layers)
        ),
        controls={"gaussian": control, "fresh": None},
        settings={}, validation=VALID, provenance={},
    )  # fmt: skip


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


def kept(value: float, random: tuple[float, ...], half: float = 0.01, **fields: Any) -> KeptRoles:
    difference = value - fields.get("baseline", 1.0)
    known: dict[str, Any] = {
        "roles": ("positional", "syntactic", "rare"), "kept": ((0, 1), (1, 0)), "n_heads": 6,
        "classified_on": "a", "measured_on": "b", "examples": 10, "metric": "cosine",
        "higher_is_better": True, "baseline": 1.0, "value": value,
        "difference_ci": (difference - half, difference + half), "random": random,
    }  # fmt: skip
    return KeptRoles(**{**known, **fields})


@pytest.mark.parametrize(
    ("value", "random", "verdict"),
    [
        (0.99, (0.5,) * 20, "holds"),
        (0.60, (0.5,) * 20, "mixed"),  # better than random, but too much is lost
        (0.99, (0.995,) * 20, "mixed"),
        (0.40, (0.5,) * 20, "does not hold"),
        (0.955, (0.5,) * 20, "mixed"),  # the interval reaches beyond 5%
    ],
)
def test_labelled_heads_against_random_ones(
    value: float, random: tuple[float, ...], verdict: str
) -> None:
    assert judge_roles(kept(value, random), T).verdict == verdict


def test_a_loss_is_better_when_lower() -> None:
    low = kept(2.02, (3.0,) * 20, baseline=2.0, higher_is_better=False)
    high = kept(4.0, (3.0,) * 20, baseline=2.0, higher_is_better=False)
    assert judge_roles(low, T).verdict == "holds"
    assert judge_roles(high, T).verdict == "does not hold"


def test_without_labelled_heads_there_is_nothing_to_compare() -> None:
    none = dataclasses.replace(kept(1.0, ()), kept=(), value=None, difference_ci=None)
    assert judge_roles(none, T).verdict == "not applicable"


@pytest.mark.parametrize(
    ("heads", "layers", "verdict"),
    [(26, 60, "holds"), (26, 138, "does not hold"), (10, 60, "mixed")],
)
def test_shared_projections(heads: int, layers: int, verdict: str) -> None:
    assert judge_shared(rank_result(1.3, heads=heads, layers=layers), T).verdict == verdict


def spectrum_result(shares: list[float], half: float = 0.01) -> SpectrumResult:
    flat = SpectrumControl(0.25, 0.25, (0.25,), (0.25,))
    return SpectrumResult(
        schema=1, provenance={}, validation=VALID, length=128, sequences=10, k=32,
        sampling=Sampling("fixed", 10, 10, None, None, half, 8),
        verdict=Verdict(0.9, 0.5, (), (), ()),
        heads=tuple(
            SpectrumHead(0, i, MeanSem(s, 0.01), MeanSem(s, 0.01), half, (s,), (s,), (0.01,), -1,
                         0.9)
            for i, s in enumerate(shares)
        ),
        controls={"random-logits": flat, "identity": flat},
    )  # fmt: skip


def test_low_rank_names_positional_heads() -> None:
    found = judge_low_rank(spectrum_result([0.95, 0.95, 0.3]), T, {(0, 2): "positional"})
    assert found.verdict == "holds"
    assert found.values["positional_exceptions"] == ["L0H2"]
    assert "L0H2" in found.measured


def test_low_rank_needs_whole_intervals() -> None:
    assert judge_low_rank(spectrum_result([0.3, 0.3, 0.95]), T).verdict == "does not hold"
    assert judge_low_rank(spectrum_result([0.905] * 3, half=0.02), T).verdict == "mixed"


def depth_result(alone: list[float], skip: float, bare: list[float] | None = None) -> DepthResult:
    n = len(alone)
    flat = {
        name: (1.0, *[0.9] * (n - 1))
        for name in ("attention+ffn", "full", "full-without-layernorm")
    }
    variants = {"attention": tuple(alone), "attention+skip": (1.0, *[skip] * (n - 1)), **flat}
    zero = (0.0,) * n
    return DepthResult(
        variants=variants, std=dict.fromkeys(variants, zero),
        attention_without_layernorm=tuple(bare or alone), attention_without_layernorm_std=zero,
        protected=(), collapsed_after={"attention": n - 1 if alone[-1] < 0.01 else None},
        schema=1, provenance={}, validation=VALID, decomposition=Decomposition(0.0, 1e-4),
        layer_norm="post", length=128, sequences=16, available=16, floor=1e-15,
    )  # fmt: skip


def test_exponential_collapse_that_the_skip_prevents() -> None:
    assert judge_collapse(depth_result([1, 0.1, 0.01, 0.001], 0.8), T).verdict == "holds"


def test_no_collapse_refutes_the_claim_whatever_else() -> None:
    assert judge_collapse(depth_result([1, 0.9, 0.8, 0.7], 0.8), T).verdict == "does not hold"


def test_a_skip_that_collapses_too_or_a_layernorm_that_matters_makes_it_mixed() -> None:
    falling = [1, 0.1, 0.01, 0.001]
    assert judge_collapse(depth_result(falling, 0.001), T).verdict == "mixed"
    assert judge_collapse(depth_result(falling, 0.8, [1, 0.6, 0.3, 0.2]), T).verdict == "mixed"


def test_log_linear_ignores_rounding() -> None:
    assert log_linear((1.0, 0.1, 0.01, 1e-16, 1e-16), 1e-15) == pytest.approx(1.0)
    assert log_linear((1.0, 1e-16), 1e-15) is None


def test_every_claim_is_listed_once_whatever_was_measured() -> None:
    found = scoreboard(T)
    assert [insight.number for insight in found] == list(range(11))
    assert {insight.verdict for insight in found} == {"not measured yet"}


def test_thresholds_are_checked() -> None:
    assert InsightThresholds.parse({"most": "0.6"}).most == 0.6
    with pytest.raises(InputError, match="did you mean 'most'"):
        InsightThresholds.parse({"mostt": 0.6})
    with pytest.raises(InputError, match=r"low_rank is 1\.5"):
        InsightThresholds.parse({"low_rank": 1.5})
