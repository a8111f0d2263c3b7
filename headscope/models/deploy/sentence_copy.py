"""The files by which sentence-transformers knows a model, taken along into a saved folder.

``modules.json`` lists modules; each has a folder of its own, such as ``1_Pooling``, except for the
transformer itself, which lies in the root. Nothing of the source is trusted: only settings and
weights are taken, from inside its folder. A module with code of its own keeps its entry without the
code, so that sentence-transformers says what is missing.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.errors import CheckpointError
from headscope.models.checkpoint import read_json
from headscope.models.sentence_files import MODULES, READING, SETTINGS, SentenceFiles, short

__all__ = ["SentenceCopy", "sentence_copy"]

#: What is taken out of a module's folder: settings, words, weights.
_TAKEN = ("*.json", "*.txt", "*.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class SentenceCopy:
    """What is to be copied."""

    #: What ``modules.json`` of the new folder says; empty where there is nothing to copy.
    modules: list[dict[str, Any]]
    #: Where each file lies, by its name in the new folder.
    files: dict[str, Path]

    def write(self, target: Path) -> None:
        """Copy everything into a folder that has none of it."""
        for name, file in self.files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / name)
        if self.modules:
            text = json.dumps(self.modules, indent=2, ensure_ascii=False)
            (target / MODULES).write_text(text + "\n", encoding="utf-8")


def sentence_copy(source: Path | None) -> SentenceCopy:
    """Look for what sentence-transformers needs besides the transformer and its tokenizer."""
    if source is None or not (source / MODULES).is_file():
        return SentenceCopy([], {})
    files = SentenceFiles(source, allow_pickle=False)
    modules = _modules(files.path("", MODULES))
    found: dict[str, Path] = {}
    for module in modules:
        if module["type"].endswith("Transformer"):
            module["path"] = ""  # it is written into the root
        elif module["path"] not in ("", "."):
            found |= _in_module(files, module["path"])
    found |= {
        name: files.path("", name) for name in (SETTINGS, *READING) if (source / name).is_file()
    }
    for file in found.values():
        if file.suffix == ".json":
            read_json(file)
    return SentenceCopy(modules, found)


def _modules(path: Path) -> list[dict[str, Any]]:
    listed = read_json(path)
    for module in listed if isinstance(listed, list) else [None]:
        values = module if isinstance(module, dict) else {}
        if not all(isinstance(values.get(name), str) for name in ("type", "path")):
            raise CheckpointError(
                f"{path} has a module without type and path ({short(module)}); mend or delete it."
            )
    return list(listed) if isinstance(listed, list) else []


def _in_module(files: SentenceFiles, module: str) -> dict[str, Path]:
    """List the files of one module; one without settings, such as Normalize, may have none."""
    folder = files.path(module, "config.json").parent
    names = [file.name for pattern in _TAKEN for file in sorted(folder.glob(pattern))]
    place = folder.relative_to(files.folder).as_posix()
    return {f"{place}/{name}": files.path(module, name) for name in names}
