"""The planted models do what they say, by transformers' own eager attentions and plain counting.

Nothing of headscope is used here: these checks guard the reference, not the program.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from planted_models import Planted, build_planted, lexicon, random_bert
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

Array = NDArray[np.float64]
Place = tuple[int, int]
OFFSETS = [offset for offset in range(-5, 6) if offset]


# ------------------------------------------------------------------------- plain counting


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
class Relation:
    trials: int
    accuracy: Array  # (layers, heads)
    baseline: float


@dataclass(frozen=True)
class Measured:
    positional: dict[int, Array]  # offset -> hit rate
    target_mass: dict[int, Array]  # offset -> mean probability of the target
    syntactic: dict[tuple[str, str], Relation]
    rare: Array
    rare_sentences: int
    diagonal: Array  # rate of content argmax on the diagonal
    entropy: Array
    flatness: Array  # mean of entropy / ln n
    cls_mass: Array
    sep_mass: Array
    punctuation_mass: Array


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


@torch.no_grad()
def patterns_of(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, words: list[str]
) -> tuple[Array, NDArray[np.int64]]:
    """Patterns (layers, heads, n, n) and the word of each content token."""
    batch = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    owners = np.array([i for i in batch.word_ids() if i is not None])
    assert batch["input_ids"].shape[1] == len(owners) + 2 <= model.config.max_position_embeddings
    assert sorted(set(owners.tolist())) == list(range(len(words)))
    attentions = model(**batch, output_attentions=True).attentions
    return torch.stack(attentions)[:, 0].double().numpy(), owners


def word_argmax(content: Array, owners: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum over the attended word's pieces, mean over the attending word's; no diagonal."""
    member = np.eye(owners.max() + 1)[owners]  # (tokens, words)
    table = (member / member.sum(axis=0)).T @ content @ member
    table[..., np.arange(table.shape[-1]), np.arange(table.shape[-1])] = -1.0
    return np.asarray(table.argmax(axis=-1))


def rarest_words(words: list[str], counts: dict[str, int], common: set[str]) -> set[int]:
    """Indices of the rarest words; empty if they are among the most frequent of the file."""
    found = {i: counts.get(w.lower(), 0) for i, w in enumerate(words) if w[0].isalnum()}
    rarest = {i for i, count in found.items() if count == min(found.values())}
    return set() if any(words[i].lower() in common for i in rarest) else rarest


def measure(folder: Path, treebank: Path, frequencies: Path) -> Measured:
    model, tokenizer = load(folder)
    counts = read_frequencies(frequencies)
    common = set(sorted(counts, key=lambda word: -counts[word])[:500])
    rates: dict[object, list[NDArray[Any]]] = defaultdict(list)
    gains: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    rare_sentences = 0
    for sentence in read_treebank(treebank):
        pattern, owners = patterns_of(model, tokenizer, sentence.words)
        n = pattern.shape[-1]
        content = pattern[:, :, 1:-1, 1:-1]
        best = content.argmax(axis=-1)
        for offset in OFFSETS:
            for i in range(max(0, -offset), min(n - 2, n - 2 - offset)):
                rates["offset", offset].append(best[..., i] == i + offset)
                rates["mass", offset].append(content[..., i, i + offset])
        rates["diagonal"] += list(np.moveaxis(best == np.arange(n - 2), -1, 0))
        rows = pattern[:, :, 1:-1]
        entropy = -(rows * np.log(np.maximum(rows, 1e-300))).sum(axis=-1)
        rates["entropy"] += list(np.moveaxis(entropy, -1, 0))
        rates["flatness"] += list(np.moveaxis(entropy / math.log(n), -1, 0))
        rates["cls"] += list(np.moveaxis(rows[..., 0], -1, 0))
        rates["sep"] += list(np.moveaxis(rows[..., -1], -1, 0))
        assert not sentence.words[-1].isalnum()  # the only punctuation is the last word
        rates["punctuation"] += list(np.moveaxis(rows[..., -2], -1, 0))
        answer = word_argmax(content, owners)
        for relation, direction, query, targets in sentence.trials():
            rates[relation, direction].append(np.isin(answer[..., query], targets))
            gains[relation, direction].update(target - query for target in targets)
        rarest = rarest_words(sentence.words, counts, common)
        rare_sentences += bool(rarest)
        for query in set(range(len(sentence.words))) - rarest if rarest else ():
            rates["rare"].append(np.isin(answer[..., query], list(rarest)))
    mean: dict[object, Array] = {
        name: np.stack(values).astype(np.float64).mean(axis=0) for name, values in rates.items()
    }
    return Measured(
        positional={offset: mean["offset", offset] for offset in OFFSETS},
        target_mass={offset: mean["mass", offset] for offset in OFFSETS},
        syntactic={
            key: Relation(len(rates[key]), mean[key], max(gain.values()) / len(rates[key]))
            for key, gain in gains.items()
        },
        rare=mean["rare"],
        rare_sentences=rare_sentences,
        diagonal=mean["diagonal"],
        entropy=mean["entropy"],
        flatness=mean["flatness"],
        cls_mass=mean["cls"],
        sep_mass=mean["sep"],
        punctuation_mass=mean["punctuation"],
    )


# -------------------------------------------------------------------------------- checks


@dataclass(frozen=True)
class Case:
    planted: Planted
    measured: Measured
    long: bool


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Sentences are tiny: threads gain nothing, and on busy cores they wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=["short", "long"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    long = request.param == "long"
    planted = build_planted(tmp_path_factory.mktemp(request.param), seed=0, long=long)
    measured = measure(planted.folder, planted.treebank, planted.frequencies)
    return Case(planted, measured, long)


def places(planted: Planted, *kinds: str) -> list[Place]:
    return [place for place, role in planted.roles.items() if role.kind in kinds]


def syntactic_excess(measured: Measured) -> dict[tuple[str, str], Array]:
    """Accuracy minus the best fixed offset, for relations with at least 50 trials."""
    return {
        key: relation.accuracy - relation.baseline
        for key, relation in measured.syntactic.items()
        if relation.trials >= 50
    }


def test_every_head_has_a_role(case: Case) -> None:
    assert sorted(case.planted.roles) == [(layer, h) for layer in range(3) for h in range(4)]
    kinds = Counter(role.kind for role in case.planted.roles.values())
    assert kinds == {
        "positional": 4,
        "syntactic": 2,
        "rare": 1,
        "special": 1,
        "self": 1,
        "broad": 2,
        "none": 1,
    }


def test_treebank_is_valid(case: Case) -> None:
    sentences = read_treebank(case.planted.treebank)
    lengths = [len(sentence.words) for sentence in sentences]
    assert len(sentences) >= (60 if case.long else 500)
    assert min(lengths) >= (60 if case.long else 5)
    assert max(lengths) <= (90 if case.long else 25)
    for sentence in sentences:
        assert sentence.heads.count(-1) == 1
        assert sentence.relations[sentence.heads.index(-1)] == "root"
        for start in range(len(sentence.words)):
            steps, at = 0, start
            while at >= 0:
                steps, at = steps + 1, sentence.heads[at]
                assert steps <= len(sentence.words), "cycle"


def test_tokenizer_splits_words_as_intended(case: Case) -> None:
    tokenizer = AutoTokenizer.from_pretrained(case.planted.folder)
    assert tokenizer.is_fast
    words = lexicon()
    assert len({word.form for word in words}) == len(words)
    for word in words:
        assert tokenizer.tokenize(word.form) == list(word.pieces)
        assert tokenizer.tokenize(word.form.capitalize()) == list(word.pieces)
    assert {len(word.pieces) for word in words} == {1, 2, 3}


def test_frequency_file(case: Case) -> None:
    counts = read_frequencies(case.planted.frequencies)
    assert len(set(counts.values())) == len(counts)
    top = set(sorted(counts, key=lambda word: -counts[word])[:500])
    level = {word.form: word.level for word in lexicon()}
    assert all(level.get(word, 0) == 0 for word in top)
    assert any(word.form not in counts for word in lexicon())
    in_file = [word for word in counts if word in level]
    by_count = sorted(in_file, key=lambda word: -counts[word])
    assert [level[word] for word in by_count] == sorted(level[word] for word in in_file)


def test_layers_pass_hidden_states_through(case: Case) -> None:
    model, tokenizer = load(case.planted.folder)
    words = read_treebank(case.planted.treebank)[0].words
    batch = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch, output_hidden_states=True).hidden_states
    for state in states:
        assert torch.allclose(state, states[0], atol=1e-5)
        assert torch.allclose(state.square().mean(dim=-1), torch.ones(()), atol=1e-4)


def test_positional_heads(case: Case) -> None:
    for place in places(case.planted, "positional"):
        offset = case.planted.roles[place].offset
        assert offset is not None
        assert case.measured.positional[offset][place] >= 0.99
        assert case.measured.target_mass[offset][place] > 0.9
    for place in places(case.planted, "self"):
        assert case.measured.diagonal[place] >= 0.99


def test_syntactic_heads(case: Case) -> None:
    for place in places(case.planted, "syntactic"):
        role = case.planted.roles[place]
        relation = case.measured.syntactic[role.relation or "", role.direction or ""]
        assert relation.trials >= 200
        assert relation.accuracy[place] >= 0.95
        assert relation.baseline <= 0.5


def test_rare_head(case: Case) -> None:
    (place,) = places(case.planted, "rare")
    assert case.measured.rare[place] >= 0.95
    n_sentences = len(read_treebank(case.planted.treebank))
    assert case.measured.rare_sentences == n_sentences - case.planted.common_sentences
    assert case.planted.common_sentences == (0 if case.long else 11)


def test_special_head(case: Case) -> None:
    (place,) = places(case.planted, "special")
    assert case.measured.sep_mass[place] > 0.9


def test_flat_heads_are_broad_in_long_sentences_only(case: Case) -> None:
    flat = {
        place: role.detail
        for place, role in case.planted.roles.items()
        if role.detail in {"uniform", "random-small"}
    }
    assert len(flat) == 2
    for place, detail in flat.items():
        assert case.measured.flatness[place] > (0.999999 if detail == "uniform" else 0.98)
    broad = (case.measured.entropy > 3.8) & (case.measured.flatness > 0.8)
    assert {(int(a), int(b)) for a, b in np.argwhere(broad)} == (set(flat) if case.long else set())


def test_no_head_earns_a_label_it_was_not_given(case: Case) -> None:
    roles, measured = case.planted.roles, case.measured
    for place, role in roles.items():
        for offset in OFFSETS:
            if role.offset != offset:
                assert measured.positional[offset][place] < 0.5, (place, offset)
        if role.kind != "self":
            assert measured.diagonal[place] < 0.5, place
        if role.kind != "rare":
            assert measured.rare[place] < 0.3, place
        if role.kind != "special":
            assert measured.sep_mass[place] + measured.cls_mass[place] < 0.3, place
        assert measured.punctuation_mass[place] < 0.3, place
        for key, excess in syntactic_excess(measured).items():
            if key != (role.relation, role.direction):
                assert excess[place] < 0.08, (place, key)


def test_det_is_a_fixed_offset(case: Case) -> None:
    """The trap for a program without the fixed-offset baseline."""
    (following,) = [place for place, role in case.planted.roles.items() if role.offset == 1]
    det = case.measured.syntactic["det", "dep->head"]
    assert det.trials >= 50
    assert det.baseline == 1.0
    assert det.accuracy[following] > 0.95


def test_random_bert_has_no_role(tmp_path: Path) -> None:
    planted = build_planted(tmp_path / "planted")
    folder = random_bert(tmp_path / "random", seed=0)
    measured = measure(folder, planted.treebank, planted.frequencies)
    assert measured.rare.shape == (4, 8)
    assert max(excess.max() for excess in syntactic_excess(measured).values()) < 0.10
    assert max(rate.max() for rate in measured.positional.values()) < 0.90
    assert measured.rare.max() < 0.50


def test_seed_decides_everything(tmp_path: Path) -> None:
    first, again, other = (
        build_planted(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    for name in ("model.safetensors", "treebank.conllu"):
        data = [(p.folder / name).read_bytes() for p in (first, again, other)]
        assert data[0] == data[1] != data[2]
    for name in ("tokenizer.json", "frequencies.tsv"):
        data = [(p.folder / name).read_bytes() for p in (first, again, other)]
        assert data[0] == data[1] == data[2]
