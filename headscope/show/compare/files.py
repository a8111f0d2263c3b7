"""The folder of ``headscope compare``."""

from __future__ import annotations

from headscope.results.compare import CompareResult
from headscope.results.serialise import to_json
from headscope.show.compare.page import compare_html
from headscope.show.compare.tables import compare_csv, compare_markdown

__all__ = ["compare_files"]


def compare_files(result: CompareResult) -> dict[str, bytes]:
    """Return compare.md, compare.csv, compare.html and compare.json."""
    texts = {
        "compare.md": compare_markdown(result),
        "compare.csv": compare_csv(result),
        "compare.html": compare_html(result),
        "compare.json": f"{to_json(result)}\n",
    }
    return {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
