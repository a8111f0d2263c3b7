"""Metrics on counted resamples against the same metric on copied examples, written differently."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from headscope.measures.metrics import (
    accuracy,
    macro_f1,
    matthews,
    mean_of,
    ratio_of,
    resampled,
    spearman,
)

N = 60


def draws(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices (5, N) of five resamples, and the counts that stand for them."""
    index = np.random.default_rng(seed).integers(0, N, size=(5, N))
    counts = np.array([[float((row == i).sum()) for i in range(N)] for row in index])
    return index, counts


def labelled(seed: int, classes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    label = rng.integers(0, classes, N)
    return {
        "label": label,
        "predicted": np.where(rng.random(N) < 0.6, label, rng.integers(0, classes, N)),
    }


def f1_by_hand(label: np.ndarray, predicted: np.ndarray) -> float:
    scores = []
    for c in sorted({*label.tolist(), *predicted.tolist()}):
        true = sum(a == b == c for a, b in zip(label, predicted, strict=True))
        precision = true / max(1, (predicted == c).sum())
        recall = true / max(1, (label == c).sum())
        scores.append(2 * precision * recall / (precision + recall) if true else 0.0)
    return 100 * sum(scores) / len(scores)


def matthews_by_hand(label: np.ndarray, predicted: np.ndarray) -> float:
    """Correlation of the two one-hot matrices (Gorodkin 2004)."""
    classes = sorted({*label.tolist(), *predicted.tolist()})
    x, y = (np.array([v == c for c in classes], dtype=float).T for v in (predicted, label))
    x, y = x - x.mean(0), y - y.mean(0)
    spread = math.sqrt((x * x).sum() * (y * y).sum())
    return 100 * float((x * y).sum()) / spread if spread else 0.0


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    ("metric", "by_hand"),
    [
        (accuracy, lambda a, b: 100 * float(np.mean(a == b))),
        (macro_f1, f1_by_hand),
        (matthews, matthews_by_hand),
    ],
)
def test_classification_metrics(metric: Callable, by_hand: Callable, classes: int) -> None:
    outputs, (index, counts) = labelled(1, classes), draws(2)
    expected = [by_hand(outputs["label"][i], outputs["predicted"][i]) for i in index]
    np.testing.assert_allclose(metric(outputs, counts), expected)


@pytest.mark.parametrize("digits", [8, 1, 0])
def test_spearman_with_ties(digits: int) -> None:
    rng, (index, counts) = np.random.default_rng(3), draws(4)
    gold = rng.integers(0, 6, N) / 5
    similarity = np.round(gold + rng.normal(size=N), digits)
    found = spearman({"similarity": similarity, "gold": gold}, counts)
    expected = [100 * stats.spearmanr(similarity[i], gold[i])[0] for i in index]
    np.testing.assert_allclose(found, expected)


def test_a_constant_side_has_no_correlation() -> None:
    outputs = {"similarity": np.ones(4), "gold": np.arange(4.0)}
    assert spearman(outputs, np.ones((1, 4)))[0] == 0.0
    same = {"label": np.zeros(4, int), "predicted": np.zeros(4, int)}
    assert matthews(same, np.ones((1, 4)))[0] == 0.0


def test_means_and_ratios() -> None:
    index, counts = draws(5)
    rng = np.random.default_rng(6)
    outputs = {"nll": rng.random(N), "positions": rng.integers(1, 9, N).astype(float)}
    np.testing.assert_allclose(
        mean_of("nll")(outputs, counts), [outputs["nll"][i].mean() for i in index]
    )
    np.testing.assert_allclose(
        ratio_of("nll", "positions")(outputs, counts),
        [outputs["nll"][i].sum() / outputs["positions"][i].sum() for i in index],
    )


def test_seeds_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = {"x": np.random.default_rng(11).normal(size=50)}
    one = resampled(mean_of("x"), outputs, seed=1, resamples=64)
    assert (one == resampled(mean_of("x"), outputs, seed=1, resamples=64)).all()
    assert (one != resampled(mean_of("x"), outputs, seed=2, resamples=64)).any()
    monkeypatch.setattr("headscope.measures.metrics._ENTRIES", 50 * 32)
    chunked = resampled(mean_of("x"), outputs, seed=1, resamples=64)
    np.testing.assert_allclose(chunked, one)
