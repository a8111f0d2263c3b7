"""``headscope config show``: every option as it takes effect, as TOML."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from headscope.cli.help import HelpCommand, HelpGroup
from headscope.cli.output import print_data
from headscope.cli.settings import (
    CONFIG_HELP,
    LIMITS,
    Flag,
    Settings,
    hint_at,
    options_by_command,
    read_settings,
    thresholds_of,
)
from headscope.core.errors import InputError

EXAMPLES = """Examples:

`headscope config show classify`

`headscope config show --config ci`
"""

config = typer.Typer(
    cls=HelpGroup,
    name="config",
    epilog=EXAMPLES,
    add_completion=False,
    help="Read config files: what a TOML file sets, checked and laid over the defaults.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@config.callback()
def _group() -> None:
    """Make typer treat ``config`` as a group, though it has only the command ``show``."""


@config.command("show", cls=HelpCommand, epilog=EXAMPLES)
def show(
    context: typer.Context,
    command: Annotated[
        str | None,
        typer.Argument(metavar="[COMMAND]", help="Only this table.", show_default=False),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help=f"{CONFIG_HELP}.")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.", metavar="")] = False,
) -> None:
    """Print every option as it takes effect, as TOML, and where its value comes from.

    Of one command also what each option means.
    """
    commands = options_by_command(context)
    if command is not None and command not in (*commands, LIMITS):
        hint = hint_at(command, [*commands, LIMITS]) or f"; there are {', '.join(commands)}."
        raise InputError(f"There is no command {command!r} to configure{hint}")
    settings = read_settings(config, context)
    overlaid = f", overlaid by {config}" if config else ""
    lines = [f"# Effective configuration: defaults{overlaid}"]
    for name in sorted(commands) if command is None else [command]:
        if name != LIMITS:
            lines += _table_lines(name, commands[name], settings, explained=command is not None)
    if command == LIMITS or (command is None and settings.limits):
        lines += _limit_lines(settings)
    print_data("\n".join(lines))


def _table_lines(
    name: str, flags: Mapping[str, Flag], settings: Settings, *, explained: bool
) -> Iterator[str]:
    """Write the table of one command, and if ``explained``, what each option means."""
    source = f"from {settings.path}"
    values = settings.tables.get(name, {})
    yield ""
    yield f"[{name}]"
    for flag in flags.values():
        if explained:
            yield from _comment(flag.help)
        if flag.name in values:
            yield _line(flag.name, values[flag.name], source)
        elif flag.default is not None:
            yield _line(flag.name, flag.default, "default")
        elif flag.required:
            yield f"# {flag.name} is not set: given with the command"
        else:
            yield f"# {flag.name} is not set: default"
    if "threshold" in flags:
        yield from _threshold_lines(name, values.get("thresholds", {}), source, explained)


def _threshold_lines(
    name: str, changed: Mapping[str, Any], source: str, explained: bool
) -> Iterator[str]:
    """Write the table of a command's thresholds; a meaning that several share is written once."""
    kind = thresholds_of(name)
    meanings = meanings_of(kind) if explained else {}
    yield ""
    yield f"[{name}.thresholds]"
    last_meaning = ""
    for key, value in {**dataclasses.asdict(kind()), **changed}.items():
        meaning = meanings.get(key, "")
        if meaning != last_meaning:
            yield from _comment(meaning)
            last_meaning = meaning
        yield _line(key, value, source if key in changed else "default")


def _limit_lines(settings: Settings) -> Iterator[str]:
    """Write the limits of a report."""
    yield ""
    yield f"[{LIMITS}]"
    for key, value in settings.limits.items():
        yield _line(key, value, f"from {settings.path}")
    if not settings.limits:
        yield "# no limit is set"


def _comment(text: str) -> list[str]:
    """Write a text as comments of TOML."""
    return [f"# {line}" for line in textwrap.wrap(text, 98)]


#: An entry of a docstring's section of attributes: ``name, other_name : float`` and, indented, the
#: text below it.
_ENTRY = re.compile(r"^(\w[\w, ]*) : \w+\n((?:    .+(?:\n|$))+)", re.MULTILINE)


def meanings_of(kind: type) -> dict[str, str]:
    """Return what the docstring of a class says of each attribute; several may share an entry."""
    meanings = {}
    for names, text in _ENTRY.findall(inspect.getdoc(kind) or ""):
        for name in names.split(", "):
            meanings[name] = " ".join(text.split())
    return meanings


def _line(name: str, value: Any, source: str) -> str:
    """Write one key with its value, and where the value comes from."""
    comment = "".join(char if char.isprintable() else "?" for char in source)
    return f"{_key(name)} = {_toml(value)}  # {comment}"


def _key(name: str) -> str:
    """Write a key of TOML, in quotes where it has to be."""
    needs_no_quotes = name.replace("_", "").replace("-", "").isalnum() and name.isascii()
    return name if needs_no_quotes else _toml(name)


def _toml(value: Any) -> str:
    """Write a value as TOML, which has the strings of JSON except for one character."""
    if isinstance(value, Mapping):
        entries = [f"{_key(key)} = {_toml(item)}" for key, item in value.items()]
        return f"{{{', '.join(entries)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
