"""Rankings and answers against cases by hand and slow oracles."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from headscope.core.rounding import EPS
from headscope.stats.metrics import CountedF1
from headscope.stats.paired_change import interval_of, paired_change
from headscope.tasks.answering import exact_match, word_f1
from headscope.tasks.ranking_tasks import first_documents, ndcg_and_recall, on_grid, order_kept


@pytest.mark.parametrize("seed", range(4))
def test_ties_are_a_mean_over_all_orders(seed):
    """Every permutation that sorts the scores, one by one; with few scores nearly all are tied."""
    rng = np.random.default_rng(seed)
    n = 6
    k = int(rng.integers(1, 8))
    steps = rng.integers(0, int(rng.integers(1, 4)), n)
    grades = {int(d): float(rng.integers(-1, 4)) for d in rng.choice(n, 4, replace=False)}
    grades[0] = 1.0
    gained = {d: max(grade, 0.0) for d, grade in grades.items()}
    best = sum(gain / math.log2(i + 2) for i, gain in enumerate(sorted(gained.values())[::-1][:k]))
    relevant = {d for d, gain in gained.items() if gain > 0}
    gains = []
    for order in itertools.permutations(range(n)):
        if any(steps[a] < steps[b] for a, b in itertools.pairwise(order)):
            continue
        gain = sum(gained.get(d, 0.0) / math.log2(i + 2) for i, d in enumerate(order[:k]))
        gains.append((gain / best, len(relevant & {*order[:k]}) / len(relevant)))
    assert ndcg_and_recall(steps, grades, k) == pytest.approx(np.mean(gains, axis=0).tolist())
    assert ndcg_and_recall(steps, {1: 0.0}, k) == (0.0, 0.0)


def test_first_documents_in_their_order_where_tied():
    """As a stable sort has them, also where equal scores differ by rounding."""
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 5, (40, 30)) / 5 + rng.uniform(-EPS, EPS, (40, 30))
    slow = [
        sorted(range(30), key=lambda document, row=row: (-round(5 * row[document]), document))[:10]
        for row in scores
    ]
    assert first_documents(on_grid(scores, 1.0)).tolist() == slow
    assert first_documents(on_grid(np.array([[0.1, 0.3]])))[0].tolist() == [1, 0] + [-1] * 8
    assert first_documents(on_grid(np.zeros((1, 12))))[0].tolist() == list(range(10))


def test_order_kept_is_kendalls_tau():
    rng = np.random.default_rng(1)
    reference = on_grid(rng.normal(size=25))
    other = on_grid(rng.normal(size=25))
    assert order_kept(reference, other) == pytest.approx(
        stats.kendalltau(reference, other).statistic
    )
    a = np.array([3, 2, 2, 1])  # five pairs that are ordered
    assert order_kept(a, a) == 1.0
    assert order_kept(a, -a) == -1.0
    assert order_kept(a, np.array([3, 2, 5, 1])) == pytest.approx(3 / 5)
    assert order_kept(a, np.zeros(4)) == 0.0
    assert order_kept(np.zeros(4), a) == 1.0  # nothing that could be lost


@pytest.mark.parametrize(
    ("answer", "right", "exact", "f1"),
    [
        ("a  red   cat", ["red dog", "big red cat"], 0, 2 * 2 / (2 + 3)),
        ("cat cat", ["cat"], 0, 2 * 1 / (2 + 1)),
        ("", [], 1, 1.0),
        ("", ["cat"], 0, 0.0),
        ("the", [], 1, 1.0),  # nothing but an article is no answer
        ("theatre", ["the atre"], 0, 0.0),
        ("U.S.", ["us"], 1, 1.0),
        ("An  “A.B.”, the-end", ["“ab” theend"], 1, 1.0),
    ],
)
def test_answers_by_hand(answer, right, exact, f1):
    assert (exact_match(answer, right), word_f1(answer, right)) == (exact, pytest.approx(f1))


def test_f1_of_counts_has_intervals():
    """Paired, also where no sentence differs; the value is that of all counts together."""
    rng = np.random.default_rng(2)
    right = rng.integers(0, 4, 60)
    hits = rng.binomial(right, 0.7)
    before = {"hit": hits * 1.0, "predicted": hits + rng.integers(0, 2, 60), "right": right}
    metric = CountedF1("hit", "predicted", "right")
    size = before["predicted"].sum() + before["right"].sum()
    estimate = interval_of(metric, before)
    assert estimate.value == pytest.approx(200 * before["hit"].sum() / size)
    assert estimate.low < estimate.value < estimate.high
    worse = {**before, "hit": np.maximum(before["hit"] - 1, 0)}
    change = paired_change(metric, before, worse)
    assert change.high < 0 < -change.difference
    same = paired_change(metric, before, before)
    assert same.low < 0 < same.high
