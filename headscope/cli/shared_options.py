"""Options that commands share, and the TOML file that can set any of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter, Context, Option

from headscope.cli.settings import read_settings
from headscope.show.style import FORMATS, FigureStyle

FIGURES = "Figures"  # Heading in the help.
Width = enum.StrEnum("Width", ["column", "page"])
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


def of_every_folder(
    output: Output = None,
    figures: Annotated[
        str,
        Option(
            metavar="KIND,KIND,...",
            help="Kinds of figure files: svg, pdf, png.",
            rich_help_panel=FIGURES,
        ),
    ] = "png,svg",
    figure_width: Annotated[
        Width | None,
        Option(
            help="Width on paper: one column (3.3 inches) or a page (6.9); type of 8 points or "
            "more. Default: what shows each figure best.",
            rich_help_panel=FIGURES,
        ),
    ] = None,
    no_titles: Annotated[
        bool, Option("--no-titles", help="Leave titles to the caption.", rich_help_panel=FIGURES)
    ] = False,
) -> None:
    """Declare what every command that writes a folder has."""


def style_of(values: Mapping[str, Any]) -> FigureStyle:
    """Return the figures' style that the flags ask for."""
    kinds = tuple(dict.fromkeys(k.strip() for k in (values.get("figures") or "").split(",")))
    wrong = [kind for kind in kinds if kind not in FORMATS]
    if "figures" in values and wrong:
        why = f"{wrong[0]!r} is no kind of figure; choose from {', '.join(FORMATS)}"
        raise BadParameter(why, param_hint="'--figures'")
    width = values.get("figure_width")
    return FigureStyle(
        kinds if "figures" in values else FigureStyle().formats,
        None if width is None else str(getattr(width, "value", width)),
        not values.get("no_titles"),
    )


Config = Annotated[
    Path | None,
    Option(
        help="TOML file with a table per command; flags win over it.",
        callback=_read_config,
        is_eager=True,
    ),
]
Verbose = Annotated[
    bool, Option("--verbose", "-v", help="Print the tables behind the answer, too.")
]
DryRun = Annotated[bool, Option("--dry-run", help="Say what would be done; do not do it.")]
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
    dry_run: DryRun = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Declare what every command that takes a model has; its own options come after the model."""
