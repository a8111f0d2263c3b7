"""What a TOML file sets: every table checked against the commands' flags, and converted."""

from __future__ import annotations

import inspect
import json
import math
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

import headscope
from headscope.cli.flags import Choice, arguments_of
from headscope.commands import COMMANDS
from headscope.core.errors import InputError, did_you_mean, nearest
from headscope.core.options import OptionError, ThresholdSet, options_of

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
class Flag:
    """An option of a command, as its signature has it."""

    name: str  # Such as ``no_validate``
    kind: type  # bool, int, float, str or Path
    repeatable: bool  # Holds a list
    choices: tuple[str, ...]  # The words that it takes; empty where it takes any
    default: Any
    required: bool
    help: str
    metavar: str

    @property
    def listed(self) -> bool:
        """Whether it holds a string of comma-separated values."""
        return "," in self.metavar and not self.repeatable

    @property
    def numbered(self) -> bool:
        """Whether its string may be written as a number."""
        return "NUMBER" in self.metavar


def flags_of(command: Callable[..., None]) -> dict[str, Flag]:
    """Return what a config file may set of a typer command, by name."""
    flags: dict[str, Flag] = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if name in ("context", "config"):
            continue
        hint, option = typing.get_args(parameter.annotation)
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        repeatable = typing.get_origin(hint) is list or (
            bool(kinds) and typing.get_origin(kinds[0]) is list
        )
        kind = kinds[0] if kinds else hint
        if typing.get_origin(kind) is list:
            (kind,) = typing.get_args(kind)
        required = parameter.default is inspect.Parameter.empty
        flags[name] = Flag(
            name=name,
            kind=kind,
            repeatable=repeatable,
            choices=option.parser.names if isinstance(option.parser, Choice) else (),
            default=None if required else parameter.default,
            required=required,
            help=option.help or "",
            metavar=option.metavar or "",
        )
    return flags


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
    """Return what a config file may set, by command and flag; groups of commands have nothing."""
    group: Any = context.find_root().command
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {
        name: flags_of(command.callback)
        for name, command in commands.items()
        if not hasattr(command, "commands")
    }


def read_settings(path: Path | None, context: typer.Context) -> Settings:
    """Read a file and check all of it, whatever the command that runs."""
    settings = Settings() if path is None else _checked(path, options_by_command(context))
    context.meta[_META] = settings
    return settings


def thresholds_of(command: str) -> type[ThresholdSet]:
    """Return the class of a command's thresholds."""
    marker = options_of(COMMANDS[command].options)["thresholds"].marker
    kind: type[ThresholdSet] = getattr(headscope, marker.thresholds)
    return kind


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


#: The option of every command that reads a config file; read before all others.
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="TOML file with a table per command; flags win over it.",
        hidden=True,
        callback=lay_under_flags,
        is_eager=True,
    ),
]


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
        return [_single(where, flag, item) for item in items]
    if flag.numbered and type(value) is int:
        return str(value)
    return _single(where, flag, value)


def _single(where: str, flag: Flag, value: Any) -> Any:
    """Return one value as the command takes it."""
    kind = flag.kind
    if flag.choices:
        if value in flag.choices:
            return value
        hint = nearest(str(value), flag.choices, "choose from")
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
        return arguments_of(COMMANDS[name].options, table)
    except OptionError as error:
        raise InputError(f"[{name}] {error}") from None


#: Options that a report sets for all its sections at once, or that save something.
_FOR_ALL_SECTIONS = {
    "figures",
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
