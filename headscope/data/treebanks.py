"""Treebanks in CoNLL-U, read strictly: a tree that is not one is refused, with its line.

Words are the rows with integer ids; empty nodes (``5.1``) are passed over. What a model reads is
the text: the comment ``# text = ...`` where the words stand in it in order, else the words, joined
as ``SpaceAfter=No`` says. Where several words are written as one (``3-4 zum``, for ``zu`` and
``dem``), the text has the written one. Columns may have another order, which CoNLL-U Plus states
in its first line (``# global.columns = ID FORM ...``).

:func:`read_treebank`, at the end, is what readers of trees call. Before it: how rows become blocks
of words, one row, and the text.

References
----------
https://universaldependencies.org/format.html, https://universaldependencies.org/ext-format.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from headscope.core.errors import CorpusError
from headscope.data.files import read_blocks
from headscope.data.sentences import ROOT, Sentence, Span, Written, has_word, is_punctuation

_COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
_PLUS = re.compile(r"#\s*global\.columns\s*=(.*)")
_TEXT = re.compile(r"#\s*text\s*=(.*)")
_WITHHELD = "_"  # The form of a word that may not be published.


class TreeRow(NamedTuple):
    """A word of a treebank, whose head is not yet read as a number."""

    line: int
    form: str
    tag: str  # Universal part of speech
    head: str
    relation: str


class Token(NamedTuple):
    """A word as it is written: one word of a tree, or several.

    ``3-4 zum`` in a sentence, for ``zu`` and ``dem``, is ("zum", first 2, behind 4).
    """

    form: str
    first: int  # Index of the first word of the tree that it stands for, from zero
    behind: int  # Index behind its last word
    space: bool  # Whether a space follows


class TreeBlock(NamedTuple):
    """The words of a sentence, and where they stand in its text."""

    rows: list[TreeRow]
    written: Written  # The text, and the span of each word in it


def treebank_rows(path: Path) -> Iterator[list[TreeRow]]:
    """Yield the words of each sentence of a CoNLL-U file; whether they are a tree is not asked."""
    return (block.rows for block in treebank_blocks(path))


def treebank_blocks(path: Path) -> Iterator[TreeBlock]:
    """Yield the words of each sentence with its text; refuse one whose words are withheld."""
    columns = _numbered(_COLUMNS)
    has_rows = False  # Whether the file had a row already
    for block in read_blocks(path):
        rows: list[TreeRow] = []
        tokens: list[Token] = []
        stated_text = ""
        for number, line in block:  # the lines between two blank ones
            if line.startswith("#"):
                column_names = _PLUS.fullmatch(line)
                if column_names is not None and not has_rows:
                    columns = _plus_columns(path, number, column_names[1])
                text = _TEXT.fullmatch(line)
                if text is not None:
                    stated_text = text[1].strip()
                continue
            if not has_rows and "\t" not in line:
                raise CorpusError(
                    f"{path}, line {number}: no columns that tabs split, so this is no treebank in "
                    "CoNLL-U; give plain text as text, or mend the treebank."
                )
            has_rows = True
            cells = _cells(path, number, line, columns)
            _add_row(path, number, cells, rows=rows, tokens=tokens)
        if rows:
            if tokens[-1].behind > len(rows):  # 3-4 was the last row, and no row 4 came
                reach = f"a row reaches to word {tokens[-1].behind} of {len(rows)}"
                raise _mend(path, block[-1][0], reach)
            _refuse_withheld(path, rows)
            yield TreeBlock(rows, _written(tokens, [row.form for row in rows], stated_text))


def _add_row(
    path: Path, number: int, cells: Mapping[str, str], *, rows: list[TreeRow], tokens: list[Token]
) -> None:
    """Add the word of a row to ``rows``, or a written word to ``tokens``, or both.

    A row ``3-4 zum`` is a written word, and the rows 3 and 4 below it are words of the tree alone;
    any other row is both.
    """
    row_id = _row_id(path, number, cells["ID"])
    if row_id is None:
        return
    first, last = row_id
    if first != len(rows) + 1:
        raise _mend(path, number, f"row id {cells['ID']} where {len(rows) + 1} should follow")
    if not cells["FORM"].strip():
        raise _mend(path, number, "the word's form is empty")
    is_inside = bool(tokens) and tokens[-1].behind >= first  # of the row 3-4 above
    is_range = "-" in cells["ID"]
    if is_range and is_inside:
        raise _mend(path, number, f"{cells['ID']} begins inside another such row")
    if not is_inside:
        space = "SpaceAfter=No" not in cells.get("MISC", "").split("|")
        tokens.append(Token(form=cells["FORM"], first=first - 1, behind=last, space=space))
    if not is_range:
        rows.append(_tree_row(number, cells))


# --- one row ---


_ROW_ID = re.compile(r"([1-9][0-9]{0,8})(?:-([1-9][0-9]{0,8}))?")
_EMPTY_NODE = re.compile(r"[0-9]+\.[1-9][0-9]*")
_HEAD = re.compile(r"[0-9]+")


def _mend(path: Path, line: int, fault: str) -> CorpusError:
    """Return the error for a fault of a treebank."""
    return CorpusError(f"{path}, line {line}: {fault}; mend the treebank there.")


def _numbered(names: Sequence[str]) -> dict[str, int]:
    """Return the index of each column."""
    return {name: number for number, name in enumerate(names)}


def _plus_columns(path: Path, number: int, stated: str) -> dict[str, int]:
    """Return the index of each column of a file in CoNLL-U Plus."""
    columns = _numbered(stated.split())
    missing = [name for name in ("ID", "FORM") if name not in columns]
    if missing:
        raise CorpusError(
            f"{path}, line {number}: the columns have no {missing[0]} ({stated.strip()}); give a "
            "treebank with ID and FORM, and for trees HEAD and DEPREL."
        )
    return columns


def _cells(path: Path, number: int, line: str, columns: Mapping[str, int]) -> dict[str, str]:
    """Return the cells of a row by the names of their columns."""
    cells = line.split("\t")
    if len(cells) != len(columns):
        widths = f"{len(cells)} columns instead of {len(columns)} (they are split by tabs)"
        raise _mend(path, number, widths)
    return {name: cells[column] for name, column in columns.items()}


def _row_id(path: Path, number: int, cell: str) -> tuple[int, int] | None:
    """Return the first and the last word that a row is about; None of an empty node."""
    if _EMPTY_NODE.fullmatch(cell):
        return None
    match = _ROW_ID.fullmatch(cell)
    if match is None:
        raise _mend(path, number, f"{cell!r} is not a row id (such as 3, 3-4 or 3.1)")
    first = int(match[1])
    last = int(match[2] or match[1])
    if last < first:
        raise _mend(path, number, f"the row id {cell} ends before it begins")
    return first, last


def _tree_row(number: int, cells: Mapping[str, str]) -> TreeRow:
    """Make the word of a row; of a relation such as ``nsubj:pass`` the part before the colon."""
    return TreeRow(
        line=number,
        form=cells["FORM"],
        tag=cells.get("UPOS", "_"),
        head=cells.get("HEAD", "_"),
        relation=cells.get("DEPREL", "_").partition(":")[0],
    )


def _refuse_withheld(path: Path, rows: Sequence[TreeRow]) -> None:
    """Raise where words are withheld: several, and beside them there is only punctuation.

    A single ``_`` is an underscore that somebody wrote.
    """
    forms = [row.form for row in rows if row.form != _WITHHELD]
    if len(rows) - len(forms) > 1 and all(map(is_punctuation, forms)):
        raise CorpusError(
            f"{path}, line {rows[0].line}: the treebank's words are withheld (the form of each "
            "word is _); merge the text in, as the treebank's README says."
        )


# --- the text ---


def _written(tokens: Sequence[Token], forms: Sequence[str], stated: str) -> Written:
    """Find the words of a sentence in the text that its comment states.

    Where they do not stand in it in order, the text is the words themselves, joined.
    """
    written_words = [token.form for token in tokens]
    text = stated
    token_spans = _spans_of(stated, written_words)
    if token_spans is None:
        text = "".join(f"{token.form} " if token.space else token.form for token in tokens).strip()
        token_spans = _spans_of(text, written_words)
    assert token_spans is not None  # every word stands in the text that the words make
    spans: list[Span] = []
    for token, (begin, stop) in zip(tokens, token_spans, strict=True):
        words = forms[token.first : token.behind]
        inner_spans = _spans_of(token.form, words)  # "do" and "n't" stand in "don't"
        if inner_spans is None:
            spans += [(begin, stop)] * len(words)
        else:
            spans += [(begin + first, begin + behind) for first, behind in inner_spans]
    return Written(text, tuple(spans))


def _spans_of(text: str, words: Sequence[str]) -> list[Span] | None:
    """Return where words stand in a text; None where they do not, or others lie between them."""
    spans: list[Span] = []
    stop = 0
    for word in words:
        begin = text.find(word, stop)
        if begin < 0 or has_word(text[stop:begin]):
            return None
        stop = begin + len(word)
        spans.append((begin, stop))
    return None if has_word(text[stop:]) else spans


def note_of_multiword(sentences: Iterator[Sentence]) -> tuple[int, str]:
    """Count sentences, and write the note on words that are written as one; empty without them."""
    n_sentences = 0
    n_written = 0
    n_words = 0
    example = ""
    for sentence in sentences:
        n_sentences += 1
        words_with_spans = zip(sentence.spans, sentence.words, strict=True)
        for (begin, stop), group in groupby(words_with_spans, key=lambda pair: pair[0]):
            words = [word for _, word in group]
            if len(words) > 1:
                n_written += 1
                n_words += len(words)
                example = example or f"{sentence.text[begin:stop]}: {' + '.join(words)}"
    note = (
        f"{n_written:,} written words are {n_words:,} words of the trees (multiword tokens, such "
        f"as {example}). The model reads what is written; its pieces count for the first of these "
        "words, and the others are left out."
    )
    return n_sentences, note if n_written else ""


# --- the tree ---


def read_treebank(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a CoNLL-U file with their trees."""
    for rows, written in treebank_blocks(path):
        heads = _heads(path, rows)
        _refuse_cycle(path, rows, heads)
        yield Sentence(
            words=tuple(row.form for row in rows),
            heads=tuple(heads),
            relations=tuple(row.relation for row in rows),
            written=written,
        )


def _heads(path: Path, rows: Sequence[TreeRow]) -> list[int]:
    """Return the head of each word, from zero, or ROOT; refuse heads that are no word."""
    heads: list[int] = []
    for row_id, row in enumerate(rows, start=1):
        if not _HEAD.fullmatch(row.head):
            raise _mend(path, row.line, f"the head {row.head!r} is not a number")
        if len(row.head) > 9 or int(row.head) > len(rows):
            raise _mend(path, row.line, f"head {row.head} is out of range 0..{len(rows)}")
        head = int(row.head)
        if head == row_id:
            raise _mend(path, row.line, f"word {row_id} is its own head")
        if head == 0 and ROOT in heads:
            raise _mend(path, row.line, "a second root; a sentence has exactly one")
        heads.append(ROOT if head == 0 else head - 1)
    return heads


def _refuse_cycle(path: Path, rows: Sequence[TreeRow], heads: Sequence[int]) -> None:
    """Raise unless following the heads upwards from every word ends at the root."""
    safe = {ROOT}  # Words from which the root is reached
    for first_word in range(len(heads)):
        word = first_word
        trail: list[int] = []
        while word not in safe:
            if word in trail:
                cycle = [*trail[trail.index(word) :], word]
                words = " -> ".join(str(index + 1) for index in cycle)
                raise _mend(path, rows[word].line, f"the heads run in a cycle: {words}")
            trail.append(word)
            word = heads[word]
        safe.update(trail)
