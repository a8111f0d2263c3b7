"""The sample treebank is valid, by the CoNLL-U definition alone, and varied enough."""

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import pytest

from headscope.data.corpus import SAMPLE
from headscope.digest import sha256_of_file


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
def treebank() -> list[Sentence]:
    raw = SAMPLE.read_bytes().decode("utf-8")
    return [_parse(block) for block in raw.removesuffix("\n\n").split("\n\n")]


def test_the_file_is_the_one_that_was_annotated_and_laid_out_as_conllu():
    """Whoever changes the sample changes every number that was ever measured on it."""
    assert (
        sha256_of_file(SAMPLE) == "a90b0241e55842b53e69e607cb1e288190f160d999eee92d7deaa9b2338dc9b1"
    )
    raw = SAMPLE.read_bytes().decode("utf-8")
    assert "\r" not in raw
    assert raw.endswith("\n\n")
    assert "\n\n\n" not in raw


def test_rows_and_ranges(treebank):
    for sentence in treebank:
        for row in [*sentence.words, *sentence.ranges]:
            assert len(row) == 10
            assert all(cell and cell == cell.strip() for cell in row)
            assert " " not in row[1]
        for number, row in enumerate(sentence.words, 1):
            assert row[0] == str(number)
            assert row[2] != "_"
            assert row[3] in UPOS
            assert row[7].split(":")[0] in RELATIONS
            assert (row[3] == "PUNCT") == (row[7] == "punct")
        for row in sentence.ranges:
            start, end = map(int, row[0].split("-"))
            assert 1 <= start < end <= len(sentence.words)
            assert row[2:9] == ["_"] * 7
            assert row[1] == "".join(w[1] for w in sentence.words[start - 1 : end])
    assert sum(len(sentence.ranges) for sentence in treebank) >= 3


def test_trees_whose_function_words_are_leaves(treebank):
    leaves = {"case", "det", "aux", "aux:pass", "cop", "mark", "cc", "punct"}
    for sentence in treebank:
        heads, text = [int(row[6]) for row in sentence.words], sentence.comments["text"]
        assert heads.count(0) == 1
        assert all(0 <= head <= len(heads) for head in heads)
        for row, head in zip(sentence.words, heads, strict=True):
            assert (head == 0) == (row[7] == "root")
            if head and sentence.words[head - 1][7] in leaves:
                assert row[7] in {"fixed", "advmod", "conj", "punct"}, text
        for start in range(1, len(heads) + 1):
            seen, at = set(), start
            while at:
                assert at not in seen, text
                seen.add(at)
                at = heads[at - 1]
        # One subject and one object each.
        counts = Counter((row[6], row[7].split(":")[0]) for row in sentence.words)
        once = {"nsubj", "obj", "iobj", "cop", "expl"}
        assert all(count == 1 for (_, relation), count in counts.items() if relation in once), text


def test_text_matches_rows_and_articles_the_next_sound(treebank):
    for sentence in treebank:
        covers = {int(r[0].split("-")[0]): r for r in sentence.ranges}
        text, skip_to = "", 0
        for number, word in enumerate(sentence.words, 1):
            if number > skip_to:
                row = covers.get(number, word)
                skip_to = int(row[0].split("-")[-1])
                text += row[1] + ("" if "SpaceAfter=No" in row[9] else " ")
        assert text.rstrip() == sentence.comments["text"]
        for row, following in pairwise(sentence.words):
            if row[1].lower() == "an":
                assert following[1][0].lower() in "aeiouh1", text
            elif row[1].lower() == "a":
                assert following[1][0].lower() not in "aei", text


def test_size_lengths_and_variety(treebank):
    lengths = [len(s.words) for s in treebank]
    assert len(treebank) >= 400
    for name in ("sent_id", "text"):
        assert len({s.comments[name] for s in treebank}) == len(treebank)
    assert min(lengths) >= 4
    assert 28 <= max(lengths) <= 36
    assert sum(n <= 8 for n in lengths) >= 50
    assert sum(n >= 20 for n in lengths) >= 50
    assert sum(s.comments["sent_id"].startswith("hand-") for s in treebank) >= 60
    assert len({row[1].lower() for s in treebank for row in s.words}) >= 600
    counts = Counter(row[7] for s in treebank for row in s.words)
    frequent = {r for r, n in counts.items() if n >= 50} - {"root", "punct"}
    assert len(frequent) >= 20
    assert {"nsubj", "obj", "iobj", "obl", "nsubj:pass", "ccomp", "conj", "expl"} <= frequent


def test_no_single_offset_dominates(treebank):
    limits = {"nsubj": 0.55, "obj": 0.45, "obl": 0.5, "advmod": 0.65, "iobj": 0.6, "ccomp": 0.4}
    for relation, limit in limits.items():
        rows = [row for s in treebank for row in s.words if row[7] == relation]
        offsets = Counter(int(row[6]) - int(row[0]) for row in rows)
        assert max(offsets.values()) / offsets.total() <= limit
        assert len(offsets) >= 4
