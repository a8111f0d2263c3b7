"""``headscope report MODEL``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Context

import headscope
from headscope.cli import settings
from headscope.cli import shared_options as shared
from headscope.cli.command import Call
from headscope.cli.made import section_settings, table_arguments
from headscope.cli.output import (
    print_data,
    print_human,
    print_note,
    print_warnings,
    progress_bar,
)

if TYPE_CHECKING:
    from headscope.reports.result import ReportResult


def run_report(call: Call) -> None:
    """Measure, write the page, print the scoreboard, and hold it against the limits."""
    from headscope.core.errors import ValidationFailedError
    from headscope.reports.files import REPORT, write_report
    from headscope.reports.limits import check_baseline, require_limits
    from headscope.reports.reading import read_results, results_of
    from headscope.reports.registry import SECTIONS
    from headscope.reports.sections import Previous, content_digest
    from headscope.show.folders import ready_folder

    limits = settings.limits(call.context)
    baseline = read_results(Path(limits.baseline)) if limits.baseline else None
    if baseline is not None:
        check_baseline(limits, baseline)
    model, quiet = call.values["model"], call.values["quiet"]
    folder = call.values["output"] or Path("reports") / _folder_name(model)
    sections = [name for name in SECTIONS if name != "insights"]  # it judges what others measured
    keywords = {
        **call.arguments(),
        "settings": section_settings(call.context, sections, call.values),
        "thresholds": _thresholds(call.context),
        "previous": None if call.values["fresh"] else folder,
    }
    measure = headscope.report  # loads torch before the bar, as :meth:`Call.run` does
    with ready_folder(folder), progress_bar(quiet, call.options.unit) as progress:
        result = call.result(measure, {**keywords, "progress": progress})
        digests = {name: content_digest(found) for name, found in result.sections.items()}
        document = write_report(result, folder, digests, Previous.read(folder).document)
    _summarise(folder)
    _print(result, document, folder, call.values["format"], quiet)
    if result.validate is not None and not result.validate.passed:
        raise ValidationFailedError(f"{model} fails validation: {result.validate.reasons[0]}.")
    require_limits(results_of(document, REPORT), limits, baseline)


def _thresholds(context: Context) -> Any:
    """Return what the table [insights] sets of the thresholds; None where nothing is set."""
    table = settings.given(context, "insights")
    names = table.keys() & {"threshold", "thresholds"}
    return table_arguments("insights", {name: table[name] for name in names}).get("thresholds")


def _folder_name(model: str) -> str:
    """Name a folder after a model, whatever its path holds."""
    return re.sub(r"[^\w.-]+", "-", model.rstrip("/").rpartition("/")[2]).strip(".-") or "model"


def _summarise(folder: Path) -> None:
    """Add report.md to the summary of a GitHub Actions step."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    try:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write((folder / "report.md").read_text(encoding="utf-8"))
    except OSError as error:
        print_note(f"no step summary was written ({error.strerror})", quiet=False)


def _print(
    result: ReportResult, document: dict[str, Any], folder: Path, format: shared.Format, quiet: bool
) -> None:
    from rich.text import Text as Line

    from headscope.reports.claims.view import scoreboard
    from headscope.reports.files import report_json
    from headscope.reports.words import certificate
    from headscope.show.cells import to_csv

    if format is shared.Format.json:
        print_data(report_json(document))
        return
    if format is shared.Format.csv:
        print_data(to_csv(result.insights) if result.insights is not None else "")
        print_warnings(result, format)
        return
    print_human(Line(certificate(result)))
    if result.insights is not None:
        print_human(*scoreboard(result.insights))
    if result.reused and not quiet:
        print_human(Line(f"\nUnchanged, taken from {folder}: {', '.join(result.reused)}."))
    for name, why in result.left_out.items():
        print_human(Line(f"\nLeft out: {name}: {why}"))
    print_warnings(result, format)
    print_human(Line(f"\nWritten to {folder / 'report.html'}"))
