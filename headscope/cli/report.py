"""``headscope report``: what this command does beyond measuring: the page, and the limits of CI.

The same steps as in :func:`headscope.cli.command.measuring_command`, with the page written in place
of a single result, and the result judged by the limits of the config file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headscope.cli.command import CommandRun, typer_command
from headscope.cli.output import (
    print_data,
    print_human,
    print_note,
    print_warnings,
    print_written,
)
from headscope.cli.settings import limits_of, section_settings, table_arguments, table_of
from headscope.commands import SECTIONS, Command
from headscope.core.errors import CheckFailedError, UnwrittenError, ValidationFailedError

if TYPE_CHECKING:
    from headscope.reports.baseline import Measurements
    from headscope.reports.limits import Limits
    from headscope.reports.result import ReportResult


def report_command(command: Command) -> Callable[..., None]:
    """Make the typer command that measures, writes the page, and checks the limits."""

    def callback(context: typer.Context, **values: Any) -> None:
        from headscope.core.progress import silent
        from headscope.core.serialise import to_dict
        from headscope.reports.baseline import measurements_of
        from headscope.reports.files import write_report
        from headscope.reports.limits import judged, require
        from headscope.reports.markdown import report_markdown
        from headscope.reports.reading import results_of
        from headscope.reports.registry import REPORT

        values["output"] = values["output"] or Path("reports") / _folder_name(values["model"])
        run = CommandRun(command, context, values)
        with run.presented():
            limits, baseline = _limits_and_baseline(context)
            options = run.options(**_section_options(context, values))
            with run.measuring(options):
                result = command.function(run.model, options=options)
                measured = results_of(to_dict(result), REPORT, result.sections)
                outcomes, changes = judged(measurements_of(measured), limits, baseline)
                listener = run.progress.listener or silent
                failure: UnwrittenError | None = None
                unwritten = ""  # The report as text, where its folder could not be written
                try:
                    document = write_report(result, values["output"], outcomes, changes, listener)
                    _add_step_summary(values["output"] / "report.md")
                except UnwrittenError as error:  # what was measured is shown all the same
                    document = {**to_dict(result), "files": {}}
                    unwritten = report_markdown(result, outcomes, changes)
                    failure = error
            _show(run, result, document, unwritten)

        if failure is not None:
            raise failure
        # Exit with 3 if a check failed: the certificate, a section's own, or a limit.
        if result.validate is not None and not result.validate.passed:
            why = result.validate.refusal
            raise ValidationFailedError(f"{run.model} fails validation: {why}.")
        if result.failed:
            name = result.failed[0]
            raise CheckFailedError(f"{name}: {result.left_out[name]}")
        require(outcomes)

    return typer_command(command, callback)


def _folder_name(model: str) -> str:
    """Name the folder of a model's report after the last part of the model's name."""
    last = model.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^\w.-]+", "-", last).strip(".-") or "model"


def _limits_and_baseline(context: typer.Context) -> tuple[Limits, Measurements | None]:
    """Read the limits of the config file, and the baseline that they compare with, if any.

    Wrong rules are refused here, before anything is measured.
    """
    from headscope.reports.baseline import read_measurements
    from headscope.reports.rules import check_rules

    limits = limits_of(context)
    if not limits.baseline:
        return limits, None
    baseline = read_measurements(Path(limits.baseline))
    check_rules(limits.fail_on, baseline.metric)
    return limits, baseline


def _section_options(context: typer.Context, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options ``settings`` (of every section) and ``thresholds`` (of the claims).

    The section insights judges what the others measured, so of its table in the config file only
    thresholds and limit apply.
    """
    table = table_of(context, "insights")
    thresholds = {key: value for key, value in table.items() if "threshold" in key}
    measuring_sections = [name for name in SECTIONS if name != "insights"]
    settings = section_settings(context, measuring_sections, values)
    limit = values["limit"] or table.get("limit")
    if limit is not None:
        settings["insights"] = {"limit": limit}
    return {
        "settings": settings,
        "thresholds": table_arguments("insights", thresholds).get("thresholds"),
    }


def _show(
    run: CommandRun, result: ReportResult, document: Mapping[str, Any], unwritten: str
) -> None:
    """Print the page's headline, the scoreboard, what was left out, and the files.

    Where these could not be written, the report itself is printed in their place: ``unwritten``.
    """
    from rich.text import Text

    from headscope.reports.baseline import BASELINE
    from headscope.reports.claims.view import scoreboard
    from headscope.reports.files import report_json
    from headscope.reports.markdown import certificate, headline
    from headscope.reports.registry import REPORT
    from headscope.show.cells import to_csv

    if run.format == "json":
        print_data(report_json(document))
        return
    if run.format == "csv":
        print_data(to_csv(result.insights) if result.insights is not None else "")
        print_warnings(result, run.format)
        return
    print_human(Text(f"{headline(result)}\n", "bold"), Text(certificate(result)))
    if result.insights is not None:
        print_human(*scoreboard(result.insights))
    for name, why in result.left_out.items():
        print_human(Text(f"\nLeft out: {name}: {why}"))
    print_warnings(result, run.format)
    if unwritten:
        print_data(f"\n{unwritten}")
        return
    if run.quiet:
        return
    measured = [name for name in result.sections if name != "validate"]
    example = "classify" if "classify" in measured else next(iter(measured), None)
    pages = ["report.html", "report.md", REPORT, BASELINE]
    figures = chain.from_iterable(document["files"].values())
    print_written(run.values["output"], [*pages, *figures], example)


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
