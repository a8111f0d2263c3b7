"""Word frequencies: which source is taken, and what it says."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import pytest
import wordfreq

from headscope.data.corpus import Corpus, as_corpus, sample_corpus
from headscope.data.frequencies import N_FREQUENT, find_frequencies
from headscope.errors import CorpusError


@pytest.fixture
def corpus() -> Corpus:
    return as_corpus(["The cat saw the Cat.", "A dog!"])


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def english(corpus: Corpus) -> Corpus:
    return dataclasses.replace(corpus, language="en")


def test_the_users_file_comes_first(corpus: Corpus, tmp_path: Path) -> None:
    path = written(tmp_path / "counts.tsv", "zebra\t3\n")
    found = find_frequencies(english(corpus), path, "de")
    assert found.source == f"file {path}"
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (found.frequency("zebra"), found.frequency("the")) == (3, 0)


def test_then_wordfreq(corpus: Corpus) -> None:
    stated = find_frequencies(english(corpus), None, None)
    assert stated.source.startswith("wordfreq 3.")
    assert stated.source.endswith(", language en")
    assert stated.frequency("cat") == wordfreq.word_frequency("cat", "en")
    assert stated.frequency("xqzzvk") == 0
    assert stated.frequent == frozenset(wordfreq.top_n_list("en", 500))
    assert "the" in stated.frequent
    assert stated.sha256 is None


@pytest.mark.parametrize("language", ["EN", "en-GB", "en_US"])
def test_spellings_of_a_language(language: str, corpus: Corpus) -> None:
    """Where a list is taken for another tag, the source names that list."""
    found = find_frequencies(corpus, None, language)
    if found.source.startswith("wordfreq"):
        assert found.frequency("cat") == wordfreq.word_frequency("cat", "en")
        assert found.source.split("language ")[1].startswith("en")


def test_the_named_language_wins(corpus: Corpus) -> None:
    found = find_frequencies(english(corpus), None, "de")
    assert found.source.endswith(", language de")
    assert found.frequency("und") == wordfreq.word_frequency("und", "de")


@pytest.mark.parametrize("language", [None, "tlh", "ga", "eu", "lzh", "xx"])
def test_then_the_corpus(language: str | None, corpus: Corpus) -> None:
    """Klingon, Irish, Basque: no list of wordfreq; another language's list would be wrong."""
    found = find_frequencies(corpus, None, language)
    assert found.source == "the corpus itself (in memory)"
    counts = {"the": 2, "cat": 2, "saw": 1, ".": 1, "a": 1, "dog": 1, "!": 1, "unseen": 0}
    assert {word: found.frequency(word) for word in counts} == counts
    assert found.frequent == frozenset(counts) - {"unseen"}


def test_upper_and_lower_case_are_added(corpus: Corpus, tmp_path: Path) -> None:
    text = "The\t5\nthe\t10\nTHE\t1\ncat\t2.5\n\nCat\t1e1\nnever\t0\n"
    found = find_frequencies(corpus, written(tmp_path / "counts.tsv", text), None)
    words = ("the", "cat", "never", "The")
    assert [found.frequency(word) for word in words] == [16, 12.5, 0, 0]


def test_ties_in_the_order_of_the_source(corpus: Corpus, tmp_path: Path) -> None:
    """450 frequent words, then 100 with one count: the first 50 of those are in."""
    tied = [f"tied{(7 * i) % 100}" for i in range(100)]
    rare = [f"rare{i}" for i in range(20)]
    frequent = [f"frequent{i}" for i in range(N_FREQUENT - 50)]
    counts = [(word, 2) for word in tied] + [(word, 1) for word in rare]
    counts += [(word, 3 + i) for i, word in enumerate(frequent)]
    path = written(tmp_path / "counts.tsv", "".join(f"{word}\t{n}\n" for word, n in counts))
    found = find_frequencies(corpus, path, None)
    assert found.frequent == {*frequent, *tied[:50]}


def test_ties_of_the_corpus_in_the_order_of_the_text() -> None:
    words = [f"w{(11 * i) % 600}" for i in range(600)]
    found = find_frequencies(as_corpus([" ".join(words)]), None, None)
    assert found.frequent == frozenset(words[:N_FREQUENT])


def test_line_ends_and_a_byte_order_mark(corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "counts.tsv"
    path.write_bytes(b"\xef\xbb\xbfthe\t5\r\ncaf\xc3\xa9\t2\r\n")
    found = find_frequencies(corpus, path, None)
    assert (found.frequency("the"), found.frequency("caf\u00e9")) == (5, 2)


@pytest.mark.parametrize("line", ["the", "the 5", "the\t", "\t5", "the\t-1", "the\tnan", "a\tb\tc"])
def test_malformed_lines(line: str, corpus: Corpus, tmp_path: Path) -> None:
    path = written(tmp_path / "counts.tsv", f"a\t1\n\n{line}\n")
    with pytest.raises(CorpusError, match=r"counts\.tsv, line 3: "):
        find_frequencies(corpus, path, None)


def test_an_empty_file(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"counts\.tsv"):
        find_frequencies(corpus, written(tmp_path / "counts.tsv", "\n"), None)


def test_a_missing_file(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="There is no file"):
        find_frequencies(corpus, tmp_path / "counts.tsv", None)


def test_a_heading_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "counts.tsv"
    path.write_text("word\tcount\nthe\t10\nkestrel\t1\n", encoding="utf-8")
    found = find_frequencies(sample_corpus(), path, None)
    assert found.frequency("the") == 10
    assert found.frequency("word") == 0
