"""Tagged words in columns, a word a line; errors say which line.

Tabs split columns where a file has any (words may then have spaces inside), else white space does.
The word is the first column and its tag the last, but for

* a header, whose names say which is which;
* a first column that counts the words of each sentence: the word comes second;
* GermEval 2014, with such a column and two of tags: those of the outer entities are read;
* WikiANN, where the language stands before each word (``en:word``).

Blank lines part sentences. Lines that begin with ``#`` before a sentence are comments, unless they
have all columns and a tag: ``#`` is a word, too. ``-DOCSTART-`` lines are passed over. What could
be read in two ways is refused.

First :func:`read_columns`, then how lines become rows, and which column is which.

References
----------
Tjong Kim Sang & De Meulder 2003 (CoNLL-2003); Benikova et al. 2014 (GermEval); Pan et al. 2017
(WikiANN).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from headscope.core.errors import CorpusError
from headscope.data.entities import scheme_of_file
from headscope.data.files import read_blocks

_DOCUMENT = "-DOCSTART-"
_ONTONOTES = "#begin document"
#: What a header may call the column of words.
_WORDS = ("tokens", "token", "words", "word", "forms", "form")
#: What a header may call the column of tags. Where it has names of several of these rows, the first
#: row counts: of the columns ``ner`` and ``pos`` ``ner`` is read.
TAGS = (
    ("ner_tags", "ner_tag", "ner"),
    ("tags", "tag", "labels", "label"),
    ("upos", "upos_tags", "pos_tags", "pos_tag", "pos"),
)
_SPACES = re.compile("[ \t]+")
_MARKED = re.compile("[BIELMSUW][-_].+")  # A tag such as B-PER
_LANGUAGE = re.compile("([a-z]{2,3}(?:-[a-z-]+)?):(.+)")  # A word such as en:word
#: Types of phrases in the chunk column of CoNLL-2000 and CoNLL-2003, beside which tags may stand.
_CHUNKS = {"NP", "VP", "PP", "ADJP", "ADVP", "SBAR", "PRT", "CONJP", "INTJ", "LST", "UCP"}
_CHUNKS |= {"NC", "VC", "PC"}  # In German.


class TaggedWord(NamedTuple):
    """A word and its tag."""

    line: int
    word: str
    tag: str


class _Row(NamedTuple):
    """A line in columns."""

    line: int
    cells: list[str]


Tagged = tuple[list[list[TaggedWord]], tuple[str, ...]]  # Sentences, and notes about their reading.


def read_columns(path: Path) -> Tagged:
    """Read the sentences of a file in columns."""
    # Read rows of cells, and take a header off.
    sentences = list(_rows(path))
    if not sentences:
        return [], ()
    by_name = _header(path, sentences[0][0].cells)  # the columns of words and tags, if it is one
    if by_name is not None:
        del sentences[0][0]
        sentences = [rows for rows in sentences if rows]
    if len(sentences) == 1 and len(sentences[0]) > 1:
        raise CorpusError(
            f"{path}: no blank line parts sentences, so its {len(sentences[0]):,} words would be "
            "one sentence; put a blank line behind each sentence."
        )

    # Find the columns of words and of tags.
    columns = list(zip(*[row.cells for row in chain(*sentences)], strict=True))
    notes: tuple[str, ...] = ()
    if by_name is not None:
        word_column, tag_column = by_name
    else:
        word_column, tag_column, notes = _columns_without_header(path, sentences, columns)
    language = _language(columns[word_column])
    if language:
        notes = (*notes, f"{language}: before each word is its language, and no part of it.")

    # Take both from every row.
    tagged_sentences = []
    for rows in sentences:
        tagged_words = []
        for line, cells in rows:
            word = cells[word_column].removeprefix(f"{language}:")
            tag = cells[tag_column]
            _check_word(path, line, word, tag)
            if word != _DOCUMENT:
                tagged_words.append(TaggedWord(line, word, tag))
        if tagged_words:
            tagged_sentences.append(tagged_words)
    return tagged_sentences, notes


def _check_word(path: Path, line: int, word: str, tag: str) -> None:
    """Refuse a row without a word, or without one tag."""
    if not word or not tag or " " in tag:
        raise CorpusError(
            f"{path}, line {line}: the word is {word!r} and its tag {tag!r}; give every "
            "row both, and split all columns in the same way."
        )


# --- rows of cells ---


def _rows(path: Path) -> Iterator[list[_Row]]:
    """Yield the rows of each sentence, all with as many cells."""
    blocks = list(_blocks(path))
    lines = list(chain(*blocks))
    has_tabs = any("\t" in line for _, line in lines if not line.startswith("#"))
    split = _split_tabs if has_tabs else _split_spaces
    sentences = [[_Row(number, split(line)) for number, line in block] for block in blocks]
    shape = _shape_of(list(chain(*sentences)), has_tabs)
    for rows in sentences:
        word_rows: list[_Row] = []
        for row in rows:
            if shape.is_comment(row, is_first=not word_rows):
                continue
            if len(row.cells) != shape.width or shape.width < 2:
                raise _of_another_width(path, row, shape.width, has_tabs)
            word_rows.append(row)
        if word_rows:
            yield word_rows


def _blocks(path: Path) -> Iterator[list[tuple[int, str]]]:
    """Yield the lines of each sentence with their numbers; refuse what OntoNotes writes."""
    for block in read_blocks(path):
        for number, line in block:
            if line.startswith(_ONTONOTES):
                raise CorpusError(
                    f"{path}, line {number}: these are the columns of OntoNotes (CoNLL-2012), "
                    "whose fourth column is the word; give a word a line with its tag behind it."
                )
        yield [(number, line) for number, line in block if not line.startswith(_DOCUMENT)]


@dataclass(frozen=True)
class _Shape:
    """The form of a file's rows, by which comments are told from the word ``#``."""

    has_tabs: bool  # Whether tabs split the columns
    width: int  # Number of columns
    tags: frozenset[str]  # The cells of the last column
    is_counted: bool  # Whether the first column counts the words

    def is_comment(self, row: _Row, *, is_first: bool) -> bool:
        """Whether a row is a comment; ``is_first``: no word of its sentence stands before it."""
        if not row.cells[0].startswith("#"):
            return False
        # Where all columns and a tag are there, "#" is a word.
        if len(row.cells) == self.width and not self.is_counted:
            tag = row.cells[-1]
            has_tag = tag in self.tags or _MARKED.fullmatch(tag)
            if has_tag or (self.has_tabs and self.width == 2):
                return False
        # Between words a comment has to be certain; other rows are refused for their width.
        return is_first or self.is_counted or (self.has_tabs and len(row.cells) == 1)


def _shape_of(rows: Sequence[_Row], has_tabs: bool) -> _Shape:
    """Describe a file by the rows that do not begin with ``#``; by all where every row does."""
    word_rows = [row for row in rows if not row.cells[0].startswith("#")] or rows
    return _Shape(
        has_tabs=has_tabs,
        width=len(word_rows[0].cells) if word_rows else 0,
        tags=frozenset({"O", *(row.cells[-1] for row in word_rows)}),
        is_counted=_are_numbers(row.cells[0] for row in word_rows),
    )


def _split_tabs(line: str) -> list[str]:
    return [cell.strip(" ") for cell in line.split("\t")]


def _split_spaces(line: str) -> list[str]:
    return _SPACES.split(line.strip(" \t"))


def _are_numbers(cells: Iterable[str]) -> bool:
    return all(cell.isdecimal() and len(cell) < 10 for cell in cells)


def _of_another_width(path: Path, row: _Row, width: int, has_tabs: bool) -> CorpusError:
    """Return the error for a row of more or fewer columns than the first, or of one column."""
    n_columns = len(row.cells)
    problem = "1 column" if n_columns == 1 else f"{n_columns} columns"
    if width > 1:
        problem += f" where the first row has {width}"
    if has_tabs and n_columns == 1:
        problem += " (tabs split the columns of this file)"
    elif "," in row.cells[0]:
        problem += " (tabs or white space split columns, commas do not)"
    return CorpusError(
        f"{path}, line {row.line}: {problem}; give a word a line with its tag in the last column, "
        "and blank lines between sentences."
    )


# --- which column is which ---


def columns_by_name(names: Sequence[str]) -> tuple[int, int] | None:
    """Return the columns of words and of tags by name: of ("token", "pos", "ner") columns 0 and 2.

    None where the names do not say it: without one column of words and one of tags.
    """
    lower = [name.strip().lower() for name in names]
    word_columns = [i for i, name in enumerate(lower) if name in _WORDS]
    for tag_names in TAGS:
        tag_columns = [i for i, name in enumerate(lower) if name in tag_names]
        if len(word_columns) == len(tag_columns) == 1:
            return word_columns[0], tag_columns[0]
        if tag_columns:
            return None
    return None


def _header(path: Path, cells: Sequence[str]) -> tuple[int, int] | None:
    """Return the columns of words and tags that a header names; None if the row is no header."""
    known_names = {*_WORDS, *chain(*TAGS)}
    if len([cell for cell in cells if cell.lower() in known_names]) < 2:
        return None
    columns = columns_by_name(cells)
    if columns is None:
        raise CorpusError(
            f"{path}: the header ({', '.join(cells)}) does not name one column of words and one of "
            f"tags; call them {_WORDS[1]} and {TAGS[1][1]}."
        )
    return columns


def _columns_without_header(
    path: Path, sentences: Sequence[Sequence[_Row]], columns: Sequence[Sequence[str]]
) -> tuple[int, int, tuple[str, ...]]:
    """Find the columns of words and tags in a file without a header, with notes on the choice.

    ``columns`` are the cells of the whole file, by column.
    """
    word_column = 0
    if _are_numbers(columns[0]):
        _check_count(path, sentences)
        word_column = 1
    n_columns = len(columns) - word_column
    if n_columns < 2:
        raise CorpusError(
            f"{path}: the first column counts the words, and only one column is left; give a word "
            "a line with its tag behind it."
        )
    _refuse_no_words(path, sentences, columns, word_column)

    # The last column is that of tags, unless the one before it has tags of entities, too.
    tag_types = _types(columns[-1])
    types_before = _types(columns[-2]) if n_columns > 2 else None
    if not types_before or types_before <= _CHUNKS or tag_types is None:
        return word_column, len(columns) - 1, ()
    is_germeval = word_column == 1 and n_columns == 3
    if is_germeval:
        note = (
            "Tags are those of the third column, the outer entities of GermEval 2014; the inner "
            "ones, in the fourth, are not read."
        )
        return word_column, len(columns) - 2, (note,)
    raise CorpusError(
        f"{path}: the last two columns both have tags of entities ({_few(types_before)}; "
        f"{_few(tag_types)}), such as outer and inner ones, or right and predicted ones; leave "
        "only the column of tags that is meant."
    )


def _refuse_no_words(
    path: Path,
    sentences: Sequence[Sequence[_Row]],
    columns: Sequence[Sequence[str]],
    word_column: int,
) -> None:
    """Raise where the column that should hold words repeats itself, or looks like that of tags."""
    has_one_word = len({*columns[word_column]}) == 1
    has_several_behind = len(columns) - word_column > 2
    if has_one_word or (has_several_behind and _same_throughout(sentences, word_column)):
        raise CorpusError(
            f"{path}: column {word_column + 1} is the same throughout each sentence "
            f"({columns[word_column][0]!r}), so it holds no words; give a word a line, its tag "
            "behind it, and nothing before it."
        )
    n_words = len({*columns[word_column]})
    n_tags = len({*columns[-1]})
    more_tags = _types(columns[-1]) is None and n_words < n_tags
    if _types(columns[word_column]) or more_tags:
        raise CorpusError(
            f"{path}: the tags seem to stand before the words (column {word_column + 1} has "
            f"{n_words} different entries, the last one {n_tags}); put the word first and its tag "
            "last."
        )


def _check_count(path: Path, sentences: Sequence[Sequence[_Row]]) -> None:
    """Refuse a first column of numbers that do not count the words of each sentence, or of all."""
    numbers = [int(row.cells[0]) for row in chain(*sentences)]
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return
    for rows in sentences:
        start = int(rows[0].cells[0])
        for expected, row in enumerate(rows, start=min(start, 1)):
            if int(row.cells[0]) != expected:
                raise CorpusError(
                    f"{path}, line {row.line}: the first column has numbers, and {row.cells[0]} "
                    f"stands where {expected} should follow; let it count the words of each "
                    "sentence, or leave it out."
                )


def _same_throughout(sentences: Iterable[Sequence[_Row]], column: int) -> bool:
    """Whether each sentence of several words has one entry in this column."""
    different = [len({row.cells[column] for row in rows}) for rows in sentences if len(rows) > 1]
    return bool(different) and max(different) == 1


def _types(column: Sequence[str]) -> set[str] | None:
    """Return the types of entities in a column of tags (PER of B-PER); None of other columns."""
    if {*column} <= {"O", "o"}:
        return set()
    try:
        scheme = scheme_of_file("", [column])
    except CorpusError:
        return None
    return None if scheme is None else {kind for _, kind in scheme.marks.values()}


def _few(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:4]) or "O"


def _language(words: Sequence[str]) -> str:
    """Return the language that stands before every word of a file; empty where there is none."""
    codes = set()
    for word in words:
        match = _LANGUAGE.fullmatch(word)
        codes.add(match[1] if match else "")
    return codes.pop() if len(codes) == 1 else ""
