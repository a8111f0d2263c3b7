"""``headscope list WHAT``."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from headscope.cli import shared_options as shared
from headscope.cli.output import print_data, print_human

EXAMPLES = """Examples:

`headscope list`

`headscope list methods`

`headscope list families --format csv`
"""


def list(
    what: Annotated[
        str | None,
        Argument(
            metavar="[WHAT]",
            help="methods, tasks, roles, families, or limits. Without it: what can be listed.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[shared.Format, Option(help="What goes to stdout.")] = shared.Format.human,
    config: shared.Config = None,
    debug: shared.Debug = False,
) -> None:
    """List what there is to name: methods, tasks, roles, families of models, limits of CI.

    Each with a line about it, its literature, and the page that defines it.
    """
    from headscope.core.serialise import to_json
    from headscope.reports.list import entries_of, list_report
    from headscope.show.cells import to_csv

    result = entries_of(what)
    if format is shared.Format.json:
        print_data(to_json(result))
    elif format is shared.Format.csv:
        print_data(to_csv(result))
    else:
        print_human(*list_report(result))
