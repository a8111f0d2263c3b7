"""From an options class to typer's parameters, and from their values to Python's arguments.

The same way leads from a table of a config file, and from those of a report's sections.
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
from headscope.cli.settings import given, options_by_command
from headscope.core.errors import InputError
from headscope.core.options import Declared, options_of
from headscope.session.options import ordered


def parameters_of(kind: type) -> list[inspect.Parameter]:
    """Return the parameters of a typer command for a class of options."""
    found = []
    for option in ordered(kind).values():
        if option.marker.spelled is not None:
            found += parameters_of(option.marker.spelled)
        elif not option.marker.python_only:
            found.append(_parameter(option))
    return found


def _parameter(option: Declared) -> inspect.Parameter:
    marker = option.marker
    kind, default = _on_command_line(option)
    if marker.argument:
        kind = typing.get_args(kind)[0] if default is None else kind
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
    return inspect.Parameter(
        option.spelled_as,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind, extra],
        default=default,
    )


def _on_command_line(option: Declared) -> tuple[Any, Any]:
    """Return the type and the default that an option has on the command line."""
    marker, default = option.marker, option.default
    kind: Any = option.kind
    if option.inverted:
        return bool, False
    if marker.kind is not None:
        kind = marker.kind
    elif marker.read is not None:
        return str | None, None
    else:
        several = typing.get_origin(kind) is collections.abc.Sequence
        parts = typing.get_args(kind)
        if marker.choices:
            names = _choice(marker.choices)
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


def _choice(names: tuple[str, ...]) -> Any:
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
    found: dict[str, Any] = {}
    for option in options_of(kind).values():
        marker = option.marker
        if marker.spelled is not None:
            inner = _plain_arguments(marker.spelled, values)
            set_here = {name: value for name, value in inner.items() if value is not False}
            if len(set_here) > 1:
                raise UsageError(*set_here)
            if set_here:
                found[option.name] = marker.spelled(**set_here).value()
            continue
        value = values.get(option.spelled_as)
        if value is None or marker.python_only:
            continue
        found[option.name] = _in_python(option, value)
    return found


def _in_python(option: Declared, value: Any) -> Any:
    marker = option.marker
    if option.inverted:
        return not value
    if marker.read is not None:
        try:
            return marker.read(value)
        except ValueError as error:
            raise UsageError(option.spelled_as, why=str(error)) from None
    if isinstance(value, list):
        return [getattr(item, "value", item) for item in value]
    value = getattr(value, "value", value) if isinstance(value, enum.Enum) else value
    return marker.choices.index(value) == 1 if marker.choices and option.kind is bool else value


def arguments_of(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn values into arguments, the thresholds and the saved state among them."""
    found, every = _plain_arguments(kind, values), options_of(kind)
    thresholds = every.get("thresholds")
    if thresholds is not None and thresholds.marker.thresholds:
        found.pop("thresholds", None)
        table, flags = values.get("thresholds") or {}, values.get("threshold") or []
        if table or flags:
            from headscope.core.thresholds import parse_pairs

            pairs = parse_pairs(flags, example=thresholds.marker.example)
            kind_of = getattr(headscope, thresholds.marker.thresholds)
            found["thresholds"] = kind_of.parse({**table, **pairs})
    output = values.get("output")
    if output is None and values.get("resume"):
        raise InputError("There is nothing to resume from: name the folder of the run (-o DIR).")
    if output is not None and "state" in every and "resume" in values:
        from headscope.reports.files import state_name

        found["state"] = output / state_name(kind.__name__.removesuffix("Options").lower())
    return found


#: Options that a report sets for all its sections at once, or that keep something.
_FOR_ALL_SECTIONS = {
    *("output", "device", "revision", "allow_pickle", "no_validate", "pooling"),
    *("resume", "save", "save_dense", "benchmark", "standalone", "export", "quantize"),
}
_INPUTS = ("treebank", "text", "limit")  # What a command on several sections measures them on.


def table_arguments(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a table of a config file into arguments."""
    options: type = getattr(headscope, name).options
    try:
        return arguments_of(options, table)
    except UsageError as slip:
        raise slip.in_table(name) from None


def section_settings(
    context: typer.Context, sections: Iterable[str], flags: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return each section's arguments: what its table in the config file sets, then the flags.

    Of the flags ``treebank``, ``text`` and ``limit`` count, for every section that is measured on a
    text and has them.
    """
    known, found = options_by_command(context), {}
    inputs = {name: flags[name] for name in _INPUTS if flags[name] is not None}
    for name in sections:
        # What depth measures falls below the rounding of float32: it alone has a type of its own.
        common = _FOR_ALL_SECTIONS | (set() if name == "depth" else {"dtype"})
        table = {key: value for key, value in given(context, name).items() if key not in common}
        if "text" in known[name]:
            table = _overlaid(table, {key: v for key, v in inputs.items() if key in known[name]})
        found[name] = table_arguments(name, table)
    return found


def _overlaid(table: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """Lay flags over a table; a treebank takes the place of a text, and the other way round."""
    if "treebank" in flags:
        flags = {name: value for name, value in flags.items() if name != "text"}
    if flags.keys() & {"treebank", "text"}:
        table = {name: v for name, v in table.items() if name not in ("treebank", "text")}
    return table | flags
