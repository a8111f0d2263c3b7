"""What a model's configuration and modules say of positions: rotated, or a term of the scores."""

from __future__ import annotations

from typing import Any


def rotary(model: Any) -> bool:
    """Whether queries and keys are rotated by position, as config and modules say."""
    config = model.config
    if getattr(config, "alibi", False):  # a Falcon with biases has a rotary module all the same
        return False
    kind = _position_type(config)
    if kind == "rotary" or getattr(config, "rotary_value", None) is not None:
        return True
    if any("Rotary" in type(module).__name__ for module in model.modules()):
        return True
    # "absolute" says nothing against a rotary module (configs carry it over from other families),
    # but it does against a setting alone.
    names = ("rope_theta", "rope_parameters", "rope_scaling", "rotary_emb_base", "rotary_dim")
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
    if getattr(config, "alibi", False) or config.model_type == "bloom":
        return "biases by distance (ALiBi)"
    return None


def unread_positions(config: Any) -> bool:
    """Whether a config asks for relative keys, which transformers 5 has dropped and ignores."""
    return _position_type(config).startswith("relative")


def _position_type(config: Any) -> str:
    """Return a config's kind of positions; ``absolute`` where it names none."""
    return str(getattr(config, "position_embedding_type", None) or "absolute")
