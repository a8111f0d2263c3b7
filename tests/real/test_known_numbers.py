"""Published and earlier-measured facts about all-MiniLM-L6-v2 on UD English-EWT test."""

from __future__ import annotations

from pathlib import Path

import pytest

import headscope
from headscope.results import ClassifyResult, HeadResult, SwappedControl


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
    confirmed = scores[best].confirmed
    assert confirmed is not None
    assert confirmed.strongest == "offset"
    assert confirmed.accuracy == pytest.approx(0.738, abs=0.0005)
    assert confirmed.baselines["offset"] == pytest.approx(0.358, abs=0.0005)


def test_counts_of_an_independent_script(result: ClassifyResult) -> None:
    found = [(head.name, s) for head in result.heads for s in head.syntactic]
    assert sum(s.selected for _, s in found) == 49
    labels = [(name, s) for name, s in found if s.labelled]
    assert (len(labels), len({name for name, _ in labels})) == (30, 10)
    voita = {name for name, s in labels if s.relation in ("nsubj", "obj", "amod", "advmod")}
    assert len(voita) == 8
    assert not {s.relation for _, s in labels} & {"punct", "root"}
    assert result.control is not None
    assert result.control.swapped == SwappedControl(labels=0, heads=0)


def test_what_random_weights_earn(result: ClassifyResult) -> None:
    """Untrained heads spread evenly: broad is no sign of learning, and the control says so."""
    control = result.control
    assert control is not None
    assert (control.syntactic, control.rare, control.positional) == (0, 0, 0)
    assert control.broad == control.heads == 72


def test_labels_recur_on_other_treebanks(result: ClassifyResult, shared: Path) -> None:
    def labels(of: ClassifyResult) -> set[tuple[str, str, str]]:
        return {
            (h.name, s.relation, s.direction) for h in of.heads for s in h.syntactic if s.labelled
        }

    other = headscope.classify("demo", shared / "data" / "en_pud-ud-test.conllu")
    german = headscope.classify("demo", shared / "data" / "de_pud-ud-test.conllu", limit=500)
    assert len(labels(result) & labels(other)) >= 0.7 * len(labels(result))
    assert labels(german) == set()  # an English model on German


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
        assert label.against
        assert 0 <= label.p_adjusted <= result.thresholds["q"]


def test_uniform_control_unmasks_long_words(result: ClassifyResult) -> None:
    """URLs and numbers make ``list`` easy for heads that spread evenly: no label from that."""
    lists = [s for h in result.heads for s in h.syntactic if s.relation == "list"]
    assert any(s.accuracy - s.baseline > 0.1 for s in lists)
    assert all(s.accuracy - s.uniform >= 0.1 for s in lists if s.labelled)
