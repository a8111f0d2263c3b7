"""Check that a folder is a whole and safe checkpoint, before anything of it is loaded."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from headscope.core.errors import CheckpointError
from headscope.core.files import sha256_of, sha256_of_file
from headscope.core.saved_config import family_config, is_ours

_INDEX = "model.safetensors.index.json"
_TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.txt", "vocab.json"),
    *("sentencepiece.bpe.model", "spiece.model", "tokenizer.model"),
)
#: How safetensors calls the types that weights are stored in.
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Checkpoint:
    """A folder whose config and weight files have been looked at and found usable."""

    def __init__(self, folder: Path, *, allow_pickle: bool = False) -> None:
        self.folder = folder
        self.stated = _read_config(folder)
        self.config = family_config(self.stated)
        self.weight_files = _safetensors_files(folder)
        self.pickled = not self.weight_files
        if self.pickled:
            self.weight_files = _pickle_files(folder, allow_pickle)
        else:
            for file in self.weight_files:
                check_safetensors(file)

    @property
    def has_tokenizer(self) -> bool:
        """Whether any file a tokenizer can be read from is there."""
        return any((self.folder / name).is_file() for name in _TOKENIZER_FILES)

    def stored_dtype(self) -> str | None:
        """Floating-point type of most stored numbers, such as ``float16``; None for pickles."""
        counts: Counter[str] = Counter()
        for file in [] if self.pickled else self.weight_files:
            with safe_open(file, framework="numpy") as tensors:
                for key in list(tensors.keys()):
                    part = tensors.get_slice(key)
                    counts[part.get_dtype()] += math.prod(part.get_shape())
        known = {_DTYPES[name]: count for name, count in counts.items() if name in _DTYPES}
        return max(known, key=lambda name: known[name], default=None)

    def weights_sha256(self) -> str:
        """SHA-256 of the weights; for several files, of the lines ``name sha256`` in order."""
        if len(self.weight_files) == 1:
            return sha256_of_file(self.weight_files[0])
        lines = (f"{file.name} {sha256_of_file(file)}\n" for file in self.weight_files)
        return sha256_of("".join(lines))

    def tensors(self) -> dict[str, Tensor]:
        """Read all weights by name, as torch tensors."""
        found: dict[str, Tensor] = {}
        for file in self.weight_files:
            if self.pickled:
                found |= torch.load(file, map_location="cpu", weights_only=True)
            else:
                found |= load_file(file)
        return found


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"{folder} has no config.json; give the folder that save_pretrained wrote."
        )
    config = read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise CheckpointError(
            f"{path} does not say its model_type, so the architecture is unknown."
        )
    family = family_config(config)["model_type"]
    if is_ours(config) and (family not in CONFIG_MAPPING or is_ours({"model_type": family})):
        raise CheckpointError(
            f"{path} names {family!r} as base_model_type, which is no family of transformers; "
            "save the model again."
        )
    # Some hub folders still name code that transformers has had itself for long; that is not run,
    # nor is the modelling file of a folder that headscope wrote.
    if config.get("auto_map") and family not in CONFIG_MAPPING:
        raise CheckpointError(
            f"{path} asks for code of its own (auto_map); headscope never runs remote code. "
            "Use a checkpoint of a family that transformers itself implements."
        )
    tokenizer = folder / "tokenizer_config.json"
    settings = read_json(tokenizer) if tokenizer.is_file() else None
    if isinstance(settings, dict) and settings.get("auto_map"):
        raise CheckpointError(
            f"{tokenizer} asks for code of its own (auto_map); headscope never runs remote code. "
            "Save the tokenizer again as a fast tokenizer (tokenizer.json)."
        )
    return config


def read_json(path: Path) -> object:
    """Read a JSON file of a checkpoint, or say what is wrong with it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
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


def _safetensors_files(folder: Path) -> list[Path]:
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    index = folder / _INDEX
    if not index.is_file():
        return []
    data = read_json(index)
    weight_map = data.get("weight_map") if isinstance(data, dict) else None
    stated = weight_map.values() if isinstance(weight_map, dict) else ()
    files = [folder / name for name in sorted({name for name in stated if isinstance(name, str)})]
    if outside := [file for file in files if file.parent != folder or file.name == ".."]:
        raise CheckpointError(
            f"{index} names the file {outside[0]}, which is not in its folder; download the model "
            "again."
        )
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise CheckpointError(
            f"{index} names weight files that are not there "
            f"({', '.join(missing) or 'none at all'}); download the model again."
        )
    return files


def _pickle_files(folder: Path, allow_pickle: bool) -> list[Path]:
    files = sorted(folder.glob("pytorch_model*.bin"))
    if not files and (folder / "model.onnx").is_file():
        raise CheckpointError(
            f"{folder} holds an ONNX graph, which onnxruntime runs, and no weights to prune or "
            "measure; give the folder that save wrote."
        )
    if not files:
        raise CheckpointError(
            f"{folder} has no weights: model.safetensors (or its index) is missing."
        )
    if not allow_pickle:
        raise CheckpointError(
            f"{folder} has only pickled weights ({files[0].name}), which can hide code: convert "
            "them to safetensors, or set allow_pickle if you trust their author."
        )
    return files


def check_safetensors(path: Path) -> None:
    """Refuse a file of weights that cannot be read, or holds none."""
    try:
        with safe_open(path, framework="numpy") as file:
            empty = not list(file.keys())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is damaged or cut short ({error}); download it again."
        ) from None
    if empty:
        raise CheckpointError(f"{path} holds no tensor at all; download it again.")
