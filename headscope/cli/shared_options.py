"""Options that commands share, and the TOML file that can set any of them."""

from __future__ import annotations

import enum
import inspect
from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from headscope.cli.settings import read_settings

Format = enum.StrEnum("Format", ["human", "json", "csv"])  # How results are printed on stdout.


def _read_config(context: Context, path: Path | None) -> Path | None:
    """Make the file's values the defaults of the command's options; flags still win."""
    table = read_settings(path, context).tables.get(context.info_name or "", {})
    defaults = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in table.items()
        if name != "thresholds"
    }
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


Output = Annotated[
    Path | None, Option("--output", "-o", help="Folder for JSON, CSV and figures.", file_okay=False)
]
#: The parameter of commands that write a folder.
OUTPUT = inspect.Parameter(
    "output", inspect.Parameter.KEYWORD_ONLY, annotation=Output, default=None
)
Config = Annotated[
    Path | None,
    Option(
        help="TOML file with a table per command; flags win over it.",
        callback=_read_config,
        is_eager=True,
    ),
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="No progress bar, no messages.")]
Debug = Annotated[bool, Option("--debug", help="Show tracebacks.")]


def of_every_model_command(
    context: Context,
    model: Annotated[
        str,
        Argument(
            metavar="MODEL",
            help="A model folder, a hub id, or 'demo' for all-MiniLM-L6-v2.",
            show_default=False,
        ),
    ],
    format: Annotated[Format, Option(help="What goes to stdout.")] = Format.human,
    config: Config = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Declare what every command that takes a model has; its own options come after the model."""
