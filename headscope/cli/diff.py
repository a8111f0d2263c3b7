"""``headscope diff OLD NEW``: what changed between two, as ``compare`` says it with rules."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from headscope.cli import shared_options as shared
from headscope.cli.compare import FailOn, Tolerance, end_by_rules
from headscope.cli.output import print_data, print_human

EXAMPLES = """Examples:

`headscope diff old/classify.json new/classify.json`

`headscope diff reports/demo out --fail-on role-changed,metric-drop=2%`

`headscope diff reports/demo out --format md`
"""

#: How differences are printed on stdout.
DiffFormat = enum.StrEnum("DiffFormat", ["human", "json", "md"])


def diff(
    old: Annotated[
        Path,
        Argument(
            metavar="OLD",
            help="A result (JSON), a folder of results, or a report's baseline.json.",
            show_default=False,
        ),
    ],
    new: Annotated[
        Path, Argument(metavar="NEW", help="What it is compared with.", show_default=False)
    ],
    fail_on: FailOn = None,
    tolerance: Tolerance = 0.01,
    output: shared.Output = None,
    format: Annotated[DiffFormat, Option(help="What goes to stdout.")] = DiffFormat.human,
    config: shared.Config = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Say what differs between two results: roles, scores, curves, verdicts.

    Prints nothing and exits with 0 where they are equal; exits with 3 when a rule fires.
    """
    from headscope.core.serialise import to_json
    from headscope.reports.baseline import read_side
    from headscope.reports.compare import changes_between
    from headscope.reports.compare_view import diff_files, diff_markdown, diff_report
    from headscope.reports.rules import parse_rules, with_fired
    from headscope.show.folders import ready_folder, write_files

    rules = parse_rules(fail_on or ())
    with ready_folder(output):
        result = changes_between(read_side(old), read_side(new), tolerance=tolerance)
        result = with_fired(result, rules)
        if output is not None:
            write_files(output, diff_files(result, rules))
    if format is DiffFormat.human:
        print_human(*diff_report(result))
    elif not result.equal or result.fired:
        print_data(diff_markdown(result, rules) if format is DiffFormat.md else to_json(result))
    end_by_rules((result,), rules, quiet)
