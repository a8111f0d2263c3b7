"""Words keep the space before them in vocabularies that spell it."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_models import TextOnly
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from headscope.data.corpus import sample_corpus
from headscope.data.encode import Encoder
from headscope.data.frequencies import Frequencies
from headscope.data.sentence import Sentence

_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def _tokenizer(pre_tokenizer: Any) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator((" ".join(s.words) for s in sample_corpus()), trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>")


@pytest.mark.parametrize(
    ("pre_tokenizer", "mark"),
    [
        (pre_tokenizers.ByteLevel(add_prefix_space=False), "Ġ"),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), "Ġ"),
        (pre_tokenizers.Metaspace(prepend_scheme="first"), "▁"),
        (pre_tokenizers.Metaspace(prepend_scheme="always"), "▁"),
        (
            pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
            "▁",
        ),
    ],
)
def test_every_word_starts_with_its_space(pre_tokenizer: Any, mark: str) -> None:
    tokenizer = _tokenizer(pre_tokenizer)
    frequencies = Frequencies("none", lambda word: 0.0, frozenset())
    encoder = Encoder(TextOnly(tokenizer, 512, len(tokenizer)), frequencies)
    words = ("She", "don't", "repair", "sextants", ".")
    (encoded,) = encoder.encode(iter([Sentence(words)]))
    assert encoded is not None
    first = tokenizer.convert_ids_to_tokens(encoded.ids[encoded.first].tolist())
    assert all(piece.startswith(mark) for piece in first)
    whole = "".join(tokenizer.convert_ids_to_tokens(encoded.ids[1:-1].tolist()))
    assert whole == mark + mark.join(words)
