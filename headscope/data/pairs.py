"""A user's labelled pairs of words, read from a table: which heads look from one to the other?

A table (``.tsv``; ``.jsonl`` and ``.csv`` as any table), a pair a row, in one of two forms:

* text, from, to, label: two words of one text;
* source, target, from, to, label, named so in a header (or as keys of JSON): a word of the target
  and one of the source, for cross-attention, whose queries are the words of the target
  (``cross_pairs.py``).

Positions count from 0. Words are split at spaces; where no text of the file has a space, every
character is a word. Rows with the same words are one example, wherever they stand: a model reads a
copy as it reads the text, so a copy is no further evidence. A row without a pair is a text without
pairs. The same pair given twice counts once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from headscope.core.errors import CorpusError
from headscope.core.files import sha256_of_file
from headscope.data.columns import Columns, plain
from headscope.data.corpus import Corpus, LabelledTexts
from headscope.data.cross_pairs import corpus_of_labelled, labelled_texts
from headscope.data.files import read_filled
from headscope.data.sentences import Edge, Sentence, Written
from headscope.data.tables import read_records
from headscope.data.word_pieces import placed

_PAIR = ("from", "to", "label")
_PAIR_NAMES = {name: (name,) for name in _PAIR}  # A header calls these columns by their own names
#: The columns of a table in the first form, and in the second
_ONE_TEXT = Columns(
    names={"text": ("text", "sentence"), **_PAIR_NAMES},
    order={4: ("text", *_PAIR), 1: ("text",)},
    needed=("text",),
    text_alone=True,
)
_TWO_TEXTS = Columns(
    names={"source": ("source",), "target": ("target",), **_PAIR_NAMES},
    order={5: ("source", "target", *_PAIR)},
    needed=("source", "target"),
)
_BETWEEN_NAMES = re.compile(r"[\t,;:{}\[\]\"]+")  # In a header, or in an object of JSON
_POSITION = re.compile("[0-9]{1,9}")
_COUNTED = "split at spaces; characters where no text has a space"  # What a message calls words
_WORD = re.compile(r"[^ ]+")
_CHARACTER = re.compile(r".", re.DOTALL)


class _Row(NamedTuple):
    """A row of the table."""

    line: int
    texts: tuple[str, ...]  # One text, or a source and its target
    positions: tuple[str, str]  # The cells ``from`` and ``to``, not yet read as numbers
    label: str  # Empty where texts stand without a pair


def open_labelled(path: str | Path, limit: int | None = None) -> Corpus:
    """Read labelled pairs as sentences, or as sources and targets; the file is held in memory.

    Raises :class:`CorpusError` with the line's number where a row cannot be used, and where none of
    the first ``limit`` examples of the second half has a pair.
    """
    path = Path(path)
    rows = list(_rows(path))
    labels = tuple(dict.fromkeys(row.label for row in rows if row.label))
    if not labels:
        raise CorpusError(
            f"{path} holds no pair; give rows of text, from, to and label, or of source, target, "
            "from, to and label."
        )
    # All rows have one text, or all have two. What is found on half 0 is confirmed on half 1, so
    # that has to have a pair.
    if len(rows[0].texts) == 2:
        texts = _cross_examples(path, rows)
        if not any(example.half == 1 and example.pairs for example in texts[:limit]):
            raise _unconfirmed(path, rows)
        return corpus_of_labelled(
            name=str(path),
            sha256=sha256_of_file(path),
            texts=texts,
            labels=labels,
        )
    sentences = _sentences(path, rows)
    if not any(item.half == 1 and item.sentence.pairs for item in placed(sentences[:limit])):
        raise _unconfirmed(path, rows)
    return Corpus(
        name=str(path),
        sha256=sha256_of_file(path),
        n_sentences=len(sentences),
        read=lambda: iter(sentences),
        labels=labels,
        characters=_word_pattern(row.texts[0] for row in rows) is _CHARACTER,
    )


def _rows(path: Path) -> Iterator[_Row]:
    """Read the rows of a file, and refuse those that are neither a pair nor texts alone."""
    columns = _TWO_TEXTS if _names_source_and_target(path) else _ONE_TEXT
    for line, cells in read_records(path, columns):
        texts = tuple(cells[name].strip() for name in columns.needed)
        pair = [cells.get(name, "").strip() for name in _PAIR]
        if any(pair) and not all(pair):
            raise CorpusError(
                f"{path}, line {line}: no {_PAIR[pair.index('')]}; give every row "
                f"{', '.join(columns.needed)}, from, to and label, or the text alone."
            )
        from_cell, to_cell, label = pair
        if not label.isprintable():
            raise CorpusError(
                f"{path}, line {line}: the label {label!r} has a character that cannot be shown; "
                "write it in letters."
            )
        yield _Row(line=line, texts=texts, positions=(from_cell, to_cell), label=label)


def _names_source_and_target(path: Path) -> bool:
    """Whether the first line of a table, its header or its first object, has both names."""
    _, first_line = next(read_filled(path), (1, ""))
    names = {plain(name.strip()) for name in _BETWEEN_NAMES.split(first_line)}
    return {"source", "target"} <= names


def _unconfirmed(path: Path, rows: Sequence[_Row]) -> CorpusError:
    """Return the error for a file whose second half of texts has no pair."""
    return CorpusError(
        f"{path}, line {rows[-1].line}: what is found on one half of the different texts is "
        "confirmed on the other, and none of those has a pair; give pairs in more of them."
    )


def _word_pattern(texts: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of a word of these texts: what stands between spaces, or a character."""
    return _WORD if any(" " in text for text in texts) else _CHARACTER


def _position(path: Path, row: _Row, *, column: int, n_words: int) -> int:
    """Read the number of a word that a row names in column from (0) or to (1)."""
    cell = row.positions[column]
    if _POSITION.fullmatch(cell):
        position = int(cell)
        if position < n_words:
            return position
    raise CorpusError(
        f"{path}, line {row.line}: {_PAIR[column]} is {cell!r}, but the text has {n_words} "
        f"words ({_COUNTED}); give 0 to {n_words - 1}."
    )


def _sentences(path: Path, rows: Sequence[_Row]) -> list[Sentence]:
    """Gather the pairs of each text, in the order in which texts come first."""
    word_pattern = _word_pattern(row.texts[0] for row in rows)
    # By the words of a text: its pairs, a dict as a set that keeps its order, and the text.
    pairs_of: dict[tuple[str, ...], dict[Edge, None]] = {}
    written_as: dict[tuple[str, ...], Written] = {}
    for row in rows:
        text = row.texts[0]
        matches = list(word_pattern.finditer(text))
        words = tuple(match[0] for match in matches)
        spans = tuple(match.span() for match in matches)
        written_as.setdefault(words, Written(text, spans))
        pairs = pairs_of.setdefault(words, {})
        if row.label:
            pairs[_pair_in_text(path, row, words)] = None
    return [
        Sentence(words, pairs=tuple(pairs), written=written_as[words])
        for words, pairs in pairs_of.items()
    ]


def _pair_in_text(path: Path, row: _Row, words: Sequence[str]) -> Edge:
    """Read the pair of a row of one text; refuse a word with itself."""
    query = _position(path, row, column=0, n_words=len(words))
    key = _position(path, row, column=1, n_words=len(words))
    if query == key:
        raise CorpusError(
            f"{path}, line {row.line}: both ends of the pair are {words[query]!r}, word {query}; "
            "a pair joins two words, not pieces of one."
        )
    return query, key, row.label


def _cross_examples(path: Path, rows: Sequence[_Row]) -> list[LabelledTexts]:
    """Gather the pairs of each source and target.

    ``from`` counts the words of the target, ``to`` those of the source.
    """
    source_pattern = _word_pattern(row.texts[0] for row in rows)
    target_pattern = _word_pattern(row.texts[1] for row in rows)
    pairs_of: dict[tuple[str, ...], dict[Edge, None]] = {}  # By source and target
    for row in rows:
        source, target = row.texts
        pairs = pairs_of.setdefault(row.texts, {})
        if row.label:
            n_target = len(target_pattern.findall(target))
            n_source = len(source_pattern.findall(source))
            query = _position(path, row, column=0, n_words=n_target)
            key = _position(path, row, column=1, n_words=n_source)
            pairs[query, key, row.label] = None
    return labelled_texts(
        ((source, target, tuple(pairs)) for (source, target), pairs in pairs_of.items()),
        source_word=source_pattern,
        target_word=target_pattern,
    )
