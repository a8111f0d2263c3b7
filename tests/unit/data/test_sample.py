"""Validity of the sample treebank, checked from the CoNLL-U definition alone."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import pytest
from sample_treebank import grammar

from headscope.data.corpus import SAMPLE


def _words(text: str) -> set[str]:
    return set(text.split())


UPOS = _words("ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X")
RELATIONS = _words(
    "acl advcl advmod amod appos aux case cc ccomp compound conj cop csubj dep det discourse "
    "dislocated expl fixed flat iobj list mark nmod nsubj nummod obj obl orphan parataxis punct "
    "root vocative xcomp"
)


class Sentence(NamedTuple):
    """One block: its comments, its word rows and its multiword-token rows."""

    comments: dict[str, str]
    words: list[list[str]]
    ranges: list[list[str]]

    @property
    def heads(self) -> list[int]:
        """Head of each word, from the seventh column."""
        return [int(row[6]) for row in self.words]


def _parse(block: str) -> Sentence:
    comments: dict[str, str] = {}
    words: list[list[str]] = []
    ranges: list[list[str]] = []
    for line in block.split("\n"):
        if line.startswith("# "):
            key, _, value = line[2:].partition(" = ")
            comments[key] = value
        else:
            row = line.split("\t")
            (ranges if "-" in row[0] else words).append(row)
    return Sentence(comments, words, ranges)


@pytest.fixture(scope="module")
def raw() -> str:
    return SAMPLE.read_bytes().decode("utf-8")


@pytest.fixture(scope="module")
def treebank(raw: str) -> list[Sentence]:
    return [_parse(block) for block in raw.removesuffix("\n\n").split("\n\n")]


def _offsets(treebank: list[Sentence], relation: str) -> Counter[int]:
    return Counter(
        int(row[6]) - int(row[0]) for s in treebank for row in s.words if row[7] == relation
    )


def test_file_layout(raw: str) -> None:
    assert "\r" not in raw
    assert raw.endswith("\n\n")
    assert "\n\n\n" not in raw


def test_ten_filled_columns(treebank: list[Sentence]) -> None:
    for sentence in treebank:
        for row in [*sentence.words, *sentence.ranges]:
            assert len(row) == 10
            assert all(cell and cell == cell.strip() for cell in row)
            assert " " not in row[1]


def test_word_rows(treebank: list[Sentence]) -> None:
    for sentence in treebank:
        for row in sentence.words:
            assert row[2] != "_"
            assert row[3] in UPOS
            assert row[7].split(":")[0] in RELATIONS
            assert (row[3] == "PUNCT") == (row[7] == "punct")


def test_ids_are_contiguous(treebank: list[Sentence]) -> None:
    for sentence in treebank:
        assert [row[0] for row in sentence.words] == [
            str(i) for i in range(1, len(sentence.words) + 1)
        ]


def test_ranges_cover_words_that_exist(treebank: list[Sentence]) -> None:
    ranges = [(s, row) for s in treebank for row in s.ranges]
    assert len(ranges) >= 3
    for sentence, row in ranges:
        start, end = map(int, row[0].split("-"))
        assert 1 <= start < end <= len(sentence.words)
        assert row[2:9] == ["_"] * 7
        assert row[1] == "".join(w[1] for w in sentence.words[start - 1 : end])


def test_trees(treebank: list[Sentence]) -> None:
    for sentence in treebank:
        heads = sentence.heads
        assert heads.count(0) == 1
        assert all(0 <= head <= len(heads) for head in heads)
        for row in sentence.words:
            assert (row[6] == "0") == (row[7] == "root")
        for start in range(1, len(heads) + 1):
            seen, at = set(), start
            while at:
                assert at not in seen, sentence.comments["text"]
                seen.add(at)
                at = heads[at - 1]


def test_function_words_have_no_subjects_or_objects(treebank: list[Sentence]) -> None:
    leaves = {"case", "det", "aux", "aux:pass", "cop", "mark", "cc", "punct"}
    for sentence in treebank:
        for row in sentence.words:
            head = int(row[6])
            if head and sentence.words[head - 1][7] in leaves:
                assert row[7] in {"fixed", "advmod", "conj", "punct"}, sentence.comments["text"]


def test_one_subject_and_one_object_each(treebank: list[Sentence]) -> None:
    for sentence in treebank:
        seen = Counter((row[6], row[7].split(":")[0]) for row in sentence.words)
        for (_, relation), count in seen.items():
            if relation in {"nsubj", "obj", "iobj", "cop", "expl"}:
                assert count == 1, sentence.comments["text"]


def test_text_matches_rows(treebank: list[Sentence]) -> None:
    for sentence in treebank:
        covers = {int(r[0].split("-")[0]): r for r in sentence.ranges}
        text, skip_to = "", 0
        for number, word in enumerate(sentence.words, 1):
            if number <= skip_to:
                continue
            row = covers.get(number, word)
            skip_to = int(row[0].split("-")[-1])
            text += row[1] + ("" if "SpaceAfter=No" in row[9] else " ")
        assert text.rstrip() == sentence.comments["text"]


def test_sentences_are_distinct(treebank: list[Sentence]) -> None:
    assert len({s.comments["sent_id"] for s in treebank}) == len(treebank)
    assert len({s.comments["text"] for s in treebank}) == len(treebank)


def test_size_and_lengths(treebank: list[Sentence]) -> None:
    lengths = [len(s.words) for s in treebank]
    assert len(treebank) >= 400
    assert min(lengths) >= 4
    assert max(lengths) >= 28
    assert max(lengths) <= 36
    assert sum(n <= 8 for n in lengths) >= 50
    assert sum(n >= 20 for n in lengths) >= 50


def test_hand_annotated_share(treebank: list[Sentence]) -> None:
    by_hand = [s for s in treebank if s.comments["sent_id"].startswith("hand-")]
    assert len(by_hand) >= 60


def test_vocabulary(treebank: list[Sentence]) -> None:
    assert len({row[1].lower() for s in treebank for row in s.words}) >= 600


def test_relations_are_frequent(treebank: list[Sentence]) -> None:
    counts = Counter(row[7] for s in treebank for row in s.words)
    frequent = {r for r, n in counts.items() if n >= 50} - {"root", "punct"}
    assert len(frequent) >= 20
    assert {"nsubj", "obj", "iobj", "obl", "nsubj:pass", "ccomp", "conj", "expl"} <= frequent


@pytest.mark.parametrize(
    ("relation", "limit"),
    [("nsubj", 0.55), ("obj", 0.45), ("obl", 0.5), ("advmod", 0.65), ("iobj", 0.6), ("ccomp", 0.4)],
)
def test_no_single_offset_dominates(treebank: list[Sentence], relation: str, limit: float) -> None:
    offsets = _offsets(treebank, relation)
    assert max(offsets.values()) / offsets.total() <= limit
    assert len(offsets) >= 4


def test_article_agrees_with_next_sound(treebank: list[Sentence]) -> None:
    for sentence in treebank:
        for row, following in pairwise(sentence.words):
            if row[1].lower() == "an":
                assert following[1][0].lower() in "aeiouh1", sentence.comments["text"]
            elif row[1].lower() == "a":
                assert following[1][0].lower() not in "aei", sentence.comments["text"]


def test_generator_is_deterministic() -> None:
    assert list(grammar.generate(12, 7)) == list(grammar.generate(12, 7))
    assert list(grammar.generate(12, 7)) != list(grammar.generate(12, 8))


def test_rebuild_equals_the_tracked_file() -> None:
    assert grammar.build().encode("utf-8") == SAMPLE.read_bytes()
