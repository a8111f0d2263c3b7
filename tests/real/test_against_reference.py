"""The fast classification against the slow one (reference.py), on real text and a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import reference
import wordfreq

import headscope
from headscope.data.corpus import SAMPLE
from headscope.models.demo import demo_folder

TOLERANCE = 1e-6


def _frequency(word: str) -> float:
    return float(wordfreq.word_frequency(word, "en"))


def _compare(treebank: Path, n: int) -> None:
    sentences = reference.read_treebank(treebank)[:n]
    frequent = set(wordfreq.top_n_list("en", 500))
    slow = reference.measure(demo_folder(), sentences, _frequency, frequent)
    fast = headscope.classify("demo", treebank, limit=n, language="en")
    assert fast.corpus.sentences == slow["sentences"]
    assert fast.corpus.skipped == slow["skipped"]
    assert fast.corpus.queries == slow["queries"]
    assert len(fast.heads) == len(slow["heads"]) == 72
    for head in fast.heads:
        _compare_head(head, slow["heads"][head.layer, head.head])


def _compare_head(head: Any, slow: dict[str, Any]) -> None:
    rates = {str(r): value for r, value in slow["positional"]["rates"].items()}
    mass = {str(r): value for r, value in slow["positional"]["mass"].items()}
    assert head.positional.rates == pytest.approx(rates, abs=TOLERANCE)
    assert head.positional.mass == pytest.approx(mass, abs=TOLERANCE)
    assert head.positional.score == pytest.approx(slow["positional"]["score"], abs=TOLERANCE)
    assert head.positional.offset == slow["positional"]["offset"]
    assert {(s.relation, s.direction) for s in head.syntactic} == set(slow["syntactic"])
    for score in head.syntactic:
        other = slow["syntactic"][score.relation, score.direction]
        assert (score.trials, score.baseline_offset) == (other["trials"], other["baseline_offset"])
        assert score.accuracy == pytest.approx(other["accuracy"], abs=TOLERANCE)
        assert score.baseline == pytest.approx(other["baseline"], abs=TOLERANCE)
    rare = slow["rare"]
    assert head.rare.queries == rare["queries"]
    for ours, theirs in (
        (head.rare.rate, rare["rate"]),
        (head.rare.two_rarest, rare["two_rarest"]),
        (head.rare.chance, rare["chance"]),
        (head.confidence, slow["confidence"]),
        (head.entropy, slow["entropy"]),
        (head.special_mass, slow["special_mass"]),
        (head.first_special_mass, slow["cls_mass"]),
        (head.last_special_mass, slow["sep_mass"]),
        (head.punctuation_mass, slow["punctuation_mass"]),
        (head.self_rate, slow["self_rate"]),
        (head.duplicate_rate, slow["duplicate"]),
    ):
        assert ours == pytest.approx(theirs, abs=TOLERANCE)
    # The null looks at every word, so it feels a float32 near-tie between two words of which
    # neither is a target; no other rate does.
    assert head.rare.null == pytest.approx(rare["null"], abs=1e-4)


def test_sample_treebank_agrees_with_reference() -> None:
    _compare(SAMPLE, 150)


def test_web_treebank_agrees_with_reference(ewt: Path) -> None:
    _compare(ewt, 200)
