"""Run the example notebook in a kernel, and store what its cells print and show.

``python tests/docs/write_notebook.py`` after any change of what a user sees;
``test_notebook.py`` says when that is due.
"""

import json
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def main() -> None:
    """Run every cell of code, in order, and write the notebook with its outputs."""
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        number = 0
        for cell in book["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                cell["execution_count"] = number
                cell["outputs"] = outputs_of(client, "".join(cell["source"]), number)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    NOTEBOOK.write_text(json.dumps(book, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def outputs_of(client: Any, source: str, number: int) -> list[dict[str, Any]]:
    """Run one cell; return what it prints and shows, as a notebook stores it."""
    outputs: list[dict[str, Any]] = []

    def note(message: dict[str, Any]) -> None:
        kind = message["header"]["msg_type"]
        content = message["content"]
        if kind == "error":
            raise RuntimeError("\n".join(content["traceback"]))
        if kind == "stream" and content["name"] == "stdout":
            text = content["text"].splitlines(keepends=True)
            outputs.append({"output_type": "stream", "name": "stdout", "text": text})
        is_bar = "display_id" in content.get("transient", {})  # of a run's progress
        if kind in ("display_data", "execute_result") and not is_bar:
            data = {
                name: value if name.startswith("image/") else value.splitlines(keepends=True)
                for name, value in content["data"].items()
            }
            shown: dict[str, Any] = {"output_type": kind, "data": data, "metadata": {}}
            if kind == "execute_result":
                shown["execution_count"] = number
            outputs.append(shown)

    client.execute_interactive(source, output_hook=note, timeout=600)
    return outputs


if __name__ == "__main__":
    main()
