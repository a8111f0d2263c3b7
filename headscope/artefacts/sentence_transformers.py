"""Take the files of a sentence-transformers model along into a saved folder.

``modules.json`` lists modules; each has a folder of its own, such as ``1_Pooling``, except for the
transformer itself, which lies in the root. Nothing of the source is trusted: only settings and
weights are taken, from inside its folder. A module with code of its own keeps its entry without the
code, so that sentence-transformers says what is missing. What it makes of a written folder is
compared in :mod:`~headscope.artefacts.sentence_outputs`.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any

from headscope.core.errors import CheckpointError
from headscope.models.load.safe_files import read_json
from headscope.models.load.sentence_files import (
    MODULES,
    READING,
    SETTINGS,
    SentenceFiles,
    leads_out,
)
from headscope.models.load.sentence_folder import transformer_folder
from headscope.models.run.outputs import TEXTS

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
    #: Settings that differ from the source's, by the name of their file in the new folder.
    changed: dict[str, dict[str, Any]] = field(default_factory=dict)

    def write(self, target: Path) -> None:
        """Copy everything into a folder that has none of it."""
        for name, file in self.files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / name)
        settings: dict[str, Any] = dict(self.changed)
        if self.modules:
            settings[MODULES] = self.modules
        for name, values in settings.items():
            text = json.dumps(values, indent=2, ensure_ascii=False)
            (target / name).write_text(text + "\n", encoding="utf-8")


def sentence_copy(source: Path | None, *, has_head: bool = False) -> SentenceCopy:
    """List what sentence-transformers needs besides the transformer and its tokenizer.

    With ``has_head`` the model is written with a sequence-classification head, which the score of a
    reranker's LogitScore has become.

    Raises
    ------
    CheckpointError
        If a file is damaged, or is a link that leads out of the model's folder.
    """
    files = None if source is None else SentenceFiles.of(source)
    if files is None:
        return SentenceCopy([], {})

    # a score of logits that the model's own head gives now
    modules = [dict(module) for module in files.listed]
    changed: dict[str, dict[str, Any]] = {}
    if has_head and any(module["type"].endswith(".LogitScore") for module in modules):
        modules = [module for module in modules if not module["type"].endswith(".LogitScore")]
        with_head = {"transformer_task": "sequence-classification", "module_output_name": "scores"}
        changed[READING[0]] = files.reading() | with_head

    # the files of each module, and those that say how texts are read
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
    return SentenceCopy(modules, to_copy, changed)


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
