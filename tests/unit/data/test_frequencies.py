"""Word frequencies: which source is taken, and what it says."""

import dataclasses
from pathlib import Path

import pytest
import wordfreq

from headscope.core.errors import CorpusError
from headscope.data.corpus import as_corpus
from headscope.data.frequencies import N_FREQUENT, Frequencies, find_frequencies

CORPUS = as_corpus(["The cat saw the Cat.", "A dog!"])
ENGLISH = dataclasses.replace(CORPUS, language="en")


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def counted(folder: Path, text: str) -> Frequencies:
    return find_frequencies(CORPUS, written(folder / "counts.tsv", text), None)


def test_then_wordfreq_in_the_named_language_or_the_corpus_own():
    stated = find_frequencies(ENGLISH, None, None)
    assert stated.source.startswith("wordfreq 3.")
    assert stated.source.endswith(", language en")
    assert stated.frequency("cat") == wordfreq.word_frequency("cat", "en")
    assert stated.frequent == frozenset(wordfreq.top_n_list("en", 500))
    assert stated.sha256 is None
    named = find_frequencies(ENGLISH, None, "de")
    assert named.source.endswith(", language de")
    assert named.frequency("und") == wordfreq.word_frequency("und", "de")


@pytest.mark.parametrize("language", [None, "tlh", "eu"])
def test_then_the_corpus(language):
    """Klingon, Basque: no list of wordfreq; another language's list would be wrong."""
    frequencies = find_frequencies(CORPUS, None, language)
    expected = "the corpus itself (in memory)"
    if language is not None:
        expected += f", since wordfreq has no list of the language {language}"
    assert frequencies.source == expected
    counts = {"the": 2, "cat": 2, "saw": 1, ".": 1, "a": 1, "dog": 1, "!": 1, "unseen": 0}
    assert {word: frequencies.frequency(word) for word in counts} == counts
    assert frequencies.frequent == frozenset(counts) - {"unseen"}


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (
            "The\t5\nthe\t10\nTHE\t1\ncat\t2.5\n\nCat\t1e1\nnever\t0\n",
            {"the": 16, "cat": 12.5, "never": 0, "The": 0},
        ),
        ("\ufeffthe\t5\r\ncaf\u00e9\t2\r\n", {"the": 5, "caf\u00e9": 2}),
        ("word\tcount\nthe\t10\nkestrel\t1\n", {"the": 10, "word": 0}),
    ],
    ids=["upper and lower case are added", "line ends and a byte order mark", "a heading"],
)
def test_forms_of_a_file(text, counts, tmp_path):
    frequencies = counted(tmp_path, text)
    assert {word: frequencies.frequency(word) for word in counts} == counts


def test_ties_in_the_order_of_the_source_or_of_the_text(tmp_path):
    """450 frequent words, then 100 with one count: the first 50 of those are in."""
    tied = [f"tied{(7 * i) % 100}" for i in range(100)]
    frequent = [f"frequent{i}" for i in range(N_FREQUENT - 50)]
    counts = [(word, 2) for word in tied] + [(f"rare{i}", 1) for i in range(20)]
    counts += [(word, 3 + i) for i, word in enumerate(frequent)]
    frequencies = counted(tmp_path, "".join(f"{word}\t{n}\n" for word, n in counts))
    assert frequencies.frequent == {*frequent, *tied[:50]}
    words = [f"w{(11 * i) % 600}" for i in range(600)]
    frequencies = find_frequencies(as_corpus([" ".join(words)]), None, None)
    assert frequencies.frequent == frozenset(words[:N_FREQUENT])


def test_files_that_are_refused(tmp_path):
    for line in ("the", "the 5", "the\t", "\t5", "the\t-1", "the\tnan", "a\tb\tc"):
        with pytest.raises(CorpusError, match=r"counts\.tsv, line 3: "):
            counted(tmp_path, f"a\t1\n\n{line}\n")
