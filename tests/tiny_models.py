"""Tiny random models with real fast tokenizers, written to folders."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    CTRLConfig,
    CTRLModel,
    DebertaV2Config,
    DebertaV2Model,
    MPNetConfig,
    MPNetModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

WORDS = [
    *("the", "a", "of", "and", "to", "in", "is", "was", "he", "she", "it", "on"),
    *("cat", "dog", "mat", "house", "sat", "ran", "saw", "big", "red", "##s", "##ed", "##ing"),
]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ASCII = [char for char in string.printable if not char.isspace() and not char.isupper()]
#: Any ASCII word yields pieces: a known word, or one character after the other.
VOCABULARY = [*SPECIAL, *WORDS, *_ASCII, *(f"##{char}" for char in _ASCII)]


def tiny_tokenizer(max_length: int = 64) -> PreTrainedTokenizerFast:
    """Build a WordPiece tokenizer as BERT has it."""
    ids = {piece: i for i, piece in enumerate(VOCABULARY)}
    backend = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=max_length,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def framed_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """Build a tokenizer that puts other special tokens around a text, such as ``[CLS] $A``."""
    tokenizer = tiny_tokenizer()
    special = [(token, SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=special
    )
    return tokenizer


@dataclass
class TextOnly:
    """What the data floor asks of a model: a tokenizer and its limits."""

    tokenizer: PreTrainedTokenizerFast = field(default_factory=tiny_tokenizer)
    max_length: int = 64
    vocab_size: int = len(VOCABULARY)
    name: str = "tiny"


_WITH_HEAD = {
    None: BertModel,
    "mlm": BertForMaskedLM,
    "classification": BertForSequenceClassification,
}


def tiny_bert(
    folder: Path,
    *,
    layers: int = 2,
    heads: int = 4,
    seed: int = 0,
    task_head: str | None = None,
    **config: int | float | str,
) -> Path:
    """Write a random BERT and its tokenizer to ``folder``; returns the folder."""
    torch.manual_seed(seed)
    settings = {"max_position_embeddings": 64, "initializer_range": 0.2, **config}
    network = _WITH_HEAD[task_head](
        BertConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=8 * heads,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=16 * heads,
            **settings,
        )
    )
    network.save_pretrained(folder)
    tiny_tokenizer(int(settings["max_position_embeddings"])).save_pretrained(folder)
    return folder


def _saved(folder: Path, network: PreTrainedModel) -> Path:
    network.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def tiny_mpnet(folder: Path, *, layers: int = 2, heads: int = 4, seed: int = 0) -> Path:
    """Write a random MPNet, whose modules never ask for a custom attention, and a tokenizer."""
    torch.manual_seed(seed)
    config = MPNetConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=8 * heads,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=16 * heads,
        max_position_embeddings=66,
    )
    return _saved(folder, MPNetModel(config))


def tiny_deberta(folder: Path, *, layers: int = 2, heads: int = 4, seed: int = 0) -> Path:
    """Write a random DeBERTa-v2, configured as v3 is, and a tokenizer."""
    torch.manual_seed(seed)
    config = DebertaV2Config(
        vocab_size=len(VOCABULARY),
        hidden_size=8 * heads,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=16 * heads,
        max_position_embeddings=64,
        initializer_range=0.2,
        relative_attention=True,
        pos_att_type="p2c|c2p",
        position_buckets=16,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
    )
    return _saved(folder, DebertaV2Model(config))


def tiny_unknown(folder: Path, *, layers: int = 2, heads: int = 4, seed: int = 0) -> Path:
    """Write a random CTRL, whose attention headscope does not know, and a tokenizer."""
    torch.manual_seed(seed)
    config = CTRLConfig(
        vocab_size=len(VOCABULARY),
        n_embd=8 * heads,
        n_layer=layers,
        n_head=heads,
        dff=16 * heads,
        n_positions=64,
    )
    return _saved(folder, CTRLModel(config))
