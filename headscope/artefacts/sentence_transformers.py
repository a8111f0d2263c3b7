"""Take the files of a sentence-transformers model along into a saved folder, and check the folder.

``modules.json`` lists modules; each has a folder of its own, such as ``1_Pooling``, except for the
transformer itself, which lies in the root. Nothing of the source is trusted: only settings and
weights are taken, from inside its folder. A module with code of its own keeps its entry without the
code, so that sentence-transformers says what is missing.
"""

from __future__ import annotations

import importlib
import json
import shutil
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.artefacts.opened_again import TEXTS, close, reason
from headscope.core.errors import ArtefactError, CheckpointError
from headscope.models.checkpoint import read_json
from headscope.models.loaded import LoadedModel
from headscope.models.routing import quiet_transformers
from headscope.models.sentence_folder import MODULES, READING, SETTINGS, SentenceFiles, short

#: What is taken out of a module's folder: settings, words, weights.
_TAKEN = ("*.json", "*.txt", "*.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class SentenceCopy:
    """What is to be copied."""

    #: What ``modules.json`` of the new folder says; empty where there is nothing to copy.
    modules: list[dict[str, Any]]
    files: dict[str, Path]  # Where each file lies, by its name in the new folder.

    def write(self, target: Path) -> None:
        """Copy everything into a folder that has none of it."""
        for name, file in self.files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / name)
        if self.modules:
            text = json.dumps(self.modules, indent=2, ensure_ascii=False)
            (target / MODULES).write_text(text + "\n", encoding="utf-8")


def sentence_copy(source: Path | None) -> SentenceCopy:
    """List what sentence-transformers needs besides the transformer and its tokenizer."""
    if source is None or not (source / MODULES).is_file():
        return SentenceCopy([], {})
    files = SentenceFiles(source, allow_pickle=False)
    path = files.path("", MODULES)
    modules: Any = read_json(path)
    to_copy: dict[str, Path] = {}
    for module in modules if isinstance(modules, list) else [None]:
        values = module if isinstance(module, dict) else {}
        if not all(isinstance(values.get(name), str) for name in ("type", "path")):
            raise CheckpointError(
                f"{path} has a module without type and path ({short(module)}); mend or delete it."
            )
        if values["type"].endswith("Transformer"):
            values["path"] = ""  # it is written into the root
        elif values["path"] not in ("", "."):
            # A module without settings, such as Normalize, may have no files.
            folder = files.path(values["path"], "config.json").parent
            prefix = folder.relative_to(files.folder).as_posix()
            for name in (file.name for kind in _TAKEN for file in sorted(folder.glob(kind))):
                to_copy[f"{prefix}/{name}"] = files.path(values["path"], name)
    for name in (SETTINGS, *READING):
        if (source / name).is_file():
            to_copy[name] = files.path("", name)
    for file in to_copy.values():
        if file.suffix == ".json":
            read_json(file)  # refuses a damaged one
    return SentenceCopy(modules, to_copy)


def check_embeds(loaded: LoadedModel, folder: Path) -> bool:
    """Open a written folder by sentence-transformers, and compare its embeddings with ours.

    Returns False where the folder is none of sentence-transformers', or the package is missing.
    """
    known = loaded.pooling.problem is None and loaded.task_head is None
    if not known or not (folder / MODULES).is_file() or not find_spec("sentence_transformers"):
        return False
    with quiet_transformers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it keeps old names of its modules, and says so
        try:
            package: Any = importlib.import_module("sentence_transformers")
            model = package.SentenceTransformer(
                str(folder),
                device=loaded.device,
                local_files_only=True,
                model_kwargs={"dtype": getattr(torch, loaded.dtype)},
            )
            theirs: Tensor = model.encode(
                list(TEXTS), convert_to_tensor=True, show_progress_bar=False
            )
        except Exception as error:  # it raises many kinds
            raise ArtefactError(
                "sentence-transformers does not open what was written "
                f"({reason(error)}), so the folder was not kept; delete modules.json from the "
                "model's folder if it is not needed."
            ) from error
    texts = [loaded.pooling.prompt + text for text in TEXTS]
    longest = min(loaded.pooling.max_length or loaded.max_length, loaded.max_length)
    ids, mask = loaded.pad(
        loaded.tokenizer(texts, truncation=True, max_length=longest)["input_ids"]
    )
    with torch.no_grad():
        ours = loaded.pooling.embed(loaded.forward(ids, mask), mask)
    if not close(ours, theirs, loaded.dtype):
        raise ArtefactError(
            "sentence-transformers embeds texts otherwise than headscope with what was written, so "
            "the folder was not kept; please report this."
        )
    return True
