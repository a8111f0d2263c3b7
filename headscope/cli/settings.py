"""What a TOML file sets: every table checked against the commands' own options, then converted."""

from __future__ import annotations

import enum
import functools
import inspect
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

import headscope
from headscope.core.errors import InputError, did_you_mean
from headscope.core.options import options_of

if typing.TYPE_CHECKING:
    from headscope.core.thresholds import ThresholdSet
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
class Option:
    """One option of a command, as its signature declares it."""

    name: str
    #: bool, int, float, str, Path, an enumeration, or tuple for several values at once.
    kind: type
    repeatable: bool  # Holds a list.
    listed: bool  # Holds a string of comma-separated values.
    default: Any  # Of an enumeration its value.
    required: bool
    help: str = ""
    parts: tuple[type, ...] = ()  # The types of a tuple.
    numbered: bool = False  # A string that may be written as a number.


@dataclass(frozen=True)
class Settings:
    """A config file, checked: converted values by table and parameter name; no file, no values."""

    path: Path | None = None
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)  # ``thresholds`` are nested.
    limits: dict[str, Any] = field(default_factory=dict)  # The table [limits] as written.


def hint_at(name: str, known: Iterable[str], form: str = "{!r}") -> str:
    """Return ``; did you mean 'NAME'?`` where a known name is near, else nothing."""
    hint = did_you_mean(name, known, form)
    return f"; {hint}" if hint else ""


def options_by_command(context: typer.Context) -> dict[str, dict[str, Option]]:
    """Return the options of every command, groups of commands aside."""
    commands = getattr(context.find_root().command, "commands", {})
    return {
        name: _options(command.callback)
        for name, command in commands.items()
        if not hasattr(command, "commands")
    }


@functools.cache
def _options(callback: Any) -> dict[str, Option]:
    """Read them from the function's signature: typer's own objects differ between versions."""
    options = {}
    for name, parameter in inspect.signature(callback, eval_str=True).parameters.items():
        if name in ("context", "config"):
            continue
        kind, extras = parameter.annotation, list[Any]()
        if typing.get_origin(kind) is typing.Annotated:
            kind, *extras = typing.get_args(kind)
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            kind = next(arg for arg in typing.get_args(kind) if arg is not type(None))
        origin, parts = typing.get_origin(kind), typing.get_args(kind)
        required = parameter.default is inspect.Parameter.empty
        forms = "".join(getattr(extra, "metavar", None) or "" for extra in extras)
        listed = "," in forms
        options[name] = Option(
            name,
            kind={list: next(iter(parts), None), tuple: tuple}.get(origin, kind),
            repeatable=origin is list,
            listed=listed and origin is not list,
            default=None if required else getattr(parameter.default, "value", parameter.default),
            required=required,
            help=next((extra.help for extra in extras if getattr(extra, "help", None)), ""),
            parts=parts if origin is tuple else (),
            numbered="NUMBER" in forms,
        )
    return options


def read_settings(path: Path | None, context: typer.Context) -> Settings:
    """Read a file and check all of it, whatever the command that runs."""
    settings = Settings() if path is None else _checked(path, options_by_command(context))
    context.meta[_META] = settings
    return settings


def _checked(path: Path, commands: dict[str, dict[str, Option]]) -> Settings:
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
    where: str, command: str, table: dict[str, Any], options: dict[str, Option]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name == "thresholds" and "threshold" in options:
            values[name] = _threshold_table(where, command, value)
        elif name not in options:
            raise InputError(f"{where} has no option {key!r}{hint_at(name, options)}")
        elif name in values:
            raise InputError(f"{where} sets {name} twice, with a hyphen and without; keep one.")
        else:
            values[name] = _converted(f"{where} {key}", options[name], value)
    return values


def _converted(where: str, option: Option, value: Any) -> Any:
    """Return a value as the command takes it; a list for an option that can be repeated."""
    if option.parts:
        if not isinstance(value, list) or len(value) != len(option.parts):
            kinds = ", ".join(_KINDS[kind] for kind in option.parts)
            raise InputError(
                f"{where} must be a list of {len(option.parts)} ({kinds}), not {_shown(value)}."
            )
        return tuple(_single(where, *pair) for pair in zip(option.parts, value, strict=True))
    if isinstance(value, list) and option.listed:
        for item in value:
            if not isinstance(item, str | int | float) or isinstance(item, bool):
                raise InputError(
                    f"{where} must be a list of numbers or strings; {_shown(item)} is neither."
                )
        return ",".join(map(str, value))
    if option.repeatable:
        items = value if isinstance(value, list) else [value]
        return [_single(where, option.kind, item) for item in items]
    if option.numbered and type(value) is int:
        return str(value)
    return _single(where, option.kind, value)


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


def thresholds_of(command: str) -> type[ThresholdSet]:
    """Return the class of a command's thresholds."""
    declared = options_of(getattr(headscope, command).options)["thresholds"]
    kind: type[ThresholdSet] = getattr(headscope, declared.marker.thresholds)
    return kind


def _threshold_table(where: str, command: str, table: Any) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise InputError(f"{where} thresholds must be a table, written [{command}.thresholds].")
    for name, value in table.items():
        if not isinstance(value, bool | int | float):
            raise InputError(
                f"{where} threshold {name} must be a number or true or false, not {_shown(value)}."
            )
    try:
        thresholds_of(command).parse(table)
    except InputError as error:
        raise InputError(f"{where} thresholds: {error}") from None
    return dict(table)


def _limits(settings: Settings) -> Limits:
    from headscope.reports.limits import Limits

    where = f"{settings.path}: [limits]" if settings.path else "[limits]"
    return Limits.parse(settings.limits, where)


def table_of(context: typer.Context, command: str) -> dict[str, Any]:
    """Return what the file sets for a command, by parameter name."""
    settings: Settings = context.meta.get(_META) or Settings()
    return dict(settings.tables.get(command, {}))


def limits(context: typer.Context) -> Limits:
    """Return the limits of the file; none without."""
    return _limits(context.meta.get(_META) or Settings())
