"""The example notebook runs from top to bottom, without network, and shows what it promises."""

import json
import os
import warnings
from functools import partial
from pathlib import Path

import pytest
from processes import Run

pytest.importorskip("ipykernel")
NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def execute(sources, folder):
    """Run cells one after the other in IPython; write down what each said and showed."""
    warnings.resetwarnings()
    for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", kind)  # as Python does of itself
    os.environ["IPYTHONDIR"] = str(folder)
    import ipykernel  # noqa: F401  by which headscope knows a notebook
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    InteractiveShell.enable_gui = lambda *_: None  # that of a kernel does nothing here either
    shell = InteractiveShell.instance()
    shell.enable_matplotlib("inline")
    cells = []
    with shell.display_trap:  # set once, so that what is captured is not shown
        for source in sources:
            with capture_output() as seen:
                shell.run_cell(source).raise_error()
            shown = [item for output in seen.outputs for item in output.data.items()]
            shown = [(kind, text if isinstance(text, str) else "") for kind, text in shown]
            cells.append({"printed": seen.stdout, "said": seen.stderr, "shown": shown})
    (folder / "cells.json").write_text(json.dumps(cells), encoding="utf-8")
    return 0


def stored(cell):
    """What a cell of the file printed and showed."""
    printed = ["".join(out["text"]) for out in cell["outputs"] if out.get("name") == "stdout"]
    shown = [item for out in cell["outputs"] for item in out.get("data", {}).items()]
    return {"printed": "".join(printed), "shown": [(kind, "".join(text)) for kind, text in shown]}


def test_the_notebook_runs_and_is_stored_with_what_it_shows(tmp_path):
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in code]
    ended = Run(body=partial(execute, sources, tmp_path)).end()
    assert (ended.code, ended.stderr) == (0, "")
    run = json.loads((tmp_path / "cells.json").read_text(encoding="utf-8"))
    assert [cell["said"] for cell in run if cell["said"]] == []
    words = []
    for cells in (run, [stored(cell) for cell in code]):
        shown = [(kind, text) for cell in cells for kind, text in cell["shown"]]
        html = [text for kind, text in shown if kind == "text/html"]
        assert sum(kind == "image/png" for kind, _ in shown) == 4
        assert any("positional" in text for text in html)
        assert max(map(len, html)) < 100_000
        assert ("<progress" in "".join(html)) is (cells is run)  # a bar goes with its run
        # Words alone: a machine may change numbers.
        words.append(([cell["printed"].split()[:3] for cell in cells], {kind for kind, _ in shown}))
    assert words[0] == words[1]
    assert NOTEBOOK.stat().st_size < 1_000_000
