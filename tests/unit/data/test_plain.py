"""Plain text: which lines count, and what a model gets of them."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from pathlib import Path

import pytest
from tiny_models import VOCABULARY, TextOnly

from headscope.data.corpus import open_text, sample_corpus
from headscope.data.examples import read_texts
from headscope.data.plain import as_plain, encode_lines, open_plain, sample_plain
from headscope.errors import CorpusError


def written(folder: Path, data: bytes) -> Path:
    path = folder / "lines.txt"
    path.write_bytes(data)
    return path


def test_lines_that_are_not_blank_are_read_again_and_again(tmp_path: Path) -> None:
    data = "the cat\n\n  \t\nça va?\r\nlast without end".encode()
    path = written(tmp_path, data)
    text = open_plain(path)
    assert list(text) == list(text) == ["the cat", "ça va?", "last without end"]
    assert text.n_lines == 3
    assert text.name == str(path)
    assert text.sha256 == hashlib.sha256(data).hexdigest()


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    assert list(open_plain(written(tmp_path, b"\xef\xbb\xbfthe cat\n"))) == ["the cat"]


def test_no_path_is_the_sample() -> None:
    text = open_plain(None)
    assert text.n_lines == sample_corpus().n_sentences == len(list(text))
    assert next(iter(text)) == " ".join(next(iter(sample_corpus())).words)
    assert (text.name, text.sha256) == (sample_plain().name, sample_corpus().sha256)


@pytest.mark.parametrize("data", [b"", b"\n \n\t\n"])
def test_a_file_without_text_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CorpusError, match="holds no text"):
        open_plain(written(tmp_path, data))


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="line 2: not UTF-8"):
        open_plain(written(tmp_path, b"fine\n\xff\xfe\n"))
    with pytest.raises(CorpusError, match="There is no file"):
        open_plain(tmp_path / "nowhere.txt")
    with pytest.raises(CorpusError, match="cannot be read"):
        open_plain(tmp_path)


def test_any_form_of_text(tmp_path: Path) -> None:
    text = as_plain(["the cat", " ", "a dog"])
    assert list(text) == list(text) == ["the cat", "a dog"]
    assert as_plain(text) is text
    assert list(as_plain(written(tmp_path, b"x\n"))) == ["x"]
    assert as_plain(None).n_lines == sample_corpus().n_sentences
    with pytest.raises(CorpusError, match="no line"):
        as_plain([" "])


def test_lines_become_ids_with_special_tokens_and_long_ones_none() -> None:
    ids = {piece: i for i, piece in enumerate(VOCABULARY)}
    lines = ["the cat", "the " * 9, "the cats sat"]
    encoded = list(encode_lines(TextOnly(max_length=6), lines))
    assert encoded == [
        [ids["[CLS]"], ids["the"], ids["cat"], ids["[SEP]"]],
        None,
        [ids["[CLS]"], ids["the"], ids["cat"], ids["##s"], ids["sat"], ids["[SEP]"]],
    ]


def test_many_lines_keep_their_order() -> None:
    lines = ["the cat" if i % 3 else "a big red dog" for i in range(600)]
    encoded = list(encode_lines(TextOnly(), iter(lines)))
    assert [len(ids or ()) for ids in encoded] == [4 if i % 3 else 6 for i in range(600)]


def test_a_tokenizer_of_another_model_is_refused() -> None:
    with pytest.raises(CorpusError, match=r"embedding has\s+10 rows"):
        list(encode_lines(TextOnly(vocab_size=10), ["the cat sat"]))


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("{}\tcat\tcat\tNOUN\t_\t_\t0\troot\t_\t_", True),
        ("{}\tcat\tcat\tNOUN\t_\t_\t_\t_\t_\t_", True),  # a treebank whose trees are missing
        ("{}\tcat\tcat\tNOUN\t_\t_\t0\troot\t_", False),  # nine columns
        ("x{}\tcat\tcat\tNOUN\t_\t_\t0\troot\t_\t_", False),
        ("{}\tcat\tsat\ton\tthe\tmat\tand\tit\twas\tred", False),
        ("{} cats sat on the mat, and 10 dogs ran", False),
    ],
)
def test_columns_of_a_treebank_are_no_text(line: str, refused: bool, tmp_path: Path) -> None:
    path = written(tmp_path, "\n".join(["# a title", line.format(1), line.format(2)]).encode())
    for read in (open_plain, open_text, read_texts):
        with pytest.raises(CorpusError, match="line 3: this looks") if refused else nullcontext():
            read(path)
