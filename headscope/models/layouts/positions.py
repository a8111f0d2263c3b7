"""What a model's configuration says of the terms of its scores."""

from __future__ import annotations

from typing import Any


def relative_terms(config: Any) -> str | None:
    """Name the term that depends on the distance between query and key, as the config says."""
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
    return None


def unread_positions(config: Any) -> bool:
    """Whether a config asks for relative keys, which transformers 5 has dropped and ignores."""
    return _position_type(config).startswith("relative")


def _position_type(config: Any) -> str:
    """Return a config's kind of positions; ``absolute`` where it names none."""
    return str(getattr(config, "position_embedding_type", None) or "absolute")
