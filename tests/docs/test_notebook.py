"""The example notebook runs from top to bottom, without network, and shows what it promises."""

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def test_the_notebook_runs(tmp_path):
    book = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells)  # stored without its outputs
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()
    nbformat.write(book, tmp_path / "executed.ipynb")
    shown = [
        (kind, text)
        for cell in book.cells
        for output in cell.get("outputs", ())
        for kind, text in output.get("data", {}).items()
    ]
    streams = [o for c in book.cells for o in c.get("outputs", ()) if o["output_type"] == "stream"]
    said = [output["text"] for output in streams if output["name"] == "stderr"]
    assert [text for text in said if "IProgress" not in text] == []  # of a library: no ipywidgets
    assert sum(kind == "image/png" for kind, _ in shown) == 4
    assert any(kind == "text/html" and "positional" in text for kind, text in shown)
    assert max(len(str(text)) for kind, text in shown if kind == "text/html") < 100_000
