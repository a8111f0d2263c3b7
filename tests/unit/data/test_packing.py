"""Windows of exactly n tokens, against a plain reading of their definition."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import VOCABULARY, TextOnly, tiny_tokenizer

from headscope.core.errors import CorpusError, InputError
from headscope.data.corpus import as_corpus, as_plain
from headscope.data.packing import Windows, check_length, pack, pack_pairs

TOKENIZER = tiny_tokenizer()
CLS = VOCABULARY.index("[CLS]")
SEP = VOCABULARY.index("[SEP]")
LINES = ["the cat sat on the mat", "", "zebras", "he saw a dog. She ran"]


def packed(lines: list[str], length: int, **more: int) -> Windows:
    return pack(as_plain(lines), TextOnly(TOKENIZER, **more), length)


def by_hand(lines: list[str], length: int) -> list[list[int]]:
    """Join the lines' pieces, cut, put [CLS] and [SEP] around, drop what is left over."""
    stream: list[int] = []
    for line in lines:
        stream += TOKENIZER.convert_tokens_to_ids(TOKENIZER.tokenize(line))
    inner = length - 2
    return [
        [CLS, *stream[start : start + inner], SEP]
        for start in range(0, len(stream) - inner + 1, inner)
    ]


@example(LINES * 3, 7)
@settings(max_examples=30, deadline=None)
@given(st.lists(st.text("abc the", min_size=1, max_size=30), min_size=1), st.integers(4, 12))
def test_any_text_is_cut_as_defined(lines, length):
    if not (expected := by_hand([line for line in lines if line.strip()], length)):
        with pytest.raises(CorpusError):
            packed(lines, length)
        return
    windows = packed(lines, length)
    assert windows.batch(range(len(windows))).tolist() == expected
    (stream,) = windows.streams
    assert stream.tokens.dtype == np.int32
    assert isinstance(stream.starts, range), "memory holds the stream and nothing else"


def test_sequences_are_spread_over_the_text_or_drawn_without_replacement():
    windows = packed(LINES * 3, 8)
    w = len(windows)
    for n in (1, 2, 5, 6, 7, 100):
        expected = [i * w // n for i in range(n)] if n < w else list(range(w))
        assert windows.spread(n).tolist() == expected
    assert windows.spread().tolist() == list(range(w))
    windows = packed(LINES * 9, 4)
    first = windows.shuffled(3)
    assert sorted(first) == list(range(len(windows)))
    assert first.tolist() == windows.shuffled(3).tolist() != windows.shuffled(4).tolist()
    assert windows.shuffled(-1).tolist() != first.tolist()


def test_bad_lengths_and_texts():
    for length in (-1, 0, 3):
        with pytest.raises(InputError, match="give 4 tokens or more"):
            check_length(length, 64, "tiny")
    with pytest.raises(InputError, match="tiny takes at most 64 tokens"):
        packed(LINES, 65)
    with pytest.raises(CorpusError, match=r"too short: it has 6 tokens, and one sequence of 9"):
        packed(["the cat sat on the mat"], 9)
    with pytest.raises(CorpusError, match="do not belong together"):
        packed(LINES, 8, vocab_size=10)


PAIRS = [
    ("the cat sat", "a dog"),
    ("he saw", "she ran in the red house"),
    ("it is big", "zebras"),
    ("and the mat", "on a mat of the dog"),
] * 4


def pairs_by_hand(length: int, start: int) -> list[tuple[list[int], list[int]]]:
    """Take pairs until both sides are full; cut both; go on with the next pair."""

    def ids(text: str) -> list[int]:
        return TOKENIZER.convert_tokens_to_ids(TOKENIZER.tokenize(text))

    windows = []
    source: list[int] = []
    target: list[int] = []
    for a, b in PAIRS:
        source = source + ids(a)
        target = target + ids(b)
        if len(source) >= length - 2 and len(target) >= length - 1:
            windows.append(([CLS, *source[: length - 2], SEP], [start, *target[: length - 1]]))
            source = []
            target = []
    return windows


def test_windows_of_pairs_hold_the_same_pairs_on_both_sides():
    length = 9
    windows = pack_pairs(as_corpus(PAIRS), TextOnly(TOKENIZER), length, (3,))
    expected = pairs_by_hand(length, 3)
    assert len(windows) == len(expected) > 1
    sources, targets = windows.inputs(range(len(windows)))
    assert sources.tolist() == [source for source, _ in expected]
    assert targets.tolist() == [target for _, target in expected]
    assert windows.inputs([1])[1].tolist() == [expected[1][1]]
    assert windows.content("encoder") == slice(1, length - 1)
    assert windows.content("cross") == slice(1, length)


def test_too_few_or_damaged_pairs():
    with pytest.raises(CorpusError, match=r"2 pairs have 5 source and 8 target tokens.*38 and 39"):
        pack_pairs(as_corpus(PAIRS[:2]), TextOnly(TOKENIZER), 40, (3,))
    for pairs, says in (
        ([("a", "b"), ("a", " ")], "Pair 2 in memory"),
        ([("a", "b"), "ab"], "Pair 2 in memory"),
        (["the cat", float("nan")], "rows that are no text"),
    ):
        with pytest.raises(CorpusError, match=says):
            as_corpus(pairs)
