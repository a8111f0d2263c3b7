"""The classes by which transformers opens a compact folder where headscope is registered.

transformers looks the ``model_type`` of a folder up in a table, to which :func:`register` adds
headscope's. When the first folder of a family is opened, classes are made for the family: a
configuration that knows which heads, neurons and layers are there, and for each task head a model
that is built whole and cut before it gets weights.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import transformers
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
from headscope.models.load.manifest import parts_in_config
from headscope.models.run.task_heads import TASK_HEADS, class_for
from headscope.models.surgery.layers import restore


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
    """Make the configuration that config.json describes, of the family's derived class."""
    path = Path(str(kwargs.get("name_or_path") or "")) / "config.json"
    family = config_dict.get(FAMILY)
    if (
        not isinstance(family, str)
        or family not in CONFIG_MAPPING
        or is_ours({"model_type": family})
    ):
        raise CheckpointError(f"{path} names {family!r} as {FAMILY}, which is no known family.")
    parts_in_config(config_dict, path)  # refuses what does not fit together
    settings = family_config(config_dict)
    # config.json states the number of layers left; the model is built with the original number
    settings |= {key: config_dict.get(key) for key in _settings_before(config_dict)}
    settings |= {key: config_dict[key] for key in (FAMILY, *LEFT) if key in config_dict}
    return _compact_config_class(family).from_dict(settings, **kwargs)


def _settings_before(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as they were before layers were removed; empty where none was."""
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
    headscope_class: tuple[str, str]  # The family, and the auto class of transformers

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        restore(config, _settings_before(vars(config)))
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        path = Path(config.name_or_path or "") / "config.json"
        parts_in_config(vars(config), path).cut(self)

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Save as transformers does, but tensors under the names that they have in memory."""
        kwargs.setdefault("save_original_format", False)
        super().save_pretrained(save_directory, **kwargs)  # type: ignore[misc]

    def __reduce__(self) -> Any:
        """Copy and pickle by naming the family: the class itself has no importable name."""
        return _blank_model, self.headscope_class, self.__dict__.copy()


def _blank_config(family: str) -> Any:
    """Make a configuration without settings, which unpickling then sets."""
    cls = _compact_config_class(family)
    return cls.__new__(cls)


def _blank_model(family: str, auto_class: str) -> Any:
    """Make a model without weights, which unpickling then sets."""
    cls = getattr(transformers, auto_class)._model_mapping[_compact_config_class(family)]
    return cls.__new__(cls)


@functools.cache
def _compact_config_class(family: str) -> Any:
    """Make a family's configuration class, and enter its models into transformers' tables."""
    original: Any = CONFIG_MAPPING[family]
    config_class = _derived(_CompactConfig, original, {})
    auto_classes = [class_for(head) for head in (None, *TASK_HEADS)]
    for auto_class in (*auto_classes, transformers.AutoModelForTextEncoding):
        models = auto_class._model_mapping
        if original not in models:
            continue
        attributes = {
            "config_class": config_class,
            "headscope_class": (family, auto_class.__name__),
        }
        compact_model = _derived(_CompactModel, first_class(models[original]), attributes)
        auto_class.register(config_class, compact_model, exist_ok=True)
    return config_class


def first_class(registered: Any) -> Any:
    """Return the model's class, of which a table of transformers may have several."""
    return registered[0] if isinstance(registered, tuple) else registered


def _derived(extension: type, original: Any, attributes: dict[str, Any]) -> Any:
    """Make a class of transformers that ``extension`` goes before, under the original's name."""
    # transformers reads the source of a model's module, and saves the name of its class.
    attributes = {"__module__": original.__module__, **attributes}
    return type(original)(original.__name__, (extension, original), attributes)
