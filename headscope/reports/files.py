"""Writing the result folder of a command: every file complete or absent, the JSON last.

Figures are drawn only for a folder, so matplotlib is loaded only when one is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from headscope.commands import SECTIONS
from headscope.core.files import sha256_of, sha256_of_file
from headscope.core.progress import Progress, silent
from headscope.core.serialise import to_dict, to_json
from headscope.reports.baseline import BASELINE, baseline_json, measurements_of
from headscope.reports.markdown import report_markdown
from headscope.reports.page import report_html
from headscope.reports.reading import results_of
from headscope.reports.registry import REPORT
from headscope.reports.result import DiffResult, Outcome, ReportResult
from headscope.show.folders import write_files
from headscope.show.view import view_of

#: Lists of plain values stand on one line; a string cannot hold the line breaks that this needs.
_PLAIN_LIST = re.compile(r"\[\n\s*([^\[\]{}]*?)\n\s*\]")


def state_name(command: str) -> str:
    """Return the name of the file that a command saves its sums in while it runs."""
    return f".{command}.state.safetensors"


def write_result(command: str, result: Any, folder: Path) -> list[str]:
    """Write a result's tables, figures and JSON, then drop the state of the run that made it.

    Returns the names of the files.
    """
    view = view_of(command)
    name = f"{command}.json"
    text = f"{to_json(result)}\n".encode("utf-8", "backslashreplace")  # names may be no UTF-8
    files = {**view.files(result), name: text}
    write_files(folder, files, stale=view.stale, mark=name)
    (folder / state_name(command)).unlink(missing_ok=True)
    return [name, *(other for other in files if other != name)]


def report_json(document: Mapping[str, Any]) -> str:
    """Write a document as JSON with lists of numbers on one line each."""
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
    return _PLAIN_LIST.sub(lambda match: f"[{' '.join(match[1].split())}]", text) + "\n"


def write_report(
    report: ReportResult,
    folder: Path,
    outcomes: Sequence[Outcome] = (),
    changes: DiffResult | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write report.html, report.md, report.json, baseline.json, the tables and the figures.

    Returns the content of report.json: the report, and the SHA-256 of each file. Files that an
    earlier report wrote for sections that are gone go; files that are not the report's stay as they
    are. report.md says how the limits came out (``outcomes``) and what changed since their
    baseline.
    """
    written = dict[str, Mapping[str, bytes]]()
    for name, result in report.sections.items():
        written[name] = view_of(name).files(result)
        progress("files", len(written), len(report.sections) + 2)  # with the page and the rest
    document = dict(to_dict(report))
    del document["failed"]
    document |= {name: document.pop(name) for name in (*SECTIONS, "samples")}  # these come last
    document["files"] = {
        section: {name: sha256_of(files[name]) for name in sorted(files)}
        for section, files in written.items()
    }
    content: dict[str, bytes] = {}
    for files in written.values():
        content |= files
    gone = [name for name in _of_earlier_report(folder) if name not in content]
    content["report.md"] = report_markdown(report, outcomes, changes).encode("utf-8", "replace")
    results = results_of(document, REPORT, report.sections)
    content[BASELINE] = baseline_json(measurements_of(results)).encode("utf-8", "replace")
    content["report.html"] = report_html(report).encode()
    content[REPORT] = report_json(document).encode("utf-8", "backslashreplace")
    write_files(folder, content, stale=gone, mark=REPORT)
    return document


def _of_earlier_report(folder: Path) -> Iterator[str]:
    """Name the files in a folder that are as the report there says it wrote them.

    Only names that stay in the folder count, and nothing of a damaged report.
    """
    try:
        files = json.loads((folder / REPORT).read_text(encoding="utf-8"))["files"]
        listed: list[tuple[str, str]] = []
        for names in files.values():
            listed += names.items()
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return
    for name, sha256 in listed:
        with suppress(OSError, ValueError):  # a name that no file can have
            stays_inside = Path(name).name == name and name != ".."
            if stays_inside and sha256_of_file(folder / name) == sha256:
                yield name
