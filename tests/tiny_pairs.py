"""Tiny random models that read pairs, or nothing but what stands before, written to folders."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

from tests.tiny_models import VOCABULARY, WORDS, framed_tokenizer

#: Of [PAD], [CLS] and [SEP].
_ENDS = {"pad_token_id": 0, "decoder_start_token_id": 2, "bos_token_id": 2, "eos_token_id": 3}


def _bart() -> Any:
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=len(VOCABULARY),
            d_model=16,
            encoder_layers=2,
            decoder_layers=3,
            encoder_attention_heads=2,
            decoder_attention_heads=4,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            max_position_embeddings=40,
            init_std=0.4,
            forced_eos_token_id=None,
            **_ENDS,
        )
    )


def _t5() -> Any:
    config = T5Config(
        vocab_size=len(VOCABULARY),
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=3,
        initializer_factor=1.5,
        **_ENDS,
    )
    return T5ForConditionalGeneration(config)


def _gpt2() -> Any:
    sizes = {"n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 4}
    ends = {"bos_token_id": 2, "eos_token_id": 3}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=len(VOCABULARY), initializer_range=0.4, **sizes, **ends)
    )


_MADE = {"bart": _bart, "t5": _t5, "gpt2": _gpt2}


def write_tiny(folder: Path, family: str, *, template: str = "$A [SEP]", seed: int = 0) -> Path:
    """Write a random model and its tokenizer; ``template`` puts special tokens around a text."""
    torch.manual_seed(seed)
    _MADE[family]().save_pretrained(folder)
    framed_tokenizer(template).save_pretrained(folder)
    return folder


def some_pairs(n: int, seed: int = 0, longest: int = 9) -> list[tuple[str, str]]:
    """Make up sentences of 1 to ``longest`` words, some with punctuation, and their targets."""
    rng = random.Random(seed)
    words = [word for word in WORDS if not word.startswith("##")]

    def text() -> str:
        chosen = rng.choices(words, k=rng.randint(1, longest))
        return " ".join(word + rng.choice(["", "", "", ",", "."]) for word in chosen)

    return [(text(), text()) for _ in range(n)]


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> Path:
    """Write pairs as a table without a header line."""
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    return path
