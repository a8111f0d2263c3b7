"""Let transformers open the folders that headscope saved, once headscope is imported.

transformers looks the ``model_type`` of a folder up in a table. :func:`register` adds ours to it:
at once if the table is loaded already, else as soon as something loads it. So the order of the two
imports does not matter, and importing headscope loads nothing heavy.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from headscope.core.saved_config import COMPACT_TYPE, STANDALONE_TYPE

#: The module of transformers that holds the table.
_TABLE = "transformers.models.auto.configuration_auto"


class CompactFolder:
    """The entry of the table: makes the configuration of a folder when one is opened."""

    def __new__(cls, **settings: Any) -> Any:
        """Make a configuration from settings, as transformers calls a configuration's class."""
        return cls.from_dict(settings)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make a configuration from what config.json holds, as ``PreTrainedConfig`` does."""
        from headscope.artefacts.compact_classes import config_of

        return config_of(config_dict, **kwargs)


def register() -> None:
    """Enter headscope's folders into transformers' table, now or when it is loaded."""
    if (table := sys.modules.get(_TABLE)) is not None and hasattr(table, "CONFIG_MAPPING"):
        _enter(table)
    elif not any(isinstance(finder, _TableFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TableFinder())


def _enter(table: ModuleType) -> None:
    for name in (COMPACT_TYPE, STANDALONE_TYPE):
        table.CONFIG_MAPPING.register(name, CompactFolder, exist_ok=True)


class _TableFinder:
    """Waits for the import of the table, leaves the work to the usual finders, and goes."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the table as Python would, and enter our folders once it has run."""
        if name != _TABLE:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            run = loader.exec_module

            def run_and_enter(module: ModuleType) -> None:
                run(module)
                _enter(module)

            loader.exec_module = run_and_enter
        return spec
