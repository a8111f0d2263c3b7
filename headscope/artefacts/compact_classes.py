"""The classes by which transformers opens a compact folder where headscope is registered.

A compact folder holds a model that has lost heads, neurons or layers. It opens in three steps:

1. transformers looks the folder's ``model_type`` up in a table, to which :func:`register` has added
   headscope's own.
2. The table's entry, :class:`_CompactFolder`, reads the family's name in config.json. For the first
   folder of a family it makes classes (:func:`_compact_config_class`): a configuration that also
   says which parts are left, and a model for each task head.
3. Such a model is built with all parts of the family's own, and cut before it gets weights.
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
    """The entry of the table, which transformers uses as the class of a folder's configuration.

    It has no instances: what is made is a configuration of the family's derived class.
    """

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

    # Settings count the layers that are left, as config.json does; the model restores the original
    # number before it is built.
    settings = family_config(config_dict)
    settings |= {key: config_dict.get(key) for key in _settings_before(config_dict)}
    settings |= {key: config_dict[key] for key in (FAMILY, *LEFT) if key in config_dict}
    return _compact_config_class(family).from_dict(settings, **kwargs)


def _settings_before(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as they were before layers were removed; empty where none was."""
    before = settings.get(SETTINGS_BEFORE)
    return before if isinstance(before, dict) else {}


class _CompactConfig:
    """Extends a family's configuration, which also says which parts of the model are left."""

    def to_dict(self) -> dict[str, Any]:
        """Return what config.json is to hold."""
        data: dict[str, Any] = super().to_dict()  # type: ignore[misc]
        return {**data, "model_type": COMPACT_TYPE}

    def __reduce__(self) -> Any:
        """Copy and pickle by naming the family: the class itself has no importable name."""
        return _blank_config, (getattr(self, FAMILY),), self.__dict__.copy()


class _CompactModel:
    """Extends a family's model, which is cut to the parts that its configuration names."""

    config: Any
    headscope_class: tuple[str, str]  # The family, and the auto class of transformers

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        # built with the original number of layers
        settings = vars(config)
        restore(config, _settings_before(settings))
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        # cut, by what the configuration says is left
        path = Path(config.name_or_path or "") / "config.json"
        parts_in_config(settings, path).cut(self)

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
    """Return a model's class from an entry of transformers' tables: a class, or several."""
    return registered[0] if isinstance(registered, tuple) else registered


def _derived(extension: type, original: Any, attributes: dict[str, Any]) -> Any:
    """Make a subclass of a class of transformers whose methods in ``extension`` come first.

    It keeps the original's name and module: transformers saves the name, and reads the module's
    source.
    """
    attributes = {"__module__": original.__module__, **attributes}
    return type(original)(original.__name__, (extension, original), attributes)
