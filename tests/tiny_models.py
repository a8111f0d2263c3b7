"""Tiny random models with real fast tokenizers, written to folders, and texts that they read."""

import json
import random
import shutil
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from headscope.data.token_types import TokenTypes

WORDS = [
    "the",
    "a",
    "of",
    "and",
    "to",
    "in",
    "is",
    "was",
    "he",
    "she",
    "it",
    "on",
    "cat",
    "dog",
    "mat",
    "house",
    "sat",
    "ran",
    "saw",
    "big",
    "red",
    "##s",
    "##ed",
    "##ing",
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
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    special = dict(zip(names, SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=max_length, **special)


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
    unreadable: str | None = None
    token_types: TokenTypes = field(default_factory=lambda: TokenTypes(rows=2))


def _written(
    folder: Path, auto: Any, kind: str, seed: int = 0, tokenizer: Any = None, **config: Any
) -> Path:
    """Write a random model of a kind and a tokenizer; returns the folder."""
    torch.manual_seed(seed)
    settings = AutoConfig.for_model(kind, **{"vocab_size": len(VOCABULARY), **config})
    auto.from_config(settings).save_pretrained(folder)
    (tokenizer or tiny_tokenizer()).save_pretrained(folder)
    return folder


_WITH_HEAD = {
    None: AutoModel,
    "mlm": AutoModelForMaskedLM,
    "classification": AutoModelForSequenceClassification,
    "token-classification": AutoModelForTokenClassification,
    "question-answering": AutoModelForQuestionAnswering,
}


def tiny_bert(
    folder: Path,
    *,
    layers: int = 2,
    heads: int = 4,
    seed: int = 0,
    task_head: str | None = None,
    **config: Any,
) -> Path:
    """Write a random BERT and its tokenizer to ``folder``; returns the folder."""
    more: Any = {"max_position_embeddings": 64, "initializer_range": 0.2, **config}
    tokenizer = tiny_tokenizer(int(more["max_position_embeddings"]))
    sizes = {"hidden_size": 8 * heads, "num_hidden_layers": layers, "num_attention_heads": heads}
    sizes |= {"intermediate_size": 16 * heads, **more}
    return _written(folder, _WITH_HEAD[task_head], "bert", seed, tokenizer, **sizes)


def tiny_unknown(folder: Path) -> Path:
    """Write a random Image GPT, whose attention headscope does not know, and a tokenizer."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return _written(folder, AutoModel, "imagegpt", **sizes)


#: Of [PAD], [CLS] and [SEP].
_ENDS = {"pad_token_id": 0, "decoder_start_token_id": 2, "bos_token_id": 2, "eos_token_id": 3}
_READERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "bart": (
        AutoModelForSeq2SeqLM,
        {
            **{"d_model": 16, "encoder_layers": 2, "decoder_layers": 3},
            **{"encoder_attention_heads": 2, "decoder_attention_heads": 4},
            **{"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 40},
            **{"init_std": 0.4, "forced_eos_token_id": None, **_ENDS},
        },
    ),
    "t5": (
        AutoModelForSeq2SeqLM,
        {
            **{"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3},
            **{"num_heads": 3, "initializer_factor": 1.5, **_ENDS},
        },
    ),
    "gpt2": (
        AutoModelForCausalLM,
        {
            **{"n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 4},
            **{"initializer_range": 0.4, "bos_token_id": 2, "eos_token_id": 3},
        },
    ),
}


def write_tiny(folder: Path, family: str, *, template: str = "$A [SEP]") -> Path:
    """Write a random model and its tokenizer; ``template`` puts special tokens around a text."""
    auto, config = _READERS[family]
    return _written(folder, auto, family, tokenizer=framed_tokenizer(template), **config)


def some_pairs(n: int, seed: int = 0, longest: int = 9) -> list[tuple[str, str]]:
    """Make up sentences of 1 to ``longest`` words, some with punctuation, and their targets."""
    rng = random.Random(seed)
    words = [word for word in WORDS if not word.startswith("##")]

    def text() -> str:
        chosen = rng.choices(words, k=rng.randint(1, longest))
        return " ".join(word + rng.choice(["", "", "", ",", "."]) for word in chosen)

    return [(text(), text()) for _ in range(n)]


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
    **{"d_model": 16, "encoder_layers": 2, "decoder_layers": 2},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
    **{"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 40},
    **{"init_std": 0.5, "bos_token_id": CLS, "forced_eos_token_id": None},
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
    pairs = []
    for source in sources:
        ids = torch.tensor([tokenizer(source).input_ids])
        written = network.generate(ids, num_beams=1, do_sample=False, max_new_tokens=6)
        text = tokenizer.decode(written[0], skip_special_tokens=True).strip()
        pairs.append((source, text or "the cat"))
    return pairs


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


#: Width of the last states of a tiny BERT.
D_MODEL = 32
OLD = "sentence_transformers.models."


def by_hand(bert: Path, folder: Path, kinds: Sequence[str]) -> Path:
    """Write a folder as older versions did, every module with an empty folder of its own."""
    shutil.copytree(bert, folder)
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{OLD}Transformer"}]
    for i, kind in enumerate(kinds, start=1):
        path = f"{i}_{kind}"
        (folder / path).mkdir()
        listed.append({"idx": i, "name": str(i), "path": path, "type": OLD + kind})
    (folder / "modules.json").write_text(json.dumps(listed))
    if "Pooling" in kinds:
        (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    return folder
