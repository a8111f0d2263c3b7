"""Configurations that say by themselves how many heads are left, so that no code is needed.

A family whose configuration has one number of heads for all layers, and apart from it the width of
a head, can describe a model that lost equally many heads in every layer. Which families those are
is not listed but tried: a model is built from the changed configuration and compared.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from headscope.models.deploy.opened import agrees
from headscope.models.loaded import LoadedModel
from headscope.models.task_heads import class_for

__all__ = ["plain_settings"]

_HEADS, _KEYS = "num_attention_heads", "num_key_value_heads"


def plain_settings(loaded: LoadedModel, family: dict[str, Any]) -> dict[str, Any] | None:
    """Return what config.json must say for a plain model of the family to fit the pruned one."""
    whole = loaded.whole or loaded
    counts = {site.n_heads for site in whole.sites}
    pruned = any(site.n_heads < site.heads_before for site in whole.sites)
    if not pruned or len(counts) != 1 or min(counts) == 0 or whole.stacks != ("encoder",):
        return None
    site = whole.sites[0]
    original = CONFIG_MAPPING[family["model_type"]].from_dict(dict(family))
    settings = {
        original.attribute_map.get(_HEADS, _HEADS): site.n_heads,
        "head_dim": site.d_head,
    }
    if hasattr(original, _KEYS):
        settings[_KEYS] = site.projections.k.out_features // site.d_head
    return settings if _fits({**family, **settings}, whole) else None


def _fits(family: dict[str, Any], loaded: LoadedModel) -> bool:
    """Whether a plain model of this configuration is the pruned one: its tensors, its states."""
    try:
        config = CONFIG_MAPPING[family["model_type"]].from_dict(family)
        with torch.device("meta"):
            shell = class_for(loaded.task_head).from_config(config)
    except Exception:  # each family refuses in its own way what it cannot be
        return False
    state = loaded.network.state_dict()
    shapes = [{k: v.shape for k, v in part.items()} for part in (shell.state_dict(), state)]
    if shapes[0] != shapes[1]:
        return False
    plain = class_for(loaded.task_head).from_config(config, dtype=getattr(torch, loaded.dtype))
    plain.load_state_dict(state)
    return agrees(loaded, plain.to(loaded.device))
