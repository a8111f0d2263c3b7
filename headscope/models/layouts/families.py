"""Families that are tested, by their layout, and those that cannot be covered, with the reason.

Imports no torch, so that ``headscope list families``, which prints the two tables, is quick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headscope.core.errors import UnsupportedModelError


@dataclass(frozen=True)
class Covered:
    """A family that is tested."""

    layout: str = "bert"  # The name of the row of ``registry.py`` that covers it
    #: What its models can have: ``encoder``, ``decoder``, ``cross``.
    stacks: tuple[str, ...] = ("encoder",)


_ENCODER_DECODER = ("encoder", "decoder", "cross")
_DECODER = ("decoder",)
_BERT = Covered()
_ROTARY = Covered("rotary")
_CAUSAL_ROTARY = Covered("rotary", _DECODER)
_NORMED = Covered("normed", _DECODER)
_BART = Covered("bart", _ENCODER_DECODER)
_T5 = Covered("t5", _ENCODER_DECODER)

#: By ``model_type`` of transformers. A family that is not here is measured all the same if it
#: passes the certificate. tests/families.py has a tiny model of each.
COVERED = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "xlm-roberta-xl": _BERT,
    "roberta-prelayernorm": _BERT,
    "camembert": _BERT,
    "electra": _BERT,
    "ernie": _BERT,
    "data2vec-text": _BERT,
    "layoutlm": _BERT,
    "markuplm": _BERT,
    "roc_bert": _BERT,
    "bert-generation": _BERT,
    "xmod": _BERT,
    "splinter": _BERT,
    "distilbert": Covered("distilbert"),
    "albert": Covered("albert"),
    "mobilebert": Covered("mobilebert"),
    "modernbert": Covered("modernbert"),
    "esm": Covered("esm"),
    "nomic_bert": _ROTARY,
    "gte": _ROTARY,
    "jina_embeddings_v3": _ROTARY,
    "eurobert": _ROTARY,
    "mpnet": Covered("mpnet"),
    "deberta": Covered("deberta"),
    "deberta-v2": Covered("deberta-v2"),
    "convbert": Covered("convbert"),
    "squeezebert": Covered("squeezebert"),
    "rembert": Covered("rembert"),
    "megatron-bert": Covered("rembert"),
    "xlm": Covered("xlm", ("encoder", "decoder")),
    "flaubert": Covered("xlm"),
    "roformer": Covered("roformer"),
    "gpt2": Covered("gpt2", _DECODER),
    "gpt_bigcode": Covered("gpt_bigcode", _DECODER),
    "openai-gpt": Covered("openai-gpt", _DECODER),
    "llama": _CAUSAL_ROTARY,
    "mistral": _CAUSAL_ROTARY,
    "qwen2": _CAUSAL_ROTARY,
    "gemma": _CAUSAL_ROTARY,
    "gemma2": _CAUSAL_ROTARY,
    "granite": _CAUSAL_ROTARY,
    "starcoder2": _CAUSAL_ROTARY,
    "smollm3": _CAUSAL_ROTARY,
    "mixtral": _CAUSAL_ROTARY,
    "qwen2_moe": _CAUSAL_ROTARY,
    "phimoe": _CAUSAL_ROTARY,
    "granitemoe": _CAUSAL_ROTARY,
    "olmo": _CAUSAL_ROTARY,
    "qwen3": _NORMED,
    "qwen3_moe": _NORMED,
    "gemma3_text": Covered("normed", ("encoder", "decoder")),
    "olmo2": _NORMED,
    "olmoe": _NORMED,
    "phi": Covered("phi", _DECODER),
    "phi3": Covered("phi3", _DECODER),
    "modernbert-decoder": Covered("modernbert-decoder", _DECODER),
    "gpt_neox": Covered("gpt_neox", _DECODER),
    "gpt_neox_japanese": Covered("gpt_neox_japanese", _DECODER),
    "gpt_neo": Covered("gpt_neo", _DECODER),
    "gptj": Covered("gptj", _DECODER),
    "codegen": Covered("codegen", _DECODER),
    "xglm": Covered("xglm", _DECODER),
    "opt": Covered("opt", _DECODER),
    "bloom": Covered("bloom", _DECODER),
    "falcon": Covered("falcon", _DECODER),
    "bart": _BART,
    "mbart": _BART,
    "marian": _BART,
    "pegasus": _BART,
    "m2m_100": _BART,
    "blenderbot": _BART,
    "blenderbot-small": _BART,
    "plbart": _BART,
    "mvp": Covered("xglm", _ENCODER_DECODER),
    "t5": _T5,
    "mt5": _T5,
    "umt5": Covered("umt5", _ENCODER_DECODER),
}

_NO_ATTENTION = "it mixes tokens without attention, so it has no heads"
_SPARSE = "its attention is sparse and never forms a softmax over all pairs of tokens"
_APPROXIMATE = "its attention is an approximation that never forms a softmax over pairs of tokens"
_POOLED = "its layers shorten the sequence, so that a pattern is no longer one of tokens"
_STREAMS = "its attention has a second stream of queries, which a pattern per head cannot show"
_OTHER_INPUT = (
    "it reads more than text (entities, layout, tables or images), which headscope cannot feed"
)
_COMPOSED = (
    "it is put together of two models, and headscope covers one; save the one that reads text by "
    "itself with save_pretrained and give that"
)
_QUANTISED = "its attention computes with simulated integers, which no exact re-run can equal"

#: Why a family cannot be covered, by its ``model_type``.
REFUSED = {
    "fnet": _NO_ATTENTION,
    "mamba": _NO_ATTENTION,
    "mamba2": _NO_ATTENTION,
    "falcon_mamba": _NO_ATTENTION,
    "rwkv": _NO_ATTENTION,
    "xlstm": _NO_ATTENTION,
    "longformer": _SPARSE,
    "led": _SPARSE,
    "big_bird": _SPARSE,
    "bigbird_pegasus": _SPARSE,
    "longt5": _SPARSE,
    "pegasus_x": _SPARSE,
    "reformer": _SPARSE,
    "nystromformer": _APPROXIMATE,
    "yoso": _APPROXIMATE,
    "mra": _APPROXIMATE,
    "funnel": _POOLED,
    "canine": _POOLED,
    "xlnet": _STREAMS,
    "prophetnet": _STREAMS,
    "luke": _OTHER_INPUT,
    "lilt": _OTHER_INPUT,
    "tapas": _OTHER_INPUT,
    "bros": _OTHER_INPUT,
    "layoutlmv2": _OTHER_INPUT,
    "layoutlmv3": _OTHER_INPUT,
    "lxmert": _OTHER_INPUT,
    "ibert": _QUANTISED,
    "encoder-decoder": _COMPOSED,
    "vision-encoder-decoder": _COMPOSED,
    "speech-encoder-decoder": _COMPOSED,
    "vision-text-dual-encoder": _COMPOSED,
    "rag": _COMPOSED,
}


def refuse(family: str, name: str) -> None:
    """Raise UnsupportedModelError if ``family`` cannot be covered; ``name`` is the model's."""
    if family in REFUSED:
        article = "an" if family[0] in "aeio" else "a"
        raise UnsupportedModelError(
            f"{name} is {article} {family} model, which headscope does not cover: "
            f"{REFUSED[family]}."
        )


def other_input(model: Any) -> str | None:
    """Say why a model that is not in ``REFUSED`` cannot be fed text alone; None if nothing does."""
    models = [name.removesuffix("_config") for name in getattr(model.config, "sub_configs", {})]
    if len(models) > 1:
        return (
            f"it is put together of several models ({', '.join(sorted(models))}), and headscope "
            "covers one; save the one that reads text by itself with save_pretrained and give that"
        )
    reads = str(getattr(model, "main_input_name", "input_ids"))
    return None if reads == "input_ids" else f"it reads {reads}"
