"""The fast classification against the slow one (reference.py), on real text and a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import reference
import reference_roles
import wordfreq

import headscope
from headscope.data.corpus import SAMPLE
from headscope.models.demo import demo_folder
from headscope.results import HeadResult, SyntacticScore

TOLERANCE = 1e-6
#: Sentences that labels are compared on: enough to label, and seconds for the slow oracle.
N_LABELLED = 350


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
    near = 1.5 / slow["queries"]  # of thousands of rows one has two keys as near as rounding
    assert head.positional.rates == pytest.approx(rates, abs=near)
    assert head.positional.mass == pytest.approx(mass, abs=TOLERANCE)
    assert head.positional.score == pytest.approx(slow["positional"]["score"], abs=near)
    assert head.positional.offset == slow["positional"]["offset"]
    assert {(s.relation, s.direction) for s in head.syntactic} == set(slow["syntactic"])
    for score in head.syntactic:
        other = slow["syntactic"][score.relation, score.direction]
        assert (score.trials, score.baseline_offset) == (other["trials"], other["baseline_offset"])
        assert score.accuracy == pytest.approx(other["accuracy"], abs=1.5 / score.trials)
        assert score.baseline == pytest.approx(other["baseline"], abs=TOLERANCE)
    rare = slow["rare"]
    assert head.rare.queries == rare["queries"]
    for rate, other in (
        (head.rare.rate, rare["rate"]),
        (head.rare.two_rarest, rare["two_rarest"]),
    ):
        assert rate == pytest.approx(other, abs=1.5 / rare["queries"])
    for rate, other in (
        (head.self_rate, slow["self_rate"]),
        (head.duplicate_rate, slow["duplicate"]),
    ):
        assert rate == pytest.approx(other, abs=near)
    for ours, theirs in (
        (head.rare.chance, rare["chance"]),
        (head.confidence, slow["confidence"]),
        (head.entropy, slow["entropy"]),
        (head.special_mass, slow["special_mass"]),
        (head.first_special_mass, slow["cls_mass"]),
        (head.last_special_mass, slow["sep_mass"]),
        (head.punctuation_mass, slow["punctuation_mass"]),
    ):
        assert ours == pytest.approx(theirs, abs=TOLERANCE)
    # The null looks at every word, so it feels a float32 near-tie between two words of which
    # neither is a target; no other rate does.
    assert head.rare.null == pytest.approx(rare["null"], abs=1e-4)


def test_labels_agree_with_the_oracle(shared: Path) -> None:
    """Every number of the two halves, on a treebank large enough to label."""
    treebank = shared / "data" / "en_pud-ud-test.conllu"
    frequent = set(wordfreq.top_n_list("en", 500))
    slow = reference_roles.classify(
        demo_folder(), reference.read_treebank(treebank)[:N_LABELLED], _frequency, frequent
    )
    fast = headscope.classify("demo", treebank, language="en", limit=N_LABELLED)
    labels = 0
    for head in fast.heads:
        place = (head.layer, head.head)
        for score in head.syntactic:
            theirs = slow["syntactic"][place][score.relation, score.direction]
            _compare_relation(score, theirs)
            labels += score.labelled
        _compare_roles(head, slow["rare"][place], slow["broad"][place])
    assert labels > 20
    assert fast.control is not None
    assert fast.control.swapped is not None
    theirs = [s for head in slow["swapped"].values() for s in head.values() if s["labelled"]]
    assert fast.control.swapped.labels == len(theirs)


def _compare_relation(score: SyntacticScore, theirs: dict[str, Any]) -> None:
    where = f"{score.relation} {score.direction}"
    near = 1.5 / score.trials  # of thousands of rows one has two words as near as rounding
    assert score.trials == theirs["trials"], where
    assert score.accuracy == pytest.approx(theirs["accuracy"], abs=near), where
    assert score.accuracy_mean == pytest.approx(theirs["accuracy_mean"], abs=near), where
    assert score.baselines == pytest.approx(theirs["baselines"], abs=near), where
    assert score.selected == theirs["selected"], where
    assert score.labelled == theirs["labelled"], where
    if score.confirmed is None:
        return
    ours, held_out = score.confirmed, theirs["confirmed"]
    near = 1.5 / ours.trials
    assert (ours.trials, ours.strongest) == (held_out["trials"], held_out["strongest"])
    assert ours.accuracy == pytest.approx(held_out["accuracy"], abs=near)
    assert ours.baselines == pytest.approx(held_out["baselines"], abs=near)
    assert ours.interval == pytest.approx(held_out["interval"], abs=near)
    assert ours.p_adjusted == pytest.approx(held_out["p_adjusted"], rel=0.2, abs=1e-9)


def _compare_roles(head: HeadResult, rare: dict[str, Any], broad: dict[str, Any]) -> None:
    assert (head.rare.sentences, head.rare.queries) == (rare["sentences"], rare["queries"])
    assert head.rare.rate == pytest.approx(rare["rate"], abs=2e-4)
    assert head.rare.uniform == pytest.approx(rare["uniform"], abs=TOLERANCE)
    assert head.rare.interval == pytest.approx(rare["interval"], abs=5e-4)
    assert head.rare.p_adjusted == pytest.approx(rare["p_adjusted"], rel=0.05, abs=1e-9)
    assert ("rare" in head.roles) == rare["labelled"]
    assert head.long_entropy == pytest.approx(broad["mean"], abs=1e-5)
    assert ("broad" in head.roles) == broad["broad"]


def test_sample_treebank_agrees_with_reference() -> None:
    _compare(SAMPLE, 100)


def test_web_treebank_agrees_with_reference(ewt: Path) -> None:
    _compare(ewt, 80)
