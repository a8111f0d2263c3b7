"""``headscope compare`` and ``diff``: reports side by side, and what changed between two."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headscope.cli.flags import Debug, Quiet, Verbose, chosen_format
from headscope.cli.output import print_data, print_human, print_note
from headscope.cli.settings import ConfigFile
from headscope.core.errors import CheckFailedError
from headscope.core.safe_text import visible

if TYPE_CHECKING:
    from headscope.reports.result import DiffResult
    from headscope.reports.rules import Rule

FailOn = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-on",
        metavar="RULE",
        help="Exit with 3 when this rule fires; repeatable: role-changed, role-lost, "
        "metric-drop=2%, validation, insight-changed, insight-lost, score-moved, rank-changed, "
        "spectrum-changed, depth-changed, flow-changed, transfer-changed, linear-changed, "
        "symmetric-changed, missing, model-changed, data-changed, schema-changed, "
        "setting-changed, any. See docs/diff.md.",
    ),
]
Tolerance = Annotated[
    float,
    typer.Option(
        help="By what share of it (of 1, where it is smaller) a number without interval may "
        "differ.",
        hidden=True,
    ),
]


def compare(
    reports: Annotated[
        list[Path],
        typer.Argument(
            metavar="REPORT",
            help="Two or more folders of reports, or report.json files.",
            show_default=False,
        ),
    ],
    fail_on: FailOn = None,
    tolerance: Tolerance = 0.01,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Folder for Markdown, CSV, HTML and JSON.", file_okay=False
        ),
    ] = None,
    format: Annotated[str, chosen_format("human", "json", "csv", "md", "html")] = "human",
    verbose: Verbose = False,
    quiet: Quiet = False,
    config: ConfigFile = None,
    debug: Debug = False,
) -> None:
    """Put several models' reports side by side: the key numbers of each, with their intervals.

    What differs between the runs besides the model (data, seeds, settings) is said first. With
    rules, what changed from the first report to each other one is said too.
    """
    if len(reports) < 2:
        raise typer.BadParameter("give two reports or more", param_hint="'REPORT'")

    from headscope.reports.compare import side_by_side
    from headscope.reports.compare_page import compare_files
    from headscope.reports.compare_view import compare_report
    from headscope.reports.reading import read_results
    from headscope.reports.rules import parse_rules
    from headscope.show.folders import ready_folder, write_files

    rules = parse_rules(fail_on or ())
    with ready_folder(output):
        results = [read_results(path) for path in reports]
        compared = side_by_side(results, rules, tolerance=tolerance)
        files = {}
        if output is not None or format != "human":
            files = compare_files(compared, rules)
        if output is not None:
            write_files(output, files)
    if format == "human":
        print_human(*compare_report(compared, verbose=verbose))
    else:
        print_data(files[f"compare.{format}"].decode())
    _fail_if_fired(compared.changes, rules, quiet)


def diff(
    old: Annotated[
        Path,
        typer.Argument(
            metavar="OLD",
            help="A result (JSON), a folder of results, or a report's baseline.json.",
            show_default=False,
        ),
    ],
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="What it is compared with.", show_default=False)
    ],
    fail_on: FailOn = None,
    tolerance: Tolerance = 0.01,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for Markdown and JSON.", file_okay=False),
    ] = None,
    format: Annotated[str, chosen_format("human", "json", "md")] = "human",
    quiet: Quiet = False,
    config: ConfigFile = None,
    debug: Debug = False,
) -> None:
    """Say what differs between two results: roles, scores, curves, verdicts.

    Prints nothing and exits with 0 where they are equal; exits with 3 when a rule fires.
    """
    from headscope.core.serialise import to_json
    from headscope.reports.baseline import read_measurements
    from headscope.reports.changes import changes_between
    from headscope.reports.diff_view import diff_files, diff_markdown, diff_report
    from headscope.reports.rules import parse_rules, with_fired
    from headscope.show.folders import ready_folder, write_files

    rules = parse_rules(fail_on or ())
    with ready_folder(output):
        before = read_measurements(old)
        after = read_measurements(new)
        result = with_fired(changes_between(before, after, tolerance=tolerance), rules)
        if output is not None:
            write_files(output, diff_files(result, rules))
    if format == "human":
        print_human(*diff_report(result))
    elif not result.equal or result.fired:
        print_data(diff_markdown(result, rules) if format == "md" else to_json(result))
    _fail_if_fired((result,), rules, quiet)


def _fail_if_fired(changes: Iterable[DiffResult], rules: Iterable[Rule], quiet: bool) -> None:
    """Raise CheckFailedError (exit code 3) if a rule fired; name rules that had nothing to check.

    With several changes, those from the first report to each other one, the error names the report.
    """
    from headscope.reports.rules import undecided

    changes = tuple(changes)
    reasons: list[str] = []
    for change in changes:
        for rule, why in undecided(change, rules).items():
            print_note(f"{rule} {why}", quiet)
        name = f"{visible(change.new)}: " if len(changes) > 1 else ""
        reasons += [f"{name}{fired}" for fired in change.fired]
    if reasons:
        raise CheckFailedError("; ".join(reasons))
