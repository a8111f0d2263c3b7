"""What a TOML file sets: every table checked against the commands' flags, and converted.

:func:`read_settings` reads a file such as::

    [classify]
    limit = 200

    [classify.thresholds]
    positional = 0.8

The table of the command that runs sets the defaults of its flags (:func:`set_flag_defaults`). A
``report`` runs several commands, its sections: their tables become their options
(:func:`section_settings`). ``context.meta`` is typer's own dictionary for what belongs to one run.
"""

from __future__ import annotations

import inspect
import json
import math
import tomllib
import types
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
from headscope.core.files import no_text_in
from headscope.core.options import OptionError, ThresholdSet, options_of

if typing.TYPE_CHECKING:
    from headscope.reports.limits import Limits

LIMITS = "limits"  # The table that belongs to no command
#: Config files that come with headscope, by the name that ``--config`` takes.
PACKAGED = {
    path.stem: path for path in sorted((Path(headscope.__file__).parent / "configs").glob("*.toml"))
}
_META = "headscope.settings"  # Where ``context.meta`` holds the settings of this run
#: What errors call a value of each type.
_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Path: "a string, the path",
}


@dataclass(frozen=True)
class Flag:
    """A flag of a command, or an argument, as its signature has it."""

    name: str  # Such as ``no_validate``
    kind: type  # bool, int, float, str or Path
    repeatable: bool  # Whether it may be given several times, and holds a list
    choices: tuple[str, ...]  # The words that it takes; empty where it takes any
    default: Any
    required: bool
    help: str
    metavar: str

    @property
    def comma_separated(self) -> bool:
        """Whether its string is a list of values, such as ``png,svg``; TOML may write a list."""
        return "," in self.metavar and not self.repeatable

    @property
    def takes_number(self) -> bool:
        """Whether its string may be a number, which TOML may then write without quotes."""
        return "NUMBER" in self.metavar


def flags_of(command: Callable[..., None]) -> dict[str, Flag]:
    """Return what a config file may set of a typer command, by name."""
    flags: dict[str, Flag] = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if name in ("context", "config"):
            continue
        hint, option = typing.get_args(parameter.annotation)  # Annotated[int, typer.Option(...)]
        if isinstance(hint, types.UnionType):  # such as ``int | None``
            hint = typing.get_args(hint)[0]
        repeatable = typing.get_origin(hint) is list
        kind = typing.get_args(hint)[0] if repeatable else hint
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
    """A config file, checked: its values, as the commands take them; without a file, none."""

    path: Path | None = None  # As the user wrote it: a file, or a name of PACKAGED
    #: Values by command and flag; ``thresholds`` is a table within that of its command.
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)  # The table [limits] as written


def hint_at(name: str, known: Iterable[str], form: str = "{!r}") -> str:
    """Return ``; did you mean 'NAME'?`` if a known name is near, else an empty string."""
    hint = did_you_mean(name, known, form)
    return f"; {hint}" if hint else ""


def options_by_command(context: typer.Context) -> dict[str, dict[str, Flag]]:
    """Return what a config file may set, by command and flag; of groups of commands, nothing."""
    root: Any = context.find_root().command
    commands = {name: root.get_command(context, name) for name in root.list_commands(context)}
    return {
        name: flags_of(command.callback)
        for name, command in commands.items()
        if not hasattr(command, "commands")  # it is no group
    }


def read_settings(path: Path | None, context: typer.Context) -> Settings:
    """Read a file, check all of it, whichever command runs, and keep it for this run."""
    settings = Settings() if path is None else _read_file(path, options_by_command(context))
    context.meta[_META] = settings
    return settings


def thresholds_of(command: str) -> type[ThresholdSet]:
    """Return the class of a command's thresholds, such as ``headscope.Thresholds``."""
    marker = options_of(COMMANDS[command].options)["thresholds"].marker
    kind: type[ThresholdSet] = getattr(headscope, marker.thresholds)
    return kind


def set_flag_defaults(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's values the defaults of the flags of the command that runs.

    Thresholds, a table of their own, are read where the options are built.
    """
    table = read_settings(path, context).tables.get(context.info_name or "", {})
    defaults = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in table.items()
        if name != "thresholds"
    }
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


#: What ``--config`` takes.
CONFIG_HELP = f"TOML file with a table per command, or {', '.join(PACKAGED)}"
#: The option of every command that reads a config file; read before all others.
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help=f"{CONFIG_HELP}; flags win over it.",
        hidden=True,
        callback=set_flag_defaults,
        is_eager=True,
    ),
]


def _read_file(path: Path, commands: dict[str, dict[str, Flag]]) -> Settings:
    """Read a config file; refuse unknown tables and flags, and values of another type.

    A name of ``PACKAGED`` is read from the package, unless a file of that name is here.
    """
    source = path if path.is_file() else PACKAGED.get(str(path), path)
    try:
        document = tomllib.loads(source.read_text(encoding="utf-8-sig"))
    except OSError as error:
        hint = hint_at(path.stem, PACKAGED) or f"; by name there are {', '.join(PACKAGED)}."
        message = f"The config file {path} cannot be read ({error.strerror}){hint}"
        raise InputError(message) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        what = no_text_in(path) or f"not valid TOML: {error}"
        raise InputError(f"The config file {path} is {what}.") from None
    for name, table in document.items():
        if name not in commands and name != LIMITS:
            hint = hint_at(name, [*commands, LIMITS], "[{}]")
            raise InputError(f"{path}: there is no command {name!r} to configure{hint}")
        if not isinstance(table, dict):
            raise InputError(f"{path}: {name} must be a table, written [{name}].")
    limits = document.pop(LIMITS, {})
    tables = {
        name: _converted_table(f"{path}: [{name}]", name, table, commands[name])
        for name, table in document.items()
    }
    settings = Settings(path, tables, limits)
    _parse_limits(settings)  # raises if they are wrong
    return settings


def _converted_table(
    where: str, command: str, table: dict[str, Any], flags: dict[str, Flag]
) -> dict[str, Any]:
    """Return a command's table with the values as its flags take them; errors begin ``where``."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name == "thresholds" and "threshold" in flags:
            if not isinstance(value, dict):
                raise InputError(
                    f"{where} thresholds must be a table, written [{command}.thresholds]."
                )
            try:
                thresholds_of(command).parse(value)
            except InputError as error:
                raise InputError(f"{where} thresholds: {error}") from None
            values[name] = dict(value)
        elif name not in flags:
            raise InputError(f"{where} has no option {key!r}{hint_at(name, flags)}")
        elif name in values:
            raise InputError(f"{where} sets {name} twice, with a hyphen and without; keep one.")
        else:
            values[name] = _converted(f"{where} {key}", flags[name], value)
    return values


def _converted(where: str, flag: Flag, value: Any) -> Any:
    """Return a value as its flag takes it: for a repeatable flag, a list.

    Where the flag is ``--figures png,svg``, the file may have ["png", "svg"].
    """
    if isinstance(value, list) and flag.comma_separated:
        for item in value:
            if not isinstance(item, str | int | float) or isinstance(item, bool):
                raise InputError(
                    f"{where} must be a list of numbers or strings; {_shown(item)} is neither."
                )
        return ",".join(map(str, value))
    if flag.repeatable:
        items = value if isinstance(value, list) else [value]
        return [_single(where, flag, item) for item in items]
    if flag.takes_number and type(value) is int:
        return str(value)
    return _single(where, flag, value)


def _single(where: str, flag: Flag, value: Any) -> Any:
    """Return a single value as its flag takes it; refuse one of another type."""
    # Types are compared exactly: True is an int in Python, and must not pass for 1.
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


def _parse_limits(settings: Settings) -> Limits:
    """Read the table [limits]; raise InputError where it is wrong."""
    from headscope.reports.limits import Limits

    where = f"{settings.path}: [limits]" if settings.path else "[limits]"
    return Limits.parse(settings.limits, where)


def table_of(context: typer.Context, command: str) -> dict[str, Any]:
    """Return what the file sets for a command, by flag."""
    settings: Settings = context.meta.get(_META) or Settings()
    return dict(settings.tables.get(command, {}))


def limits_of(context: typer.Context) -> Limits:
    """Return the limits that the file sets; none without a file."""
    return _parse_limits(context.meta.get(_META) or Settings())


def table_arguments(command: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a command's table into the arguments of its class of options."""
    try:
        return arguments_of(COMMANDS[command].options, table)
    except OptionError as error:
        raise InputError(f"[{command}] {error}") from None


#: Flags that tables of a report's sections may not set: the report sets them for all sections at
#: once, or they save something.
_SET_BY_REPORT = {
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
    """Return the arguments of each section: what its table sets, under the report's own flags.

    The flags ``treebank``, ``text`` and ``limit`` of a report go to each section that is measured
    on a text and has them. A treebank there replaces a text of the table, and the other way round.
    """
    flags_by_command = options_by_command(context)
    inputs = {  # what the report's own flags set of these three
        name: flags[name] for name in ("treebank", "text", "limit") if flags[name] is not None
    }
    settings = {}
    for section in sections:
        section_flags = flags_by_command[section]
        table = table_of(context, section)
        for name in _SET_BY_REPORT:
            table.pop(name, None)
        # The same holds for the dtype, but of depth, whose numbers fall below float32's rounding.
        if section != "depth":
            table.pop("dtype", None)
        if "text" in section_flags:
            section_inputs = {name: v for name, v in inputs.items() if name in section_flags}
            if "sequences" in section_flags:  # windows of tokens, cut from all of the text
                section_inputs.pop("limit", None)
            if "treebank" in section_inputs:
                section_inputs.pop("text", None)
            if "treebank" in section_inputs or "text" in section_inputs:
                table.pop("treebank", None)
                table.pop("text", None)
            table |= section_inputs
        settings[section] = table_arguments(section, table)
    return settings
