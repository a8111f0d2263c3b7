"""The example notebook runs from top to bottom, without network, and shows what it promises."""

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def shown_by(book):
    """The kind and the text of everything that the cells show."""
    return [
        (kind, text)
        for cell in book.cells
        for output in cell.get("outputs", ())
        for kind, text in output.get("data", {}).items()
    ]


def words_of(book):
    """What the cells print and show in words, without numbers that a machine may change."""
    outputs = [output for cell in book.cells for output in cell.get("outputs", ())]
    printed = [o["text"].split()[:3] for o in outputs if o.get("name") == "stdout"]
    return printed, sorted({kind for kind, _ in shown_by(book)})


def test_the_notebook_runs_and_is_stored_with_what_it_shows(tmp_path):
    stored, book = (nbformat.read(NOTEBOOK, as_version=4) for _ in range(2))
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()
    nbformat.write(book, tmp_path / "executed.ipynb")
    streams = [o for c in book.cells for o in c.get("outputs", ()) if o["output_type"] == "stream"]
    said = [output["text"] for output in streams if output["name"] == "stderr"]
    assert [text for text in said if "IProgress" not in text] == []  # of a library: no ipywidgets
    for one in (stored, book):
        shown = shown_by(one)
        assert sum(kind == "image/png" for kind, _ in shown) == 4
        assert any(kind == "text/html" and "positional" in text for kind, text in shown)
        assert max(len(str(text)) for kind, text in shown if kind == "text/html") < 100_000
    assert words_of(stored) == words_of(book)
    assert NOTEBOOK.stat().st_size < 1_000_000
