"""Let transformers open the folders that headscope saved, once headscope is imported.

transformers looks the ``model_type`` of a folder up in a table. :func:`register` gives the table an
entry for ours: at once where the table is loaded already, else as soon as something loads it. So
the order of the two imports does not matter, and importing headscope loads nothing heavy.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: The ``model_type`` of a folder that only headscope opens. Where headscope is not imported,
#: transformers quotes it in its error, and that is where a user learns what to do.
COMPACT_TYPE = "headscope: install headscope and run 'import headscope' before you open this folder"
#: The ``model_type`` of a folder that has a modelling file of its own.
STANDALONE_TYPE = "headscope"
#: The module of transformers that holds the table.
_TABLE = "transformers.models.auto.configuration_auto"


class CompactFolder:
    """What stands in the table: makes the configuration of a folder when one is opened."""

    def __new__(cls, **settings: Any) -> Any:
        """Make a configuration from settings, as transformers calls a configuration's class."""
        return cls.from_dict(settings)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make a configuration from what config.json holds."""
        from headscope.models.deploy.registered import config_of

        return config_of(config_dict, **kwargs)


def register() -> None:
    """Enter headscope's folders into transformers' table, now or when it is loaded."""
    if (table := sys.modules.get(_TABLE)) is not None and hasattr(table, "CONFIG_MAPPING"):
        _enter(table)
    elif not any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting())


def _enter(table: ModuleType) -> None:
    for name in (COMPACT_TYPE, STANDALONE_TYPE):
        table.CONFIG_MAPPING.register(name, CompactFolder, exist_ok=True)


class _Waiting:
    """Watches imports for the table, leaves the work to the usual finders, and goes."""

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
