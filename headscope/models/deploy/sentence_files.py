"""The files by which sentence-transformers knows a model, taken along into a saved folder.

``modules.json`` lists modules; each has a folder of its own, such as ``1_Pooling``, except for the
transformer itself, which lies in the root. Nothing of the source is trusted: paths stay inside the
folder, only JSON and weights are taken, and pickles are written anew as safetensors.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors.torch import save_file

from headscope.errors import CheckpointError
from headscope.models.checkpoint import check_safetensors, read_json

__all__ = ["MODULES", "copy_sentence_files"]

MODULES = "modules.json"
#: Settings of the whole model, and of its transformer under the names of several families.
_ROOT = ("config_sentence_transformers.json", "sentence_*_config.json")
_PICKLE, _SAFE = "pytorch_model.bin", "model.safetensors"


def copy_sentence_files(source: Path | None, target: Path) -> bool:
    """Copy what sentence-transformers needs besides the transformer and its tokenizer.

    Parameters
    ----------
    source : Path or None
        The folder of the model that is saved; None where it has none.
    target : Path
        The new folder.

    Returns
    -------
    bool
        Whether ``source`` has a ``modules.json``; nothing is copied otherwise.

    Raises
    ------
    CheckpointError
        If that file, or one that it leads to, is damaged or lies elsewhere.
    """
    if source is None or not (source / MODULES).is_file():
        return False
    entries = _modules(source / MODULES)
    for entry in entries:
        if str(entry["type"]).endswith(".Transformer"):
            entry["path"] = ""
        elif entry["path"]:
            _copy_module(source, _inside(source, entry["path"]), target / entry["path"])
    for pattern in _ROOT:
        for file in sorted(source.glob(pattern)):
            _copy_json(source, file, target / file.name)
    text = json.dumps(entries, indent=2, ensure_ascii=False)
    (target / MODULES).write_text(text + "\n", encoding="utf-8")
    return True


def _modules(path: Path) -> list[dict[str, Any]]:
    entries = read_json(path)
    valid = isinstance(entries, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("type"), str) for entry in entries
    )
    if not valid or not all(isinstance(entry.get("path"), str) for entry in entries):  # type: ignore[attr-defined]
        raise CheckpointError(
            f"{path} is not a list of modules, each with its type and path; mend or delete it."
        )
    found: list[dict[str, Any]] = entries  # type: ignore[assignment]
    return found


def _inside(source: Path, path: str) -> Path:
    """Return a module's folder, if its path leads to one in ``source``."""
    parts = PurePosixPath(path).parts
    plain = parts and ".." not in parts and not PurePosixPath(path).is_absolute()
    if not plain or "\\" in path or ":" in path or not _real(source, source / path):
        raise CheckpointError(
            f"{source / MODULES} names the path {path!r}, which leads out of its folder; mend or "
            "delete it."
        )
    return source / path


def _real(source: Path, path: Path) -> bool:
    """Whether a path lies in ``source`` with all links followed; the hub's cache keeps blobs."""
    roots = [source.resolve()]
    if source.resolve().parent.name == "snapshots":
        roots.append(source.resolve().parents[1] / "blobs")
    return any(path.resolve().is_relative_to(root) for root in roots)


def _copy_module(source: Path, folder: Path, target: Path) -> None:
    if not folder.is_dir():  # modules without settings, such as Normalize, may have none
        return
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.glob("*.json")):
        _copy_json(source, file, target / file.name)
    for file in sorted(folder.glob("*.safetensors")):
        _check_real(source, file)
        check_safetensors(file)
        shutil.copyfile(file, target / file.name)
    if (pickle := folder / _PICKLE).is_file() and not (target / _SAFE).exists():
        _check_real(source, pickle)
        save_file(_tensors(pickle), target / _SAFE, metadata={"format": "pt"})


def _tensors(pickle: Path) -> dict[str, torch.Tensor]:
    """Read a pickle of tensors; anything else in it is refused, not run."""
    try:
        found = torch.load(pickle, map_location="cpu", weights_only=True)
        return {name: tensor.contiguous() for name, tensor in found.items()}
    except Exception as error:  # torch raises many kinds
        raise CheckpointError(
            f"{pickle} does not hold tensors alone ({type(error).__name__}); download it again."
        ) from None


def _copy_json(source: Path, file: Path, target: Path) -> None:
    _check_real(source, file)
    read_json(file)
    shutil.copyfile(file, target)


def _check_real(source: Path, file: Path) -> None:
    if not _real(source, file):
        raise CheckpointError(
            f"{file} is a link that leads out of its folder; put the file itself there."
        )
