"""``headscope report MODEL``."""

from __future__ import annotations

import os
import re
from pathlib import Path

import headscope
from headscope.cli.command import Call
from headscope.cli.output import (
    print_data,
    print_human,
    print_note,
    print_warnings,
    print_written,
    shown_progress,
)
from headscope.cli.settings import limits as limits_of
from headscope.cli.settings import section_settings, table_arguments, table_of


def run_report(call: Call) -> None:
    """Measure, write the page, print the scoreboard, and hold it against the limits."""
    from rich.text import Text

    from headscope.core.errors import CheckFailedError, ValidationFailedError
    from headscope.core.progress import silent
    from headscope.core.serialise import to_dict
    from headscope.reports.baseline import BASELINE, read_side
    from headscope.reports.claims.view import scoreboard
    from headscope.reports.files import report_json, write_report
    from headscope.reports.limits import judged, require
    from headscope.reports.markdown import certificate
    from headscope.reports.reading import results_of
    from headscope.reports.registry import REPORT, SECTIONS
    from headscope.reports.rules import check_rules
    from headscope.show.cells import to_csv
    from headscope.show.folders import ready_folder

    limits = limits_of(call.context)
    baseline = read_side(Path(limits.baseline)) if limits.baseline else None
    if baseline is not None:
        check_rules(limits.fail_on, baseline.metric)  # before anything is measured
    model, quiet, format = (call.values[name] for name in ("model", "quiet", "format"))
    name = re.sub(r"[^\w.-]+", "-", model.rstrip("/").rpartition("/")[2]).strip(".-") or "model"
    folder = call.values["output"] or Path("reports") / name
    # Insights judges what the other sections measured: only its thresholds and its limit apply.
    own = table_of(call.context, "insights")
    table = {key: value for key, value in own.items() if "threshold" in key}
    others = [name for name in SECTIONS if name != "insights"]
    settings = section_settings(call.context, others, call.values)
    settings |= {"insights": {"limit": own["limit"]}} if "limit" in own else {}
    keywords = {
        **call.arguments,
        "settings": settings,
        "thresholds": table_arguments("insights", table).get("thresholds"),
    }
    measure = headscope.report
    names = call.steps_of(keywords)
    with ready_folder(folder), shown_progress(call.command, quiet, names) as progress:
        result = call.result(measure, keywords, progress)
        measured = results_of(to_dict(result), REPORT, result.sections)
        outcomes, changes = judged(measured, limits, baseline)
        document = write_report(result, folder, outcomes, changes, progress or silent)
    _add_step_summary(folder / "report.md")
    if format == "json":
        print_data(report_json(document))
    elif format == "csv":
        print_data(to_csv(result.insights) if result.insights is not None else "")
        print_warnings(result, format)
    else:
        print_human(Text(certificate(result)))
        if result.insights is not None:
            print_human(*scoreboard(result.insights))
        for name, why in result.left_out.items():
            print_human(Text(f"\nLeft out: {name}: {why}"))
        print_warnings(result, format)
        drawn = [name for files in document["files"].values() for name in files]
        pages = ["report.html", "report.md", REPORT, BASELINE]
        with_heads = ("classify", *(name for name in result.sections if name != "validate"))
        section = next((name for name in with_heads if name in result.sections), None)
        if not quiet:
            print_written(folder, [*pages, *drawn], section)
    if result.validate is not None and not result.validate.passed:
        raise ValidationFailedError(f"{model} fails validation: {result.validate.reasons[0]}.")
    for name in result.failed:
        raise CheckFailedError(f"{name}: {result.left_out[name]}")
    require(outcomes)


def _add_step_summary(page: Path) -> None:
    """Add report.md to the summary of a GitHub Actions step."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    try:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(page.read_text(encoding="utf-8"))
    except OSError as error:
        print_note(f"no step summary was written ({error.strerror})", quiet=False)
