"""Metrics on counted resamples against the same metric on copied examples, written differently."""

import logging
from functools import partial

import numpy as np
import pytest
import sacrebleu
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from headscope.stats.metrics import (
    accuracy,
    macro_f1,
    matthews,
    mean_of,
    resampled,
    spearman,
)
from headscope.tasks.seq2seq import COUNTS, bleu, bleu_counts

N = 60


def draws(seed: int, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Indices (5, n) of five resamples, and the counts that stand for them."""
    index = np.random.default_rng(seed).integers(0, n, size=(5, n))
    return index, np.array([np.bincount(row, minlength=n) for row in index], dtype=float)


@pytest.mark.parametrize(
    ("metric", "sklearns"),
    [
        (accuracy, accuracy_score),
        (macro_f1, partial(f1_score, average="macro")),
        (matthews, matthews_corrcoef),
    ],
)
def test_classification_metrics_are_sklearns(metric, sklearns):
    rng = np.random.default_rng(1)
    (index, counts) = draws(2)
    label = rng.integers(0, 3, N)
    predicted = np.where(rng.random(N) < 0.6, label, rng.integers(0, 3, N))
    expected = [100 * sklearns(label[i], predicted[i]) for i in index]
    np.testing.assert_allclose(metric({"label": label, "predicted": predicted}, counts), expected)


@pytest.mark.parametrize("digits", [8, 0])
def test_spearman_with_ties(digits):
    rng = np.random.default_rng(3)
    (index, counts) = draws(4)
    gold = rng.integers(0, 6, N) / 5
    similarity = np.round(gold + rng.normal(size=N), digits)
    correlations = spearman({"similarity": similarity, "gold": gold}, counts)
    expected = [100 * stats.spearmanr(similarity[i], gold[i])[0] for i in index]
    np.testing.assert_allclose(correlations, expected)
    same = {"label": np.zeros(4, int), "predicted": np.zeros(4, int)}
    assert matthews(same, np.ones((1, 4)))[0] == 0.0


def test_seeds_and_chunks(monkeypatch):
    outputs = {"x": np.random.default_rng(11).normal(size=50)}
    one = resampled(mean_of("x"), outputs, seed=1, resamples=64)
    assert (one != resampled(mean_of("x"), outputs, seed=2, resamples=64)).any()
    monkeypatch.setattr("headscope.stats.metrics._MOST_COUNTS", 50 * 32)
    chunked = resampled(mean_of("x"), outputs, seed=1, resamples=64)
    np.testing.assert_allclose(chunked, one)


WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", ",", ".", "U.S.", "3,000", "it's"]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="sacrebleu")


def sacre(hypotheses: list[str], references: list[str], **options: str) -> float:
    return sacrebleu.corpus_bleu(hypotheses, [references], **options).score


def sentences(seed: int, n: int, longest: int, share_kept: float) -> tuple[list[str], list[str]]:
    """Random references, and hypotheses in which a share ``kept`` of the words is right."""
    rng = np.random.default_rng(seed)
    references = []
    hypotheses = []
    for _ in range(n):
        words = rng.choice(WORDS, rng.integers(1, longest + 1))
        other = np.where(rng.random(len(words)) < share_kept, words, rng.choice(WORDS, len(words)))
        references.append(" ".join(words))
        hypotheses.append(" ".join(other[: rng.integers(0, len(words) + 1)]))
    return hypotheses, references


@pytest.mark.parametrize(
    ("n", "longest", "share_kept"),
    [
        (40, 20, 0.8),
        (6, 5, 0.6),  # orders without a match: smoothing
        (6, 3, 1.0),  # no 4-gram at all
        (5, 8, 0.0),
    ],
)
def test_resamples_score_what_sacrebleu_scores(n, longest, share_kept):
    seen = set()
    for seed in range(4):
        hypotheses, references = sentences(seed, n, longest, share_kept)
        outputs = {COUNTS: bleu_counts(hypotheses, references)}
        index, counts = draws(seed, n)
        texts = [[[x[i] for i in row] for x in (hypotheses, references)] for row in index]
        expected = [sacre(*pair) for pair in texts]
        np.testing.assert_allclose(bleu(outputs, counts), expected, atol=1e-9)
        seen |= {score > 0 for score in expected}
    assert True in seen


def test_bleu_of_perfect_empty_and_single_words():
    references = ["the cat sat on the mat .", "a dog ran"]
    for texts, expected in ((references, 100.0), (["", ""], 0.0)):
        score = bleu({COUNTS: bleu_counts(texts, references)}, np.ones((1, 2)))
        assert score[0] == pytest.approx(expected)
    # Single names have no BLEU in words but one in characters.
    names = ["anna", "boris"]
    assert bleu({COUNTS: bleu_counts(names, names)}, np.ones((1, 2)))[0] == 0.0
    for texts, gold in ((["anna", "borys"], names), (["atzman", "o"], ["atzmon", "ohara"])):
        counts = bleu_counts(texts, gold, tokenize="char")
        expected = sacre(texts, gold, tokenize="char")
        assert bleu({COUNTS: counts}, np.ones((1, 2)))[0] == pytest.approx(expected)
        assert expected > 10
