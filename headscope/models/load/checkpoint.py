"""Check that a folder is a whole and safe checkpoint, before anything of it is loaded."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from headscope.core.errors import CheckpointError
from headscope.core.files import sha256_of, sha256_of_file
from headscope.core.saved_config import family_config, is_ours

#: Weights that transformers opens in a folder; the first of these that is there.
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
    "tokenizer.model",
)
#: What safetensors calls the types that weights are stored in.
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_ADAPTER = "adapter_config.json"
_SUFFIXES = (".safetensors", ".bin")
#: Names of weights; a tensor of such a name without one of these types is quantised.
_WEIGHT = re.compile(r"(.*\.)?q?weight(_packed)?")
#: Weights that torch does not read.
_OTHERS = ("tf_model.h5", "flax_model.msgpack", "rust_model.ot", "model.gguf", "model.ckpt.index")
_POINTER = b"version https://git-lfs"

#: Settings that say how often a part is built.
_REPEATS = re.compile(r"layer|heads?$|head_num|blocks?$|groups?$|depth|num_experts|n_memory")
#: Settings that say how large a part is.
_EXTENTS = re.compile(
    r"size|dim|positions?|position_embeddings|d_model|d_ff|d_kv|ffn|n_embd|n_inner|n_ctx|width"
    r"|buckets|kernel|stride|length|window|labels|num_|^n_"
)
#: Numbers with such a name that are not sizes.
_NO_SIZES = re.compile(r"theta|param|step|sample|seed|_id$")
#: Sizes that any config may state, whatever the weights.
_REPEATS_AT_LEAST = 1000
_EXTENT_AT_LEAST = 1 << 20
#: A network may be at most this many times as large as what is stored (tied, shared, computed or
#: pruned weights are stored once or never), and this many numbers larger.
_TIMES = 16
_MORE = 1 << 24


class Checkpoint:
    """A folder whose config and weight files have been checked and found usable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stated = _read_config(folder)
        self.config = family_config(self.stated)
        opened = _opened(folder, self.stated.get("transformers_weights"))
        self.pickled = ".safetensors" not in opened.name
        self._index = _Index(opened) if opened.suffix == ".json" else None
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
        """Type, such as ``float16``, and shape of every stored tensor, by its name."""
        if self.pickled:
            held = self._unpickled.items()
            return {n: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in held}
        stored: dict[str, tuple[str, tuple[int, ...]]] = {}
        for file in self.weight_files:
            with safe_open(file, framework="numpy") as tensors:
                keys = list(tensors.keys())
                self._check_shard(file, keys)
                for key in keys:
                    part = tensors.get_slice(key)
                    dtype = str(part.get_dtype())
                    stored[key] = _DTYPES.get(dtype, dtype), tuple(part.get_shape())
        return stored

    @cached_property
    def _unpickled(self) -> dict[str, Tensor]:
        unpickled: dict[str, Tensor] = {}
        for file in self.weight_files:
            part = read_pickle(file)
            self._check_shard(file, part)
            unpickled |= part
        return unpickled

    def _check_shard(self, file: Path, held: Iterable[str]) -> None:
        if self._index is not None:
            self._index.check(file, held)

    def stored_dtype(self) -> str | None:
        """Floating-point type of most stored numbers, such as ``float16``."""
        counts: Counter[str] = Counter()
        for dtype, shape in self.stored.values():
            counts[dtype] += math.prod(shape)
        known = {name: count for name, count in counts.items() if name in _DTYPES.values()}
        return max(known, key=lambda name: known[name], default=None)

    def weights_sha256(self) -> str:
        """SHA-256 of the weights; for several files, of the lines ``name sha256`` in order."""
        if len(self.weight_files) == 1:
            return sha256_of_file(self.weight_files[0])
        lines = (f"{file.name} {sha256_of_file(file)}\n" for file in self.weight_files)
        return sha256_of("".join(lines))

    def tensors(self) -> dict[str, Tensor]:
        """Read all weights by name, as torch tensors."""
        if self.pickled:
            return dict(self._unpickled)
        parts = map(load_file, self.weight_files)
        return {name: tensor for part in parts for name, tensor in part.items()}


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
            with zipfile.ZipFile(path) as archive:  # torch compresses nothing
                if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
                    raise pickle.UnpicklingError
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle raises anything
        raise CheckpointError(
            f"{path} holds more than tensors, or is damaged ({type(error).__name__}): nothing in "
            "it is run; ask its author for the weights as safetensors, or download it again."
        ) from None
    named = held.items() if isinstance(held, dict) else ()
    if not named or not all(isinstance(n, str) and isinstance(t, Tensor) for n, t in named):
        raise CheckpointError(
            f"{path} does not map names to tensors; save the model by save_pretrained."
        )
    for name, tensor in named:
        if tensor.numel() * tensor.itemsize > tensor.untyped_storage().nbytes():
            raise CheckpointError(f"{path} holds {name} larger than it is stored; it is damaged.")
    return dict(named)


def refuse_pointer(path: Path) -> None:
    """Refuse a pointer of Git LFS in place of a file."""
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise CheckpointError(
                f"{path} is a pointer of Git LFS and not the file itself; run git lfs pull in its "
                "folder, or download it again."
            )


def _quantised(folder: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{folder} holds quantised weights ({why}), whose attention no exact re-run can equal; "
        "give the checkpoint that they were made from."
    )


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if (folder / _ADAPTER).is_file():
        stated = read_json(folder / _ADAPTER)
        base = stated.get("base_model_name_or_path") if isinstance(stated, dict) else None
        raise CheckpointError(
            f"{folder} holds an adapter (PEFT, {_ADAPTER}) of {str(base or 'another model')[:80]}, "
            "not a whole model; merge it into that (merge_and_unload of peft), save the result and "
            "give its folder."
        )
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
    if quantised := config.get("quantization_config"):
        kind = quantised.get("quant_method") if isinstance(quantised, dict) else None
        raise _quantised(folder, f"quantization_config: {str(kind or 'of its own')[:40]}")
    # Some hub folders still name code that transformers has long included; that is not run,
    # nor is the modelling file of a folder that headscope wrote.
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


def _opened(folder: Path, named: object) -> Path:
    """Return the file that transformers opens for the weights of a folder: weights, or an index.

    ``named`` is config.json's ``transformers_weights``, which goes before the usual names.
    """
    if named is None:
        found = (folder / name for name in WEIGHTS if (folder / name).is_file())
        return next(found, None) or _refuse_without_weights(folder)
    path = folder / str(named)
    is_safetensors = path.name.endswith((".safetensors", ".safetensors.index.json"))
    if not is_safetensors or _leads_out(path, folder):
        raise CheckpointError(
            f"{folder / 'config.json'} names {str(named)[:80]!r} as its transformers_weights, "
            "which is no safetensors file of its folder; download the model again."
        )
    if not path.is_file():
        raise CheckpointError(
            f"{folder / 'config.json'} names {path.name} as its transformers_weights, which is not "
            "there; download the model again."
        )
    return path


def _leads_out(file: Path, folder: Path) -> bool:
    """Whether a name that a file of the folder states leads out of it."""
    return file.parent != folder or file.name == ".."


def _refuse_without_weights(folder: Path) -> NoReturn:
    """Say what is there in place of weights that transformers would open."""
    if (folder / "model.onnx").is_file():
        raise CheckpointError(
            f"{folder} holds an ONNX graph, which onnxruntime runs, and no weights to prune or "
            "measure; give the folder that save wrote."
        )
    others = [name for name in _OTHERS if (folder / name).is_file()]
    named_otherwise = [
        file.name
        for file in sorted(folder.iterdir())
        if file.name.startswith(("model", "pytorch_model")) and file.suffix in _SUFFIXES
    ]
    hint = ""
    if named_otherwise:
        hint = f" by a name that transformers opens (there is {named_otherwise[0]})"
    elif others:
        hint = f" (there is only {others[0]}, of another framework)"
    raise CheckpointError(
        f"{folder} has no weights{hint}: model.safetensors (or its index) is missing."
    )


class _Index:
    """An index of weights: which tensor is in which file beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        data = read_json(path)
        values = data if isinstance(data, dict) else {}
        weight_map = values.get("weight_map")
        stated = weight_map if isinstance(weight_map, dict) else {}
        self._tensors_of: dict[Path, set[str]] = {}
        for tensor, name in stated.items():
            if isinstance(name, str):
                self._tensors_of.setdefault(path.parent / name, set()).add(tensor)
        #: The shards that it names, each once, by their names.
        self.files = sorted(self._tensors_of)
        suffix = ".safetensors" if ".safetensors" in path.name else ".bin"
        for file in self.files:
            if _leads_out(file, path.parent):
                why = "is not in its folder"
            elif file.suffix != suffix:
                why = f"does not end in {suffix}"
            else:
                continue
            raise CheckpointError(
                f"{path} names the file {file}, which {why}; download the model again."
            )
        missing = [file.name for file in self.files if not file.is_file()]
        if missing or not self.files:
            raise CheckpointError(
                f"{path} names weight files that are not there "
                f"({', '.join(missing) or 'none at all'}); download the model again."
            )
        # Pickles are read here, safetensors by transformers.
        if suffix == ".safetensors" and not isinstance(values.get("metadata"), dict):
            raise CheckpointError(
                f"{path} has no 'metadata', without which transformers does not read it; download "
                "the model again."
            )

    def check(self, file: Path, held: Iterable[str]) -> None:
        """Refuse a shard that holds other tensors than the index says."""
        if differing := sorted(self._tensors_of[file].symmetric_difference(held)):
            raise CheckpointError(
                f"{file} is not the file that {self.path.name} describes: they differ in "
                f"{differing[0]}; download the model again."
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


# --- sizes that a config.json states --------------------------------------------------------------
#
# A few bytes of a config can ask for terabytes: a network is built as the config says, and what the
# checkpoint lacks is filled at random. Neither is done where weights cannot belong to such a model.


def check_stated(checkpoint: Checkpoint) -> None:
    """Refuse a config.json that states a size no weights of this folder can have."""
    shapes = [shape for _, shape in checkpoint.stored.values()]
    longest = max(itertools.chain(*shapes), default=0)
    most = {
        _REPEATS: max(_REPEATS_AT_LEAST, len(shapes)),
        _EXTENTS: max(_EXTENT_AT_LEAST, 4 * longest),
    }
    path = checkpoint.folder / "config.json"
    for key, value in _numbers(checkpoint.stated):
        named = [] if _NO_SIZES.search(key) else [kind for kind in most if kind.search(key)]
        limit = most[named[0]] if named else None
        if limit is not None and abs(value) > limit:
            raise _too_large(path, f"{key} is {str(value)[:20]}")


def check_built(checkpoint: Checkpoint, build: Callable[[], nn.Module]) -> None:
    """Refuse a config.json whose network is far larger than the weights of the folder."""
    shapes = [shape for _, shape in checkpoint.stored.values()]
    try:
        with torch.device("meta"):
            network = build()
    except Exception:  # building it for real reports what is wrong
        return
    tensors = itertools.chain(network.parameters(), network.buffers())
    needed = sum(tensor.numel() for tensor in tensors)
    stored = sum(map(math.prod, shapes))
    if needed > _TIMES * stored + _MORE:
        path = checkpoint.folder / "config.json"
        raise _too_large(path, f"its network has {needed:.3g} numbers, the weights {stored:.3g}")


def _too_large(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path} does not belong to the weights beside it ({what}); download the model again."
    )


def _numbers(values: object) -> Iterator[tuple[str, float]]:
    """Yield every number of a config with its key, those of nested objects and lists too."""
    pending: list[tuple[str, Any]] = [("", values)]
    while pending:
        key, value = pending.pop()
        if isinstance(value, dict):
            pending += [(str(name), item) for name, item in value.items()]
        elif isinstance(value, list):
            pending += [(key, item) for item in value]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield key, value
