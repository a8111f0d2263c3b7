"""The planted models do what they say, by the slow oracle of tests/reference.py.

Nothing of headscope is used here: these checks guard the reference, not the program. What passed is
kept in tests/frozen until the oracle, this file or tests/planted_models.py changes.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import planted_models
import pytest
import reference
from frozen import frozen
from planted_models import Planted, build_planted, random_bert

CODE = (planted_models, reference, sys.modules[__name__])


def read_frequencies(path: Path) -> dict[str, int]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return {word: int(count) for word, count in rows}


def measure(folder: Path, planted: Planted, limit: int | None = None) -> dict[str, Any]:
    counts = read_frequencies(planted.frequencies)
    common = set(sorted(counts, key=lambda word: -counts[word])[:500])
    sentences = reference.read_treebank(planted.treebank)[:limit]
    found = reference.measure(folder, sentences, lambda word: counts.get(word.lower(), 0), common)
    assert (found["sentences"], found["skipped"]) == (len(sentences), 0)
    return found


def excess(syntactic: dict[Any, Any]) -> dict[Any, float]:
    """Accuracy minus the best fixed offset, for relations with at least 50 trials."""
    return {key: r["accuracy"] - r["baseline"] for key, r in syntactic.items() if r["trials"] >= 50}


def check_heads(planted: Planted, long: bool) -> None:
    """Every head earns the label that it was given, and no other."""
    measured = measure(planted.folder, planted)
    flat, broad = set(), set()
    assert sorted(planted.roles) == [(layer, h) for layer in range(3) for h in range(4)]
    for place, role in planted.roles.items():
        rates = measured["heads"][place]
        own = (role.relation, role.direction)
        for offset, rate in rates["positional"]["rates"].items():
            assert rate >= 0.99 if role.offset == offset else rate < 0.5, (place, offset)
        if role.kind == "positional":
            assert rates["positional"]["mass"][role.offset] > 0.9
        if role.kind == "syntactic":
            assert rates["syntactic"][own]["trials"] >= 200
            assert rates["syntactic"][own]["accuracy"] >= 0.95
            assert rates["syntactic"][own]["baseline"] <= 0.5
        flatness = rates["entropy"] / measured["mean_log_n"]
        if role.detail in {"uniform", "random-small"}:
            flat.add(place)
            assert flatness > (0.999999 if role.detail == "uniform" else 0.98)
        if rates["entropy"] > 3.8 and flatness > 0.8:
            broad.add(place)
        diagonal, rare, sep = rates["self_rate"], rates["rare"]["rate"], rates["sep_mass"]
        assert diagonal >= 0.99 if role.kind == "self" else diagonal < 0.5, place
        assert rare >= 0.95 if role.kind == "rare" else rare < 0.3, place
        assert sep > 0.9 if role.kind == "special" else sep + rates["cls_mass"] < 0.3, place
        assert rates["punctuation_mass"] < 0.3, place
        for key, gain in excess(rates["syntactic"]).items():
            assert key == own or gain < 0.08, (place, key)
        assert rates["rare"]["sentences"] == measured["sentences"] - planted.common_sentences
    assert planted.common_sentences == (0 if long else 11)
    assert broad == (flat if long else set())
    # The trap for a program without the fixed-offset baseline:
    (following,) = [place for place, role in planted.roles.items() if role.offset == 1]
    det = measured["heads"][following]["syntactic"]["det", "dep->head"]
    assert det["trials"] >= 50
    assert det["baseline"] == 1.0
    assert det["accuracy"] > 0.95


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_heads_have_the_roles_that_were_planted(tmp_path, long):
    def compute() -> dict[str, int]:
        planted = build_planted(tmp_path, long=long)
        check_heads(planted, long)
        return dict(Counter(role.kind for role in planted.roles.values()))

    kinds = frozen(f"planted_{'long' if long else 'short'}", compute, code=CODE)
    once = dict.fromkeys(("rare", "special", "self", "none"), 1)
    assert kinds == {"positional": 4, "syntactic": 2, "broad": 2, **once}


def test_random_bert_has_no_role(tmp_path):
    def compute() -> int:
        planted = build_planted(tmp_path / "planted")
        heads = measure(random_bert(tmp_path / "random", seed=0), planted, 250)["heads"].values()
        assert max(max(excess(head["syntactic"]).values()) for head in heads) < 0.10
        assert max(head["positional"]["score"] for head in heads) < 0.90
        assert max(head["rare"]["rate"] for head in heads) < 0.50
        return len(heads)

    assert frozen("planted_none", compute, code=CODE) == 32
