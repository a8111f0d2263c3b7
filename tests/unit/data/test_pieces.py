"""The one place where text becomes token ids."""

from __future__ import annotations

import pytest
from tiny_models import VOCABULARY, TextOnly, framed_tokenizer, tiny_tokenizer
from tokenizers import normalizers

from headscope.data.pieces import Frame, frame, token_stream, tokenise
from headscope.data.token_rows import window_rows
from headscope.errors import CorpusError, InputError

IDS = {piece: i for i, piece in enumerate(VOCABULARY)}
CLS, SEP = IDS["[CLS]"], IDS["[SEP]"]


def ids_of(pieces: str) -> list[int]:
    return [IDS[piece] for piece in pieces.split()]


def test_texts_and_words_are_encoded_alike() -> None:
    (text,) = tokenise(TextOnly(), ["the cats sat"])
    (words,) = tokenise(TextOnly(), [("the", "cats", "sat")])
    assert text.ids == words.ids == ids_of("[CLS] the cat ##s sat [SEP]")
    assert words.word_ids == [None, 0, 1, 1, 2, None]
    assert text.special_tokens_mask == [1, 0, 0, 0, 0, 1]


def test_pairs_of_many_texts_stay_together() -> None:
    firsts = [f"cat {'the ' * (i % 5)}" for i in range(600)]
    seconds = [f"dog {'a ' * (i % 3)}" for i in range(600)]
    for i, encoding in enumerate(tokenise(TextOnly(), firsts, pairs=seconds)):
        expected = f"[CLS] {firsts[i]} [SEP] {seconds[i]} [SEP]"
        assert encoding.ids == ids_of(expected)
        assert sum(encoding.type_ids) == len(seconds[i].split()) + 1
    assert i == 599


def test_the_stream_has_no_special_tokens() -> None:
    lines = ["the cat", "", "sat on"] * 200
    assert list(token_stream(TextOnly(), lines)) == ids_of("the cat sat on") * 200


@pytest.mark.parametrize(
    ("template", "before", "after"),
    [
        ("[CLS] $A [SEP]", (CLS,), (SEP,)),
        ("$A [SEP]", (), (SEP,)),
        ("[CLS] [CLS] $A", (CLS, CLS), ()),
        ("$A", (), ()),
    ],
)
def test_special_tokens_are_where_the_tokenizer_puts_them(
    template: str, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    model = TextOnly(framed_tokenizer(template))
    n_special = len(before) + len(after)
    assert frame(model, 9) == Frame(before, after, 9 - n_special)
    rows = window_rows(model, ["the cat sat on"], length=n_special + 2, count=9)
    assert [row.ids for row in rows] == [
        (*before, *ids_of("the cat"), *after),
        (*before, *ids_of("sat on"), *after),
    ]
    with pytest.raises(InputError, match="tokens or more"):
        frame(model, n_special)


def test_a_tokenizer_that_reads_no_letter_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("a", "")
    with pytest.raises(InputError, match="no token for the letter a"):
        frame(TextOnly(tokenizer), 9)


@pytest.mark.parametrize("text", ["the zoo", ("the", "zoo")])
def test_ids_beyond_the_embedding(text: str | tuple[str, ...]) -> None:
    with pytest.raises(CorpusError, match="do not belong together"):
        list(tokenise(TextOnly(vocab_size=20), [text]))
