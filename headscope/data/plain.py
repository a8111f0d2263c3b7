"""Plain text for a model's eyes: lines, tokenised as they stand."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.data.corpus import sample_corpus
from headscope.data.lines import read_lines
from headscope.data.pieces import tokenise
from headscope.errors import CorpusError

__all__ = ["PlainText", "as_plain", "encode_lines", "open_plain", "sample_plain"]


@dataclass(frozen=True)
class PlainText:
    """Lines of text that can be read again and again without being held in memory.

    Attributes
    ----------
    name : str
        The path as given, or ``built-in sample``.
    sha256 : str
        Of the file's bytes.
    n_lines : int
        Lines that are not blank.
    read : callable
        Starts a new pass over those lines.
    """

    name: str
    sha256: str
    n_lines: int
    read: Callable[[], Iterator[str]]

    def __iter__(self) -> Iterator[str]:
        return self.read()


def open_plain(path: str | Path | None) -> PlainText:
    """Open a UTF-8 text file, one sentence or paragraph a line; None opens the built-in sample.

    Raises
    ------
    CorpusError
        If it cannot be read or has no line that is not blank.
    """
    if path is None:
        return sample_plain()
    path = Path(path)
    n_lines = sum(1 for _ in _lines(path))
    if n_lines == 0:
        raise CorpusError(f"{path} holds no text; give a file with at least one line.")
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return PlainText(str(path), sha256, n_lines, lambda: _lines(path))


def as_plain(text: PlainText | str | Path | Sequence[str] | None) -> PlainText:
    """Take a text in any form: None (the sample), a path, or lines in memory.

    Raises
    ------
    CorpusError
        If there is no line that is not blank, or the file cannot be read.
    """
    if isinstance(text, PlainText):
        return text
    if text is None or isinstance(text, str | Path):
        return open_plain(text)
    lines = [line for line in text if line.strip()]
    if not lines:
        raise CorpusError("The text holds no line that is not blank; give at least one.")
    digest = hashlib.sha256(repr(lines).encode()).hexdigest()
    return PlainText("in memory", digest, len(lines), lambda: iter(lines))


def sample_plain() -> PlainText:
    """Open the sentences of the built-in sample treebank, words joined by spaces."""
    corpus = sample_corpus()
    return PlainText(
        corpus.name,
        corpus.sha256,
        corpus.n_sentences,
        lambda: (" ".join(sentence.words) for sentence in corpus),
    )


def encode_lines(
    tokenizer: Any, lines: Iterable[str], max_length: int, vocab_size: int
) -> Iterator[list[int] | None]:
    """Yield each line's token ids with special tokens, or None where it is longer than allowed.

    Parameters
    ----------
    tokenizer : transformers fast tokenizer
    lines : iterable of str
    max_length : int
        Longest sequence of the model, special tokens included.
    vocab_size : int
        Rows of the model's embedding.

    Raises
    ------
    CorpusError
        If the tokenizer gives an id that the embedding lacks.
    """
    for encoding in tokenise(tokenizer, lines, vocab_size):
        yield encoding.ids if len(encoding.ids) <= max_length else None


def _lines(path: Path) -> Iterator[str]:
    return (line for _, line in read_lines(path) if line.strip())
