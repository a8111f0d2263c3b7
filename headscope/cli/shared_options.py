"""Options that commands share, and the TOML file that can set any of them."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from headscope.cli.settings import for_typer, read_settings

__all__ = [
    "AllowPickle",
    "Config",
    "Debug",
    "Device",
    "DeviceOption",
    "Dtype",
    "DtypeOption",
    "Format",
    "FormatOption",
    "Limit",
    "Model",
    "NoValidate",
    "Output",
    "Quiet",
    "Revision",
    "Seed",
]


class Format(enum.StrEnum):
    """How results are printed on stdout."""

    human = "human"
    json = "json"
    csv = "csv"


class Dtype(enum.StrEnum):
    """What to compute in."""

    float64 = "float64"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Device(enum.StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's values the defaults of the command's options; flags still win."""
    table = dict(read_settings(path, context).tables.get(context.info_name or "", {}))
    context.meta["thresholds"] = table.pop("thresholds", {})
    context.default_map = {**(context.default_map or {}), **for_typer(table)}
    return path


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model folder, a hub id, or 'demo' for all-MiniLM-L6-v2.",
        show_default=False,
    ),
]
FormatOption = Annotated[Format, typer.Option("--format", help="What goes to stdout.")]
DtypeOption = Annotated[
    Dtype, typer.Option("--dtype", help="Compute in this type, whatever the checkpoint stores.")
]
DeviceOption = Annotated[Device, typer.Option("--device", help="Where to compute.")]
Revision = Annotated[
    str | None, typer.Option("--revision", help="Branch, tag or commit of a hub id.")
]
AllowPickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        help="Accept pickled weights; they can hide code, so only if you trust their author.",
    ),
]
NoValidate = Annotated[
    bool, typer.Option("--no-validate", help="Skip the certificate; the result records it.")
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Folder for JSON, CSV and figures.", file_okay=False),
]
Limit = Annotated[int | None, typer.Option("--limit", help="Only the first sentences.")]
Seed = Annotated[int, typer.Option("--seed", help="For everything that is drawn at random.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no messages.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="TOML file with a table per command; flags win over it.",
        callback=_read_config,
        is_eager=True,
    ),
]
