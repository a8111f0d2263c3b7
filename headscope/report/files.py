"""Writing result folders: every file whole or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headscope.atomic import write_atomically
from headscope.errors import InputError
from headscope.report.plots import relation_bars, role_map
from headscope.report.tables import heads_csv, relations_csv
from headscope.results import ClassifyResult, to_json

__all__ = ["STATE", "ready_folder", "write_classify"]

#: Where a run saves its sums while it runs.
STATE = ".classify.state.safetensors"
_NAMES = {"relations.csv", "relations.png", "relations.svg"}


@contextmanager
def ready_folder(folder: Path | None) -> Iterator[None]:
    """Make the folder before a long run starts; take it away again if nothing came of it.

    Raises
    ------
    InputError
        If it cannot be made or written to.
    """
    if folder is None:
        yield
        return
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The folder {folder} cannot be made ({error.strerror}); choose another with -o."
        ) from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"The folder {folder} cannot be written to; choose another with -o.")
    try:
        yield
    finally:
        for path in made:
            if any(path.iterdir()):
                break
            path.rmdir()


def write_classify(result: ClassifyResult, folder: Path) -> None:
    """Write classify.json, heads.csv, relations.csv and the figures, then drop the run's state."""
    files: dict[str, bytes] = {"heads.csv": heads_csv(result).encode()}
    if result.corpus.trees:
        files["relations.csv"] = relations_csv(result).encode()
    figures = {"roles": role_map(result)}
    if result.corpus.trees:
        figures["relations"] = relation_bars(result)
    for name, figure in figures.items():
        for kind in ("png", "svg"):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
            files[f"{name}.{kind}"] = buffer.getvalue()
    files["classify.json"] = to_json(result).encode() + b"\n"
    for stale in _NAMES - set(files):  # of an earlier run; not to be taken for this one's
        (folder / stale).unlink(missing_ok=True)
    for name, data in files.items():
        write_atomically(folder / name, data)
    for leftover in (STATE, f".{STATE}.part"):  # the latter of a run killed while it saved
        (folder / leftover).unlink(missing_ok=True)
