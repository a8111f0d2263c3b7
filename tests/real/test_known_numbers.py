"""Published and earlier-measured facts about all-MiniLM-L6-v2 on UD English-EWT test."""

from __future__ import annotations

from pathlib import Path

import pytest

import headscope
from headscope.results import ClassifyResult, HeadResult


@pytest.fixture(scope="module")
def result(ewt: Path) -> ClassifyResult:
    return headscope.classify("demo", ewt, control=True)


def _head(result: ClassifyResult, layer: int, head: int) -> HeadResult:
    return next(h for h in result.heads if (h.layer, h.head) == (layer, head))


def test_no_sentence_is_skipped(result: ClassifyResult) -> None:
    assert (result.corpus.sentences, result.corpus.skipped) == (2077, 0)


def test_previous_and_next_token_heads(result: ClassifyResult) -> None:
    previous, following = _head(result, 0, 2).positional, _head(result, 1, 8).positional
    assert (previous.offset, following.offset) == (-1, 1)
    assert previous.score == pytest.approx(0.998, abs=0.001)
    assert following.score == pytest.approx(0.988, abs=0.001)
    labelled = {head.name for head in result.heads if "positional" in head.roles}
    assert labelled == {"L0H2", "L1H8"}


def test_object_head(result: ClassifyResult) -> None:
    scores = {
        head.name: score
        for head in result.heads
        for score in head.syntactic
        if (score.relation, score.direction) == ("obj", "dep->head")
    }
    best = max(scores, key=lambda name: scores[name].accuracy)
    assert best == "L2H0"
    assert scores[best].accuracy == pytest.approx(0.740, abs=0.0005)
    assert scores[best].baseline == pytest.approx(0.350, abs=0.0005)
    assert scores[best].labelled


def test_random_weights_earn_no_syntactic_or_rare_label(result: ClassifyResult) -> None:
    assert result.control is not None
    assert result.control.syntactic + result.control.rare <= 0.01 * result.control.heads


def test_every_label_carries_what_a_reader_needs(result: ClassifyResult) -> None:
    labels = [label for head in result.heads for label in head.labels]
    assert len(labels) > 50
    for label in labels:
        low, high = label.interval
        assert low <= label.score <= high
        assert label.score > label.baseline
        assert 0 <= label.p_adjusted <= result.thresholds["q"]


def test_uniform_control_unmasks_long_words(result: ClassifyResult) -> None:
    """URLs and numbers make ``list`` easy for heads that spread evenly: no label from that."""
    lists = [s for h in result.heads for s in h.syntactic if s.relation == "list"]
    assert any(s.accuracy - s.baseline > 0.1 for s in lists)
    assert all(s.accuracy - s.uniform >= 0.1 for s in lists if s.labelled)
