"""``headscope config show``."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from headscope.cli.flags import thresholds_of
from headscope.cli.output import print_data
from headscope.cli.settings import LIMITS, hint_at, options_by_command, read_settings
from headscope.core.errors import InputError

EXAMPLES = """Examples:

`headscope config show classify`

`headscope config show --config configs/ci.toml`
"""

config = typer.Typer(
    name="config",
    epilog=EXAMPLES,
    add_completion=False,
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
    """Print every option as it takes effect, as TOML, and where its value comes from.

    Of one command also what each option means.
    """
    commands = options_by_command(context)
    if command is not None and command not in (*commands, LIMITS):
        hint = hint_at(command, [*commands, LIMITS]) or f"; there are {', '.join(commands)}."
        raise InputError(f"There is no command {command!r} to configure{hint}")
    settings = read_settings(config, context)
    source = f"from {config}" if config else ""
    lines = [f"# Effective configuration: defaults{f', overlaid by {config}' if config else ''}"]
    for name in sorted(commands) if command is None else [command]:
        if name == LIMITS:
            continue
        values = settings.tables.get(name, {})
        lines += ["", f"[{name}]"]
        for option in commands[name].values():
            lines += _comment(option.marker.help) if command else []
            if option.name in values:
                lines.append(_line(option.name, values[option.name], source))
            elif option.default is not None:
                lines.append(_line(option.name, option.default, "default"))
            else:
                why = "given with the command" if option.required else "default"
                lines.append(f"# {option.name} is not set: {why}")
        if "threshold" in commands[name]:
            lines += ["", f"[{name}.thresholds]"]
            kind, own = thresholds_of(name), values.get("thresholds", {})
            meanings, above = meanings_of(kind) if command else {}, ""
            for key, value in {**dataclasses.asdict(kind()), **own}.items():
                if above != (above := meanings.get(key, "")):
                    lines += _comment(above)
                lines.append(_line(key, value, source if key in own else "default"))
    if command == LIMITS or (command is None and settings.limits):
        lines += ["", f"[{LIMITS}]"]
        lines += [_line(key, value, source) for key, value in settings.limits.items()]
        lines += [] if settings.limits else ["# no limit is set"]
    print_data("\n".join(lines))


def _comment(text: str) -> list[str]:
    """Write a text as comments of TOML."""
    return [f"# {line}" for line in textwrap.wrap(text, 98)]


#: Names, type and text of an entry in the section of attributes of a class's docstring.
_ENTRY = re.compile(r"^(\w[\w, ]*) : \w+\n((?:    .+(?:\n|$))+)", re.MULTILINE)


def meanings_of(kind: type) -> dict[str, str]:
    """Return what the docstring of a class says of each attribute; some share an entry."""
    entries = _ENTRY.findall(inspect.getdoc(kind) or "")
    return {name: " ".join(text.split()) for names, text in entries for name in names.split(", ")}


def _line(name: str, value: Any, source: str) -> str:
    comment = "".join(char if char.isprintable() else "?" for char in source)
    return f"{_key(name)} = {_toml(value)}  # {comment}"


def _key(name: str) -> str:
    plain = name.replace("_", "").replace("-", "").isalnum() and name.isascii()
    return name if plain else _toml(name)


def _toml(value: Any) -> str:
    """Write a value as TOML; JSON's strings are TOML's, but for one character."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(k)} = {_toml(v)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
