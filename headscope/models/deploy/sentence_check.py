"""Open a written folder by sentence-transformers, and compare its embeddings with ours."""

from __future__ import annotations

import importlib
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.errors import ArtefactError
from headscope.models.deploy.opened import TEXTS, close
from headscope.models.loaded import LoadedModel
from headscope.models.routing import quiet_transformers
from headscope.models.sentence_files import MODULES

__all__ = ["check_embeds"]


def check_embeds(loaded: LoadedModel, folder: Path) -> bool:
    """Compare what SentenceTransformer makes of a folder with what headscope makes of it."""
    known = loaded.pooling.problem is None and loaded.task_head is None
    if not known or not (folder / MODULES).is_file() or not find_spec("sentence_transformers"):
        return False
    with quiet_transformers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it keeps old names of its modules, and says so
        try:
            theirs = _theirs(loaded, folder)
        except Exception as error:  # it raises many kinds
            said = " ".join(str(error).split())[:200] or type(error).__name__
            raise ArtefactError(
                f"sentence-transformers does not open what was written ({said}), so the folder was "
                "not kept; delete modules.json from the model's folder if it is not needed."
            ) from error
    if not close(_ours(loaded), theirs, loaded.dtype):
        raise ArtefactError(
            "sentence-transformers embeds texts otherwise than headscope with what was written, so "
            "the folder was not kept; please report this."
        )
    return True


def _theirs(loaded: LoadedModel, folder: Path) -> Tensor:
    package: Any = importlib.import_module("sentence_transformers")
    model = package.SentenceTransformer(
        str(folder),
        device=loaded.device,
        local_files_only=True,
        model_kwargs={"dtype": getattr(torch, loaded.dtype)},
    )
    found: Tensor = model.encode(list(TEXTS), convert_to_tensor=True, show_progress_bar=False)
    return found


def _ours(loaded: LoadedModel) -> Tensor:
    texts = [loaded.pooling.prompt + text for text in TEXTS]
    longest = min(loaded.pooling.max_length or loaded.max_length, loaded.max_length)
    rows = loaded.tokenizer(texts, truncation=True, max_length=longest)["input_ids"]
    ids, mask = loaded.pad(rows)
    with torch.no_grad():
        return loaded.pooling.embed(loaded.forward(ids, mask), mask)
