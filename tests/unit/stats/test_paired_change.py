"""Intervals of metrics and of their changes, against formulas, brute force and single resamples.

Longer simulations of how often they hold the truth: docs/definitions/statistics.md.
"""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from headscope.stats.estimate import Estimate
from headscope.stats.metrics import (
    CLUSTER,
    Metric,
    Outputs,
    accuracy,
    macro_f1,
    matthews,
    mean_of,
    rate_of,
    ratio_of,
    spearman,
    token_rate,
)
from headscope.stats.paired_change import (
    estimate_over_orders,
    interval_of,
    over_orders,
    paired_change,
)
from headscope.stats.statistics import FEWEST_UNITS
from headscope.stats.tango import tango, tango_p

RNG = np.random.default_rng(5)
TOKENS = token_rate("correct", "tokens")


@pytest.fixture(autouse=True)
def _same_draws_in_any_order() -> None:
    RNG.bit_generator.state = np.random.default_rng(5).bit_generator.state


def classes(n: int, right: float, classes: int = 3) -> dict[str, Any]:
    """Labels, and predictions of which this share is right."""
    label = RNG.integers(0, classes, size=n)
    wrong = (label + 1) % classes
    return {"label": label, "predicted": np.where(RNG.random(n) < right, label, wrong)}


@pytest.mark.parametrize("level", [0.8, 0.99])
def test_a_mean_has_students_interval(level):
    n = 40
    old = RNG.normal(size=n)
    gap = RNG.normal(0.3, 1.0, size=n)
    pair = ({"x": old}, {"x": old + gap})
    settings = {"resamples": 10_000, "seed": 3}
    change = paired_change(mean_of("x"), *pair, level=level, **settings)
    half = stats.t.ppf((1 + level) / 2, n - 1) * gap.std(ddof=1) / math.sqrt(n)
    assert change.difference == pytest.approx(gap.mean())
    expected = pytest.approx((gap.mean() - half, gap.mean() + half), abs=0.06 * half)
    assert (change.low, change.high) == expected
    assert (change.examples, change.level) == (n, level)
    # Of a mean: what is lost is what is not gained; of a loss it is what is added.
    assert change.most_lost(1) == -change.low
    assert change.most_lost(-1) == change.high


def test_a_rate_has_tangos_interval_and_mcnemars_p():
    """Fagerland, Lydersen & Laake 2014 give -0.517 to -0.026 for 1 and 7 changes of 21."""
    label = np.zeros(21, dtype=int)
    old = label.copy()
    new = label.copy()
    old[:1] = 1
    new[1:8] = 1
    change = paired_change(accuracy, *({"label": label, "predicted": x} for x in (old, new)))
    assert change.difference == pytest.approx(-600 / 21)
    assert (change.low, change.high) == pytest.approx((-51.7, -2.6), abs=0.05)
    assert change.p_value == pytest.approx(stats.chi2.sf(6 * 6 / 8, 1))
    exact = {"hit": (old == 0).astype(float)}, {"hit": (new == 0).astype(float)}
    assert paired_change(rate_of("hit"), *exact) == change


@pytest.mark.parametrize("metric", [TOKENS, macro_f1, matthews, accuracy])
def test_no_right_or_wrong_answer_has_an_interval_without_width(metric):
    sizes = np.full(59, 8.0)
    same: Outputs = {"correct": sizes, "tokens": sizes} if metric is TOKENS else classes(59, 1.0, 2)
    change = paired_change(metric, same, same)
    alone = interval_of(metric, same)
    assert change.p_value == 1.0
    assert change.low < 0.0 < change.high
    assert alone.value == 100.0
    assert alone.low < alone.value
    if metric is TOKENS:  # three of its 478 tokens are 0.6%
        assert (change.low, change.high) == pytest.approx((-1.9, 1.9), abs=0.65)


def test_where_no_resample_differs_or_examples_are_few_the_interval_is_unknown():
    x = RNG.normal(size=30)
    rounded = x + 1e-9 * RNG.normal(size=30)
    for other, difference in ((x, 0.0), (rounded, 0.0), (x - 2.0, -2.0)):
        change = paired_change(mean_of("x"), {"x": x}, {"x": other})
        assert change.difference == pytest.approx(difference, abs=1e-8)
        assert (change.low, change.high, change.ci) == (-math.inf, math.inf, None)
        assert change.p_value == 1.0
        assert change.most_lost(1) == math.inf
        assert replace(change, same=True).most_lost(1) == 0.0
    assert interval_of(mean_of("x"), {"x": np.ones(30)}).interval is None
    few = x[: FEWEST_UNITS - 1]
    lost = RNG.random(FEWEST_UNITS - 1)
    change = paired_change(mean_of("x"), {"x": few}, {"x": few - lost})
    assert (change.ci, change.p_value, change.most_lost(1)) == (None, 1.0, math.inf)
    # 30 questions on five paragraphs are five units.
    paragraph = {CLUSTER: np.arange(30) // 6}
    change = paired_change(mean_of("x"), {"x": x, **paragraph}, {"x": x - 2.0, **paragraph})
    assert (change.ci, change.examples, change.most_lost(1)) == (None, 30, math.inf)
    assert interval_of(mean_of("x"), {"x": few}).interval is None
    assert interval_of(mean_of("x"), {"x": x[:FEWEST_UNITS]}).interval is not None
    # A ratio of losses is no rate of tokens.
    outputs = {"nll": RNG.random(20), "positions": np.full(20, 3.0)}
    assert paired_change(ratio_of("nll", "positions"), outputs, outputs).ci is None


def test_orders_of_the_same_examples_are_joined_by_their_widest_interval():
    x = RNG.normal(size=80)
    noise = RNG.normal(size=(2, 80))
    changes = [paired_change(mean_of("x"), {"x": x}, {"x": x + each}) for each in noise]
    joined = over_orders(changes)
    assert joined.difference == pytest.approx(noise.mean())
    assert joined.low == min(change.low for change in changes)
    assert joined.high == max(change.high for change in changes)
    unknown = paired_change(mean_of("x"), {"x": x}, {"x": x})
    assert over_orders([changes[0], unknown]).most_lost(1) == math.inf
    values = [Estimate(1.0, 0.5, 1.2), Estimate(2.0, 1.9, 2.1)]
    assert estimate_over_orders(values) == Estimate(1.5, 0.5, 2.1)
    assert estimate_over_orders([*values, Estimate(3.0)]) == Estimate(2.0)


@pytest.mark.parametrize(("pairs", "unmoved"), [(8, 0.64), (20, 0.05), (60, 0.0)])
def test_ranks_of_few_pairs_do_not_move_though_the_model_did(pairs, unmoved):
    """Noise of 5% of the similarities' spread: unknown as often as the docs say."""
    rng = np.random.default_rng(2)
    unknown = 0
    draws = 100
    for _ in range(draws):
        similarity = rng.normal(size=pairs)
        outputs = {"similarity": similarity, "gold": similarity + rng.normal(size=pairs)}
        moved = {**outputs, "similarity": similarity + 0.05 * rng.normal(size=pairs)}
        unknown += paired_change(spearman, outputs, moved, resamples=100).most_lost(1) == math.inf
    slack = 3 * math.sqrt(unmoved * (1 - unmoved) / draws)
    assert unknown / draws == pytest.approx(unmoved, abs=slack + 0.01)


def cases() -> list[tuple[Metric, Outputs, Outputs]]:
    """Changes of every kind, of which some are significant and some are not."""
    metrics_with_outputs: list[tuple[Metric, Outputs, Outputs]] = []
    for shift in np.linspace(0.0, 0.9, 13):
        old = RNG.normal(size=40)
        gap = RNG.normal(shift, 1.0, size=40)
        metrics_with_outputs.append((mean_of("x"), {"x": old}, {"x": old + gap}))
        gold = RNG.normal(size=40)
        noisy = {"gold": gold, "similarity": gold + RNG.normal(size=40)}
        worse = noisy["similarity"] + 2 * shift * RNG.normal(size=40)
        metrics_with_outputs.append((spearman, noisy, {**noisy, "similarity": worse}))
        outputs = classes(60, 0.9)
        changed = np.where(RNG.random(60) < shift / 3, 0, outputs["predicted"])
        metrics_with_outputs += [
            (m, outputs, {**outputs, "predicted": changed}) for m in (accuracy, macro_f1)
        ]
        sizes = RNG.integers(3, 9, size=60).astype(float)
        lost = (RNG.random(60) < shift / 3).astype(float)
        metrics_with_outputs.append(
            (TOKENS, *({"correct": c, "tokens": sizes} for c in (sizes, sizes - lost)))
        )
    return metrics_with_outputs


@pytest.mark.parametrize("level", [0.9, 0.995])
def test_p_is_below_alpha_where_the_interval_leaves_nothing_out(level):
    outside = []
    for seed, case in enumerate(cases()):
        change = paired_change(*case, level=level, seed=seed)
        outside.append(not change.low <= 0.0 <= change.high)
        assert outside[-1] == (change.p_value < 1 - level)
    assert 5 < sum(outside) < len(outside) - 5


def test_zero_is_an_end_of_the_interval_whose_level_is_one_minus_p():
    """Of few examples: p and the interval widen what the resamples say by as much."""
    old = RNG.normal(size=12)
    gap = RNG.normal(size=12)
    gap += 0.6 * gap.std(ddof=1) - gap.mean()  # Student's t is 2.1
    pair = ({"x": old}, {"x": old + gap})
    settings = {"resamples": 20_000}
    p = paired_change(mean_of("x"), *pair, **settings).p_value
    for factor, outside in ((1.1, True), (0.9, False)):
        change = paired_change(mean_of("x"), *pair, level=1 - factor * p, **settings)
        assert (not change.low <= 0 <= change.high) == outside


def test_p_of_a_mean_is_students_and_goes_on_beyond_the_resamples():
    for shift in (0.0, 0.1, 0.2, 0.5, 1.0):
        old = RNG.normal(size=100)
        gap = RNG.normal(shift, 1.0, size=100)
        change = paired_change(mean_of("x"), {"x": old}, {"x": old + gap}, resamples=5000)
        expected = stats.ttest_rel(old + gap, old).pvalue
        assert math.log(change.p_value) == pytest.approx(math.log(expected), abs=0.5, rel=0.15)
    far = paired_change(mean_of("x"), {"x": old}, {"x": old + 1e6 + gap})
    assert 0.0 < far.p_value < 1e-100


@pytest.mark.parametrize("rate", [0.8, 0.99])
def test_the_interval_of_an_accuracy_holds_the_truth(rate):
    """Not drawn but added up: how likely each number of right answers is."""
    hits = 0.0
    n = 50
    for right in range(n + 1):
        outputs = {"label": np.ones(n), "predicted": (np.arange(n) < right).astype(float)}
        estimate = interval_of(accuracy, outputs)
        if estimate.low <= 100 * rate <= estimate.high:
            hits += float(stats.binom.pmf(right, n, rate))
    assert hits >= 0.93


def score(difference: float, gained: int, lost: int, n: int) -> float:
    """Squared score statistic: the likeliest q of all with p - q = difference, by trying many."""
    q = np.linspace(max(0.0, -difference), (1 - difference) / 2, 4000)
    cells = ((gained, q + difference), (lost, q), (n - gained - lost, 1 - difference - 2 * q))
    likelihood = sum(count * np.log(np.maximum(share, 1e-300)) for count, share in cells if count)
    q = q[np.argmax(likelihood)]
    variance = n * (2 * q + difference - difference**2)
    gap = gained - lost - n * difference
    if variance <= 0:
        return 0.0 if gap == 0 else math.inf
    return float(gap * gap / variance)


@pytest.mark.parametrize(
    ("gained", "lost", "n"),
    [(0, 0, 10), (1, 0, 50), (30, 0, 30), (4, 9, 44)],
)
def test_tangos_interval_holds_what_the_score_test_does_not_refuse(gained, lost, n):
    low, high = tango(gained, lost, n, 0.99)
    limit = stats.chi2.ppf(0.99, 1)
    step = 0.02 / math.sqrt(n)
    for bound, outwards in ((low, -step), (high, step)):
        inside = bound - outwards
        outside = bound + outwards
        assert score(inside, gained, lost, n) < limit
        assert abs(outside) > 1 or score(outside, gained, lost, n) > limit


def test_tangos_ends_are_mirrored_and_agree_with_p():
    """No change at all of n, and many numbers of both."""
    z2 = stats.norm.ppf(0.975) ** 2
    for n in (1, 59, 400):
        assert tango(0, 0, n) == pytest.approx((-z2 / (n + z2), z2 / (n + z2)), abs=1e-6)
    for n, gained, lost in itertools.product((1, 7, 40), range(0, 41, 3), range(0, 41, 5)):
        if gained + lost > n:
            continue
        low, high = tango(gained, lost, n)
        assert -1 <= low <= (gained - lost) / n <= high <= 1
        assert low < high
        assert tango(lost, gained, n) == pytest.approx((-high, -low))
        assert (tango_p(gained, lost) < 0.05) == (not low <= 0 <= high)
