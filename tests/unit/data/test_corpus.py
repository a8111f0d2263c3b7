"""Corpora: splitting text, reading again and again, checksums, languages."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from headscope.data.corpus import SAMPLE, as_corpus, open_text, open_treebank
from headscope.data.sentence import Sentence, split_words
from headscope.errors import CorpusError

TREE = "1\tBirds\t_\t_\t_\t_\t2\tnsubj\t_\t_\n2\tfly\t_\t_\t_\t_\t0\troot\t_\t_\n\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("The cat sat.", "The|cat|sat|."),
        ("don't  stop\t(now)", "don't|stop|(|now|)"),
        ("l\u2019eau d'une", "l\u2019eau|d'une"),
        ("'quoted' dogs'", "'|quoted|'|dogs|'"),
        ("well-known 3.14 $5", "well|-|known|3|.|14|$|5"),
        ("na\u00efve cafe\u0301 \u4f60\u597d", "na\u00efve|cafe\u0301|\u4f60\u597d"),
        ("wait... what?!", "wait|.|.|.|what|?|!"),
        ("snake_case", "snake_case"),
        ("\U0001f600 \u200b", "\U0001f600"),
        ("", ""),
        (" \u00a0\t", ""),
    ],
)
def test_splitting(line: str, words: str) -> None:
    assert split_words(line) == tuple(words.split("|") if words else ())


def test_text(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    data = b"\xef\xbb\xbfOne two.\r\n\n  \n\xe2\x80\x8b\nThree\nFour"
    path.write_bytes(data)
    corpus = open_text(path)
    expected = [Sentence(("One", "two", ".")), Sentence(("Three",)), Sentence(("Four",))]
    assert list(corpus) == expected
    assert list(corpus) == expected  # a second pass gives the same
    assert (corpus.name, corpus.n_sentences, corpus.has_trees) == (str(path), 3, False)
    assert corpus.sha256 == hashlib.sha256(data).hexdigest()
    assert corpus.language is None


def test_treebank(tmp_path: Path) -> None:
    path = tmp_path / "bank.conllu"
    path.write_text(TREE * 2)
    corpus = open_treebank(path)
    assert list(corpus) == [Sentence(("Birds", "fly"), (1, -1), ("nsubj", "root"))] * 2
    assert list(corpus) == list(corpus)
    assert (corpus.n_sentences, corpus.has_trees) == (2, True)
    assert corpus.sha256 == hashlib.sha256((TREE * 2).encode()).hexdigest()


def test_passes_are_independent(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("One\nTwo\n")
    one, other = iter(open_text(path)), iter(open_text(path))
    assert next(one) == next(other)
    assert next(one).words == next(other).words == ("Two",)


def test_the_file_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("One\nTwo\n")
    stream = open_text(path).read()
    assert next(stream).words == ("One",)
    assert iter(stream) is stream


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("en_ewt-ud-test.conllu", "en"),
        ("grc_perseus-ud-dev.conllu", "grc"),
        ("my-en_ewt-ud-test.conllu", None),
        ("english.conllu", None),
        ("de.conllu", None),
    ],
)
def test_language_of_a_file_name(name: str, language: str | None, tmp_path: Path) -> None:
    (tmp_path / name).write_text(TREE)
    assert open_treebank(tmp_path / name).language == language


def test_the_sample() -> None:
    corpus = as_corpus(None)
    assert (corpus.name, corpus.language, corpus.has_trees) == (
        "built-in sample (mostly generated)",
        "en",
        True,
    )
    assert corpus.sha256 == hashlib.sha256(SAMPLE.read_bytes()).hexdigest()
    assert sum(1 for _ in corpus) == corpus.n_sentences


@pytest.mark.parametrize("kind", [str, Path])
def test_paths_by_their_suffix(kind: type, tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text(TREE)
    (tmp_path / "a.txt").write_text("Birds fly")
    assert as_corpus(kind(tmp_path / "a.conllu")).has_trees
    assert not as_corpus(kind(tmp_path / "a.txt")).has_trees


def test_a_corpus_passes_through() -> None:
    corpus = as_corpus(["Birds fly."])
    assert as_corpus(corpus) is corpus


def test_sentences_in_memory() -> None:
    tree = Sentence(("Birds", "fly"), (1, -1), ("nsubj", "root"))
    corpus = as_corpus(["Birds fly.", "", tree])
    assert [s.words for s in corpus] == [("Birds", "fly", "."), ("Birds", "fly")]
    assert (corpus.n_sentences, corpus.has_trees) == (2, False)
    assert as_corpus([tree]).has_trees
    other = as_corpus(["Birds fly!", tree])
    assert corpus.sha256 == as_corpus(["Birds fly.", tree]).sha256 != other.sha256


@pytest.mark.parametrize("nothing", [[], [""], [Sentence(())]])
def test_nothing_in_memory(nothing: list[str | Sentence]) -> None:
    with pytest.raises(CorpusError, match="no sentence"):
        as_corpus(nothing)
