"""Check that a folder is a whole and safe checkpoint, before anything of it is loaded.

``Checkpoint(folder)`` makes every check; afterwards it reads the weights and what is known of them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from headscope.core.errors import CheckpointError
from headscope.core.files import sha256_of, sha256_of_file
from headscope.core.saved_config import family_config, is_ours
from headscope.models.load.safe_files import check_safetensors, read_json, read_pickle
from headscope.models.load.weight_files import WeightIndex, weights_opened

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
    "tokenizer.model",
)
#: Types in which weights are stored, by their names in safetensors.
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_ADAPTER = "adapter_config.json"
#: Names of weights, such as ``layer.0.weight`` or ``layer.0.qweight``: a tensor of such a name and
#: of none of these types is quantised.
_WEIGHT = re.compile(r"(.*\.)?q?weight(_packed)?")


class Checkpoint:
    """A folder whose config and weight files have been checked and found usable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stated = _read_config(folder)  # config.json as it is
        #: As the family itself would have written it, where headscope wrote the folder; else the
        #: same.
        self.config = family_config(self.stated)
        opened = weights_opened(folder, self.stated.get("transformers_weights"))
        self.pickled = ".safetensors" not in opened.name
        #: Names the files of a checkpoint that is split over several, its shards.
        self._index = WeightIndex(opened) if opened.suffix == ".json" else None
        self.weight_files = [opened] if self._index is None else self._index.files
        if not self.pickled:
            for file in self.weight_files:
                check_safetensors(file)
        for name, (dtype, _) in self.stored.items():
            if dtype not in _DTYPES.values() and _WEIGHT.fullmatch(name):
                raise _quantised(folder, f"{name} is stored as {dtype}")

    @property
    def has_tokenizer(self) -> bool:
        """Whether any file a tokenizer can be read from is there."""
        return any((self.folder / name).is_file() for name in TOKENIZER_FILES)

    @cached_property
    def stored(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and shape of every stored tensor, by its name: ("float16", (384, 384))."""
        if self.pickled:
            return {name: _type_and_shape(tensor) for name, tensor in self._unpickled.items()}
        stored: dict[str, tuple[str, tuple[int, ...]]] = {}
        for file in self.weight_files:
            with safe_open(file, framework="numpy") as tensors:
                keys = list(tensors.keys())
                self._check_shard(file, keys)
                for key in keys:
                    header = tensors.get_slice(key)
                    dtype = str(header.get_dtype())
                    stored[key] = _DTYPES.get(dtype, dtype), tuple(header.get_shape())
        return stored

    @cached_property
    def _unpickled(self) -> dict[str, Tensor]:
        """All tensors of pickles, by name."""
        unpickled: dict[str, Tensor] = {}
        for file in self.weight_files:
            tensors = read_pickle(file)
            self._check_shard(file, tensors)
            unpickled |= tensors
        return unpickled

    def _check_shard(self, file: Path, names: Iterable[str]) -> None:
        """Refuse a file that holds other tensors than the index says, where there is one."""
        if self._index is not None:
            self._index.check(file, names)

    def stored_dtype(self) -> str | None:
        """Return the floating-point type of most stored numbers, such as ``float16``."""
        counts: Counter[str] = Counter()
        for dtype, shape in self.stored.values():
            counts[dtype] += math.prod(shape)
        known = {name: count for name, count in counts.items() if name in _DTYPES.values()}
        return max(known, key=lambda name: known[name], default=None)

    def weights_sha256(self) -> str:
        """Return the SHA-256 of the weights; of several files that of lines ``name sha256``."""
        if len(self.weight_files) == 1:
            return sha256_of_file(self.weight_files[0])
        lines = (f"{file.name} {sha256_of_file(file)}\n" for file in self.weight_files)
        return sha256_of("".join(lines))

    def tensors(self) -> dict[str, Tensor]:
        """Read all weights by name, as torch tensors."""
        if self.pickled:
            return dict(self._unpickled)
        tensors: dict[str, Tensor] = {}
        for file in self.weight_files:
            tensors |= load_file(file)
        return tensors


def _type_and_shape(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    """Return what :attr:`Checkpoint.stored` has of a tensor: ("float16", (384, 384))."""
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def _quantised(folder: Path, why: str) -> CheckpointError:
    """Return the error for weights that are stored in fewer bits than they were trained in."""
    return CheckpointError(
        f"{folder} holds quantised weights ({why}), whose attention no exact re-run can equal; "
        "give the checkpoint that they were made from."
    )


def _read_config(folder: Path) -> dict[str, Any]:
    """Read config.json, or refuse a folder that is no whole model of a family of transformers."""
    if (folder / _ADAPTER).is_file():
        raise _adapter(folder)
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
    if quantised := config.get("quantization_config"):
        kind = quantised.get("quant_method") if isinstance(quantised, dict) else None
        raise _quantised(folder, f"quantization_config: {str(kind or 'of its own')[:40]}")
    _check_family(path, config)
    tokenizer_path = folder / "tokenizer_config.json"
    settings = read_json(tokenizer_path) if tokenizer_path.is_file() else None
    if isinstance(settings, dict) and settings.get("auto_map"):
        raise CheckpointError(
            f"{tokenizer_path} asks for code of its own (auto_map); headscope never runs remote "
            "code. Save the tokenizer again as a fast tokenizer (tokenizer.json)."
        )
    return config


def _check_family(path: Path, config: dict[str, Any]) -> None:
    """Refuse a family that transformers itself does not implement."""
    family = family_config(config)["model_type"]
    if is_ours(config) and (family not in CONFIG_MAPPING or is_ours({"model_type": family})):
        raise CheckpointError(
            f"{path} names {family!r} as base_model_type, which is no family of transformers; "
            "save the model again."
        )
    # A folder may name code of its own for a family that transformers has long included, as may
    # one that headscope wrote. It is opened, and the code is not run.
    if config.get("auto_map") and family not in CONFIG_MAPPING:
        raise CheckpointError(
            f"{path} asks for code of its own (auto_map); headscope never runs remote code. "
            "Use a checkpoint of a family that transformers itself implements."
        )
    if family not in CONFIG_MAPPING:
        raise CheckpointError(
            f"{path} names the family {family[:80]!r}, which this transformers does not implement "
            "(headscope never runs remote code); use a checkpoint of one that it does."
        )


def _adapter(folder: Path) -> CheckpointError:
    """Return the error for a folder that holds an adapter of another model."""
    stated = read_json(folder / _ADAPTER)
    base = stated.get("base_model_name_or_path") if isinstance(stated, dict) else None
    return CheckpointError(
        f"{folder} holds an adapter (PEFT, {_ADAPTER}) of {str(base or 'another model')[:80]}, "
        "not a whole model; merge it into that (merge_and_unload of peft), save the result and "
        "give its folder."
    )
