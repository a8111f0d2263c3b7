"""Options that commands share, and the TOML file that can set any of them."""

from __future__ import annotations

import difflib
import enum
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from headscope.errors import InputError

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
    if path is None:
        return None
    table = _table(path, context.info_name or "", _commands(context))
    params = {param.name: param for param in context.command.params if param.name != "config"}
    known = set(params)
    thresholds = table.pop("thresholds", {}) if "threshold" in known else {}
    if not isinstance(thresholds, dict):
        raise InputError(f"{path}: thresholds must be a table, [{context.info_name}.thresholds].")
    defaults = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, sorted(map(str, known)), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"{path}: [{context.info_name}] has no option {key!r}{hint}")
        several = isinstance(value, list) and not getattr(params[name], "multiple", False)
        defaults[name] = ",".join(map(str, value)) if several else value
    # A parameter of typer may be named otherwise than its flag; both go by the parameter's name.
    context.default_map = {**(context.default_map or {}), **defaults}
    context.meta["thresholds"] = thresholds
    return path


def _commands(context: typer.Context) -> list[str]:
    """Name every command that there is: each may have a table in a config file."""
    return sorted(getattr(context.find_root().command, "commands", {}))


def _table(path: Path, command: str, commands: list[str]) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            config = tomllib.load(file)
    except OSError as error:
        raise InputError(f"The config file {path} cannot be read ({error.strerror}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"The config file {path} is not valid TOML: {error}.") from None
    for name in config:
        if name not in commands:
            near = difflib.get_close_matches(name, commands, n=1)
            hint = f"; did you mean [{near[0]}]?" if near else ""
            raise InputError(f"{path}: there is no command {name!r} to configure{hint}")
    table = config.get(command, {})
    if not isinstance(table, dict):
        raise InputError(f"{path}: {command} must be a table, written [{command}].")
    return dict(table)


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A model folder, a hub id, or 'demo' for all-MiniLM-L6-v2.",
        show_default=False,
    ),
]  # fmt: skip
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
        "--allow-pickle", help="Accept pickled weights; they can hide code, so only if you trust "
        "their author.",
    ),
]  # fmt: skip
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
        "--config", help="TOML file with a table per command; flags win over it.",
        callback=_read_config, is_eager=True,
    ),
]  # fmt: skip
