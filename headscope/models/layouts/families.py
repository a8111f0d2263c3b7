"""Families that cannot be covered, with the reason, and what a model says of its positions."""

from __future__ import annotations

from typing import Any

from headscope.core.errors import UnsupportedModelError

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

#: By ``model_type`` too.
REFUSED = {
    **dict.fromkeys(("fnet", "mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"), _NO_ATTENTION),
    **dict.fromkeys(
        (
            "longformer",
            "led",
            "big_bird",
            "bigbird_pegasus",
            "longt5",
            "pegasus_x",
            "reformer",
        ),
        _SPARSE,
    ),
    **dict.fromkeys(("nystromformer", "yoso", "mra"), _APPROXIMATE),
    **dict.fromkeys(("funnel", "canine"), _POOLED),
    **dict.fromkeys(("xlnet", "prophetnet"), _STREAMS),
    **dict.fromkeys(
        ("luke", "lilt", "tapas", "bros", "layoutlmv2", "layoutlmv3", "lxmert"), _OTHER_INPUT
    ),
    "ibert": _QUANTISED,
    **dict.fromkeys(
        (
            "encoder-decoder",
            "vision-encoder-decoder",
            "speech-encoder-decoder",
            "vision-text-dual-encoder",
            "rag",
        ),
        _COMPOSED,
    ),
}


def refuse(family: str, name: str) -> None:
    """Refuse a model of a family that cannot be covered."""
    if family in REFUSED:
        article = "an" if family[0] in "aeio" else "a"
        raise UnsupportedModelError(
            f"{name} is {article} {family} model, which headscope does not cover: "
            f"{REFUSED[family]}."
        )


def other_input(model: Any) -> str | None:
    """Say what a model reads that is no text, if anything is known of it."""
    models = [name.removesuffix("_config") for name in getattr(model.config, "sub_configs", {})]
    if len(models) > 1:
        return (
            f"it is put together of several models ({', '.join(sorted(models))}), and headscope "
            "covers one; save the one that reads text by itself with save_pretrained and give that"
        )
    reads = str(getattr(model, "main_input_name", "input_ids"))
    return None if reads == "input_ids" else f"it reads {reads}"


def rotary(model: Any) -> bool:
    """Whether queries and keys are rotated by position, as config and modules say.

    ``absolute`` alone decides nothing: a config may carry it from another family.
    """
    config = model.config
    kind = _position_type(config)
    if kind == "rotary" or getattr(config, "rotary_value", None) is not None:
        return True
    if any("Rotary" in type(module).__name__ for module in model.modules()):
        return True
    names = ("rope_theta", "rope_parameters", "rope_scaling", "rotary_emb_base")
    stated = any(getattr(config, name, None) is not None for name in names)
    return stated and getattr(config, "position_embedding_type", None) != "absolute"


def relative_terms(config: Any) -> str | None:
    """Name the term that depends on the distance between query and key, as the config says."""
    kind = _position_type(config)
    if kind.startswith("relative"):
        return f"position_embedding_type {kind!r}"
    if getattr(config, "relative_attention", False) and getattr(config, "pos_att_type", None):
        return "disentangled relative attention"
    if getattr(config, "relative_attention_num_buckets", None) is not None:
        return "a relative position bias"
    return None


def unread_positions(config: Any) -> bool:
    """Whether a config asks for relative keys, which transformers 5 has dropped and ignores."""
    return _position_type(config).startswith("relative")


def _position_type(config: Any) -> str:
    return str(getattr(config, "position_embedding_type", None) or "absolute")
