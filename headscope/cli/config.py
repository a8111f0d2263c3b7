"""``headscope config show``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from headscope.cli.output import print_data
from headscope.cli.settings import (
    LIMITS,
    Option,
    Settings,
    hint_at,
    options_by_command,
    read_settings,
    thresholds_of,
)
from headscope.core.errors import InputError

EXAMPLES = """Examples:

`headscope config show classify`

`headscope config show --config configs/ci.toml`
"""

config = typer.Typer(
    help="Read config files: what a TOML file sets, checked and laid over the defaults.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Command = Annotated[
    str | None, typer.Argument(metavar="[COMMAND]", help="Only this table.", show_default=False)
]
File = Annotated[Path | None, typer.Option("--config", help="TOML file with a table per command.")]


@config.callback()
def _group() -> None:
    """Make ``show`` a command of its own."""


@config.command("show", epilog=EXAMPLES)
def show(
    context: typer.Context,
    command: Command = None,
    config: File = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Print every option as it takes effect, as TOML, and where its value comes from."""
    commands = options_by_command(context)
    if command is not None and command not in (*commands, LIMITS):
        hint = hint_at(command, [*commands, LIMITS]) or f"; there are {', '.join(commands)}."
        raise InputError(f"There is no command {command!r} to configure{hint}")
    settings = read_settings(config, context)
    source = f"from {config}" if config else ""
    lines = [f"# Effective configuration: defaults{f', overlaid by {config}' if config else ''}"]
    for name in sorted(commands) if command is None else [command]:
        if name != LIMITS:
            lines += ["", *_table(name, commands[name], settings, source)]
    if command in (None, LIMITS) and (settings.limits or command == LIMITS):
        lines += ["", *_limit_lines(settings, source)]
    print_data("\n".join(lines))


def _table(
    name: str, options: Mapping[str, Option], settings: Settings, source: str
) -> Iterator[str]:
    values = settings.tables.get(name, {})
    yield f"[{name}]"
    for option in options.values():
        if option.name in values:
            yield _line(option.name, values[option.name], source)
        elif option.default is not None:
            yield _line(option.name, option.default, "default")
        else:
            why = "given with the command" if option.required else "default"
            yield f"# {option.name} is not set: {why}"
    if "threshold" in options:
        yield from _thresholds(name, values.get("thresholds", {}), source)


def _thresholds(name: str, given: Mapping[str, Any], source: str) -> Iterator[str]:
    kind = thresholds_of(name)
    defaults = dataclasses.asdict(kind()) if kind else {}
    yield f"\n[{name}.thresholds]"
    for key, value in {**defaults, **given}.items():
        yield _line(key, value, source if key in given else "default")


def _limit_lines(settings: Settings, source: str) -> Iterator[str]:
    yield f"[{LIMITS}]"
    for key, value in settings.limits.items():
        yield _line(key, value, source)
    if not settings.limits:
        yield "# no limit is set"


def _line(name: str, value: Any, source: str) -> str:
    return f"{_key(name)} = {_toml(value)}  # {_comment(source)}"


def _key(name: str) -> str:
    return (
        name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _toml(name)
    )


def _toml(value: Any) -> str:
    """Write a value as TOML; JSON's strings are TOML's, but for one character."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(k)} = {_toml(v)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
