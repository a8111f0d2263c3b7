"""Tagged words in columns, a word a line, or as JSON lines; errors say which line.

Tabs split columns where a file has any (words may then have spaces inside), else white space does.
The word is the first column and its tag the last, but for

* a header, whose names say which is which;
* a first column that counts the words of each sentence: the word comes second;
* GermEval 2014, with such a column and two of tags: those of the outer entities are read;
* WikiANN, where the language stands before each word (``en:word``).

Blank lines part sentences. Lines that begin with ``#`` before a sentence are comments, unless they
have all columns and a tag: ``#`` is a word, too. ``-DOCSTART-`` lines are passed over. What could
be read in two ways is refused.

References
----------
Tjong Kim Sang & De Meulder 2003 (CoNLL-2003); Benikova et al. 2014 (GermEval); Pan et al. 2017
(WikiANN).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from headscope.core.errors import CorpusError
from headscope.data.entities import scheme_of_file
from headscope.data.files import read_blocks, read_filled

JSON_LINES = (".jsonl", ".ndjson", ".json")  # Endings of files that have an object a line.
_DOCUMENT = "-DOCSTART-"
_ONTONOTES = "#begin document"
#: Names of the column of words, and of that of tags: the first row that has one counts.
_WORDS = ("tokens", "token", "words", "word", "forms", "form")
_TAGS = (
    ("ner_tags", "ner_tag", "ner"),
    ("tags", "tag", "labels", "label"),
    ("upos", "upos_tags", "pos_tags", "pos_tag", "pos"),
)
_SPACES = re.compile("[ \t]+")
_MARKED = re.compile("[BIELMSUW][-_].+")
_LANGUAGE = re.compile("([a-z]{2,3}(?:-[a-z-]+)?):(.+)")
#: What phrases are called in the chunk column of CoNLL-2000 and CoNLL-2003.
_CHUNKS = {"NP", "VP", "PP", "ADJP", "ADVP", "SBAR", "PRT", "CONJP", "INTJ", "LST", "UCP"}
_CHUNKS |= {"NC", "VC", "PC"}  # In German.


class TaggedWord(NamedTuple):
    """A word and its tag."""

    line: int
    word: str
    tag: str


class _Row(NamedTuple):
    line: int
    cells: list[str]


Tagged = tuple[list[list[TaggedWord]], tuple[str, ...]]  # Sentences, and notes about their reading.


def read_columns(path: Path) -> Tagged:
    """Read the sentences of a file in columns."""
    sentences = list(_rows(path))
    if not sentences:
        return [], ()
    by_name = _header(path, sentences[0][0].cells)
    if by_name is not None:
        del sentences[0][0]
        sentences = [rows for rows in sentences if rows]
    if len(sentences) == 1 and len(sentences[0]) > 1:
        raise CorpusError(
            f"{path}: no blank line parts sentences, so its {len(sentences[0]):,} words would be "
            "one sentence; put a blank line behind each sentence."
        )
    columns = list(zip(*(row.cells for rows in sentences for row in rows), strict=True))
    notes: tuple[str, ...] = ()
    if by_name is not None:
        word_column, tag_column = by_name
    else:
        word_column, tag_column, notes = _places(path, sentences, columns)
    language = _language(columns[word_column])
    if language:
        notes = (*notes, f"{language}: before each word is its language, and no part of it.")
    read = []
    for rows in sentences:
        words = []
        for line, cells in rows:
            word = cells[word_column].removeprefix(f"{language}:")
            tag = cells[tag_column]
            if not word or not tag or " " in tag:
                raise CorpusError(
                    f"{path}, line {line}: the word is {word!r} and its tag {tag!r}; give every "
                    "row both, and split all columns in the same way."
                )
            words.append(TaggedWord(line, word, tag))
        read.append([word for word in words if word.word != _DOCUMENT])
    return [words for words in read if words], notes


def _rows(path: Path) -> Iterator[list[_Row]]:
    """Yield the rows of each sentence, all with as many cells."""
    blocks = []
    for block in read_blocks(path):
        for number, line in block:
            if line.startswith(_ONTONOTES):
                raise CorpusError(
                    f"{path}, line {number}: these are the columns of OntoNotes (CoNLL-2012), "
                    "whose fourth column is the word; give a word a line with its tag behind it."
                )
        blocks.append([(n, line) for n, line in block if not line.startswith(_DOCUMENT)])
    lines = list(chain(*blocks))
    has_tabs = any("\t" in line for _, line in lines if not line.startswith("#"))
    split = _split_tabs if has_tabs else _split_spaces
    sentences = [[_Row(number, split(line)) for number, line in block] for block in blocks]
    rows_of_words = [row for row in chain(*sentences) if not row.cells[0].startswith("#")]
    sure = rows_of_words or list(chain(*sentences))
    if not sure:
        return
    width = len(sure[0].cells)
    tags = {"O", *(row.cells[-1] for row in sure)}
    is_counted = _are_numbers(row.cells[0] for row in sure)

    def is_comment(row: _Row, is_first: bool) -> bool:
        if not row.cells[0].startswith("#"):
            return False
        if len(row.cells) == width and not is_counted:
            tag = row.cells[-1]
            if (has_tabs and width == 2) or tag in tags or _MARKED.fullmatch(tag):
                return False
        return is_first or is_counted or (has_tabs and len(row.cells) == 1)

    for rows in sentences:
        words: list[_Row] = []
        for row in rows:
            if is_comment(row, is_first=not words):
                continue
            if len(row.cells) != width or width < 2:
                raise _of_another_width(path, row, width, has_tabs)
            words.append(row)
        if words:
            yield words


def _split_tabs(line: str) -> list[str]:
    return [cell.strip(" ") for cell in line.split("\t")]


def _split_spaces(line: str) -> list[str]:
    return _SPACES.split(line.strip(" \t"))


def _are_numbers(cells: Iterable[str]) -> bool:
    return all(cell.isdecimal() and len(cell) < 10 for cell in cells)


def _of_another_width(path: Path, row: _Row, width: int, has_tabs: bool) -> CorpusError:
    n_columns = len(row.cells)
    found = "1 column" if n_columns == 1 else f"{n_columns} columns"
    if width > 1:
        found += f" where the first row has {width}"
    if has_tabs and n_columns == 1:
        found += " (tabs split the columns of this file)"
    elif "," in row.cells[0]:
        found += " (tabs or white space split columns, commas do not)"
    return CorpusError(
        f"{path}, line {row.line}: {found}; give a word a line with its tag in the last column, "
        "and blank lines between sentences."
    )


def _named(names: Sequence[str]) -> tuple[int, int] | None:
    """Return the places of the words and of the tags among names of columns; None without both."""
    lower = [name.strip().lower() for name in names]
    words = [i for i, name in enumerate(lower) if name in _WORDS]
    for known in _TAGS:
        tags = [i for i, name in enumerate(lower) if name in known]
        if len(words) == len(tags) == 1:
            return words[0], tags[0]
        if tags:
            break
    return None


def _header(path: Path, cells: Sequence[str]) -> tuple[int, int] | None:
    """Return the columns that a header names; None where the row is none."""
    known = {*_WORDS, *chain(*_TAGS)}
    if len([cell for cell in cells if cell.lower() in known]) < 2:
        return None
    found = _named(cells)
    if found is None:
        raise CorpusError(
            f"{path}: the header ({', '.join(cells)}) does not name one column of words and one of "
            f"tags; call them {_WORDS[1]} and {_TAGS[1][1]}."
        )
    return found


def _places(
    path: Path, sentences: Sequence[Sequence[_Row]], columns: Sequence[Sequence[str]]
) -> tuple[int, int, tuple[str, ...]]:
    """Find the columns of words and tags in a file without a header, and say what was chosen."""
    first = 0
    if _are_numbers(columns[0]):
        _check_count(path, sentences)
        first = 1
    n_columns = len(columns) - first
    if n_columns < 2:
        raise CorpusError(
            f"{path}: the first column counts the words, and only one column is left; give a word "
            "a line with its tag behind it."
        )
    has_one = len({*columns[first]}) == 1
    if has_one or (n_columns > 2 and _same_throughout(sentences, first)):
        raise CorpusError(
            f"{path}: column {first + 1} is the same throughout each sentence "
            f"({columns[first][0]!r}), so it holds no words; give a word a line, its tag behind "
            "it, and nothing before it."
        )
    n_words = len({*columns[first]})
    n_tags = len({*columns[-1]})
    tag_types = _types(columns[-1])
    if _types(columns[first]) or (tag_types is None and n_words < n_tags):
        raise CorpusError(
            f"{path}: the tags seem to stand before the words (column {first + 1} has {n_words} "
            f"different entries, the last one {n_tags}); put the word first and its tag last."
        )
    other_types = _types(columns[-2]) if n_columns > 2 else None
    if not other_types or other_types <= _CHUNKS or tag_types is None:
        return first, len(columns) - 1, ()
    if first and n_columns == 3:
        note = (
            "Tags are those of the third column, the outer entities of GermEval 2014; the inner "
            "ones, in the fourth, are not read."
        )
        return first, len(columns) - 2, (note,)
    raise CorpusError(
        f"{path}: the last two columns both have tags of entities ({_few(other_types)}; "
        f"{_few(tag_types)}), such as outer and inner ones, or right and predicted ones; leave "
        "only the column of tags that is meant."
    )


def _check_count(path: Path, sentences: Sequence[Sequence[_Row]]) -> None:
    """Refuse a first column of numbers that do not count the words of each sentence, or of all."""
    numbers = [int(row.cells[0]) for rows in sentences for row in rows]
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
    """Return the types of entities in a column of their tags; None where it holds others."""
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


def read_json_lines(path: Path) -> Tagged:
    """Read an object a line with a list of words and a list of tags, as data sets are exported."""
    sentences = []
    notes: set[str] = set()
    known_tags = {*chain(*_TAGS)}
    for line, text in read_filled(path):
        try:
            item = json.loads(text)
        except (ValueError, RecursionError):
            item = None
        if not isinstance(item, dict):
            raise CorpusError(
                f"{path}, line {line}: no JSON object; give one a line, such as "
                '{"tokens": ["Anna", "ran"], "ner_tags": ["B-PER", "O"]}.'
            )
        names = list(item)
        places = _named(names)
        if places is None:
            raise CorpusError(
                f"{path}, line {line}: no list of words and one list of tags by name (it has "
                f"{', '.join(names[:8])}); call them tokens and ner_tags."
            )
        word_name = names[places[0]]
        tag_name = names[places[1]]
        words = item[word_name]
        tags = item[tag_name]
        if not _are_tagged(words, tags):
            raise CorpusError(
                f"{path}, line {line}: {word_name} and {tag_name} are no lists of as many words "
                "and tags (names or whole numbers), none of them empty."
            )
        if any(name != tag_name and name.lower() in known_tags for name in names):
            notes.add(f"Tags are those named {tag_name}; others of the file are not read.")
        sentences.append([TaggedWord(line, w, str(t)) for w, t in zip(words, tags, strict=True)])
    return [sentence for sentence in sentences if sentence], tuple(sorted(notes))


def _are_tagged(words: Any, tags: Any) -> bool:
    """Whether a JSON value is a list of words, and another a list of as many tags."""
    if not isinstance(words, list) or not isinstance(tags, list) or len(words) != len(tags):
        return False
    if not all(isinstance(word, str) and word for word in words):
        return False
    return all(
        tag != "" and isinstance(tag, str | int) and not isinstance(tag, bool) for tag in tags
    )
