"""Folders of sentence-transformers as its older versions wrote them, around a tiny model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

#: Width of the last states of :func:`tiny_models.tiny_bert`.
D_MODEL = 32
OLD = "sentence_transformers.models."


def by_hand(bert: Path, folder: Path, kinds: Sequence[str]) -> Path:
    """Write a folder as older versions did, every module with an empty folder of its own."""
    shutil.copytree(bert, folder)
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{OLD}Transformer"}]
    for i, kind in enumerate(kinds, start=1):
        path = f"{i}_{kind}"
        (folder / path).mkdir()
        listed.append({"idx": i, "name": str(i), "path": path, "type": OLD + kind})
    (folder / "modules.json").write_text(json.dumps(listed))
    if "Pooling" in kinds:
        (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    return folder
