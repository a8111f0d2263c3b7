"""``headscope compare REPORT REPORT ...``, and what it shares with its short name ``diff``."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Option

from headscope.cli import shared_options as shared
from headscope.cli.output import print_data, print_human, print_note
from headscope.core.errors import CheckFailedError
from headscope.core.safe_text import visible

if TYPE_CHECKING:
    from headscope.reports.result import DiffResult
    from headscope.reports.rules import Rule

EXAMPLES = """Examples:

`headscope compare reports/bert-base reports/bert-large reports/minilm`

`headscope compare reports/* -o out/`

`headscope compare old new newer --fail-on role-lost,metric-drop=2%`

`headscope compare a/report.json b/report.json --format csv`
"""

FailOn = Annotated[
    list[str] | None,
    Option(
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
    Option(
        help="Share of a number (of 1, where it is smaller) that it may differ where it has "
        "no interval."
    ),
]
#: How the comparison is printed on stdout.
CompareFormat = enum.StrEnum("CompareFormat", ["human", "json", "csv", "md", "html"])


def compare(
    reports: Annotated[
        list[Path],
        Argument(
            metavar="REPORT",
            help="Two or more folders of reports, or report.json files.",
            show_default=False,
        ),
    ],
    fail_on: FailOn = None,
    tolerance: Tolerance = 0.01,
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="Folder for Markdown, CSV, HTML and JSON.", file_okay=False),
    ] = None,
    format: Annotated[CompareFormat, Option(help="What goes to stdout.")] = CompareFormat.human,
    config: shared.Config = None,
    verbose: shared.Verbose = False,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Put several models' reports side by side: the key numbers of each, with their intervals.

    What differs between the runs besides the model (data, seeds, settings) is said first. With
    rules, what changed from the first report to each other one is said too.
    """
    if len(reports) < 2:
        raise BadParameter("give two reports or more", param_hint="'REPORT'")

    from headscope.reports.compare import side_by_side
    from headscope.reports.compare_view import compare_files, compare_report
    from headscope.reports.reading import read_results
    from headscope.reports.rules import parse_rules
    from headscope.show.folders import ready_folder, write_files

    rules = parse_rules(fail_on or ())
    with ready_folder(output):
        sides = [read_results(path) for path in reports]
        result = side_by_side(sides, rules, tolerance=tolerance)
        files = compare_files(result, rules) if output or format is not CompareFormat.human else {}
        if output is not None:
            write_files(output, files)
    if format is CompareFormat.human:
        print_human(*compare_report(result, verbose=verbose))
    else:
        print_data(files[f"compare.{format}"].decode())
    end_by_rules(result.changes, rules, quiet)


def end_by_rules(changes: Iterable[DiffResult], rules: Iterable[Rule], quiet: bool) -> None:
    """Name the rules that had nothing to look at, and fail where one fired."""
    from headscope.reports.rules import undecided

    changes, reasons = tuple(changes), list[str]()
    for change in changes:
        for rule, why in undecided(change, rules).items():
            print_note(f"{rule} {why}", quiet)
        name = f"{visible(change.new)}: " if len(changes) > 1 else ""
        reasons += [f"{name}{fired}" for fired in change.fired]
    if reasons:
        raise CheckFailedError("; ".join(reasons))
