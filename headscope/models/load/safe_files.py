"""Read single files of a checkpoint: no code is run, and a damaged file ends in one sentence."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import TypeGuard

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headscope.core.errors import CheckpointError
from headscope.core.saved_config import special_float

_POINTER = b"version https://git-lfs"  # How a text file begins that stands for a large file


def read_json(path: Path) -> object:
    """Read a JSON file of a checkpoint; raise a CheckpointError that says what is wrong with it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_hook=special_float)
    except UnicodeDecodeError:
        raise CheckpointError(f"{path} is not UTF-8 text; download it again.") from None
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{path} is not valid JSON (line {error.lineno}); download it again."
        ) from None
    except (ValueError, RecursionError):
        raise CheckpointError(
            f"{path} holds a number of thousands of digits, or is nested a thousand deep; download "
            "it again."
        ) from None


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Read a pickle's tensors by name, and nothing else of it: no object is made, no code is run.

    Raises
    ------
    CheckpointError
        If it holds anything but tensors, is damaged, or would be far larger than its file.
    """
    refuse_pointer(path)
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                unpacked = sum(entry.file_size for entry in archive.infolist())
            if unpacked > path.stat().st_size:  # torch compresses nothing: an attack on memory
                raise pickle.UnpicklingError
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle raises anything
        raise CheckpointError(
            f"{path} holds more than tensors, or is damaged ({type(error).__name__}): nothing in "
            "it is run; ask its author for the weights as safetensors, or download it again."
        ) from None
    if not _maps_names_to_tensors(held):
        raise CheckpointError(
            f"{path} does not map names to tensors; save the model by save_pretrained."
        )
    for name, tensor in held.items():
        if tensor.numel() * tensor.itemsize > tensor.untyped_storage().nbytes():
            raise CheckpointError(f"{path} holds {name} larger than it is stored; it is damaged.")
    return dict(held)


def _maps_names_to_tensors(held: object) -> TypeGuard[dict[str, Tensor]]:
    """Whether the content of a pickle is tensors by name, one or more."""
    if not isinstance(held, dict) or not held:
        return False
    return all(isinstance(n, str) and isinstance(t, Tensor) for n, t in held.items())


def refuse_pointer(path: Path) -> None:
    """Refuse a pointer of Git LFS: a few lines of text that stand for a file not downloaded."""
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise CheckpointError(
                f"{path} is a pointer of Git LFS and not the file itself; run git lfs pull in its "
                "folder, or download it again."
            )


def check_safetensors(path: Path) -> None:
    """Refuse a file of weights that cannot be read, or holds none."""
    refuse_pointer(path)
    try:
        with safe_open(path, framework="numpy") as file:
            empty = not list(file.keys())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is damaged or cut short ({error}); download it again."
        ) from None
    if empty:
        raise CheckpointError(f"{path} holds no tensor at all; download it again.")
