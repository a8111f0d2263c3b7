"""``headscope list`` and ``schema``: which names options take, and what each command writes."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headscope.cli.flags import Debug, chosen_format
from headscope.cli.output import print_data, print_human
from headscope.cli.settings import ConfigFile


def list(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[WHAT]",
            help="methods, tasks, roles, families, or limits. Without it: what can be listed.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[str, chosen_format("human", "json", "csv")] = "human",
    config: ConfigFile = None,
    debug: Debug = False,
) -> None:
    """List what there is to name: methods, tasks, roles, families of models, limits of CI.

    Each with a line about it, its literature, and the page that defines it.
    """
    from headscope.core.serialise import to_json
    from headscope.reports.list import entries_of, list_report
    from headscope.show.cells import to_csv

    result = entries_of(what)
    if format == "human":
        print_human(*list_report(result))
    else:
        print_data(to_json(result) if format == "json" else to_csv(result))


def schema(
    command: Annotated[
        str,
        typer.Argument(
            help="A command that writes JSON, such as classify or report.", show_default=False
        ),
    ],
    config: ConfigFile = None,
    debug: Debug = False,
) -> None:
    """Print the JSON Schema of what a command writes: every field, its type, mostly its meaning."""
    from headscope.reports.schemas import schema_of

    print_data(json.dumps(schema_of(command), indent=1, ensure_ascii=False))
