"""Pairs of words that a user wants heads for: labelled pairs in a text, alignments of two texts.

* **Labelled pairs**: a table (``.tsv``; ``.jsonl`` and ``.csv`` as any table) with the columns
  text, from, to and label, a pair a row. Positions count from 0. Words are split at spaces; where
  no text of the file has a space, every character is a word. Rows with the same words are one
  sentence, wherever they stand: a model reads a copy as it reads the text, so a copy is no further
  evidence. A row with a text alone is a sentence without pairs. The same pair given twice counts
  once.
* **Alignments**: in the form of Pharaoh, a line for each row of a table of source and target, with
  links ``0-0 1-2`` (source-target); ``1?2`` or ``1p2`` is possible but not sure. A blank line is a
  pair without links. On a side where no text has a space every character is a word. A row that
  repeats the texts of an earlier one is left out.

References
----------
Och & Ney 2003, A Systematic Comparison of Various Statistical Alignment Models (sure and possible).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, tee
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import torch

from headscope.core.accumulator import Array
from headscope.core.errors import CorpusError
from headscope.core.files import sha256_of, sha256_of_file
from headscope.data.batches import AlignedWords, Asked, Batch, collate_pairs, edge_trials, trials_of
from headscope.data.columns import Columns
from headscope.data.corpus import (
    AlignedPair,
    Corpus,
    Links,
    Spans,
    corpus_of_pairs,
    open_pairs,
)
from headscope.data.files import Edge, LastOther, Sentence, Written, read_lines, text_key
from headscope.data.pieces import TextModel, tokenise
from headscope.data.tables import read_records
from headscope.data.token_rows import Ends, PairRow, encode_pairs
from headscope.data.word_pieces import EncodedSentence, placed

ALIGNED = "aligned"  # The label of all links of an alignment.
_FIELDS = ("text", "from", "to", "label")
_COLUMNS = Columns(
    names={"text": ("text", "sentence"), "from": ("from",), "to": ("to",), "label": ("label",)},
    order={4: _FIELDS, 1: ("text",)},
    needed=("text",),
    text_alone=True,
)
_POSITION = re.compile("[0-9]{1,9}")
_LINK = re.compile("([0-9]{1,9})([-?p])([0-9]{1,9})")
_COUNTED = "split at spaces; characters where no text has a space"
_UNCONFIRMED = (
    "what is found on one half of the different {0} is confirmed on the other, and none of those "
    "has a pair"
)
_WORD = re.compile(r"[^ ]+")
_CHARACTER = re.compile(r".", re.DOTALL)


def open_labelled(path: str | Path, limit: int | None = None) -> Corpus:
    """Read labelled pairs as sentences; the whole file is held in memory.

    Raises :class:`CorpusError` with the line's number where a row cannot be used, and where none of
    the first ``limit`` sentences of the second half has a pair.
    """
    path = Path(path)
    rows = list(_rows(path))
    unit = _WORD if any(" " in row.text for row in rows) else _CHARACTER
    sentences = _sentences(path, rows, unit)
    labels = dict.fromkeys(row.label for row in rows if row.label)
    if not labels:
        raise CorpusError(
            f"{path} holds no pair; give rows of text, from, to and label (alignments such as 0-0 "
            "1-2 stand beside a table of source and target, which is given as text)."
        )
    if not any(item.half == 1 and item.sentence.pairs for item in placed(sentences[:limit])):
        raise CorpusError(
            f"{path}, line {rows[-1].line}: {_UNCONFIRMED.format('texts')}; give pairs in more of "
            "them."
        )
    return Corpus(
        name=str(path),
        sha256=sha256_of_file(path),
        n_sentences=len(sentences),
        read=lambda: iter(sentences),
        labels=tuple(labels),
        characters=unit is _CHARACTER,
    )


class _Row(NamedTuple):
    """A row of a table of pairs as it is written; from, to and label are empty for a text alone."""

    line: int
    text: str
    first: str  # The cell ``from``
    second: str  # The cell ``to``
    label: str


def _rows(path: Path) -> Iterator[_Row]:
    """Yield the rows of a table of pairs; refuse one that has a pair in part."""
    for line, cells in read_records(path, _COLUMNS):
        row = _Row(line, *[cells.get(name, "").strip() for name in _FIELDS])
        pair_cells = (row.first, row.second, row.label)
        if any(pair_cells) and not all(pair_cells):
            missing = _FIELDS[1 + pair_cells.index("")]
            raise CorpusError(
                f"{path}, line {line}: no {missing}; give every row text, "
                "from, to and label, or the text alone."
            )
        if not row.label.isprintable():
            raise CorpusError(
                f"{path}, line {line}: the label {row.label!r} has a character that cannot be "
                "shown; write it in letters."
            )
        yield row


def _sentences(path: Path, rows: Iterable[_Row], unit: re.Pattern[str]) -> list[Sentence]:
    """Make one sentence of all rows with the same words; ``unit`` matches a word."""
    pairs_of: dict[tuple[str, ...], dict[Edge, None]] = {}
    written_as: dict[tuple[str, ...], Written] = {}
    for row in rows:
        matches = list(unit.finditer(row.text))
        words = tuple(match[0] for match in matches)
        spans = tuple(match.span() for match in matches)
        written_as.setdefault(words, Written(row.text, spans))
        pairs = pairs_of.setdefault(words, {})
        if row.label:
            pairs[_pair(path, row, words)] = None
    return [
        Sentence(words, pairs=tuple(pairs), written=written_as[words])
        for words, pairs in pairs_of.items()
    ]


def _pair(path: Path, row: _Row, words: Sequence[str]) -> Edge:
    """Return the pair of a row as positions of words."""
    first = _position(path, row.line, "from", row.first, words)
    second = _position(path, row.line, "to", row.second, words)
    if first == second:
        raise CorpusError(
            f"{path}, line {row.line}: both ends of the pair are {words[first]!r}, word "
            f"{first}; a pair joins two words, not pieces of one."
        )
    return first, second, row.label


def _position(path: Path, line: int, column: str, cell: str, words: Sequence[str]) -> int:
    """Read the position of one of some words."""
    position = int(cell) if _POSITION.fullmatch(cell) else len(words)
    if position >= len(words):
        raise CorpusError(
            f"{path}, line {line}: {column} is {cell!r}, but the text has {len(words)} words "
            f"({_COUNTED}); give 0 to {len(words) - 1}."
        )
    return position


# --- alignments of two texts ---


def with_alignments(corpus: Corpus, path: str | Path, limit: int | None = None) -> Corpus:
    """Add alignments to a corpus of sources and targets; both files are read and checked whole.

    Raises :class:`CorpusError` as :func:`open_labelled` does.
    """
    path = Path(path)
    corpus = open_pairs(corpus.table) if corpus.table is not None else corpus
    if (pairs := corpus.pairs) is None:
        raise CorpusError(
            f"{corpus.name} holds sentences. Labelled pairs come with their own text, so give "
            f"{path} alone; alignments belong to a table of source and target, so give that as "
            "text."
        )
    n_lines = sum(1 for _ in read_lines(path))
    if n_lines != corpus.n_pairs:
        raise CorpusError(
            f"{path} has {n_lines} lines, and {corpus.name} {corpus.n_pairs} pairs of source and "
            "target; give a line for each pair, blank where nothing is aligned."
        )
    units = [
        _CHARACTER if all(" " not in pair[side] for pair in pairs()) else _WORD for side in (0, 1)
    ]

    def aligned() -> Iterator[AlignedPair]:
        # Pairs that share a text make a group, which lies in one half.
        groups: dict[str, int] = {}
        n_groups = 0
        seen: set[tuple[str, str]] = set()
        earlier = LastOther[Links]()
        for (source, target), (number, line) in zip(pairs(), read_lines(path), strict=True):
            words = (_spans(units[0], source), _spans(units[1], target))
            size = (len(words[0]), len(words[1]))
            links = tuple(dict.fromkeys(_links(path, number, line, size)))
            texts = (text_key(source), text_key(target))
            if texts in seen:
                continue
            seen.add(texts)
            group = next((groups[text] for text in texts if text in groups), n_groups)
            n_groups = max(n_groups, group + 1)
            for text in texts:
                groups.setdefault(text, group)
            swapped = earlier.before(links, size, group) or ()
            yield AlignedPair(source, target, words, links, group % 2, swapped)

    n_pairs = sum(1 for _ in aligned())
    if not any(pair.half == 1 and pair.links for pair in islice(aligned(), limit)):
        raise CorpusError(
            f"{path}, line {n_lines}: {_UNCONFIRMED.format('texts')} of words; align more of them."
        )
    note = corpus.note
    if n_pairs < n_lines:
        repeats = f"{n_lines - n_pairs:,} of {n_lines:,}"
        note = f"{note} Rows that repeat an earlier pair of texts are left out: {repeats}."
    name = f"{corpus.name}, {path}"
    digest = sha256_of(f"{corpus.sha256} {sha256_of_file(path)}")
    different = corpus_of_pairs(name, digest, lambda: ((p.source, p.target) for p in aligned()))
    return dataclasses.replace(
        corpus,
        name=name,
        sha256=digest,
        n_sentences=different.n_sentences,
        read=different.read,
        pairs=different.pairs,
        n_pairs=different.n_pairs,
        note=note.strip(),
        labels=(ALIGNED,),
        aligned=aligned,
    )


def _spans(unit: re.Pattern[str], text: str) -> Spans:
    """Return where the words of a text begin and end."""
    return tuple(match.span() for match in unit.finditer(text))


def _links(
    path: Path, number: int, line: str, size: tuple[int, int]
) -> Iterator[tuple[int, int, bool]]:
    """Yield the links of a line: words of the source, of the target, and whether it is sure."""
    for part in line.split():
        match = _LINK.fullmatch(part)
        if match is None:
            raise CorpusError(
                f"{path}, line {number}: {part!r} is no link of an alignment; write 0-0 for sure "
                "ones (source-target, from 0) and 0?0 for possible ones."
            )
        ends = int(match[1]), int(match[3])
        for side, end, n in zip(("source", "target"), ends, size, strict=True):
            if end >= n:
                raise CorpusError(
                    f"{path}, line {number}: the link {part} names word {end} of the {side}, which "
                    f"has {n} words ({_COUNTED}); give 0 to {n - 1}."
                )
        yield *ends, match[2] == "-"


# --- pairs as a model reads them ---


@dataclass(frozen=True, kw_only=True)
class AlignedRow(PairRow):
    """A source and its target as a model reads them, with the words of both."""

    source_words: tuple[int, ...]  # For each token of the source its word, -1 for none
    target_words: tuple[int, ...]  # The same for each token that is to be written
    pair: AlignedPair


def encode_aligned(
    model: TextModel, pairs: Iterable[AlignedPair], ends: Ends, *, check: bool = True
) -> Iterator[AlignedRow | None]:
    """Tokenise pairs as :func:`.token_rows.encode_pairs` does, and find the words of their tokens.

    A word that yields no piece is left out, with its links. Raises :class:`CorpusError` where a
    piece stands for several characters that are counted as words.
    """
    pairs, first, second = tee(pairs, 3)
    sources = (pair.source for pair in first)
    targets = (pair.target for pair in second)
    rows = encode_pairs(model, sources, targets, ends, check=check)
    for pair, row in zip(pairs, rows, strict=True):
        if row is None or not row.decoder_content:
            yield None
            continue
        written = [position - 1 for position in row.decoder_content]
        sides = zip(
            (pair.source, pair.target),
            pair.words,
            (row.source_spans, row.target_spans),
            (row.content, written),
            strict=True,
        )
        of_source, of_target = (_words_of(model, *side) for side in sides)
        read = pair._replace(
            links=_known(pair.links, of_source, of_target),
            swapped=_known(pair.swapped, of_source, of_target),
        )
        yield AlignedRow(**vars(row), source_words=of_source, target_words=of_target, pair=read)


def _known(links: Links, of_source: Sequence[int], of_target: Sequence[int]) -> Links:
    """Return the links between words that have a piece."""
    sources = set(of_source)
    targets = set(of_target)
    return tuple(link for link in links if link[0] in sources and link[1] in targets)


def _words_of(
    model: TextModel, text: str, words: Spans, tokens: Spans, content: Sequence[int]
) -> tuple[int, ...]:
    """Return the word of each token, that of its first character which is no space."""
    word_at = {at: i for i, (start, stop) in enumerate(words) for at in range(start, stop)}
    word_ids = [-1] * len(tokens)
    for token in content:
        inside = [word_at[at] for at in range(*tokens[token]) if at in word_at]
        if len({*inside}) > 1 and len(words) == len(text):
            _refuse_characters(model, text[slice(*tokens[token])])
        word_ids[token] = inside[0] if inside else -1
    return tuple(word_ids)


def _refuse_characters(model: TextModel, piece: str) -> NoReturn:
    raise CorpusError(
        f"No text has a space, so positions count characters, but {model.name} reads {piece!r} as "
        "one piece; write spaces between the words and count words, or give a model whose pieces "
        "are characters."
    )


def check_characters(model: TextModel, sentences: Iterable[EncodedSentence]) -> None:
    """Raise unless a model reads texts whose characters are counted one character a piece."""
    texts = [sentence.sentence.text for sentence in sentences if sentence.left_out]
    for text, encoding in zip(texts, tokenise(model, texts, check=False), strict=True):
        for begin, end in encoding.offsets:
            if end > begin + 1:
                _refuse_characters(model, text[begin:end])


def collate_aligned(rows: Sequence[AlignedRow], pad_id: int) -> Batch:
    """Pad pairs as :func:`.batches.collate_pairs` does, and add their words."""
    batch = collate_pairs(rows, pad_id)
    assert batch.source is not None
    sizes = np.array([[len(side) for side in row.pair.words] for row in rows])
    n_source, n_target = sizes.max(axis=0)
    of_target = np.zeros((len(rows), n_target, batch.size[1]))
    of_source = np.zeros((len(rows), n_source, batch.source.input_ids.shape[1]))
    sure, possible = np.zeros((2, len(rows), n_target, n_source), dtype=bool)
    distance = np.zeros((len(rows), n_target, n_source), dtype=np.int64)
    for i, row in enumerate(rows):
        for of_side, word_of in ((of_source, row.source_words), (of_target, row.target_words)):
            inside = np.flatnonzero(np.array(word_of) >= 0)
            of_side[i, np.array(word_of)[inside], inside] = 1.0
        for source, target, is_sure in row.pair.links:
            possible[i, target, source] = True
            sure[i, target, source] |= is_sure
        distance[i] = np.arange(n_source) - straight(sizes[i, 0], sizes[i, 1], n_target)[:, None]
    pieces = of_source.sum(axis=2).astype(np.int64)
    of_target /= np.maximum(of_target.sum(axis=2, keepdims=True), 1)
    words = AlignedWords(
        of_target=torch.from_numpy(of_target).float(),
        of_source=torch.from_numpy(of_source).float(),
        pieces=torch.from_numpy(pieces),
        queries=torch.from_numpy(of_target.any(axis=2)),
        sure=torch.from_numpy(sure),
        possible=torch.from_numpy(possible),
        distance=torch.from_numpy(distance),
        half=torch.tensor([row.pair.half for row in rows]),
        edges=edge_trials(map(_asked, rows, pieces, [row.pair.links for row in rows])),
        swapped=edge_trials(map(_asked, rows, pieces, [row.pair.swapped for row in rows])),
    )
    return dataclasses.replace(batch, words=words)


def straight(n_source: int, n_target: int, n: int) -> Array:
    """Return the source word beside each of ``n`` target words, if both sides went evenly along."""
    steps = max(n_target - 1, 1)
    return (2 * np.arange(n) * (n_source - 1) + steps) // (2 * steps)


def _asked(row: AlignedRow, pieces: Array, links: Links) -> Asked:
    """Ask every aligned word of the target for its words of the source."""
    n_source, n_target = map(len, row.pair.words)
    longest = pieces == pieces.max()
    edges = dict.fromkeys((target, source, ALIGNED) for source, target, _ in links)
    return Asked(
        half=row.pair.half,
        trials=trials_of(edges, "target->source"),
        places=np.arange(max(n_source, n_target)),
        origin=straight(n_source, n_target, n_target),
        last=n_source - 1,
        uniform=lambda query, target: longest[target] / longest.sum(),
    )
