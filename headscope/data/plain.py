"""Plain text: lines that are tokenised as they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headscope.core.errors import CorpusError
from headscope.core.files import sha256_of, sha256_of_file
from headscope.data.corpus import Corpus, sample_corpus
from headscope.data.files import read_prose
from headscope.data.pieces import TextModel, tokenise


@dataclass(frozen=True)
class PlainText:
    """Lines of text that can be read again and again without being held in memory."""

    name: str  # The path as given, or ``built-in sample``
    sha256: str  # Of the file's bytes
    n_lines: int  # Lines that are not blank
    read: Callable[[], Iterator[str]]  # Starts a new pass over those lines

    def __iter__(self) -> Iterator[str]:
        return self.read()


def open_plain(path: str | Path | None) -> PlainText:
    """Open a UTF-8 text file, one sentence or paragraph a line; None opens the built-in sample."""
    if path is None:
        return sample_plain()
    path = Path(path)
    n_lines = sum(1 for _ in read_prose(path))
    if n_lines == 0:
        raise CorpusError(f"{path} holds no text; give a file with at least one line.")
    return PlainText(
        str(path), sha256_of_file(path), n_lines, lambda: (line for _, line in read_prose(path))
    )


def as_plain(text: PlainText | str | Path | Sequence[str] | None) -> PlainText:
    """Take a text in any form: None (the sample), a path, or lines in memory."""
    if isinstance(text, PlainText):
        return text
    if text is None or isinstance(text, str | Path):
        return open_plain(text)
    lines = [line for line in text if line.strip()]
    if not lines:
        raise CorpusError("The text holds no line that is not blank; give at least one.")
    return PlainText("in memory", sha256_of(repr(lines)), len(lines), lambda: iter(lines))


def sample_plain() -> PlainText:
    """Open the sentences of the built-in sample treebank, words joined by spaces."""
    return plain_of(sample_corpus())


def plain_of(corpus: Corpus) -> PlainText:
    """Read a corpus as plain text, one sentence a line, words joined by spaces."""
    return PlainText(
        corpus.name, corpus.sha256, corpus.n_sentences, lambda: (item.text for item in corpus)
    )


def encode_lines(model: TextModel, lines: Iterable[str]) -> Iterator[list[int] | None]:
    """Yield each line's token ids with special tokens, or None where it is longer than allowed."""
    for encoding in tokenise(model, lines):
        yield encoding.ids if len(encoding.ids) <= model.max_length else None
