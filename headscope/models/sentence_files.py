"""Reads the files of a sentence-transformers folder, none of which is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from headscope.digest import sha256_of_file
from headscope.errors import CheckpointError
from headscope.models.checkpoint import read_json

#: The file that makes a folder one of sentence-transformers.
MODULES = "modules.json"
#: What is set for the whole model: prompts, and how many dimensions are used.
SETTINGS = "config_sentence_transformers.json"
#: How texts are read; older versions named the file after the family.
_FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
READING = tuple(f"sentence_{family}_config.json" for family in _FAMILIES)
#: Packages whose modules are known by their names; the code of others would have to be run.
_PACKAGES = ("sentence_transformers", "headscope")


class SentenceFiles:
    """The files of one folder, and which of them were read."""

    def __init__(self, folder: Path, allow_pickle: bool) -> None:
        self.folder, self._allow_pickle = folder, allow_pickle
        self.used: list[str] = []

    def modules(self) -> list[tuple[str, str]]:
        """Return (class, folder) of every module; the first one is the model itself."""
        listed = self._json(path := self.path("", MODULES))
        if not isinstance(listed, list) or not listed:
            raise CheckpointError(f"{path} lists no modules.")
        return [self._module(item) for item in listed]

    def _module(self, item: object) -> tuple[str, str]:
        values = item if isinstance(item, Mapping) else {}
        kind, path = values.get("type"), values.get("path")
        if not isinstance(kind, str) or not isinstance(path, str):
            raise CheckpointError(f"{self.folder / MODULES} has a module without type and path.")
        package, _, name = kind.rpartition(".")
        if package.partition(".")[0] not in _PACKAGES:
            raise CheckpointError(
                f"{self.folder / MODULES} asks for code of its own ({short(kind)}), which is never "
                "run."
            )
        return name, path

    def path(self, module: str, name: str) -> Path:
        """Return a file in the folder of a module, after a look at where it really lies."""
        parts, windows = PurePosixPath(module).parts, PureWindowsPath(module)
        if ".." in (*parts, *windows.parts) or windows.drive or windows.root or "\0" in module:
            raise CheckpointError(
                f"{self.folder / MODULES} names a path outside of the folder: {short(module)}."
            )
        path, root = self.folder.joinpath(*parts, name), self.folder.resolve()
        # The hub's cache has links in its snapshots, to files beside them.
        files = root.parent.parent if root.parent.name == "snapshots" else root
        inside = path.parent.resolve().is_relative_to(root)
        if not (inside and path.resolve().is_relative_to(files)):
            raise CheckpointError(f"{path} is a link that leads out of the model's folder.")
        return path

    def config(self, module: str, name: str = "config.json") -> dict[str, Any]:
        """Read a file that has to be there and to hold an object."""
        path = self.path(module, name)
        if not path.is_file():
            raise CheckpointError(f"{self.folder / MODULES} needs {path}, which is not there.")
        found = self._json(path)
        if not isinstance(found, dict):
            raise CheckpointError(f"{path} holds no JSON object.")
        return found

    def optional(self, name: str, module: str = "") -> dict[str, Any]:
        """Read a file that may be missing."""
        return self.config(module, name) if self.path(module, name).is_file() else {}

    def reading(self) -> dict[str, Any]:
        """Read how texts are read: longest text, lower case, what the model puts out."""
        return next((found for name in READING if (found := self.optional(name))), {})

    def weights(self, module: str) -> tuple[dict[str, Tensor], str]:
        """Read the tensors of a module, and the SHA-256 of their file."""
        path = self.path(module, "model.safetensors")
        if not path.is_file():
            path = self.path(module, "pytorch_model.bin")
            self._check_pickle(path)
        try:
            found = (
                load_file(path)
                if path.suffix == ".safetensors"
                else torch.load(path, map_location="cpu", weights_only=True)
            )
        except Exception as error:  # a damaged pickle raises anything
            raise CheckpointError(f"{path} is damaged ({short(error)}).") from None
        for tensor in found.values() if isinstance(found, dict) else [None]:
            if not isinstance(tensor, Tensor) or not bool(torch.isfinite(tensor).all()):
                raise CheckpointError(f"{path} holds weights that are no finite numbers.")
        self._note(path)
        return found, sha256_of_file(path)

    def _check_pickle(self, path: Path) -> None:
        if not path.is_file():
            raise CheckpointError(f"{path.parent} has no weights (model.safetensors).")
        if not self._allow_pickle:
            raise CheckpointError(
                f"{path} is pickled, which can hide code (set allow_pickle if you trust its author)"
            )

    def _json(self, path: Path) -> object:
        found = read_json(path)
        self._note(path)
        return found

    def _note(self, path: Path) -> None:
        name = path.relative_to(self.folder).as_posix()
        self.used += [] if name in self.used else [name]


def short(value: object) -> str:
    """Show a value of a file in a sentence, however long it is."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
