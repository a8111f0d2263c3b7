"""BLEU of counted resamples against sacreBLEU on the copied sentences themselves."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pytest
import sacrebleu

from headscope.errors import InputError
from headscope.measures.bleu import COUNTS, bleu, bleu_counts, bleu_unit, has_sacrebleu
from headscope.measures.paired_change import interval_of, paired_change

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", ",", ".", "U.S.", "3,000", "it's"]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="sacrebleu")


def sentences(seed: int, n: int, longest: int, kept: float) -> tuple[list[str], list[str]]:
    """Random references, and hypotheses in which a share ``kept`` of the words is right."""
    rng = np.random.default_rng(seed)
    references, hypotheses = [], []
    for _ in range(n):
        words = rng.choice(WORDS, rng.integers(1, longest + 1))
        other = np.where(rng.random(len(words)) < kept, words, rng.choice(WORDS, len(words)))
        references.append(" ".join(words))
        hypotheses.append(" ".join(other[: rng.integers(0, len(words) + 1)]))
    return hypotheses, references


@pytest.mark.parametrize(
    ("n", "longest", "kept"),
    [
        (40, 20, 0.8),
        (12, 6, 0.9),  # few 4-grams
        (6, 5, 0.6),  # orders without a match: smoothing
        (6, 3, 1.0),  # no 4-gram at all
        (5, 8, 0.0),
    ],
)
def test_resamples_score_what_sacrebleu_scores(n: int, longest: int, kept: float) -> None:
    seen = set()
    for seed in range(20):
        hypotheses, references = sentences(seed, n, longest, kept)
        outputs = {COUNTS: bleu_counts(hypotheses, references)}
        index = np.random.default_rng(seed).integers(0, n, size=(5, n))
        counts = np.array([np.bincount(row, minlength=n) for row in index], dtype=float)
        expected = [
            sacrebleu.corpus_bleu(
                [hypotheses[i] for i in row], [[references[i] for i in row]]
            ).score
            for row in index
        ]
        np.testing.assert_allclose(bleu(outputs, counts), expected, atol=1e-9)
        seen |= {score > 0 for score in expected}
    assert True in seen


def test_perfect_and_empty() -> None:
    references = ["the cat sat on the mat .", "a dog ran"]
    perfect = bleu({COUNTS: bleu_counts(references, references)}, np.ones((1, 2)))
    assert perfect[0] == pytest.approx(100.0)
    empty = bleu({COUNTS: bleu_counts(["", ""], references)}, np.ones((1, 2)))
    assert empty[0] == 0.0


def test_single_names_have_no_bleu_in_words_but_one_in_characters() -> None:
    names = ["anna", "boris"]
    assert bleu({COUNTS: bleu_counts(names, names)}, np.ones((1, 2)))[0] == 0.0
    counts = bleu_counts(["anna", "borys"], names, tokenize="char")
    expected = sacrebleu.corpus_bleu(["anna", "borys"], [names], tokenize="char").score
    assert bleu({COUNTS: counts}, np.ones((1, 2)))[0] == pytest.approx(expected)
    assert expected > 0


def test_intervals_come_from_the_counts() -> None:
    hypotheses, references = sentences(0, 200, 20, 0.7)
    worse, _ = sentences(1, 200, 20, 0.0)
    good, bad = ({COUNTS: bleu_counts(texts, references)} for texts in (hypotheses, worse))
    alone = interval_of(bleu, good, resamples=400)
    score = sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert alone.value == pytest.approx(score)
    assert alone.low < score < alone.high
    assert paired_change(bleu, bad, good, resamples=400).low > 0


def test_without_sacrebleu_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert has_sacrebleu()
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    assert not has_sacrebleu()
    with pytest.raises(InputError, match=r"sacrebleu, which is not installed; .*\[seq2seq\]"):
        bleu_counts(["a"], ["a"])


@pytest.mark.parametrize(
    ("texts", "unit"),
    [
        (["the cat sat on", "a dog ran to the mat"], "13a"),
        (["the cat sat on", "a dog ran"], "char"),  # 3.5 words
        (["atzmon", "acheson"], "char"),
        (["ab cd", "efgh"], "char"),  # 4 letters, spaces aside
        (["ab c", "defg"], None),  # 3.5 letters
        (["", ""], None),
    ],
)
def test_the_unit_is_one_of_which_targets_have_four(texts: list[str], unit: str | None) -> None:
    assert bleu_unit(texts) == unit


def test_bleu_of_characters_is_sacrebleus() -> None:
    hypotheses, references = ["atzman", "achesen", "o"], ["atzmon", "acheson", "ohara"]
    counts = bleu_counts(hypotheses, references, tokenize="char")
    expected = sacrebleu.corpus_bleu(hypotheses, [references], tokenize="char").score
    found = bleu({COUNTS: counts}, np.ones((1, 3)))
    assert found == pytest.approx(expected)
    assert expected > 10
