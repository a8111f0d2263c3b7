"""Writing the folder of a command's result, or of a report: every file is complete or absent.

``view.files(result)`` makes tables and figures as bytes by name; :func:`write_files` writes them,
the JSON (its ``mark``) last, and deletes ``stale`` ones that an earlier run left. Figures are drawn
here alone, so matplotlib is not loaded before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from headscope.commands import COMMANDS, SECTIONS
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

#: A list of numbers or strings over several lines of JSON. (A string in JSON has no line breaks, so
#: none is matched inside.)
_PLAIN_LIST = re.compile(r"\[\n\s*([^\[\]{}]*?)\n\s*\]")


def write_result(command: str, result: Any, folder: Path) -> list[str]:
    """Write a result's tables, figures and JSON; returns the names of the files.

    Then the saved state of the run is deleted, from which it could have been resumed.
    """
    view = view_of(command)
    json_name = f"{command}.json"
    # Names of a user's files, which the result holds, may be no UTF-8.
    json_text = f"{to_json(result)}\n".encode("utf-8", "backslashreplace")
    files = {**view.files(result), json_name: json_text}
    write_files(folder, files, stale=view.stale, mark=json_name)
    (folder / COMMANDS[command].state_file).unlink(missing_ok=True)
    return [json_name, *(name for name in files if name != json_name)]


def report_json(document: Mapping[str, Any]) -> str:
    """Write a document as JSON in which a list of numbers takes one line."""
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

    Returns the content of report.json: the report, and the SHA-256 of each file of its sections.
    Files that an earlier report wrote for sections that this one lacks are deleted; files that are
    no report's stay as they are. report.md says how the user's limits came out (``outcomes``), and
    what changed since their baseline (``changes``).
    """
    # The tables and figures of every section.
    files_by_section = dict[str, Mapping[str, bytes]]()
    content: dict[str, bytes] = {}  # of every file that is to be written, by its name
    for section, result in report.sections.items():
        files_by_section[section] = view_of(section).files(result)
        content |= files_by_section[section]
        # Two steps are left: the page, and the rest.
        progress("files", len(files_by_section), len(report.sections) + 2)
    stale = [name for name in _files_of_earlier_report(folder) if name not in content]

    # The content of report.json: the sections, which are long, are moved behind all other fields.
    document = dict(to_dict(report))
    del document["failed"]  # sections that failed a check of their own: no part of the file
    for field in (*SECTIONS, "samples"):
        document[field] = document.pop(field)
    document["files"] = {
        section: {name: sha256_of(files[name]) for name in sorted(files)}
        for section, files in files_by_section.items()
    }  # {"rank": {"rank.csv": "53aa5..."}}

    # The report's own files.
    results = results_of(document, REPORT, report.sections)
    content["report.md"] = report_markdown(report, outcomes, changes).encode("utf-8", "replace")
    content[BASELINE] = baseline_json(measurements_of(results)).encode("utf-8", "replace")
    content["report.html"] = report_html(report).encode()
    content[REPORT] = report_json(document).encode("utf-8", "backslashreplace")
    write_files(folder, content, stale=stale, mark=REPORT)
    return document


def _files_of_earlier_report(folder: Path) -> Iterator[str]:
    """Yield the names of files that an earlier report wrote here, unless they were changed since.

    They are those whose checksum its report.json has. A name that leads out of the folder is left
    out; a damaged report has no files.
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
