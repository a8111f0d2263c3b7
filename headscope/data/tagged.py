"""Sentences of tagged words: CoNLL-2003's columns, or the parts of speech of CoNLL-U.

CoNLL-2003: a word a line, its columns split by white space, the word first and its tag last; blank
lines between sentences; ``-DOCSTART-`` lines are passed over. CoNLL-U (``.conllu``, or any file
whose first row has ten columns that tabs split, a number first): the form and its UPOS; multiword
ranges and empty nodes are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from headscope.core.errors import CorpusError
from headscope.core.files import sha256_of_file
from headscope.data.examples import Examples, check_size
from headscope.data.files import read_lines

_DOCUMENT = "-DOCSTART-"
_Row = tuple[int, str, str]  # Line number, word, tag.


def read_tagged(path: str | Path) -> Examples:
    """Read sentences whose words have a tag each."""
    path = Path(path)
    sentences = list(_sentences(path))
    check_size(path, len(sentences))
    words = tuple(tuple(word for _, word, _ in rows) for rows in sentences)
    tags = tuple(tuple(tag for _, _, tag in rows) for rows in sentences)
    different = {tag for row in tags for tag in row}
    if len(different) == 1:
        raise CorpusError(
            f"{path}: every word has the tag {different.pop()!r}, so nothing can be told from "
            "them; give words of several tags."
        )
    return Examples(
        str(path),
        sha256_of_file(path),
        first=tuple(" ".join(row) for row in words),
        lines=tuple(rows[0][0] for rows in sentences),
        words=words,
        tags=tags,
    )


def has_entities(tags: Iterable[str]) -> bool:
    """Whether some tags mark where entities begin and go on: ``B-`` and ``I-``."""
    return any(tag.startswith(("B-", "I-")) for tag in tags)


def _sentences(path: Path) -> Iterator[list[_Row]]:
    rows: list[_Row] = []
    universal: bool | None = True if path.suffix.lower() == ".conllu" else None
    width = 0
    for number, line in read_lines(path):
        if not line.strip():
            if rows:
                yield rows
            rows = []
            continue
        if line.startswith("#") and universal is not False and ("\t" not in line):
            continue
        if line.startswith(_DOCUMENT):
            continue
        if universal is None:
            cells = line.split("\t")
            universal = len(cells) == 10 and cells[0].replace("-", "").isdecimal()
        if universal:
            cells = line.split("\t")
            if len(cells) != 10:
                raise CorpusError(
                    f"{path}, line {number}: {len(cells)} columns instead of 10 (they are split by "
                    "tabs); mend the treebank there."
                )
            if cells[0].isdecimal():
                rows.append((number, cells[1], cells[3]))
            continue
        cells = line.split()
        width = width or len(cells)
        if len(cells) < 2 or len(cells) != width:
            raise CorpusError(
                f"{path}, line {number}: {len(cells)} column{'s' * (len(cells) != 1)} "
                f"{'where the first row has ' + str(width) if len(cells) > 1 else 'only'}; give a "
                "word a line with its tag in the last column, and blank lines between sentences."
            )
        rows.append((number, cells[0], cells[-1]))
    if rows:
        yield rows
