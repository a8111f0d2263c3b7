"""From an options class to typer's parameters, and from their values to Python's arguments.

Tables of a config file, and those of a report's sections, are converted in the same way.
"""

from __future__ import annotations

import collections.abc
import enum
import inspect
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import headscope
from headscope.cli.settings import options_by_command, table_of, thresholds_of
from headscope.core.errors import InputError
from headscope.core.options import Declared, options_of
from headscope.session.options import ordered


def parameters_of(kind: type) -> list[inspect.Parameter]:
    """Return the parameters of a typer command for a class of options."""
    parameters = []
    for option in ordered(kind).values():
        marker = option.marker
        if marker.spelled is not None:
            parameters += parameters_of(marker.spelled)
            continue
        if marker.python_only:
            continue
        hint, default = _on_command_line(option)
        extra: Any
        if marker.argument:
            if marker.required:
                hint = typing.get_args(hint)[0] if default is None else hint
                default = inspect.Parameter.empty
            extra = typer.Argument(metavar=marker.metavar, help=marker.help, show_default=False)
        else:
            extra = typer.Option(
                *marker.flags,
                help=marker.help,
                metavar=marker.metavar,
                rich_help_panel=marker.panel,
                file_okay=not marker.folder,
            )
        parameters.append(
            inspect.Parameter(
                option.spelled_as,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[hint, extra],
                default=default,
            )
        )
    return parameters


def _on_command_line(option: Declared) -> tuple[Any, Any]:
    """Return the type and the default that an option has on the command line."""
    marker, default = option.marker, option.default
    kind: Any = option.kind
    if option.inverted:
        return bool, False
    if marker.read is not None and marker.kind is None:
        return str | None, None
    if marker.kind is not None:
        kind = marker.kind
    else:
        several = typing.get_origin(kind) is collections.abc.Sequence
        parts = typing.get_args(kind)
        if marker.choices:
            names: Any = _choice_of(marker.choices)
            if default is not None:
                default = names(marker.choices[default] if kind is bool else default)
            kind = names
        elif several:
            kind = parts[0]
        elif Path in parts:
            kind = Path
        if several:
            kind = types.GenericAlias(list, kind)
    return (kind | None if default is None else kind), default


def _choice_of(names: tuple[str, ...]) -> Any:
    """Return an enumeration of names, as typer takes it."""
    return enum.StrEnum("Choice", {name: name for name in names})


class UsageError(Exception):
    """One option whose value cannot be read, and why; or two of which only one may be given.

    Whoever reads options says where they stand: on the command line or in a table.
    """

    def __init__(self, *options: str, why: str = "") -> None:
        super().__init__(*options, why)
        self.options, self.why = options, why

    def on_command_line(self) -> typer.BadParameter:
        """Return it as a usage error that names the flags."""
        flags = [f"--{option.replace('_', '-')}" for option in self.options]
        if self.why:
            return typer.BadParameter(self.why, param_hint=f"'{flags[0]}'")
        return typer.BadParameter(f"give {' or '.join(flags)}, not both")

    def in_table(self, name: str) -> InputError:
        """Return it as a known failure that names the table of the config file."""
        if self.why:
            return InputError(f"[{name}] {self.options[0]}: {self.why}.")
        return InputError(f"[{name}] sets {' and '.join(self.options)}; give one of them.")


def _plain_arguments(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn values of the command line, or of a table, into arguments in Python.

    A value that is None is left out: the class has its default.
    """
    arguments: dict[str, Any] = {}
    for name, option in options_of(kind).items():
        marker, value = option.marker, values.get(option.spelled_as)
        if marker.spelled is not None:
            inner = _plain_arguments(marker.spelled, values)
            set_here = {name: value for name, value in inner.items() if value is not False}
            if len(set_here) > 1:
                raise UsageError(*set_here)
            if set_here:
                arguments[name] = marker.spelled(**set_here).value()
        elif value is None or marker.python_only:
            continue
        elif option.inverted:
            arguments[name] = not value
        elif marker.read is not None:
            try:
                arguments[name] = marker.read(value)
            except ValueError as error:
                raise UsageError(option.spelled_as, why=str(error)) from None
        elif isinstance(value, list):
            arguments[name] = [getattr(item, "value", item) for item in value]
        else:
            value = getattr(value, "value", value) if isinstance(value, enum.Enum) else value
            named_bool = marker.choices and option.kind is bool
            arguments[name] = marker.choices.index(value) == 1 if named_bool else value
    return arguments


def arguments_of(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn values into arguments, the thresholds and the saved state among them."""
    arguments, declared = _plain_arguments(kind, values), options_of(kind)
    command = kind.__name__.removesuffix("Options").lower()
    thresholds = declared.get("thresholds")
    if thresholds is not None and thresholds.marker.thresholds:
        arguments.pop("thresholds", None)
        table, flags = values.get("thresholds") or {}, values.get("threshold") or []
        if table or flags:
            from headscope.core.thresholds import parse_pairs

            pairs = parse_pairs(flags, example=thresholds.marker.example)
            arguments["thresholds"] = thresholds_of(command).parse({**table, **pairs})
    output = values.get("output")
    if output is None and values.get("resume"):
        raise InputError("There is nothing to resume from: name the folder of the run (-o DIR).")
    if output is not None and "state" in declared and "resume" in values:
        from headscope.reports.files import state_name

        arguments["state"] = output / state_name(command)
    return arguments


#: Options that a report sets for all its sections at once, or that save something.
_FOR_ALL_SECTIONS = {
    *(
        "figures",
        "figure_width",
        "no_titles",
        "output",
        "device",
        "revision",
        "no_validate",
        "pooling",
    ),
    *("resume", "save"),
}


def table_arguments(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a table of a config file into arguments."""
    try:
        return arguments_of(getattr(headscope, name).options, table)
    except UsageError as slip:
        raise slip.in_table(name) from None


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
