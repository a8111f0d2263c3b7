"""Writing the result folder of a command: every file whole or not at all, the JSON last.

Figures are drawn only for a folder, so matplotlib is loaded only when one is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headscope.core.files import sha256_of
from headscope.core.progress import Progress, silent
from headscope.core.serialise import to_dict, to_json
from headscope.reports.baseline import BASELINE, baseline_json
from headscope.reports.markdown import report_markdown
from headscope.reports.page import report_html
from headscope.reports.reading import results_of
from headscope.reports.registry import REPORT, SECTIONS
from headscope.reports.result import DiffResult, Outcome, ReportResult
from headscope.show.folders import write_files
from headscope.show.view import view_of

#: Lists of plain values stand on one line; a string cannot hold the line breaks that this needs.
_PLAIN_LIST = re.compile(r"\[\n\s*([^\[\]{}]*?)\n\s*\]")


def state_name(command: str) -> str:
    """Return the name of the file that a command saves its sums in while it runs."""
    return f".{command}.state.safetensors"


def write_result(command: str, result: Any, folder: Path, **presentation: Any) -> None:
    """Write a result's tables, figures and JSON, then drop the state of the run that made it.

    ``presentation`` is what the command's view understands, such as ``log`` for depth.
    """
    view, name = view_of(command), f"{command}.json"
    files = {**view.files(result, **presentation), name: to_json(result).encode() + b"\n"}
    write_files(folder, files, stale=view.stale, mark=name)
    (folder / state_name(command)).unlink(missing_ok=True)


def report_json(document: Mapping[str, Any]) -> str:
    """Write a document as JSON with lists of numbers on one line each."""
    text = to_json(dict(document))
    return _PLAIN_LIST.sub(lambda match: f"[{' '.join(match[1].split())}]", text) + "\n"


def write_report(
    report: ReportResult,
    folder: Path,
    digests: Mapping[str, str],
    before: Mapping[str, Any] | None = None,
    outcomes: Sequence[Outcome] = (),
    changes: DiffResult | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write report.html, report.md, report.json, baseline.json, the tables and the figures.

    Returns the content of report.json: everything but what the report says of earlier runs, a hash
    of each section's content (``digests``), and the SHA-256 of each file. ``before`` is
    the document of the report that is there already: files of sections that were taken from it are
    kept as they were written, and files of sections that are gone go. Files that are not the
    report's stay as they are. report.md says how the limits came out (``outcomes``) and what
    changed since their baseline.
    """
    old = _files(before)
    written = dict[str, Mapping[str, bytes]]()
    for name, result in report.sections.items():
        kept = _kept(folder, old.get(name, {})) if name in report.reused else None
        written[name] = kept or view_of(name).files(result)
        progress("files", len(written), len(report.sections) + 2)  # with the page and the rest
    document = dict(to_dict(report))
    del document["reused"], document["failed"]
    document |= {name: document.pop(name) for name in (*SECTIONS, "samples")}  # these come last
    document["digests"] = dict(digests)
    document["files"] = {
        section: {name: sha256_of(files[name]) for name in sorted(files)}
        for section, files in written.items()
    }
    content = {name: data for files in written.values() for name, data in files.items()}
    gone = [
        name
        for names in old.values()
        for name, sha256 in names.items()
        if name not in content and _as_written(folder, name, sha256) is not None
    ]
    content["report.md"] = report_markdown(report, outcomes, changes).encode()
    results = results_of(document, REPORT, report.sections)
    content[BASELINE] = baseline_json(results).encode("utf-8", "replace")
    content["report.html"] = report_html(report).encode()
    content[REPORT] = report_json(document).encode("utf-8", "backslashreplace")
    write_files(folder, content, stale=gone, mark=REPORT)
    return document


def _kept(folder: Path, names: Mapping[str, str]) -> dict[str, bytes] | None:
    """Read a section's files from the report that is there; None if any has changed."""
    kept = {}
    for name, sha256 in names.items():
        data = _as_written(folder, name, sha256)
        if data is None:
            return None
        kept[name] = data
    return kept


def _as_written(folder: Path, name: str, sha256: str) -> bytes | None:
    """Read a file that a report says it wrote; None if it is not there as it was written.

    Only names that stay in the folder count, whatever the report says.
    """
    try:
        if Path(name).name != name or name == ".." or not (folder / name).is_file():
            return None
        data = (folder / name).read_bytes()
    except (OSError, ValueError):  # a name that no file can have
        return None
    return data if sha256_of(data) == sha256 else None


def _files(document: Mapping[str, Any] | None) -> dict[str, dict[str, str]]:
    """Read which files an earlier report wrote; nothing from a malformed document."""
    files = (document or {}).get("files")
    return {
        section: {str(name): str(sha256) for name, sha256 in names.items()}
        for section, names in (files if isinstance(files, dict) else {}).items()
        if isinstance(names, dict)
    }
