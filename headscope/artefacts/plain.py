"""Whether a family's own configuration can describe a model that has lost parts."""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from headscope.artefacts.opened_again import agrees
from headscope.models.anatomy.feed_forward import feed_forwards
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import class_for
from headscope.models.surgery.compact import removed_heads
from headscope.models.surgery.neurons import removed_neurons

#: Settings that state how many neurons a feed-forward network has, and of which stack.
_WIDTHS = {
    **dict.fromkeys(("intermediate_size", "hidden_dim", "d_ff", "ffn_dim", "n_inner")),
    **{"encoder_ffn_dim": "encoder", "decoder_ffn_dim": "decoder"},
}


def plain_settings(whole: LoadedModel, family: dict[str, Any]) -> dict[str, Any] | None:
    """Return config.json settings that make the family's own class build the pruned model.

    A family whose configuration has one number of heads for all layers, and apart from it the
    width of a head, can describe a model that lost equally many heads in every layer; most can
    describe one that lost equally many neurons. Which families those are is not listed but tried: a
    model is built and compared. None where layers differ, or the family cannot express it.
    ``family`` states the layers that are left.
    """
    original = CONFIG_MAPPING[family["model_type"]].from_dict(dict(family))
    settings: dict[str, Any] = {}
    if removed_heads(whole):
        counts = {site.n_heads for site in whole.sites}
        if len(counts) != 1 or min(counts) == 0 or whole.stacks != ("encoder",):
            return None
        site, heads, keys = whole.sites[0], "num_attention_heads", "num_key_value_heads"
        settings |= {original.attribute_map.get(heads, heads): site.n_heads}
        settings |= {"head_dim": site.d_head}
        if hasattr(original, keys):
            settings[keys] = site.projections.k.out_features // site.d_head
    if removed_neurons(whole):
        items = feed_forwards(whole)
        for stack in dict.fromkeys(item.stack for item in items):
            own = [item for item in items if item.stack == stack]
            if len({item.width for item in own}) != 1:
                return None
            for name, of_stack in _WIDTHS.items():
                stated = getattr(original, name, 0)
                # GPT-2 states None for four times the width of the states.
                if of_stack in (stack, None) and stated in (own[0].width_before, None):
                    settings[original.attribute_map.get(name, name)] = own[0].width
    return settings if is_plain(whole, {**family, **settings}, whole.network) else None


def is_plain(whole: LoadedModel, stated: dict[str, Any], network: Any) -> bool:
    """Whether the family's class, built from ``stated``, has these weights and the same outputs."""
    kind, state = class_for(whole.task_head), network.state_dict()
    try:
        config = CONFIG_MAPPING[stated["model_type"]].from_dict(dict(stated))
        with torch.device("meta"):
            shell = kind.from_config(config)
    except Exception:  # families refuse impossible settings with all kinds of errors
        return False
    shapes = [{k: v.shape for k, v in part.items()} for part in (shell.state_dict(), state)]
    if shapes[0] != shapes[1]:
        return False
    plain = kind.from_config(config, dtype=getattr(torch, whole.dtype))
    plain.load_state_dict(state)
    return agrees(whole, plain.to(whole.device))
