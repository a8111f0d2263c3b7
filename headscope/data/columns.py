"""Which column of a table is which: the names that are known, alone and in pairs.

Names are compared without case, spaces, underscores and hyphens. A table of two texts names them by
a pair of names that belong together, as GLUE, SuperGLUE and their copies do: ``sentence1`` and
``sentence2``, ``premise`` and ``hypothesis``. A table is refused that has another column which
could be a text, or two columns that could be the same one.

First the names that are known, then :class:`Columns`: what a reader, such as that of scored pairs,
wants of a table. At the end what the cells of a table without known names look like.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from headscope.core.errors import CorpusError
from headscope.core.safe_text import listed, visible

Record = tuple[int, dict[str, str]]  # One row: its line number (from 1) and its cells by column.
#: The columns that hold a text, as readers (not headers) call them.
TEXT_COLUMNS = (
    "sentence",
    "sentence1",
    "sentence2",
    "text",
    "source",
    "target",
    "query",
    "document",
)
_SEPARATORS = re.compile(r"[\s_-]+")


def plain(name: str) -> str:
    """Return a column's name without case and separators: ``Sentence_1`` becomes ``sentence1``."""
    return _SEPARATORS.sub("", name).lower()


def row_of(cells: Sequence[str]) -> str:
    """Return the cells of a row as a message shows them."""
    return ", ".join(visible(cell.strip()) or "an empty one" for cell in cells)


@dataclass(frozen=True)
class Texts:
    """A kind of table that is known: what its header calls its texts, and its other columns."""

    first: str
    second: str | None = None  # None in a table of single texts
    labels: tuple[str, ...] = ()  # Names of its labels that no other kind of table uses
    scores: tuple[str, ...] = ()  # Names of its scores that no other kind of table uses
    passed_over: tuple[str, ...] = ()  # Names of its columns that nobody reads

    @cached_property
    def texts(self) -> frozenset[str]:
        """The plain names of the texts."""
        return frozenset(plain(name) for name in (self.first, self.second) if name is not None)

    @cached_property
    def names(self) -> frozenset[str]:
        """The plain names of all its columns."""
        without_text = (*self.labels, *self.scores, *self.passed_over)
        return self.texts.union(map(plain, without_text))

    def fit(self, names: frozenset[str]) -> bool:
        """Whether the plain names of a header are of this kind.

        They hold its texts, and no other column that could be a text.
        """
        other_texts = (names & COULD_BE_TEXT) - self.names
        return self.texts <= names and not other_texts


#: Tables of two texts: those of GLUE and SuperGLUE, of SICK, and usual ones.
PAIRS = (
    Texts("sentence1", "sentence2"),  # MNLI and SNLI as their files have them, RTE, STS-B, WNLI
    Texts("sentence", "sentence2"),
    Texts("premise", "hypothesis"),
    Texts("question", "sentence"),  # QNLI
    Texts("question1", "question2", labels=("is_duplicate",)),  # QQP
    Texts("question", "passage", labels=("answer",), passed_over=("title",)),  # BoolQ
    Texts("question", "context"),
    Texts("question", "answer"),
    Texts("#1 String", "#2 String", labels=("Quality",)),  # MRPC
    Texts(
        "sentence_A",
        "sentence_B",
        labels=("entailment_judgment", "entailment_label"),
        scores=("relatedness_score",),
    ),
    Texts("text1", "text2"),
    Texts("text", "text2"),
    Texts("text_a", "text_b"),
    Texts("text", "text_pair"),
    Texts("query", "passage"),
    Texts("query", "document"),
    Texts("anchor", "positive"),
    Texts("claim", "evidence"),
)
#: Tables of single texts.
SINGLE = (
    Texts("sentence"),
    Texts("text"),
    Texts("sentence1"),
    Texts("text1"),
    Texts("premise"),
    Texts("question"),
    Texts("question1"),
)
#: Translations, of which a reader of text without labels reads the sources.
SOURCES = (Texts("source", passed_over=("target",)),)
#: Plain names of columns that hold text for some reader or in some table.
COULD_BE_TEXT: frozenset[str] = frozenset().union(
    *[table.texts for table in PAIRS + SINGLE + SOURCES],
    {"title", "subject", "headline", "summary", "abstract", "description", "body", "content"},
    {"paragraph", "story", "article", "comment", "review", "tweet", "post", "message", "doc"},
    {"utterance", "negative", "sentence3", "text3"},
)
#: What labels and scores may be called, as :func:`plain` writes it.
LABELS = ("label", "labels", "goldlabel", "class", "target")
SCORES = ("score", "similarity", "similarityscore", "label", "gold")
#: Names of texts that are usual values of a label, too.
_ALSO_LABELS = frozenset({"positive", "negative"})
#: Names of columns that number or sort the rows; no reader reads them.
_NUMBERING = frozenset(
    {"id", "idx", "index", "guid", "uid", "qid", "pid", "pairid", "genre", "split", "lang"}
)
#: Plain names that are hardly ever data.
_USUAL_NAMES = COULD_BE_TEXT - _ALSO_LABELS | _NUMBERING


@dataclass(frozen=True)
class Columns:
    """What a reader wants of a table: which columns, and how they may be recognised.

    The reader of pairs with a score wants the columns ``sentence1``, ``sentence2`` and ``score``.
    A header may name the last ``score`` or ``similarity`` (``names``), and the texts as one of the
    ``tables`` does, such as ``premise`` and ``hypothesis``. Without a header three cells are these
    columns in this ``order``.
    """

    #: For each column the names that a header may give it, as :func:`plain` writes them
    names: dict[str, tuple[str, ...]]
    #: For each number of cells in a row, which columns they are where there is no header; ``""`` is
    #: a cell that is not read
    order: dict[int, tuple[str, ...]]
    needed: tuple[str, ...]  # Columns that every row must have
    tables: tuple[Texts, ...] = ()  # The kinds of table whose names of texts are known
    text_columns: tuple[str, ...] = ()  # The columns that are their first and their second texts
    passed_over: tuple[str, ...] = ()  # Plain names that show a header, and that are not read
    may_be_empty: tuple[str, ...] = ()  # Columns of ``needed`` whose cell may be empty
    text_alone: bool = False  # Whether a row may have its first cell alone

    @cached_property
    def known(self) -> frozenset[str]:
        """Every plain name that shows a header; a second text never stands alone."""
        first_texts = [plain(table.first) for table in self.tables]
        return frozenset().union(*self.names.values(), first_texts, self.passed_over)

    def name_in(self, cells: Sequence[str]) -> bool:
        """Whether some cells are known names of columns."""
        return not self.known.isdisjoint(map(plain, cells))

    def is_header(self, cells: Sequence[str], rows_below: Sequence[Sequence[str]]) -> bool:
        """Whether the first row has a known name that is no value of the rows below, too."""
        for i, cell in enumerate(cells):
            values = [row[i] for row in rows_below if i < len(row)]
            if self.name_in([cell]) and cell not in values:
                return True
        return False

    def passes_over(self, name: str) -> bool:
        """Whether a column is known to be no text that a reader might miss: a parse, a title."""
        name = plain(name)
        in_tables = any(name in table.names for table in self.tables)
        return name.endswith("parse") or in_tables or name in self.known

    def find(self, where: str, header: Sequence[str]) -> dict[str, int]:
        """Return the index of each column in a header: ``{"sentence1": 0, "score": 2, ...}``.

        Raises :class:`CorpusError` where a column that is needed has no name or two, and where
        another column could be the text; ``where`` begins the message.
        """
        plain_header = [plain(cell) for cell in header]
        index_of: dict[str, int] = {}
        for column, names in self._names_in(where, header, plain_header).items():
            indices = [i for i, name in enumerate(plain_header) if name in names]
            if len(indices) > 1:
                several = " and ".join(repr(header[i].strip()) for i in indices)
                raise CorpusError(
                    f"{where}: the columns {several} could each be the {column}; leave one of them."
                )
            if indices:
                index_of[column] = indices[0]
        lacking = [column for column in self.needed if column not in index_of]
        if lacking:
            raise CorpusError(
                f"{where}: the header has no column {lacking[0]} (it has {row_of(header)}); "
                f"{self.naming()}."
            )
        return index_of

    def _names_in(
        self, where: str, header: Sequence[str], plain_header: Sequence[str]
    ) -> dict[str, tuple[str, ...]]:
        """Return the names that each column may have in this header.

        Where the header is that of a known table, the texts have this table's names alone.
        """
        if not self.tables:
            return self.names
        names = frozenset(plain_header)
        table = next((table for table in self.tables if table.fit(names)), None)
        if table is not None:
            return self._names_of(table)
        could_be_text = [
            repr(cell.strip())
            for cell, name in zip(header, plain_header, strict=True)
            if name in COULD_BE_TEXT
        ]
        if len(could_be_text) > 1:
            raise CorpusError(
                f"{where}: the columns {', '.join(could_be_text)} could each be the text and "
                f"are no known pair; {self.naming()}, and leave out what is not read."
            )
        return self.names

    def _names_of(self, table: Texts) -> dict[str, tuple[str, ...]]:
        """Return the names of every column in a known table of texts."""
        only_in_table = {"label": table.labels, "score": table.scores}
        names_of = {
            column: (*names, *map(plain, only_in_table.get(column, ())))
            for column, names in self.names.items()
        }
        first_column, second_column = self.text_columns
        names_of[first_column] = (plain(table.first),)
        if table.second is not None:
            names_of[second_column] = (plain(table.second),)
        return names_of

    def naming(self) -> str:
        """Tell a user how to name the columns that are needed, and which names of texts are known.

        ``name the columns sentence, label or sentence1, sentence2, label (known for texts: ...)``
        """
        if not self.tables:
            return f"name the columns {', '.join(self.needed)}"
        without_text = [column for column in self.needed if column not in self.text_columns]
        single = [table.first for table in self.tables if table.second is None]
        pairs = [(table.first, table.second) for table in self.tables if table.second is not None]
        headers = []
        known = []
        if single:
            headers.append(", ".join((single[0], *without_text)))
            known.append(" or ".join(single[:2]))
        headers.append(", ".join((*pairs[0], *without_text)))
        known += [f"{first} with {second}" for first, second in pairs]
        return f"name the columns {' or '.join(headers)} (known for texts: {listed(known)})"


# --- tables without a header ---

_SENTENCE_MARK = re.compile(
    r"[.,;:!?\u2026\u3002\uff01\uff1f\u3001\uff0c\u061f\u0964\"()\u00ab\u00bb\u201c]"
)
_LETTER = re.compile("[A-Za-z]")
_LONG = 4  # A cell of so many words is no name of a column.
_NAME_WORDS = 2  # Most words of a class, and of a name that is told by its shortness.
_FEWEST_REPEATING = 4  # Values that a column needs before repeats are noticed.


def is_number(cell: str) -> bool:
    """Whether a cell holds a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _length(text: str) -> int:
    """Return about how many words a text has, in scripts without spaces too."""
    return max(len(text.split()), len(text) // 6)


def looks_like_header(first_row: Sequence[str], rows_below: Sequence[Sequence[str]]) -> bool:
    """Whether the first row of a table reads like names above the rows that follow.

    It does where one cell stands above a column of numbers, and is none itself; else where a cell
    reads like a name, and none reads like data.
    """
    has_data = False
    has_name = False
    for cell, *column in zip(first_row, *rows_below, strict=True):
        cell = cell.strip()
        values = [value.strip() for value in column if value.strip()]
        if is_number(cell) or cell in values:
            has_data = True
        elif values and all(map(is_number, values)):
            return True
        elif len(cell.split()) >= _LONG or _SENTENCE_MARK.search(cell):
            has_data = True  # a sentence
        elif plain(cell) in _USUAL_NAMES or _differs_from_column(cell, values):
            has_name = True
    return has_name and not has_data


def _differs_from_column(cell: str, values: Sequence[str]) -> bool:
    """Whether a cell that is none of the values below it reads like their name.

    The values are several, and few that repeat, or texts that are all longer, or of other letters.
    """
    if len(values) < 2:
        return False
    are_few = 2 * len(set(values)) <= len(values)
    length = len(cell.split())
    is_shorter = length <= _NAME_WORDS and length < min(map(_length, values))
    has_other_letters = cell.isascii() and not any(map(_LETTER.search, values))
    return are_few or is_shorter or has_other_letters


def are_labels(values: Sequence[str]) -> bool:
    """Whether values read like numbers or names of classes, and not like texts."""
    values = [value.strip() for value in values if value.strip()]
    if all(map(is_number, values)):
        return True
    are_short = all(len(value.split()) <= _NAME_WORDS for value in values)
    may_repeat = len(values) < _FEWEST_REPEATING or 2 * len(set(values)) <= len(values)
    return are_short and may_repeat
