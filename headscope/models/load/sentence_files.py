"""The files of a sentence-transformers folder: ``modules.json``, settings, one folder a module.

modules.json lists the modules that a text runs through, each with its class and its folder in the
model's folder, which for the model itself may be that folder::

    [{"type": "sentence_transformers.models.Transformer", "path": ""},
     {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]

In the methods below ``module`` is such a folder, ``""`` or ``"1_Pooling"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from headscope.core.errors import CheckpointError
from headscope.models.load.safe_files import check_safetensors, read_json, read_pickle

MODULES = "modules.json"  # The file that makes a folder one of sentence-transformers
#: Settings of the whole model: prompts, and how many dimensions are used.
SETTINGS = "config_sentence_transformers.json"
_FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
#: Files that say how texts are read: sentence_bert_config.json, or in folders of older versions one
#: named after the family.
READING = tuple(f"sentence_{family}_config.json" for family in _FAMILIES)
#: Packages whose modules are known by their names; the code of others would have to be run.
_PACKAGES = ("sentence_transformers", "headscope")


class SentenceFiles:
    """The files of one folder, whose ``modules.json`` is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, folder: Path) -> SentenceFiles | None:
        """Return the files of a folder; None where it is none of sentence-transformers'."""
        return cls(folder) if (folder / MODULES).is_file() else None

    @cached_property
    def listed(self) -> list[dict[str, Any]]:
        """The entries of modules.json, checked to name a class and a folder each."""
        path = self.path("", MODULES)
        listed = read_json(path)
        if not isinstance(listed, list) or not listed:
            raise CheckpointError(f"{path} lists no modules.")
        for entry in listed:
            values = entry if isinstance(entry, Mapping) else {}
            if not all(isinstance(values.get(name), str) for name in ("type", "path")):
                raise CheckpointError(
                    f"{path} has a module without type and path ({short(entry)}); mend or delete "
                    "it."
                )
        return listed

    def modules(self) -> list[tuple[str, str]]:
        """Return (class, folder) of every module, such as ("Pooling", "1_Pooling").

        The first one is the model itself.
        """
        modules = []
        for entry in self.listed:
            module_path, _, class_name = entry["type"].rpartition(".")
            package = module_path.partition(".")[0]
            if package not in _PACKAGES:
                raise CheckpointError(
                    f"{self.folder / MODULES} asks for code of its own ({short(entry['type'])}), "
                    "which is never run."
                )
            # Windows writes backslashes, and its paths understand both kinds.
            modules.append((class_name, PureWindowsPath(entry["path"]).as_posix()))
        return modules

    def path(self, module: str, name: str) -> Path:
        """Return a file in the folder of a module; refuse one outside of the model's folder.

        Links are followed: the cache of the hub is made of them, and so are folders of users who
        save space.
        """
        folders = PurePosixPath(module).parts
        windows = PureWindowsPath(module)
        climbs = ".." in folders or ".." in windows.parts
        if climbs or windows.drive or windows.root or "\0" in module:
            raise CheckpointError(
                f"{self.folder / MODULES} names a path outside of the folder: {short(module)}."
            )
        return self.folder.joinpath(*folders, name)

    def config(self, module: str, name: str = "config.json") -> dict[str, Any]:
        """Read a module's file of settings, which has to be there and to hold an object."""
        path = self.path(module, name)
        if not path.is_file():
            raise CheckpointError(f"{self.folder / MODULES} needs {path}, which is not there.")
        values = read_json(path)
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} holds no JSON object.")
        return values

    def optional(self, name: str, module: str = "") -> dict[str, Any]:
        """Read a file of settings that may be missing: then there are none."""
        return self.config(module, name) if self.path(module, name).is_file() else {}

    def reading(self) -> dict[str, Any]:
        """Return the settings of how texts are read, such as the longest text and lower case."""
        _, first_module = self.modules()[0]
        for name in READING:
            if values := self.optional(name, first_module):
                return values
        return {}

    def weights(self, module: str) -> dict[str, Tensor]:
        """Read the tensors of a module by name; refuse any that is not finite."""
        path = self.path(module, "model.safetensors")
        if not path.is_file():
            path = self.path(module, "pytorch_model.bin")
            if not path.is_file():
                raise CheckpointError(f"{path.parent} has no weights (model.safetensors).")
        if path.suffix == ".safetensors":
            check_safetensors(path)
            tensors = load_file(path)
        else:
            tensors = read_pickle(path)
        for tensor in tensors.values():
            if not bool(torch.isfinite(tensor).all()):
                raise CheckpointError(f"{path} holds weights that are NaN or infinite.")
        return tensors


def leads_out(file: Path, folder: Path) -> bool:
    """Whether a link leads from a file out of its model's folder.

    The hub's cache does not count as outside: its snapshots link to files beside them.
    """
    root = folder.resolve()
    if root.parent.name == "snapshots":  # models--owner--name/snapshots/COMMIT, beside blobs/
        root = root.parent.parent
    return not file.resolve().is_relative_to(root)


def short(value: object) -> str:
    """Show a value of a file in a sentence, however long it is."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
