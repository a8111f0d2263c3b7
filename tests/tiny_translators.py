"""Tiny random encoder-decoder models that write words, and pairs of which they know many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny_models import SPECIAL, VOCABULARY, WORDS, framed_tokenizer
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)

PAD, CLS, SEP = (SPECIAL.index(token) for token in ("[PAD]", "[CLS]", "[SEP]"))
SOURCES = (
    "the cat sat on the mat",
    "a big red dog ran",
    "she saw it",
    "he",
    "a dog was in the house",
    "it is red and big",
    "the dog ran to the mat",
    "she was on it",
)
OTHERS = ("he saw the big cat", "red house", "a mat is on the dog", "she ran", "it sat", "the dog")
_SIZES = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 40,
    "init_std": 0.5,
    "bos_token_id": CLS,
    "forced_eos_token_id": None,
}
_T5 = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4}
_KINDS = {
    "bart": (BartForConditionalGeneration, BartConfig, {**_SIZES, "decoder_start_token_id": CLS}),
    "marian": (MarianMTModel, MarianConfig, {**_SIZES, "decoder_start_token_id": PAD}),
    "t5": (T5ForConditionalGeneration, T5Config, {**_T5, "decoder_start_token_id": PAD}),
}
#: What the head may write: whole words, so that a text has one way of being cut into tokens.
_WRITTEN = [SEP, *(VOCABULARY.index(word) for word in WORDS if not word.startswith("##"))]


#: Seeds whose models write different texts for different sources.
_SEEDS = {"bart": 4, "marian": 5, "t5": 3}


def translator(kind: str) -> Any:
    """Build a random model that writes words and whose attention matters, with biases."""
    build, configure, sizes = _KINDS[kind]
    common = {"vocab_size": len(VOCABULARY), "pad_token_id": PAD, "eos_token_id": SEP}
    torch.manual_seed(_SEEDS[kind])
    network = build(configure(**common, **sizes, tie_word_embeddings=False))
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
        elif parameter.dim() == 2 and ("attn" in name or "Attention" in name):
            parameter.data *= 4.0
    with torch.no_grad():
        rows = torch.zeros(len(VOCABULARY), 1)
        rows[_WRITTEN] = 2.0
        network.lm_head.weight *= rows
    return network.eval()


@torch.no_grad()
def own_pairs(network: Any, sources: tuple[str, ...]) -> list[tuple[str, str]]:
    """Give each source what the model writes for it, or a fixed text where that is nothing."""
    tokenizer = framed_tokenizer("$A [SEP]")
    found = []
    for source in sources:
        ids = torch.tensor([tokenizer(source).input_ids])
        written = network.generate(ids, num_beams=1, do_sample=False, max_new_tokens=6)
        text = tokenizer.decode(written[0], skip_special_tokens=True).strip()
        found.append((source, text or "the cat"))
    return found


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> Path:
    """Write pairs as TSV without a header."""
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    return path


def write_translator(folder: Path, kind: str = "marian") -> Path:
    """Write a model with its tokenizer, and pairs.tsv and others.tsv beside the folder."""
    network = translator(kind)
    network.save_pretrained(folder)
    framed_tokenizer("$A [SEP]").save_pretrained(folder)
    write_pairs(folder.parent / "pairs.tsv", own_pairs(network, SOURCES))
    write_pairs(folder.parent / "others.tsv", own_pairs(network, OTHERS))
    return folder
