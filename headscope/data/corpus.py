"""A corpus: sentences that can be read again and again without being held in memory."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headscope.core.errors import CorpusError
from headscope.core.files import sha256_of, sha256_of_file
from headscope.data.conllu import read_treebank
from headscope.data.lines import TREEBANKS, read_prose
from headscope.data.records import TABLES
from headscope.data.sentence import Sentence, split_words

SAMPLE = Path(__file__).with_name("sample.conllu")
#: Sentences of the sample that people wrote and annotated; a seeded grammar made the others.
ANNOTATED = 68
#: Universal Dependencies names its files LANGUAGE_TREEBANK-ud-SPLIT.conllu.
_UD_NAME = re.compile(r"([a-z]{2,3})_[a-z0-9]+-ud-")


@dataclass(frozen=True)
class Corpus:
    """Sentences, where they come from, and what is known about them.

    Attributes
    ----------
    name : str
        The path as given, or that of the built-in sample.
    sha256 : str
        Of the file's bytes (of the words and trees, for sentences handed over in memory).
    n_sentences : int
        What one pass yields, at least 1.
    has_trees : bool
        Whether sentences carry gold dependency trees.
    language : str or None
        ISO code, where the corpus states it.
    read : callable
        Starts a new pass over the sentences.
    note : str
        What a reader of any count on this corpus should know; mostly empty.
    table : Path or None
        The file, if its rows may be pairs of source and target for a model that reads such.
    """

    name: str
    sha256: str
    n_sentences: int
    has_trees: bool
    language: str | None
    read: Callable[[], Iterator[Sentence]]
    note: str = ""
    table: Path | None = None

    def __iter__(self) -> Iterator[Sentence]:
        return self.read()


def open_treebank(path: str | Path) -> Corpus:
    """Open a CoNLL-U file; the whole file is checked before anything runs.

    The language is taken from the file's name where that follows Universal Dependencies
    (``en_ewt-ud-test.conllu``).

    Raises
    ------
    CorpusError
        With the line number of the first thing that is not a valid tree.
    """
    path = Path(path)
    stated = _UD_NAME.match(path.name)
    corpus = _open(path, lambda: read_treebank(path), str(path), has_trees=True)
    return dataclasses.replace(corpus, language=stated[1] if stated else None)


def open_text(path: str | Path) -> Corpus:
    """Open plain text: one sentence a line, lines without a word skipped, cut by split_words."""
    path = Path(path)
    corpus = _open(path, lambda: _read_text(path), str(path), has_trees=False)
    return dataclasses.replace(corpus, table=path) if path.suffix.lower() in TABLES else corpus


@functools.cache
def sample_corpus() -> Corpus:
    """Open the built-in English sample treebank, written for headscope; it is read once."""
    sentences = tuple(read_treebank(SAMPLE))
    note = (
        f"{len(sentences) - ANNOTATED} of the {len(sentences)} sentences of the built-in sample "
        "come from a grammar; counts on real text differ."
    )
    return Corpus(
        name="built-in sample (mostly generated)",
        sha256=sha256_of_file(SAMPLE),
        n_sentences=len(sentences),
        has_trees=True,
        language="en",
        read=lambda: iter(sentences),
        note=note,
    )


def as_corpus(corpus: Corpus | str | Path | Sequence[Sentence | str] | None) -> Corpus:
    """Take a corpus in any form: None (the sample), a path, or sentences in memory.

    A path that ends in ``.conllu`` is a treebank, any other is plain text.
    """
    if corpus is None:
        return sample_corpus()
    if isinstance(corpus, Corpus):
        return corpus
    if isinstance(corpus, str | Path):
        is_treebank = Path(corpus).suffix.lower() in TREEBANKS
        return open_treebank(corpus) if is_treebank else open_text(corpus)
    return _in_memory(corpus)


def _read_text(path: Path) -> Iterator[Sentence]:
    return (Sentence(words) for _, line in read_prose(path) if (words := split_words(line)))


def _open(
    path: Path, read: Callable[[], Iterator[Sentence]], name: str, *, has_trees: bool
) -> Corpus:
    n_sentences = sum(1 for _ in read())
    if n_sentences == 0:
        raise CorpusError(f"{path} holds no sentence; give a file with at least one.")
    return Corpus(name, sha256_of_file(path), n_sentences, has_trees, None, read)


def _in_memory(items: Sequence[Sentence | str]) -> Corpus:
    sentences = [Sentence(split_words(item)) if isinstance(item, str) else item for item in items]
    sentences = [sentence for sentence in sentences if sentence.words]
    if not sentences:
        raise CorpusError("The corpus holds no sentence; give at least one.")
    digest = sha256_of(repr(sentences))
    has_trees = all(sentence.heads is not None for sentence in sentences)
    if not has_trees:  # trees of some sentences alone would make a treebank of another size
        sentences = [Sentence(sentence.words) for sentence in sentences]
    return Corpus("in memory", digest, len(sentences), has_trees, None, lambda: iter(sentences))
