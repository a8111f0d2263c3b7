"""Take the files of a sentence-transformers model along into a saved folder, and check the folder.

In three parts:

- :func:`sentence_copy` says which files are copied. ``modules.json`` lists modules; each has a
  folder of its own, such as ``1_Pooling``, except for the transformer itself, which lies in the
  root. Nothing of the source is trusted: only settings and weights are taken, from inside its
  folder. A module with code of its own keeps its entry without the code, so that
  sentence-transformers says what is missing.
- :func:`check_embeds` opens a written folder with the real package, and compares its embeddings
  with headscope's. A model's ``pooling`` says how headscope makes an embedding of its last states.
- :func:`compare_embeddings` compares them for a model's certificate.
"""

from __future__ import annotations

import importlib
import json
import math
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path, PureWindowsPath
from typing import Any

import torch
from torch import Tensor

from headscope.artefacts.compact_classes import register
from headscope.core.errors import ArtefactError, CheckpointError, reason
from headscope.models.certificate.validation import EmbeddingCheck
from headscope.models.load.safe_files import read_json
from headscope.models.load.sentence_files import (
    MODULES,
    READING,
    SETTINGS,
    SentenceFiles,
    leads_out,
)
from headscope.models.load.sentence_folder import lower_cases, transformer_folder
from headscope.models.run.implementation import quiet_transformers
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.outputs import TEXTS, TOLERANCES, agree
from headscope.models.run.pooling import Pooling

#: The files that are taken out of a module's folder: settings, words, weights.
_TAKEN = ("*.json", "*.txt", "*.safetensors", "pytorch_model.bin")
#: Texts on which a certificate compares embeddings, besides those that every written folder reads.
_MORE_TEXTS = (TEXTS[0].upper(), "  Na\u00efve caf\u00e9s: 3.50 EUR each, and 2 teas!  ", "x")
#: Largest difference of a number of an embedding, in units of the embedding's length.
_TOLERANCE = 1e-5
_LONGEST = 8192  # Most tokens that a text is read to, to see where it is cut


@dataclass(frozen=True)
class SentenceCopy:
    """The files to copy into a saved folder."""

    #: The entries of ``modules.json`` in the new folder; empty where there is nothing to copy.
    modules: list[dict[str, Any]]
    files: dict[str, Path]  # Path of each file in the source, by its name in the new folder

    def write(self, target: Path) -> None:
        """Copy everything into a folder that has none of it."""
        for name, file in self.files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / name)
        if self.modules:
            text = json.dumps(self.modules, indent=2, ensure_ascii=False)
            (target / MODULES).write_text(text + "\n", encoding="utf-8")


def sentence_copy(source: Path | None) -> SentenceCopy:
    """List what sentence-transformers needs besides the transformer and its tokenizer.

    Raises
    ------
    CheckpointError
        If a file is damaged, or is a link that leads out of the model's folder.
    """
    files = None if source is None else SentenceFiles.of(source)
    if files is None:
        return SentenceCopy([], {})

    # the files of each module, and those that say how texts are read
    modules = [dict(module) for module in files.listed]
    to_copy: dict[str, Path] = {}
    for module in modules:
        if module["type"].endswith("Transformer"):
            module["path"] = ""  # it is written into the root
        elif module["path"] not in ("", "."):
            # A module without settings, such as Normalize, may have no files.
            module["path"] = PureWindowsPath(module["path"]).as_posix()
            folder = files.path(module["path"], "config.json").parent
            prefix = folder.relative_to(files.folder).as_posix()
            to_copy |= {f"{prefix}/{file.name}": file for file in _module_files(folder)}
    to_copy |= _reading_files(files)

    # none of them damaged, or outside the model's folder
    for file in to_copy.values():
        if file.suffix == ".json":
            read_json(file)  # refuses a damaged one
        elif leads_out(file, files.folder):
            raise CheckpointError(
                f"{file} is a link that leads out of the model's folder, so it is not copied; put "
                "the file itself there."
            )
    return SentenceCopy(modules, to_copy)


def _module_files(folder: Path) -> list[Path]:
    """List the files of one module: settings, words, weights."""
    files: list[Path] = []
    for pattern in _TAKEN:
        files += sorted(folder.glob(pattern))
    return files


def _reading_files(files: SentenceFiles) -> dict[str, Path]:
    """List the files that say how texts are read, by their names in the new folder."""
    transformer = transformer_folder(files)
    candidates = {SETTINGS: files.folder / SETTINGS}
    candidates |= {name: transformer / name for name in READING}
    return {name: file for name, file in candidates.items() if file.is_file()}


# --- a written folder, opened again ---------------------------------------------------------------


def check_embeds(loaded: LoadedModel, folder: Path) -> bool:
    """Open a written folder by sentence-transformers, and compare its embeddings with ours.

    Returns False where the folder is none of sentence-transformers', or the package is missing.
    """
    embeds = loaded.pooling.problem is None and loaded.task_head is None
    if not embeds or not (folder / MODULES).is_file() or not find_spec("sentence_transformers"):
        return False
    try:
        with _silent():
            embeddings = _encode(_opened(loaded, folder), TEXTS, batch_size=1)
    except Exception as error:  # it raises many kinds
        raise ArtefactError(
            f"sentence-transformers does not open what was written ({reason(error)}), so the "
            "folder was not kept; delete modules.json from the model's folder if it is not needed."
        ) from error
    expected = embedded(loaded, read_as_cut(loaded, TEXTS))
    if not agree([expected], [embeddings], TOLERANCES[loaded.dtype]):
        raise ArtefactError(
            "sentence-transformers embeds texts otherwise than headscope with what was written, so "
            "the folder was not kept; please report this."
        )
    return True


@contextmanager
def _silent() -> Iterator[None]:
    """Hide the package's warnings, such as of old names of its modules and of long texts."""
    with quiet_transformers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _opened(loaded: LoadedModel, folder: Path, name: str = "SentenceTransformer") -> Any:
    """Open a folder by a class of the real package."""
    register()
    package: Any = importlib.import_module("sentence_transformers")
    return getattr(package, name)(
        str(folder),
        device=loaded.device,
        local_files_only=True,
        model_kwargs={"dtype": getattr(torch, loaded.dtype)},
    )


def _encode(model: Any, texts: Sequence[str], **options: Any) -> Tensor:
    """Embed texts by the real package, (texts, d); without a ``prompt`` after the default one."""
    embeddings: Tensor = model.encode(
        list(texts), convert_to_tensor=True, show_progress_bar=False, **options
    )
    return embeddings


def read_as_cut(
    loaded: LoadedModel, texts: Sequence[str], prompt: str | None = None
) -> list[list[int]]:
    """Return token ids of texts after a prompt (None: the default), cut where its folder says."""
    longest = min(loaded.pooling.max_length or loaded.max_length, loaded.max_length)
    before = loaded.pooling.prompt if prompt is None else prompt
    prompted = [before + text for text in texts]
    cut = loaded.tokenizer(prompted, truncation=True, max_length=longest)
    ids: list[list[int]] = cut["input_ids"]
    return ids


def embedded(loaded: LoadedModel, ids: Sequence[Sequence[int]]) -> Tensor:
    """Embed token ids of texts by headscope's own pooling, (texts, d)."""
    padded, mask = loaded.pad(ids)
    with torch.no_grad():
        return loaded.pooling.embed(loaded.forward(padded, mask), mask)


# --- for the certificate of a model ---------------------------------------------------------------


def compare_embeddings(loaded: LoadedModel) -> EmbeddingCheck | None:
    """Compare a model's embeddings with those that sentence-transformers makes of its folder.

    Texts are read after the default prompt, and after those of queries and documents. For a text
    that is too long, only the token ids after cutting are compared: running it would cost as much
    as the rest of the certificate. None for a folder that says nothing about embeddings.
    """
    pooling = loaded.pooling
    folder = loaded.folder
    if pooling.origin != MODULES or folder is None:
        return None
    check = EmbeddingCheck(settings=tuple(_settings(loaded, folder)), tolerance=_TOLERANCE)
    why = _not_comparable(loaded)
    if why is not None:
        return replace(check, not_compared=why)

    # The package's, and how far ours are from them.
    texts = (*TEXTS, *_MORE_TEXTS)
    limit = min(pooling.max_length or loaded.max_length, loaded.max_length, _LONGEST)
    too_long = f"{TEXTS[0]} " * (1 + limit // 8)
    try:
        with _silent():
            model = _opened(loaded, folder)
            tokenise = getattr(model, "preprocess", model.tokenize)  # its name before 5.3
            prompt = model.prompts.get(model.default_prompt_name) or ""
            cut_ids = tokenise([prompt + too_long])["input_ids"][0]
            gap = _gap(loaded, model, texts)
            padding_shifts = None
            if gap > _TOLERANCE and loaded.tokenizer.padding_side == "left":
                alone = _gap(loaded, model, texts, batch_size=1)
                if alone <= _TOLERANCE:
                    padding_shifts = gap
                    gap = alone
    except Exception as error:  # it raises many kinds
        why = f"sentence-transformers does not open the folder ({reason(error)})"
        return replace(check, not_compared=why)
    return replace(
        check,
        texts=len(texts),
        max_abs=gap,
        padding_shifts=padding_shifts,
        cut_alike=list(map(int, cut_ids)) == read_as_cut(loaded, [too_long])[0],
    )


def _other_prompts(pooling: Pooling) -> tuple[str, ...]:
    """Return the prompts of queries and documents, where they are read and not the default."""
    if not pooling.pools_prompt:
        return ()
    prompts = dict.fromkeys((pooling.query_prompt, pooling.document_prompt))
    return tuple(prompt for prompt in prompts if prompt != pooling.prompt)


def _gap(loaded: LoadedModel, model: Any, texts: Sequence[str], **options: Any) -> float:
    """Return the largest difference of a number of an embedding, in units of its length.

    ``model`` is the package's, with options of its ``encode``; texts are read after each prompt.
    """
    default = loaded.pooling.prompt
    largest = 0.0
    for prompt in (default, *_other_prompts(loaded.pooling)):
        named = {} if prompt == default else {"prompt": prompt}
        ours = embedded(loaded, read_as_cut(loaded, texts, prompt))
        expected = _encode(model, texts, **named, **options).to(ours)
        if expected.shape != ours.shape:
            return math.inf
        length = expected.norm(dim=-1).clamp(min=torch.finfo(ours.dtype).tiny)
        gap = float(((ours - expected).abs().amax(dim=-1) / length).max())
        largest = max(largest, gap)
    return largest


def _not_comparable(loaded: LoadedModel) -> str | None:
    """Say why a model's embeddings cannot be compared, if they cannot."""
    if loaded.pooling.problem is not None:
        return loaded.pooling.problem.rstrip(".")
    if loaded.dtype not in ("float32", "float64"):
        return f"that takes float32, and the model was opened in {loaded.dtype}"
    if loaded.tokenizer is None or loaded.weights_sha256 is None:
        return "there is no tokenizer, or the weights in memory are not those of the folder"
    if loaded.class_reads_otherwise:
        return "SentenceTransformer reads texts of the folder otherwise than its tokenizer.json"
    if not find_spec("sentence_transformers"):
        return "the package sentence-transformers is not installed"
    return None


def _settings(loaded: LoadedModel, folder: Path) -> Iterator[str]:
    """Say how texts become embeddings, according to the folder's own settings."""
    pooling = loaded.pooling
    yield f"Embeddings as {MODULES} has them: {pooling}."
    if default := pooling.reads_after(retrieves=False):
        yield f"{default}."
    if _other_prompts(pooling):
        yield f"{pooling.reads_after(retrieves=True)}."
    if lower_cases(SentenceFiles.of(folder)):
        yield "Every text is read in lower case, as the folder says."
    if pooling.max_length is not None and pooling.max_length < loaded.max_length:
        yield (
            f"SentenceTransformer cuts a text of this model at {pooling.max_length} tokens; "
            f"headscope reads it whole, up to {loaded.max_length}."
        )
    yield from pooling.notes
