"""The one place where text becomes token ids: frames of special tokens, spaces before words."""

import pytest
from tiny_models import VOCABULARY, TextOnly, framed_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from headscope.core.errors import CorpusError, InputError
from headscope.data.corpus import sample_corpus
from headscope.data.files import Sentence
from headscope.data.frequencies import Frequencies
from headscope.data.pieces import Frame, encode_words, frame, placed, tokenise
from headscope.data.token_rows import window_rows

IDS = {piece: i for i, piece in enumerate(VOCABULARY)}
CLS, SEP = IDS["[CLS]"], IDS["[SEP]"]


def ids_of(pieces: str) -> list[int]:
    return [IDS[piece] for piece in pieces.split()]


def test_texts_and_words_are_encoded_alike():
    (text,) = tokenise(TextOnly(), ["the cats sat"])
    (words,) = tokenise(TextOnly(), [("the", "cats", "sat")])
    assert text.ids == words.ids == ids_of("[CLS] the cat ##s sat [SEP]")
    assert words.word_ids == [None, 0, 1, 1, 2, None]
    assert text.special_tokens_mask == [1, 0, 0, 0, 0, 1]
    for unknown in ("the zoo", ("the", "zoo")):
        with pytest.raises(CorpusError, match="do not belong together"):
            list(tokenise(TextOnly(vocab_size=20), [unknown]))


@pytest.mark.parametrize(
    ("template", "before", "after"),
    [
        ("[CLS] $A [SEP]", (CLS,), (SEP,)),
        ("$A [SEP]", (), (SEP,)),
        ("[CLS] [CLS] $A", (CLS, CLS), ()),
        ("$A", (), ()),
    ],
)
def test_special_tokens_are_where_the_tokenizer_puts_them(template, before, after):
    model = TextOnly(framed_tokenizer(template))
    n_special = len(before) + len(after)
    assert frame(model, 9) == Frame(before, after, 9 - n_special)
    rows = window_rows(model, ["the cat sat on"], length=n_special + 2, count=9)
    expected = [(*before, *ids_of(text), *after) for text in ("the cat", "sat on")]
    assert [row.ids for row in rows] == expected
    with pytest.raises(InputError, match="tokens or more"):
        frame(model, n_special)


@pytest.mark.parametrize(
    ("pre_tokenizer", "mark"),
    [
        (pre_tokenizers.ByteLevel(add_prefix_space=False), "Ġ"),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), "Ġ"),
        (pre_tokenizers.Metaspace(prepend_scheme="first"), "▁"),
        (pre_tokenizers.Metaspace(prepend_scheme="always"), "▁"),
        ([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()], "▁"),
    ],
)
def test_words_keep_the_space_before_them_where_the_vocabulary_spells_it(pre_tokenizer, mark):
    if isinstance(pre_tokenizer, list):
        pre_tokenizer = pre_tokenizers.Sequence(pre_tokenizer)
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator((" ".join(s.words) for s in sample_corpus()), trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>"
    )
    frequencies = Frequencies("none", lambda word: 0.0, frozenset())
    model = TextOnly(tokenizer, 512, len(tokenizer))
    words = ("She", "don't", "repair", "sextants", ".")
    (encoded,) = encode_words(model, placed([Sentence(words)]), frequencies)
    assert encoded is not None
    first = tokenizer.convert_ids_to_tokens(encoded.ids[encoded.first].tolist())
    assert all(piece.startswith(mark) for piece in first)
    whole = "".join(tokenizer.convert_ids_to_tokens(encoded.ids[1:-1].tolist()))
    assert whole == mark + mark.join(words)
