"""The planted models do what they say, by transformers' own eager attentions and plain counting.

Nothing of headscope is used here: these checks guard the reference, not the program. What passed is
kept in tests/frozen until this file or tests/planted_models.py changes.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import planted_models
import pytest
import torch
from frozen import frozen
from numpy.typing import NDArray
from planted_models import Planted, build_planted, lexicon, random_bert
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

Array = NDArray[np.float64]
OFFSETS = [offset for offset in range(-5, 6) if offset]


@dataclass(frozen=True)
class Sentence:
    words: list[str]
    heads: list[int]  # 0-based, -1 for the root
    relations: list[str]  # without subtypes

    def trials(self) -> Iterator[tuple[str, str, int, list[int]]]:
        """(relation, direction, query, targets) of every syntactic trial."""
        dependents: dict[tuple[int, str], list[int]] = defaultdict(list)
        for index, (head, relation) in enumerate(zip(self.heads, self.relations, strict=True)):
            if head >= 0:
                dependents[head, relation].append(index)
                yield relation, "dep->head", index, [head]
        for (head, relation), targets in dependents.items():
            yield relation, "head->dep", head, targets


@dataclass(frozen=True)
class Measured:
    """Rates by what was asked, (layers, heads) each; syntactic ones with trials and baseline."""

    rates: dict[object, Array]
    trials: dict[tuple[str, str], int]
    baselines: dict[tuple[str, str], float]
    rare_sentences: int

    def excess(self) -> dict[tuple[str, str], Array]:
        """Accuracy minus the best fixed offset, for relations with at least 50 trials."""
        enough = [key for key, trials in self.trials.items() if trials >= 50]
        return {key: self.rates[key] - self.baselines[key] for key in enough}


def read_treebank(path: Path) -> list[Sentence]:
    sentences = []
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        rows = [line.split("\t") for line in block.split("\n") if not line.startswith("#")]
        assert all(len(row) == 10 for row in rows)
        rows = [row for row in rows if row[0].isdigit()]
        assert [row[0] for row in rows] == [str(i + 1) for i in range(len(rows))]
        heads = [int(row[6]) - 1 for row in rows]
        relations = [row[7].split(":")[0] for row in rows]
        sentences.append(Sentence([row[1] for row in rows], heads, relations))
    return sentences


def read_frequencies(path: Path) -> dict[str, int]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return {word: int(count) for word, count in rows}


def load(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    return model, AutoTokenizer.from_pretrained(folder)


def rarest_words(words: list[str], counts: dict[str, int], common: set[str]) -> set[int]:
    """Indices of the rarest words; empty if they are among the most frequent of the file."""
    found = {i: counts.get(w.lower(), 0) for i, w in enumerate(words) if w[0].isalnum()}
    rarest = {i for i, count in found.items() if count == min(found.values())}
    return set() if any(words[i].lower() in common for i in rarest) else rarest


@torch.no_grad()
def measure(folder: Path, treebank: Path, frequencies: Path) -> Measured:
    model, tokenizer = load(folder)
    counts = read_frequencies(frequencies)
    common = set(sorted(counts, key=lambda word: -counts[word])[:500])
    rates: dict[object, list[NDArray[Any]]] = defaultdict(list)
    gains: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    rare_sentences = 0
    for sentence in read_treebank(treebank):
        words = sentence.words
        batch = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        owners = np.array([i for i in batch.word_ids() if i is not None])
        n = batch["input_ids"].shape[1]
        assert n == len(owners) + 2 <= model.config.max_position_embeddings
        assert sorted(set(owners.tolist())) == list(range(len(words)))
        attentions = model(**batch, output_attentions=True).attentions
        pattern = torch.stack(attentions)[:, 0].double().numpy()  # (layers, heads, n, n)
        content = pattern[:, :, 1:-1, 1:-1]
        best = content.argmax(axis=-1)
        for offset in OFFSETS:
            for i in range(max(0, -offset), min(n - 2, n - 2 - offset)):
                rates["offset", offset].append(best[..., i] == i + offset)
                rates["mass", offset].append(content[..., i, i + offset])
        rows = pattern[:, :, 1:-1]
        entropy = -(rows * np.log(np.maximum(rows, 1e-300))).sum(axis=-1)
        assert not words[-1].isalnum()  # the only punctuation is the last word
        for name, values in (
            ("diagonal", best == np.arange(n - 2)),
            ("entropy", entropy),
            ("flatness", entropy / math.log(n)),
            ("cls", rows[..., 0]),
            ("sep", rows[..., -1]),
            ("punctuation", rows[..., -2]),
        ):
            rates[name] += list(np.moveaxis(values, -1, 0))
        # Sum over the attended word's pieces, mean over the attending word's; no diagonal.
        member = np.eye(owners.max() + 1)[owners]  # (tokens, words)
        table = (member / member.sum(axis=0)).T @ content @ member
        table[..., np.arange(len(words)), np.arange(len(words))] = -1.0
        answer = table.argmax(axis=-1)
        for relation, direction, query, targets in sentence.trials():
            rates[relation, direction].append(np.isin(answer[..., query], targets))
            gains[relation, direction].update(target - query for target in targets)
        rarest = rarest_words(words, counts, common)
        rare_sentences += bool(rarest)
        for query in set(range(len(words))) - rarest if rarest else ():
            rates["rare"].append(np.isin(answer[..., query], list(rarest)))
    means = {name: np.stack(rows).astype(np.float64).mean(axis=0) for name, rows in rates.items()}
    trials = {key: len(rates[key]) for key in gains}
    baselines = {key: max(gain.values()) / trials[key] for key, gain in gains.items()}
    return Measured(means, trials, baselines, rare_sentences)


def check_files(planted: Planted, long: bool) -> None:
    sentences = read_treebank(planted.treebank)
    lengths = [len(sentence.words) for sentence in sentences]
    assert len(sentences) >= (60 if long else 500)
    assert min(lengths) >= (60 if long else 5)
    assert max(lengths) <= (90 if long else 25)
    for sentence in sentences:
        assert sentence.heads.count(-1) == 1
        assert sentence.relations[sentence.heads.index(-1)] == "root"
        for start in range(len(sentence.words)):
            steps, at = 0, start
            while at >= 0:
                steps, at = steps + 1, sentence.heads[at]
                assert steps <= len(sentence.words), "cycle"
    model, tokenizer = load(planted.folder)
    assert tokenizer.is_fast
    words = lexicon()
    assert len({word.form for word in words}) == len(words)
    for word in words:
        assert tokenizer.tokenize(word.form) == list(word.pieces)
        assert tokenizer.tokenize(word.form.capitalize()) == list(word.pieces)
    assert {len(word.pieces) for word in words} == {1, 2, 3}
    counts = read_frequencies(planted.frequencies)
    assert len(set(counts.values())) == len(counts)
    by_count = sorted(counts, key=lambda word: -counts[word])
    level = {word.form: word.level for word in words}
    assert all(level.get(word, 0) == 0 for word in by_count[:500])
    assert any(word.form not in counts for word in words)
    levels = [level[word] for word in by_count if word in level]
    assert levels == sorted(levels)
    # Layers pass hidden states through.
    batch = tokenizer(sentences[0].words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch, output_hidden_states=True).hidden_states
    for state in states:
        assert torch.allclose(state, states[0], atol=1e-5)
        assert torch.allclose(state.square().mean(dim=-1), torch.ones(()), atol=1e-4)


def check_heads(planted: Planted, long: bool) -> None:
    """Every head earns the label that it was given, and no other."""
    measured = measure(planted.folder, planted.treebank, planted.frequencies)
    rates, flat = measured.rates, set()
    assert sorted(planted.roles) == [(layer, h) for layer in range(3) for h in range(4)]
    for place, role in planted.roles.items():
        own = (role.relation, role.direction)
        for offset in OFFSETS:
            rate = rates["offset", offset][place]
            assert rate >= 0.99 if role.offset == offset else rate < 0.5, (place, offset)
        if role.kind == "positional":
            assert rates["mass", role.offset][place] > 0.9
        if role.kind == "syntactic":
            assert measured.trials[own] >= 200
            assert rates[own][place] >= 0.95
            assert measured.baselines[own] <= 0.5
        if role.detail in {"uniform", "random-small"}:
            flat.add(place)
            assert rates["flatness"][place] > (0.999999 if role.detail == "uniform" else 0.98)
        diagonal, rare, sep = (rates[name][place] for name in ("diagonal", "rare", "sep"))
        assert diagonal >= 0.99 if role.kind == "self" else diagonal < 0.5, place
        assert rare >= 0.95 if role.kind == "rare" else rare < 0.3, place
        assert sep > 0.9 if role.kind == "special" else sep + rates["cls"][place] < 0.3, place
        assert rates["punctuation"][place] < 0.3, place
        for key, excess in measured.excess().items():
            assert key == own or excess[place] < 0.08, (place, key)
    n_sentences = len(read_treebank(planted.treebank))
    assert measured.rare_sentences == n_sentences - planted.common_sentences
    assert planted.common_sentences == (0 if long else 11)
    broad = (rates["entropy"] > 3.8) & (rates["flatness"] > 0.8)
    assert {(int(a), int(b)) for a, b in np.argwhere(broad)} == (flat if long else set())
    # The trap for a program without the fixed-offset baseline:
    (following,) = [place for place, role in planted.roles.items() if role.offset == 1]
    det = ("det", "dep->head")
    assert measured.trials[det] >= 50
    assert measured.baselines[det] == 1.0
    assert rates[det][following] > 0.95


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_heads_have_the_roles_that_were_planted(tmp_path: Path, long: bool) -> None:
    def compute() -> dict[str, int]:
        planted = build_planted(tmp_path, long=long)
        check_files(planted, long)
        check_heads(planted, long)
        return dict(Counter(role.kind for role in planted.roles.values()))

    code = (planted_models, sys.modules[__name__])
    kinds = frozen(f"planted_{'long' if long else 'short'}", compute, code=code)
    assert kinds == {"positional": 4, "syntactic": 2, "rare": 1, "special": 1} | {
        "self": 1,
        "broad": 2,
        "none": 1,
    }


def test_random_bert_has_no_role(tmp_path: Path) -> None:
    def compute() -> list[int]:
        planted = build_planted(tmp_path / "planted")
        folder = random_bert(tmp_path / "random", seed=0)
        measured = measure(folder, planted.treebank, planted.frequencies)
        assert max(excess.max() for excess in measured.excess().values()) < 0.10
        assert max(measured.rates["offset", offset].max() for offset in OFFSETS) < 0.90
        assert measured.rates["rare"].max() < 0.50
        return list(measured.rates["rare"].shape)

    assert frozen("planted_none", compute, code=(planted_models, sys.modules[__name__])) == [4, 8]


def test_seed_decides_everything(tmp_path: Path) -> None:
    first, again, other = (
        build_planted(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    for name, differs in (
        ("model.safetensors", True),
        ("treebank.conllu", True),
        ("tokenizer.json", False),
        ("frequencies.tsv", False),
    ):
        data = [(p.folder / name).read_bytes() for p in (first, again, other)]
        assert data[0] == data[1]
        assert (data[1] != data[2]) == differs
