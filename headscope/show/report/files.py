"""Writing the folder of a report: made whole beside it, then moved in, ``report.json`` last."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headscope.results import SECTIONS, ReportResult, to_dict, to_json
from headscope.show.folders import write_files
from headscope.show.markdown import report_markdown
from headscope.show.page.html import report_html
from headscope.show.view import view_of

#: The file that holds every section, and that readers wait for.
REPORT = "report.json"
#: Lists of plain values stand on one line; a string cannot hold the line breaks that this needs.
_PLAIN_LIST = re.compile(r"\[\n\s*([^\[\]{}]*?)\n\s*\]")


def report_document(
    report: ReportResult, digests: Mapping[str, str], files: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """Return what ``report.json`` holds.

    Parameters
    ----------
    report : ReportResult
    digests : mapping of section to str
        A hash of each section's content.
    files : mapping of section to mapping of file name to SHA-256
    """
    document = dict(to_dict(report))
    document.pop("reused")
    last = {name: document.pop(name) for name in (*SECTIONS, "samples")}
    return {**document, **last, "digests": dict(digests), "files": to_dict(dict(files))}


def report_json(document: Mapping[str, Any]) -> str:
    """Write a document as JSON with lists of numbers on one line each."""
    text = to_json(dict(document))
    return _PLAIN_LIST.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def write_report(
    report: ReportResult,
    folder: Path,
    digests: Mapping[str, str],
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write report.html, report.md, report.json, the tables and the figures.

    Parameters
    ----------
    report : ReportResult
    folder : Path
        Files that are not the report's stay as they are.
    digests : mapping of section to str
    before : mapping, optional
        The document of the report that is there already: files of sections that were taken from it
        are kept where they are as they were written, and files of sections that are gone go.

    Returns
    -------
    dict
        The document of ``report.json``.
    """
    old = _files(before)
    with tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as name:
        work = Path(name)
        files: dict[str, dict[str, str]] = {}
        for section, result in report.sections.items():
            kept = old.get(section, {}) if section in report.reused else {}
            if not (kept and _take(folder, work / section, kept)):
                _make(section, result, work / section)
            files[section] = _hashes(work / section)
        document = report_document(report, digests, files)
        (work / "report.md").write_text(report_markdown(report), encoding="utf-8")
        (work / "report.html").write_text(report_html(report), encoding="utf-8", newline="\n")
        (work / REPORT).write_bytes(report_json(document).encode("utf-8", "backslashreplace"))
        _move_in(work, folder, files, old)
    return document


def _make(section: str, result: Any, work: Path) -> None:
    """Write a section's tables and figures; its JSON stands in report.json."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    write_files(work, view_of(section).files(result))


def _take(folder: Path, work: Path, kept: Mapping[str, str]) -> bool:
    """Copy a section's files from the report that is there; False if any has changed."""
    work.mkdir()
    for name, sha256 in kept.items():
        path = folder / name
        if Path(name).name != name or not path.is_file() or _sha256(path) != sha256:
            return False
        shutil.copyfile(path, work / name)
    return True


def _move_in(
    work: Path,
    folder: Path,
    files: Mapping[str, Mapping[str, str]],
    old: Mapping[str, Mapping[str, str]],
) -> None:
    new = {name for names in files.values() for name in names}
    for section in files:
        for path in sorted((work / section).iterdir()):
            path.replace(folder / path.name)
    for names in old.values():
        for name in names:
            if name not in new and Path(name).name == name:
                (folder / name).unlink(missing_ok=True)
    for name in ("report.md", "report.html", REPORT):
        (work / name).replace(folder / name)


def _files(document: Mapping[str, Any] | None) -> dict[str, dict[str, str]]:
    """Read which files an earlier report wrote; nothing from a document that says it badly."""
    found = (document or {}).get("files")
    if not isinstance(found, dict):
        return {}
    return {
        section: {str(name): str(sha) for name, sha in names.items()}
        for section, names in found.items()
        if isinstance(names, dict)
    }


def _hashes(folder: Path) -> dict[str, str]:
    return {path.name: _sha256(path) for path in sorted(folder.iterdir())}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
