"""What a TOML file sets: every table checked against the commands' flags, converted, and shown."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import math
import re
import textwrap
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from headscope.cli.flags import (
    Flag,
    HelpCommand,
    HelpGroup,
    arguments_of,
    thresholds_of,
)
from headscope.cli.output import print_data
from headscope.core.errors import InputError, did_you_mean, nearest
from headscope.core.options import OptionError
from headscope.reports.registry import function_of

if typing.TYPE_CHECKING:
    from headscope.reports.limits import Limits

LIMITS = "limits"  # The table that belongs to no command.
_META = "headscope.settings"  # Where ``context.meta`` holds the settings of this run.
_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Path: "a string, the path",
}


@dataclass(frozen=True)
class Settings:
    """A config file, checked: converted values by table and flag; no file, no values."""

    path: Path | None = None
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)  # ``thresholds`` are nested.
    limits: dict[str, Any] = field(default_factory=dict)  # The table [limits] as written.


def hint_at(name: str, known: Iterable[str], form: str = "{!r}") -> str:
    """Return ``; did you mean 'NAME'?`` where a known name is near, else nothing."""
    hint = did_you_mean(name, known, form)
    return f"; {hint}" if hint else ""


def options_by_command(context: typer.Context) -> dict[str, dict[str, Flag]]:
    """Return the flags of every command, groups of commands aside."""
    commands = getattr(context.find_root().command, "commands", {})
    return {
        name: command.callback.flags
        for name, command in commands.items()
        if not hasattr(command, "commands")
    }


def read_settings(path: Path | None, context: typer.Context) -> Settings:
    """Read a file and check all of it, whatever the command that runs."""
    settings = Settings() if path is None else _checked(path, options_by_command(context))
    context.meta[_META] = settings
    return settings


def lay_under_flags(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's values the defaults of the command's options; flags still win."""
    table = read_settings(path, context).tables.get(context.info_name or "", {})
    defaults = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in table.items()
        if name != "thresholds"
    }
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _checked(path: Path, commands: dict[str, dict[str, Flag]]) -> Settings:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"The config file {path} cannot be read ({error.strerror}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"The config file {path} is not valid TOML: {error}.") from None
    for name, table in document.items():
        if name not in commands and name != LIMITS:
            hint = hint_at(name, [*commands, LIMITS], "[{}]")
            raise InputError(f"{path}: there is no command {name!r} to configure{hint}")
        if not isinstance(table, dict):
            raise InputError(f"{path}: {name} must be a table, written [{name}].")
    limits = document.pop(LIMITS, {})
    tables = {
        name: _table(f"{path}: [{name}]", name, table, commands[name])
        for name, table in document.items()
    }
    settings = Settings(path, tables, limits)
    _limits(settings)
    return settings


def _table(
    where: str, command: str, table: dict[str, Any], options: dict[str, Flag]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name == "thresholds" and "threshold" in options:
            if not isinstance(value, dict):
                raise InputError(
                    f"{where} thresholds must be a table, written [{command}.thresholds]."
                )
            try:
                thresholds_of(command).parse(value)
            except InputError as error:
                raise InputError(f"{where} thresholds: {error}") from None
            values[name] = dict(value)
        elif name not in options:
            raise InputError(f"{where} has no option {key!r}{hint_at(name, options)}")
        elif name in values:
            raise InputError(f"{where} sets {name} twice, with a hyphen and without; keep one.")
        else:
            values[name] = _converted(f"{where} {key}", options[name], value)
    return values


def _converted(where: str, flag: Flag, value: Any) -> Any:
    """Return a value as the command takes it; a list for an option that can be repeated."""
    if isinstance(value, list) and flag.listed:
        for item in value:
            if not isinstance(item, str | int | float) or isinstance(item, bool):
                raise InputError(
                    f"{where} must be a list of numbers or strings; {_shown(item)} is neither."
                )
        return ",".join(map(str, value))
    if flag.repeatable:
        items = value if isinstance(value, list) else [value]
        return [_single(where, flag.kind, item) for item in items]
    if flag.numbered and type(value) is int:
        return str(value)
    return _single(where, flag.kind, value)


def _single(where: str, kind: type, value: Any) -> Any:
    """Return one value as the command takes it; enumerations stay strings."""
    if issubclass(kind, enum.Enum):
        names = [str(member.value) for member in kind]
        if value in names:
            return str(value)
        hint = nearest(str(value), names, "choose from")
        raise InputError(f"{where} is {_shown(value)}; {hint}")
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if kind is Path and type(value) is str and value and "\0" not in value:
        return Path(value)
    if kind in (bool, int, str) and type(value) is kind:
        return value
    raise InputError(f"{where} must be {_KINDS[kind]}, not {_shown(value)}.")


def _shown(value: Any) -> str:
    """Write a value as the file has it, shortened."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _limits(settings: Settings) -> Limits:
    from headscope.reports.limits import Limits

    where = f"{settings.path}: [limits]" if settings.path else "[limits]"
    return Limits.parse(settings.limits, where)


def table_of(context: typer.Context, command: str) -> dict[str, Any]:
    """Return what the file sets for a command, by flag."""
    settings: Settings = context.meta.get(_META) or Settings()
    return dict(settings.tables.get(command, {}))


def limits(context: typer.Context) -> Limits:
    """Return the limits of the file; none without."""
    return _limits(context.meta.get(_META) or Settings())


def table_arguments(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a table of a config file into arguments."""
    try:
        return arguments_of(function_of(name).options, table)
    except OptionError as error:
        raise InputError(f"[{name}] {error}") from None


#: Options that a report sets for all its sections at once, or that save something.
_FOR_ALL_SECTIONS = {
    "figures",
    "figure_width",
    "no_titles",
    "output",
    "device",
    "revision",
    "no_validate",
    "pooling",
    "resume",
    "save",
    "source_language",
    "target_language",
}


def section_settings(
    context: typer.Context, sections: Iterable[str], flags: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return each section's arguments: what its table in the config file sets, then the flags.

    Of the flags ``treebank``, ``text`` and ``limit`` count, for every section that is measured on a
    text and has them. A treebank replaces a text, and a text a treebank.
    """
    options = options_by_command(context)
    names = ("treebank", "text", "limit")
    inputs = {name: flags[name] for name in names if flags[name] is not None}
    settings = {}
    for section in sections:
        # Only depth has another dtype: its numbers fall below the rounding of float32.
        common = _FOR_ALL_SECTIONS | (set() if section == "depth" else {"dtype"})
        table = {key: v for key, v in table_of(context, section).items() if key not in common}
        if "text" in options[section]:
            accepted = {key: value for key, value in inputs.items() if key in options[section]}
            if "sequences" in options[section]:  # windows are cut from all of the text
                accepted.pop("limit", None)
            if "treebank" in accepted:
                accepted.pop("text", None)
            if accepted.keys() & {"treebank", "text"}:
                table = {key: v for key, v in table.items() if key not in ("treebank", "text")}
            table |= accepted
        settings[section] = table_arguments(section, table)
    return settings


# ``headscope config show``.

EXAMPLES = """Examples:

`headscope config show classify`

`headscope config show --config configs/ci.toml`
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

Command = Annotated[
    str | None, typer.Argument(metavar="[COMMAND]", help="Only this table.", show_default=False)
]
File = Annotated[Path | None, typer.Option("--config", help="TOML file with a table per command.")]


@config.callback()
def _group() -> None:
    """Make ``show`` a separate command."""


@config.command("show", cls=HelpCommand, epilog=EXAMPLES)
def show(
    context: typer.Context,
    command: Command = None,
    config: File = None,
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
            kind = thresholds_of(name)
            changed = values.get("thresholds", {})
            meanings = meanings_of(kind) if command else {}
            above = ""
            for key, value in {**dataclasses.asdict(kind()), **changed}.items():
                if above != (above := meanings.get(key, "")):
                    lines += _comment(above)
                lines.append(_line(key, value, source if key in changed else "default"))
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
