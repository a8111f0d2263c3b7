"""``headscope diff OLD NEW``."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from headscope.cli import shared_options as shared
from headscope.cli.output import print_data, print_human, print_note
from headscope.errors import CheckFailedError

EXAMPLES = """Examples:

`headscope diff old/classify.json new/classify.json`

`headscope diff reports/demo out --fail-on role-changed --fail-on "metric-drop>0.5"`

`headscope diff reports/demo out --format md`
"""


#: How differences are printed on stdout.
DiffFormat = enum.StrEnum("DiffFormat", ["human", "json", "md"])


def diff(
    old: Annotated[
        Path,
        Argument(metavar="OLD", help="A result (JSON) or a folder of results.", show_default=False),
    ],
    new: Annotated[
        Path, Argument(metavar="NEW", help="What it is compared with.", show_default=False)
    ],
    fail_on: Annotated[
        list[str] | None,
        Option(
            metavar="RULE",
            help="Exit with 3 when this rule fires; repeatable: role-changed, role-lost, "
            "metric-drop>X, validation, insight-changed, insight-lost, score-moved, rank-changed, "
            "spectrum-changed, depth-changed, flow-changed, transfer-changed, linear-changed, "
            "symmetric-changed, missing, model-changed, data-changed, schema-changed, "
            "setting-changed, any. See docs/diff.md.",
        ),
    ] = None,
    tolerance: Annotated[
        float,
        Option(
            help="Share of a number (of 1, where it is smaller) that it may differ where it has "
            "no interval."
        ),
    ] = 0.01,
    output: shared.Output = None,
    format: Annotated[DiffFormat, Option(help="What goes to stdout.")] = DiffFormat.human,
    config: shared.Config = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Say what differs between two results: roles, scores, curves, verdicts.

    Prints nothing and exits with 0 where they are equal; exits with 3 when a rule fires.
    """
    from headscope.results import to_json
    from headscope.show.diff.tables import diff_files, diff_markdown, diff_report
    from headscope.show.folders import ready_folder, write_files
    from headscope.verdicts.diff.compare import compare
    from headscope.verdicts.diff.rules import parse_rules, undecided, with_fired
    from headscope.verdicts.reading import read_results

    rules = parse_rules(fail_on or ())
    with ready_folder(output):
        found = compare(read_results(old), read_results(new), tolerance=tolerance)
        found = with_fired(found, rules)
        if output is not None:
            write_files(output, diff_files(found))
    silent = found.equal and not found.fired
    if format is DiffFormat.human:
        print_human(*diff_report(found))
    elif not silent:
        print_data(diff_markdown(found) if format is DiffFormat.md else to_json(found))
    for note in undecided(found, rules):
        print_note(note, quiet)
    if found.fired:
        raise CheckFailedError("; ".join(f"{fired.rule}: {fired.reason}" for fired in found.fired))
