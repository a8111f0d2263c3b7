"""The example notebook runs from top to bottom, without network, and shows what it promises."""

import json
import os
import re
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
            shown = [
                {kind: text if isinstance(text, str) else "" for kind, text in output.data.items()}
                for output in seen.outputs
            ]
            cells.append({"printed": seen.stdout, "said": seen.stderr, "shown": shown})
    (folder / "cells.json").write_text(json.dumps(cells), encoding="utf-8")
    return 0


def stored(cell):
    """What a cell of the file printed and showed."""
    printed = ["".join(out["text"]) for out in cell["outputs"] if out.get("name") == "stdout"]
    shown = [
        {kind: "".join(text) for kind, text in out["data"].items()}
        for out in cell["outputs"]
        if "data" in out
    ]
    return {"printed": "".join(printed), "shown": shown}


def is_bar(output):
    """Whether an output is the bar of a run, which is empty once the run has ended."""
    html = output.get("text/html")
    return html is not None and (not html.strip() or "<progress" in html)


def words_of(cell):
    """What a reader of a cell sees, in words: a machine may change numbers, and so a map's marks.

    Of a figure only that it is there.
    """
    seen = [cell["printed"]]
    for output in cell["shown"]:
        if is_bar(output):
            continue
        for kind, text in sorted(output.items()):
            if kind.startswith("image/"):
                seen.append(kind)
            elif kind == "text/html":
                html = re.sub(r"<style.*?</style>|<table.*?</table>", " ", text, flags=re.DOTALL)
                seen.append(re.sub(r"<[^>]*>", " ", html))
                seen += re.findall(r"<th[^>]*>([^<]*)</th>", text)  # the names of rows and columns
            elif "<table" not in output.get("text/html", ""):
                seen.append(text)
    return [re.sub(r"[-+]?\d[\d.,e+-]*", "0", text).split() for text in seen]


def test_the_notebook_runs_and_is_stored_with_what_it_shows(tmp_path):
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in code]
    ended = Run(body=partial(execute, sources, tmp_path)).end()
    assert (ended.code, ended.stderr) == (0, "")
    run = json.loads((tmp_path / "cells.json").read_text(encoding="utf-8"))
    assert [cell["said"] for cell in run if cell["said"]] == []
    assert any(is_bar(output) for cell in run for output in cell["shown"])
    in_file = [stored(cell) for cell in code]
    outputs = [output for cell in in_file for output in cell["shown"]]
    assert not any(is_bar(output) for output in outputs)  # a bar goes with its run
    assert sum("image/png" in output for output in outputs) == 4
    html = [output["text/html"] for output in outputs if "text/html" in output]
    assert any("positional" in text for text in html)
    assert max(map(len, html)) < 100_000
    assert NOTEBOOK.stat().st_size < 1_000_000
    due = "what is stored is not what is shown today: python tests/docs/write_notebook.py"
    for source, shown_today, shown_in_file in zip(sources, run, in_file, strict=True):
        assert words_of(shown_in_file) == words_of(shown_today), f"{source}\n{due}"
