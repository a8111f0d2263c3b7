"""Which files of a folder hold its weights, as transformers chooses them.

Weights are one file, or several *shards* beside an index that says which tensor is in which.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headscope.core.errors import CheckpointError
from headscope.models.load.safe_files import read_json

#: Files that transformers opens for the weights of a folder: the first of these that is there.
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_SUFFIXES = (".safetensors", ".bin")
#: Weights of other frameworks, which torch does not read.
_FOREIGN = ("tf_model.h5", "flax_model.msgpack", "rust_model.ot", "model.gguf", "model.ckpt.index")


def weights_opened(folder: Path, named: object) -> Path:
    """Return the file that transformers opens for the weights of a folder: weights, or an index.

    ``named`` is the file that config.json names as its ``transformers_weights``, in place of the
    usual ones; None where it names none.
    """
    if named is None:
        for name in WEIGHTS:
            if (folder / name).is_file():
                return folder / name
        raise _without_weights(folder)
    path = folder / str(named)
    is_safetensors = path.name.endswith((".safetensors", ".safetensors.index.json"))
    if not is_safetensors or leads_out_of(path, folder):
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


def leads_out_of(file: Path, folder: Path) -> bool:
    """Whether a file that config.json or an index names lies elsewhere than directly in the folder.

    ``folder / "../other.bin"`` does, and so does the folder above, ``folder / ".."``.
    """
    return file.parent != folder or file.name == ".."


def _without_weights(folder: Path) -> CheckpointError:
    """Return the error for a folder without weights, which says what it has instead."""
    if (folder / "model.onnx").is_file():
        return CheckpointError(
            f"{folder} holds an ONNX graph, which onnxruntime runs, and no weights to prune or "
            "measure; give the folder that save wrote."
        )
    foreign = [name for name in _FOREIGN if (folder / name).is_file()]
    weight_files = [file for file in sorted(folder.iterdir()) if file.suffix in _SUFFIXES]
    named_otherwise = [
        file.name for file in weight_files if file.name.startswith(("model", "pytorch_model"))
    ]
    hint = ""
    if named_otherwise:
        hint = f" by a name that transformers opens (there is {named_otherwise[0]})"
    elif foreign:
        hint = f" (there is only {foreign[0]}, of another framework)"
    return CheckpointError(
        f"{folder} has no weights{hint}: model.safetensors (or its index) is missing."
    )


class WeightIndex:
    """An index of weights: which tensor is in which shard beside it.

    Its file has ``{"metadata": {...}, "weight_map": {"embeddings.weight":
    "model-00001-of-00002.safetensors", ...}}``.
    """

    def __init__(self, path: Path) -> None:
        """Read an index; refuse one whose files are not all there, or lie elsewhere."""
        self.path = path
        document = read_json(path)
        if not isinstance(document, dict):
            document = {}
        weight_map = document.get("weight_map")
        if not isinstance(weight_map, dict):
            weight_map = {}
        self._tensors_of: dict[Path, set[str]] = {}  # Names of tensors, by their shard
        for tensor, shard in weight_map.items():
            if isinstance(shard, str):
                self._tensors_of.setdefault(path.parent / shard, set()).add(tensor)
        #: The shards, each once, in the order of their names.
        self.files = sorted(self._tensors_of)
        suffix = ".safetensors" if ".safetensors" in path.name else ".bin"
        self._check_files(suffix)
        # Pickles are read by headscope, safetensors by transformers, which wants metadata.
        if suffix == ".safetensors" and not isinstance(document.get("metadata"), dict):
            raise CheckpointError(
                f"{path} has no 'metadata', without which transformers does not read it; download "
                "the model again."
            )

    def _check_files(self, suffix: str) -> None:
        """Refuse shards outside of the folder, of another format, or that are not there."""
        for file in self.files:
            why = ""
            if leads_out_of(file, self.path.parent):
                why = "is not in its folder"
            elif file.suffix != suffix:
                why = f"does not end in {suffix}"
            if why:
                raise CheckpointError(
                    f"{self.path} names the file {file}, which {why}; download the model again."
                )
        missing = [file.name for file in self.files if not file.is_file()]
        if missing or not self.files:
            raise CheckpointError(
                f"{self.path} names weight files that are not there "
                f"({', '.join(missing) or 'none at all'}); download the model again."
            )

    def check(self, file: Path, names: Iterable[str]) -> None:
        """Refuse a shard that holds tensors of other ``names`` than the index says."""
        if differing := sorted(self._tensors_of[file].symmetric_difference(names)):
            raise CheckpointError(
                f"{file} is not the file that {self.path.name} describes: they differ in "
                f"{differing[0]}; download the model again."
            )
