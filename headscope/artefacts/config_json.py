"""config.json of a saved folder, whose model may have lost heads, neurons or layers.

It is plain, as for any model of the family, where the family's own configuration can say what is
left: equally many heads or neurons in every layer, fewer layers. Else it lists what is left, and
the folder gets a modelling file of its own (:mod:`~headscope.artefacts.modelling_file`), or asks
for headscope.

:func:`write_config` is the entry point.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from headscope.artefacts.modelling_file import FILE, standalone_files
from headscope.core.errors import UnsupportedModelError
from headscope.core.saved_config import (
    BEFORE,
    COMPACT_TYPE,
    FAMILY,
    KEPT,
    SETTINGS_BEFORE,
    family_config,
    in_json,
    special_float,
)
from headscope.models.anatomy.feed_forward import feed_forwards
from headscope.models.load.manifest import neurons_and_layers
from headscope.models.run.implementation import quiet_transformers
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.outputs import computes_the_same
from headscope.models.surgery.copies import original_heads, removed_heads
from headscope.models.surgery.layers import (
    kept_layers,
    layers_before,
    removed_layers,
    settings_before,
)
from headscope.models.surgery.neurons import record_of, removed_neurons

#: What opens a compact folder: transformers by itself, transformers with the folder's own code, or
#: transformers after :func:`headscope.register`.
TRANSFORMERS = "transformers"
REMOTE = "trust_remote_code"
HEADSCOPE = "import headscope"
#: Settings that state how many neurons each feed-forward network has: of the encoder, of the
#: decoder, or (None) of both.
_WIDTHS = {
    "intermediate_size": None,
    "hidden_dim": None,
    "d_ff": None,
    "ffn_dim": None,
    "n_inner": None,
    "encoder_ffn_dim": "encoder",
    "decoder_ffn_dim": "decoder",
}


@dataclass(frozen=True)
class WrittenConfig:
    """What was written into config.json."""

    opens: str  # TRANSFORMERS, REMOTE or HEADSCOPE
    replaced: dict[str, Any]  # Settings as they were in the source, where config.json has others


def write_config(loaded: LoadedModel, folder: Path, *, standalone: bool) -> WrittenConfig:
    """Let config.json, as transformers wrote it, describe the weights of a pruned model.

    Raises
    ------
    UnsupportedModelError
        If ``standalone`` is asked for and the family cannot have a modelling file of its own.
    """
    # the settings of the source, then with the layers that are left
    path = folder / "config.json"
    written = json.loads(path.read_text(encoding="utf-8"), object_hook=special_float)
    all_stacks = loaded.with_all_stacks
    before = settings_before(all_stacks.model)  # empty where no layer was removed
    source_settings = {**family_config(written), **before}
    source_settings.pop("pruned_heads", None)
    now = all_stacks.model.config.to_dict()
    settings = source_settings | {name: now[name] for name in before}

    # plain, if the family's class then builds this model; else with what is left, and its code
    remaining = what_is_left(all_stacks)
    opens = TRANSFORMERS
    replaced = before
    if removed_heads(all_stacks) or remaining:
        with quiet_transformers():
            plain = _plain_settings(all_stacks, settings)
        if plain is not None:
            settings |= plain
            replaced = {name: source_settings.get(name) for name in (*before, *plain)}
        else:
            opens, code_settings = _write_code(loaded, folder, settings, standalone=standalone)
            settings |= code_settings
            settings[BEFORE] = original_heads(all_stacks)
            settings[KEPT] = {site.name: list(site.head_ids) for site in all_stacks.sites}
            settings |= remaining
            if before:
                settings[SETTINGS_BEFORE] = before
    text = json.dumps(in_json(settings), indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    return WrittenConfig(opens, replaced)


def _write_code(
    loaded: LoadedModel, folder: Path, family_settings: dict[str, Any], *, standalone: bool
) -> tuple[str, dict[str, Any]]:
    """Write a modelling file where the family allows it.

    Returns what opens the folder, REMOTE or HEADSCOPE, and the settings of config.json that name
    its code.
    """
    try:
        code, code_settings = standalone_files(loaded, family_settings)
    except UnsupportedModelError:
        if standalone:
            raise
        return HEADSCOPE, {"model_type": COMPACT_TYPE, FAMILY: family_settings["model_type"]}
    (folder / FILE).write_text(code, encoding="utf-8")
    return REMOTE, code_settings


def what_is_left(loaded: LoadedModel) -> dict[str, Any]:
    """Describe the neurons and layers that are left, for config.json and for the manifest.

    Empty if none was removed.
    """
    layers = kept_layers(loaded) if removed_layers(loaded) else None
    return neurons_and_layers(record_of(loaded.model), layers, layers_before(loaded))


def _plain_settings(loaded: LoadedModel, family_settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return config.json settings that make the family's own class build the pruned model.

    A family whose configuration has one number of heads for all layers, and apart from it the
    width of a head, can describe a model that lost equally many heads in every layer; most can
    describe one that lost equally many neurons. Which families those are is not listed but tried: a
    model is built and compared. None where layers differ, or the family cannot express it.

    ``family_settings`` are the source's, with the number of layers that are left.
    """
    original = CONFIG_MAPPING[family_settings["model_type"]].from_dict(dict(family_settings))
    settings: dict[str, Any] = {}
    if removed_heads(loaded):
        heads = _head_settings(loaded, original)
        if heads is None:
            return None
        settings |= heads
    if removed_neurons(loaded):
        widths = _width_settings(loaded, original)
        if widths is None:
            return None
        settings |= widths
    return settings if _builds_the_model(loaded, family_settings | settings) else None


def _head_settings(loaded: LoadedModel, original: Any) -> dict[str, Any] | None:
    """Return settings that state the heads of every layer, if all layers have equally many.

    None else, where a layer has none, and for models with a decoder.
    """
    counts = {site.n_heads for site in loaded.sites}
    if len(counts) != 1 or min(counts) == 0 or loaded.stacks != ("encoder",):
        return None
    site = loaded.sites[0]
    own_name = original.attribute_map.get("num_attention_heads", "num_attention_heads")
    settings = {own_name: site.n_heads, "head_dim": site.d_head}
    if hasattr(original, "num_key_value_heads"):
        settings["num_key_value_heads"] = site.projections.k.out_features // site.d_head
    return settings


def _width_settings(loaded: LoadedModel, original: Any) -> dict[str, Any] | None:
    """Return settings that state the neurons of every layer; None where layers of a stack differ.

    ``original`` is the source's configuration: a setting is taken for one that states the width if
    its value is the width before neurons were removed.
    """
    settings: dict[str, Any] = {}
    networks = feed_forwards(loaded)
    for stack in dict.fromkeys(network.stack for network in networks):
        stack_networks = [network for network in networks if network.stack == stack]
        width = stack_networks[0].width
        if any(network.width != width for network in stack_networks):
            return None
        # GPT-2 states None for four times the width of the states.
        stated_before = (stack_networks[0].width_before, None)
        for name, stack_of_setting in _WIDTHS.items():
            speaks_of_stack = stack_of_setting is None or stack_of_setting == stack
            if speaks_of_stack and getattr(original, name, 0) in stated_before:
                settings[original.attribute_map.get(name, name)] = width
    return settings


def _builds_the_model(loaded: LoadedModel, settings: dict[str, Any]) -> bool:
    """Whether the family's own class, built from settings, is the model once it has its weights."""
    # the shapes of its tensors, which need no memory on the device meta
    model_class = loaded.auto_class
    state = loaded.network.state_dict()
    try:
        config = CONFIG_MAPPING[settings["model_type"]].from_dict(dict(settings))
        with torch.device("meta"):
            shell = model_class.from_config(config)
    except Exception:  # families refuse impossible settings with all kinds of errors
        return False
    expected_shapes = {name: tensor.shape for name, tensor in shell.state_dict().items()}
    if expected_shapes != {name: tensor.shape for name, tensor in state.items()}:
        return False

    # its outputs
    plain = model_class.from_config(
        config,
        dtype=getattr(torch, loaded.dtype),
        # the same attention, so that both round alike
        attn_implementation=loaded.network.config._attn_implementation,
    )
    plain.load_state_dict(state)
    return computes_the_same(loaded, plain.to(loaded.device))
