"""Writing the result folder of a command: every file whole or not at all, the JSON last.

Whoever writes no folder draws no figure, so matplotlib is loaded only when a folder is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headscope.results.serialise import to_json
from headscope.show.folders import write_files
from headscope.show.view import view_of


def state_name(command: str) -> str:
    """Return the name of the file that a command saves its sums in while it runs."""
    return f".{command}.state.safetensors"


def write_result(command: str, result: Any, folder: Path, **presentation: Any) -> None:
    """Write a result's tables, figures and JSON, then drop the state of the run that made it.

    ``presentation`` is what the command's view understands, such as ``log`` for depth.
    """
    view = view_of(command)
    files = view.files(result, **presentation)
    document = to_json(result).encode() + b"\n"
    name = f"{command}.json"
    write_files(folder, {**files, name: document}, stale=view.stale, mark=name)
    (folder / state_name(command)).unlink(missing_ok=True)
