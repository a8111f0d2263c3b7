"""Reading the lines of a text file, whatever its encoding and its line ends.

Everything else that reads text goes through :func:`read_lines`; the functions behind it leave out
blank lines, gather lines into blocks, or refuse what is no prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TextIO

from headscope.core.errors import CorpusError
from headscope.core.files import no_text

TREEBANKS = (".conllu", ".conll", ".conllup")  # Endings of treebanks.
#: Marks of an encoding at the beginning of a file; those of UTF-32 begin like those of UTF-16.
_MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
_UTF8 = "utf-8-sig"
_UNDECODED = re.compile("[\ud800-\udfff]")  # Surrogates: bytes that are not UTF-8, once decoded
_CHUNK = 1 << 16  # Bytes or characters that are read at a time


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a file.

    It is UTF-8, or what its byte order mark says. Lines end in LF or CRLF, and in CR where the file
    has no LF; no other character ends a line.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CorpusError(f"{path} is not a file on disk and cannot be read twice; save it first.")
    try:
        with path.open("rb") as file:
            first_bytes = file.read(_CHUNK)
    except FileNotFoundError:
        raise CorpusError(f"There is no file {path}; check the path.") from None
    except OSError as error:
        raise CorpusError(f"{path} cannot be read ({error.strerror}); give a text file.") from None
    _refuse_no_text(path, first_bytes)
    encoding = next((name for mark, name in _MARKS if first_bytes.startswith(mark)), _UTF8)
    number = 0
    try:
        with _opened(path, encoding, _line_end(path, encoding)) as file:
            for number, line in enumerate(file, start=1):
                if not line.isascii() and _UNDECODED.search(line):
                    raise CorpusError(
                        f"{path}, line {number}: not UTF-8; convert the file (iconv -t UTF-8)."
                    )
                yield number, line.rstrip("\r\n")
    except UnicodeDecodeError:
        raise CorpusError(
            f"{path} begins as {encoding.upper()}, but what follows line {number} is not; convert "
            "the file to UTF-8."
        ) from None


def _refuse_no_text(path: Path, first_bytes: bytes) -> None:
    """Refuse archives, spreadsheets and the like by their first bytes."""
    if what := no_text(first_bytes):
        raise CorpusError(f"{path} is {what}.")
    has_mark = any(first_bytes.startswith(mark) for mark, _ in _MARKS)
    if not has_mark and 4 * first_bytes.count(0) >= len(first_bytes) > 1:
        raise CorpusError(
            f"{path} is not UTF-8: a quarter of its bytes or more are zero, as in UTF-16 without a "
            "byte order mark; convert the file (iconv -f UTF-16LE -t UTF-8)."
        )


def _opened(path: Path, encoding: str, line_end: str) -> TextIO:
    """Open a text; bytes that are not UTF-8 become surrogates, which :func:`read_lines` refuses."""
    errors = "surrogateescape" if encoding == _UTF8 else "strict"
    return path.open(encoding=encoding, errors=errors, newline=line_end)


def _line_end(path: Path, encoding: str) -> str:
    """Return what ends a file's lines: LF (or CRLF), or CR where there is no LF at all."""
    has_returns = False
    with _opened(path, encoding, "") as file:
        while chunk := file.read(_CHUNK):
            if "\n" in chunk:
                return "\n"
            has_returns = has_returns or "\r" in chunk
    return "\r" if has_returns else "\n"


def read_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text that are not blank; refuse the columns of a treebank."""
    n_tree_rows = 0
    for number, line in read_filled(path):
        if _is_tree_row(line):
            n_tree_rows += 1
        if n_tree_rows == 2:
            mend = (
                "give it as treebank in place of text"
                if path.suffix.lower() in TREEBANKS
                else "name the file .conllu and give it as a treebank"
            )
            raise CorpusError(
                f"{path}, line {number}: this looks like CoNLL-U, columns of a treebank in place "
                f"of sentences; {mend}, or give one sentence a line."
            )
        yield number, line


def _is_tree_row(line: str) -> bool:
    """Whether a line has the ten columns of CoNLL-U, with numbers of a word and of its head."""
    cells = line.split("\t")
    if len(cells) != 10 or not cells[0].isdecimal():
        return False
    return cells[6].isdecimal() or cells[6] == "_"


def read_filled(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what :func:`read_lines` yields, without blank lines."""
    return ((number, line) for number, line in read_lines(path) if line.strip())


def read_blocks(path: Path) -> Iterator[list[tuple[int, str]]]:
    """Yield the lines between blank lines together, as :func:`read_lines` yields them.

    Lines a, b, blank, c -> [(1, a), (2, b)], [(4, c)].
    """

    def is_blank(numbered_line: tuple[int, str]) -> bool:
        _, line = numbered_line
        return not line.strip()

    for blank, block in groupby(read_lines(path), key=is_blank):
        if not blank:
            yield list(block)
