"""``headscope schema COMMAND``."""

from __future__ import annotations

import json
from typing import Annotated

from typer import Argument

from headscope.cli import shared_options as shared
from headscope.cli.output import print_data

EXAMPLES = """Examples:

`headscope schema classify`

`headscope schema report`
"""


def schema(
    command: Annotated[
        str,
        Argument(help="A command that writes JSON, such as classify or report."),
    ],
    config: shared.Config = None,
    debug: shared.Debug = False,
) -> None:
    """Print the JSON Schema of what a command writes: every field, its type and its meaning."""
    from headscope.reports.schemas import schema_of

    print_data(json.dumps(schema_of(command), indent=1, ensure_ascii=False))
