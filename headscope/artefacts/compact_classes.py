"""The classes that transformers builds from a compact folder: a family's own, with fewer parts.

For each family two kinds are made when its first folder is opened: a configuration that knows which
heads, neurons and layers are there, and for each task head a model that is built whole and cut
before it gets weights. transformers looks the ``model_type`` of a folder up in a table, to which
:func:`register` adds headscope's.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from headscope.core.errors import CheckpointError
from headscope.core.saved_config import (
    COMPACT_TYPE,
    FAMILY,
    LEFT,
    SETTINGS_BEFORE,
    STANDALONE_TYPE,
    family_config,
    is_ours,
)
from headscope.models.layouts.sites import attention_modules
from headscope.models.load.manifest import parts_in_config
from headscope.models.run.task_heads import TASK_HEADS, class_for
from headscope.models.surgery.cutting import cut_modules
from headscope.models.surgery.layers import count_layers, drop_layers, restore
from headscope.models.surgery.neurons import cut_neurons


def register() -> None:
    """Let transformers' own classes open the folders that headscope saved.

    >>> import headscope
    >>> headscope.register()

    A folder that has a modelling file of its own opens without this, with
    ``trust_remote_code=True``.
    """
    for name in (COMPACT_TYPE, STANDALONE_TYPE):
        CONFIG_MAPPING.register(name, _CompactFolder, exist_ok=True)


class _CompactFolder:
    """The entry of the table: makes the configuration of a folder when one is opened."""

    def __new__(cls, **settings: Any) -> Any:
        """Make a configuration from settings, as transformers calls a configuration's class."""
        return _config_of(settings)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make a configuration from what config.json holds, as ``PreTrainedConfig`` does."""
        return _config_of(config_dict, **kwargs)


def _config_of(config_dict: dict[str, Any], **kwargs: Any) -> Any:
    path = Path(str(kwargs.get("name_or_path") or "")) / "config.json"
    family = config_dict.get(FAMILY)
    if (
        not isinstance(family, str)
        or family not in CONFIG_MAPPING
        or is_ours({"model_type": family})
    ):
        raise CheckpointError(f"{path} names {family!r} as {FAMILY}, which is no known family.")
    parts_in_config(config_dict, path)
    own = {key: config_dict[key] for key in (FAMILY, *LEFT) if key in config_dict}
    # config.json states the number of layers left; the model is built with the original number
    now = {key: config_dict.get(key) for key in _settings_before(config_dict)}
    return _kinds(family).from_dict({**family_config(config_dict), **now, **own}, **kwargs)


def _settings_before(settings: dict[str, Any]) -> dict[str, Any]:
    before = settings.get(SETTINGS_BEFORE)
    return before if isinstance(before, dict) else {}


class _CompactConfig:
    """A family's configuration that also says which heads, neurons and layers are there."""

    def to_dict(self) -> dict[str, Any]:
        """Return what config.json is to hold."""
        data: dict[str, Any] = super().to_dict()  # type: ignore[misc]
        return {**data, "model_type": COMPACT_TYPE}

    def __reduce__(self) -> Any:
        """Copy and pickle by naming the family: the class itself has no importable name."""
        return _blank_config, (vars(self)[FAMILY],), self.__dict__.copy()


class _CompactModel:
    """A family's model, cut to the parts that its configuration names."""

    config: Any
    headscope_kind: tuple[str, str | None]

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        restore(config, _settings_before(vars(config)))
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        path = Path(config.name_or_path or "") / "config.json"
        kept = parts_in_config(vars(config), path)
        base: Any = getattr(self, "base_model", self)
        kept.check_count(count_layers(base))
        if kept.kept_layers is not None:
            drop_layers(self, kept.kept_layers)
        kept.check(attention_modules(base))
        kept.check_neurons(base)
        # transformers builds models on the meta device, but the rows to cut need real tensors.
        with torch.device("cpu"):
            cut_modules(self, kept.of)
            cut_neurons(base, kept.neurons)

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Save as transformers does, but tensors under the names that they have in memory."""
        kwargs.setdefault("save_original_format", False)
        super().save_pretrained(save_directory, **kwargs)  # type: ignore[misc]

    def __reduce__(self) -> Any:
        """Copy and pickle by naming the family: the class itself has no importable name."""
        return _blank, self.headscope_kind, self.__dict__.copy()


def _blank_config(family: str) -> Any:
    kind = _kinds(family)
    return kind.__new__(kind)


def _blank(family: str, task_head: str | None) -> Any:
    config_kind = _kinds(family)
    kind = class_for(task_head)._model_mapping[config_kind]
    return kind.__new__(kind)


@functools.cache
def _kinds(family: str) -> Any:
    """Make a family's configuration class, and enter its models into transformers' tables."""
    original: Any = CONFIG_MAPPING[family]
    config_kind = _derived(_CompactConfig, original, {})
    for task_head in (None, *TASK_HEADS):
        models = class_for(task_head)._model_mapping
        if original not in models:
            continue
        model = models[original][0] if isinstance(models[original], tuple) else models[original]
        own = {"config_class": config_kind, "headscope_kind": (family, task_head)}
        model_kind = _derived(_CompactModel, model, own)
        class_for(task_head).register(config_kind, model_kind, exist_ok=True)
    return config_kind


def _derived(part: type, original: Any, own: dict[str, Any]) -> Any:
    # transformers reads the source of a model's module, and saves the name of its class.
    return type(original)(
        original.__name__, (part, original), {"__module__": original.__module__, **own}
    )
