"""The keys of config.json in a compact folder: which family it is, and which parts are left.

A compact folder holds a model from which headscope has removed heads, neurons or layers. It must
not call itself a plain ``bert``: transformers would then build all heads and refuse the weights for
their shapes. So ``model_type`` is one of headscope's, the family is
called ``base_model_type``, and ``kept_heads`` lists the heads of each attention module. Where
neurons are gone, ``kept_neurons`` lists those of each feed-forward network that lost some, by the
name of its second map. Where layers are gone, ``kept_layers`` lists the original numbers of the
others (a decoder's counted on behind its encoder's), and ``settings_before`` holds what the
family's own settings, such as ``num_hidden_layers``, said before.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

MANIFEST = "headscope.json"  # In every folder that headscope saved
#: The ``model_type`` of a folder that only headscope opens. Before :func:`headscope.register`,
#: transformers quotes it in its error, and that is where a user learns what to do.
COMPACT_TYPE = "headscope: run 'import headscope; headscope.register()' before you open this folder"
#: The ``model_type`` of a folder that has a modelling file of its own.
STANDALONE_TYPE = "headscope"
#: Keys of config.json.
FAMILY = "base_model_type"
KEPT = "kept_heads"
BEFORE = "heads_before"
NEURONS = "kept_neurons"
LAYERS = "kept_layers"
LAYERS_BEFORE = "layers_before"
SETTINGS_BEFORE = "settings_before"
#: The keys that describe which heads, neurons and layers are left.
LEFT = (KEPT, BEFORE, NEURONS, LAYERS, LAYERS_BEFORE, SETTINGS_BEFORE)
#: Further keys of a folder with a modelling file: the shapes of tensors, the attributes of modules,
#: and where the file is.
SHAPES = "tensor_shapes"
SETTINGS = "module_settings"
CODE = "auto_map"


def is_ours(config: Mapping[str, Any]) -> bool:
    """Whether config.json describes a compact folder that headscope wrote."""
    return config.get("model_type") in (COMPACT_TYPE, STANDALONE_TYPE)


def family_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json as the family itself would have it, before anything was removed."""
    if not is_ours(config):
        return dict(config)
    ours = (FAMILY, *LEFT, SHAPES, SETTINGS, CODE)
    plain = {key: value for key, value in config.items() if key not in ours}
    settings_before = config.get(SETTINGS_BEFORE)
    if isinstance(settings_before, dict):
        plain |= settings_before
    return {**plain, "model_type": config.get(FAMILY)}


#: How transformers writes numbers that JSON has not: ``{"__float__": "Infinity"}``.
_SPECIAL = "__float__"


def special_float(read: dict[str, Any]) -> object:
    """Return the number that an object of config.json stands for, or the object itself."""
    tag = read.get(_SPECIAL)
    is_number = len(read) == 1 and tag in ("Infinity", "-Infinity", "NaN")
    return float(tag) if is_number else read  # type: ignore[arg-type]


def in_json(settings: Any) -> Any:
    """Return settings with such numbers as transformers writes them."""
    if isinstance(settings, dict):
        return {key: in_json(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [in_json(value) for value in settings]
    if isinstance(settings, float) and not math.isfinite(settings):
        return {_SPECIAL: json.dumps(settings)}
    return settings


#: Sets of numbers as short text, such as ``0-5,8,11-13``: thousands of neurons on one line.
_SPANS = re.compile(r"(\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*)?")


def as_spans(numbers: Iterable[int]) -> str:
    """Write different numbers as spans such as ``0-5,8,11-13``, in their order."""
    spans: list[tuple[int, int]] = []  # First and last number of each
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def from_spans(text: object, limit: int) -> tuple[int, ...] | None:
    """Read spans of different numbers below ``limit``; None if the text is anything else."""
    if not isinstance(text, str) or not _SPANS.fullmatch(text):
        return None
    numbers: list[int] = []
    spans = text.split(",") if text else []
    for span in spans:
        first, _, last = span.partition("-")
        start = int(first)
        end = int(last) if last else start  # a single number is a span of one
        if not start <= end < limit:
            return None
        numbers += range(start, end + 1)
    if len(set(numbers)) < len(numbers):
        return None
    return tuple(numbers)
