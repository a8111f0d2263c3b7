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

if typing.TYPE_CHECKING:
    from headscope.reports.limits import Limits

LIMITS = "limits"  # The table that belongs to no command.
_FORMERLY = "gates"
#: Commands that have thresholds: the class in ``headscope`` that checks them, and an example.
THRESHOLDS = {
    "classify": ("Thresholds", "positional=0.8"),
    "insights": ("InsightThresholds", "most=0.6"),
}
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
    """One option of a command, as its function declares it.

    ``kind`` is bool, int, float, str, Path or an enumeration, whose ``default`` is its value.
    ``repeatable`` ones hold a list, ``listed`` ones a string of comma-separated values. Those of
    ``kind`` tuple take several values at once, of the types ``parts``.
    """

    name: str
    kind: type
    repeatable: bool
    listed: bool
    default: Any
    required: bool
    parts: tuple[type, ...] = ()


@dataclass(frozen=True)
class Settings:
    """A config file, checked: converted values by table and parameter name; no file, no values.

    ``thresholds`` in a table is a nested one; ``limits`` is the table [limits] as written.
    """

    path: Path | None = None
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)


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
    parameters = inspect.signature(callback, eval_str=True).parameters.values()
    return {
        parameter.name: _option(parameter)
        for parameter in parameters
        if parameter.name not in ("context", "config")
    }


def _option(parameter: inspect.Parameter) -> Option:
    hint, default = parameter.annotation, parameter.default
    kind, *extras = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else [hint]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kind = next(arg for arg in typing.get_args(kind) if arg is not type(None))
    repeatable, several = (typing.get_origin(kind) is origin for origin in (list, tuple))
    parts = typing.get_args(kind)
    metavar = next((extra.metavar for extra in extras if getattr(extra, "metavar", None)), "")
    required = default is inspect.Parameter.empty
    return Option(
        name=parameter.name,
        kind=parts[0] if repeatable else tuple if several else kind,
        repeatable=repeatable,
        listed=not repeatable and "," in metavar,
        default=None if required else getattr(default, "value", default),
        required=required,
        parts=parts if several else (),
    )


def read_settings(path: Path | None, context: typer.Context) -> Settings:
    """Read a file and check all of it, whatever the command that runs."""
    settings = Settings() if path is None else _checked(path, options_by_command(context))
    context.meta[_META] = settings
    return settings


def _checked(path: Path, commands: dict[str, dict[str, Option]]) -> Settings:
    document = _with_limits(path, _document(path))
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


def _with_limits(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    """Read the table by the name that it had before head gates took the word: files are users'."""
    if _FORMERLY not in document:
        return document
    if LIMITS in document:
        raise InputError(f"{path} has [{LIMITS}] and [{_FORMERLY}], its former name; keep one.")
    return {LIMITS if name == _FORMERLY else name: table for name, table in document.items()}


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"The config file {path} cannot be read ({error.strerror}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"The config file {path} is not valid TOML: {error}.") from None


def _table(
    where: str, command: str, table: dict[str, Any], options: dict[str, Option]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name == "thresholds" and "threshold" in options:
            values[name] = _threshold_table(where, command, value)
            continue
        if name not in options:
            raise InputError(f"{where} has no option {key!r}{hint_at(name, options)}")
        if name in values:
            raise InputError(f"{where} sets {name} twice, with a hyphen and without; keep one.")
        values[name] = _converted(f"{where} {key}", options[name], value)
    return values


def _converted(where: str, option: Option, value: Any) -> Any:
    if isinstance(value, list) and option.repeatable:
        return [_single(where, option.kind, item) for item in value]
    if isinstance(value, list) and option.listed:
        return ",".join(str(_listed(where, item)) for item in value)
    if option.parts:
        return _several(where, option.parts, value)
    single = _single(where, option.kind, value)
    return [single] if option.repeatable else single


def _several(where: str, kinds: tuple[type, ...], value: Any) -> tuple[Any, ...]:
    """Return a list of fixed length as the command's function takes it."""
    if not isinstance(value, list) or len(value) != len(kinds):
        wanted = ", ".join(_KINDS[kind] for kind in kinds)
        raise InputError(f"{where} must be a list of {len(kinds)} ({wanted}), not {_shown(value)}.")
    return tuple(_single(where, kind, item) for kind, item in zip(kinds, value, strict=True))


def _listed(where: str, item: Any) -> Any:
    if isinstance(item, str | int | float) and not isinstance(item, bool):
        return item
    raise InputError(f"{where} must be a list of numbers or strings; {_shown(item)} is neither.")


def _single(where: str, kind: type, value: Any) -> Any:
    """Return the value as the command's function takes it; enumerations stay strings."""
    if issubclass(kind, enum.Enum):
        return _choice(where, kind, value)
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if kind is Path and type(value) is str and value and "\0" not in value:
        return Path(value)
    if kind in (bool, int, str) and type(value) is kind:
        return value
    raise InputError(f"{where} must be {_KINDS[kind]}, not {_shown(value)}.")


def _choice(where: str, kind: type[enum.Enum], value: Any) -> str:
    names = [str(member.value) for member in kind]
    if value in names:
        return str(value)
    raise InputError(f"{where} must be one of {', '.join(names)}, not {_shown(value)}.")


def _shown(value: Any) -> str:
    """Write a value much as the file has it, but short."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def thresholds_of(command: str) -> Any:
    """Return the class that checks a command's thresholds: a dataclass with ``parse``; or None."""
    return getattr(headscope, THRESHOLDS[command][0]) if command in THRESHOLDS else None


def _threshold_table(where: str, command: str, table: Any) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise InputError(f"{where} thresholds must be a table, written [{command}.thresholds].")
    for name, value in table.items():
        if not isinstance(value, bool | int | float):
            raise InputError(
                f"{where} threshold {name} must be a number or true or false, not {_shown(value)}."
            )
    kind = thresholds_of(command)
    if kind is not None:
        try:
            kind.parse(table)
        except InputError as error:
            raise InputError(f"{where} thresholds: {error}") from None
    return dict(table)


def _limits(settings: Settings) -> Limits:
    from headscope.reports.limits import Limits

    where = f"{settings.path}: [limits]" if settings.path else "[limits]"
    return Limits.parse(settings.limits, where)


def given(context: typer.Context, command: str) -> dict[str, Any]:
    """Return what the file sets for a command, by parameter name."""
    return dict(_current(context).tables.get(command, {}))


def limits(context: typer.Context) -> Limits:
    """Return the limits of the file; none without."""
    return _limits(_current(context))


def _current(context: typer.Context) -> Settings:
    found: Settings = context.meta.get(_META) or Settings()
    return found
