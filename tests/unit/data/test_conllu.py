"""Reading CoNLL-U: what is read, what is passed over, and where errors point."""

from __future__ import annotations

from pathlib import Path

import pytest

from headscope.data.conllu import read_treebank
from headscope.data.lines import read_lines
from headscope.data.sentence import Sentence
from headscope.errors import CorpusError

TEXT = """\
# newdoc id = d1
# sent_id = 1
# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj:pass\t_\t_
2.1\tya\tya\tADV\t_\t_\t_\t_\t1:advmod\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\t_\t_\t5\tcase\t_\t_
4\tel\tel\tDET\t_\t_\t5\tdet\t_\t_
5\tmar\tmar\tNOUN\t_\t_\t1\tobl:arg:x\t_\tSpaceAfter=No

# sent_id = 2
1\t20 000\t20000\tNUM\t_\t_\t0\troot\t_\t_

"""
SENTENCES = [
    Sentence(
        ("vamos", "nos", "a", "el", "mar"), (-1, 0, 4, 4, 0), ("root", "obj", "case", "det", "obl")
    ),
    Sentence(("20 000",), (-1,), ("root",)),
]


def read(path: Path, data: bytes | str) -> list[Sentence]:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return list(read_treebank(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bank.conllu"


def test_ranges_empty_nodes_comments_and_subtypes(path: Path) -> None:
    assert read(path, TEXT) == SENTENCES


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace("\n", "\r\n").encode(), id="CRLF"),
        pytest.param(lambda text: b"\xef\xbb\xbf" + text.encode(), id="BOM"),
        pytest.param(lambda text: text.rstrip("\n").encode(), id="no line end"),
        pytest.param(lambda text: (text.rstrip("\n") + "\n").encode(), id="no blank line"),
        pytest.param(lambda text: ("\n\n" + text + "\n\n").encode(), id="more blank lines"),
        pytest.param(lambda text: text.replace("\n\n", "\n \t\n").encode(), id="blanks in line"),
    ],
)
def test_forms_of_the_same_file(change: object, path: Path) -> None:
    assert callable(change)
    assert read(path, change(TEXT)) == SENTENCES


def test_a_form_may_be_a_hash_sign_or_underscore(path: Path) -> None:
    rows = ["1\t#\t#\tSYM\t_\t_\t2\tdep\t_\t_", "2\t_\t_\tX\t_\t_\t0\troot\t_\t_"]
    assert read(path, "\n".join(rows))[0].words == ("#", "_")


def test_sentences_come_one_at_a_time(path: Path) -> None:
    path.write_text(TEXT + "not a row\n", encoding="utf-8")
    stream = read_treebank(path)
    assert [next(stream), next(stream)] == SENTENCES
    with pytest.raises(CorpusError, match=r"bank\.conllu, line 16: 1 columns"):
        next(stream)


def test_long_chains_are_no_cycles(path: Path) -> None:
    n = 3000
    rows = [f"{i}\tw\t_\t_\t_\t_\t{(i + 1) % (n + 1)}\tdep\t_\t_" for i in range(1, n + 1)]
    assert len(read(path, "\n".join(rows))[0].words) == n


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("1\tvamos", "1\t"), 5),
        (("\t0\troot\t_\t_\n2\tnos", "\t6\troot\t_\t_\n2\tnos"), 5),
        (("\t1\tobl:arg:x", "\t5\tobl:arg:x"), 11),
        (("\t1\tobl:arg:x", "\t0\tobl:arg:x"), 11),
        (("1\t20 000", "2\t20 000"), 14),
        (("1\t20 000", "0\t20 000"), 14),
        (("2.1\tya", "2,1\tya"), 7),
        (("3-4\tal\t_", "3-4\tal"), 8),
    ],
)
def test_errors_name_the_line(change: tuple[str, str], line: int, path: Path) -> None:
    assert TEXT.count(change[0]) == 1
    with pytest.raises(CorpusError, match=rf"bank\.conllu, line {line}: "):
        read(path, TEXT.replace(*change))


def test_lines_are_counted_from_one(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbfone\r\n\ntwo\x0c\xc2\x85still two\nlast")
    assert list(read_lines(path)) == [
        (1, "one"),
        (2, ""),
        (3, "two\x0c\x85still two"),
        (4, "last"),
    ]
