"""What a TOML file sets: every table checked against the commands' flags, then converted."""

from __future__ import annotations

import enum
import json
import math
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

import headscope
from headscope.cli.flags import Flag, UsageError, arguments_of, thresholds_of
from headscope.core.errors import InputError, did_you_mean

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
            for threshold, number in value.items():
                if not isinstance(number, bool | int | float):
                    raise InputError(
                        f"{where} threshold {threshold} must be a number or true or false, not "
                        f"{_shown(number)}."
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
        raise InputError(f"{where} must be one of {', '.join(names)}, not {_shown(value)}.")
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if kind is Path and type(value) is str and value and "\0" not in value:
        return Path(value)
    if kind in (bool, int, str) and type(value) is kind:
        return value
    raise InputError(f"{where} must be {_KINDS[kind]}, not {_shown(value)}.")


def _shown(value: Any) -> str:
    """Write a value much as the file has it, but short."""
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
        return arguments_of(getattr(headscope, name).options, table)
    except UsageError as slip:
        raise slip.in_table(name) from None


#: Options that a report sets for all its sections at once, or that save something.
_FOR_ALL_SECTIONS = {
    *("figures", "figure_width", "no_titles", "output", "device", "revision", "no_validate"),
    *("pooling", "resume", "save"),
}


def section_settings(
    context: typer.Context, sections: Iterable[str], flags: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return each section's arguments: what its table in the config file sets, then the flags.

    Of the flags ``treebank``, ``text`` and ``limit`` count, for every section that is measured on a
    text and has them. A treebank takes the place of a text, and the other way round.
    """
    options = options_by_command(context)
    names = ("treebank", "text", "limit")
    inputs = {name: flags[name] for name in names if flags[name] is not None}
    settings = {}
    for section in sections:
        # What depth measures falls below the rounding of float32: it alone has a type of its own.
        common = _FOR_ALL_SECTIONS | (set() if section == "depth" else {"dtype"})
        table = {key: v for key, v in table_of(context, section).items() if key not in common}
        if "text" in options[section]:
            own = {key: value for key, value in inputs.items() if key in options[section]}
            if "sequences" in options[section]:  # windows are cut from all of the text
                own.pop("limit", None)
            if "treebank" in own:
                own.pop("text", None)
            if own.keys() & {"treebank", "text"}:
                table = {key: v for key, v in table.items() if key not in ("treebank", "text")}
            table |= own
        settings[section] = table_arguments(section, table)
    return settings
