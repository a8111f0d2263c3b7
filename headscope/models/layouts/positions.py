"""What a model's configuration says of the terms of its scores."""

from __future__ import annotations

from typing import Any


def beyond_products(config: Any) -> str | None:
    """Name what makes scores of queries and keys more than their products, as the config says.

    A term that depends on the distance between them, or a bound. None where it says nothing.
    """
    kind = _position_type(config)
    if kind.startswith("relative"):
        return f"position_embedding_type {kind!r}"
    if getattr(config, "relative_attention", False) and getattr(config, "pos_att_type", None):
        return "disentangled relative attention"
    if getattr(config, "relative_attention_num_buckets", None) is not None:
        return "a relative position bias"
    if getattr(config, "alibi", False) or getattr(config, "model_type", "") == "bloom":
        return "biases by distance (ALiBi)"
    if getattr(config, "clip_qkv", None) is not None:
        return "a bound of the entries of q and k"
    softcap = getattr(config, "attn_logit_softcapping", None)
    if softcap is not None:
        return f"a soft cap of {softcap:g} on the scores"
    return None


def unread_positions(config: Any) -> bool:
    """Whether a config asks for relative keys, which transformers 5 has dropped and ignores."""
    return _position_type(config).startswith("relative")


def _position_type(config: Any) -> str:
    """Return a config's kind of positions; ``absolute`` where it names none."""
    return str(getattr(config, "position_embedding_type", None) or "absolute")
