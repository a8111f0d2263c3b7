"""Reading text files line by line, with errors that say which line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headscope.core.errors import CorpusError

#: Endings of treebanks.
TREEBANKS = (".conllu", ".conll")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a UTF-8 file.

    Raises
    ------
    CorpusError
        If the file cannot be opened, or at the first line that is not UTF-8.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CorpusError(f"{path} is not a file on disk and cannot be read twice; save it first.")
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise CorpusError(f"There is no file {path}; check the path.") from None
    except OSError as error:
        raise CorpusError(f"{path} cannot be read ({error.strerror}); give a text file.") from None
    with file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise CorpusError(
                    f"{path}, line {number}: not UTF-8; convert the file (iconv -t UTF-8)."
                ) from None
            yield number, line.rstrip("\r\n")


def read_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the filled lines of a text; the columns of a treebank are none.

    Raises
    ------
    CorpusError
        As :func:`read_lines`; and at the second row of CoNLL-U.
    """
    rows = 0
    for number, line in read_filled(path):
        rows += _is_row(line)
        if rows == 2:
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


def _is_row(line: str) -> bool:
    """Whether a line is a row of CoNLL-U: ten columns, the first of them the number of a word."""
    if line.count("\t") != 9:
        return False
    cells = line.split("\t")
    return cells[0].isdecimal() and (cells[6].isdecimal() or cells[6] == "_")


def read_filled(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what :func:`read_lines` yields, without blank lines."""
    return (numbered for numbered in read_lines(path) if numbered[1].strip())
