"""From classes of options to flags of the command line and of files, and back to arguments.

A flag is made of each field once. The signature of a command, the tables of a config file, those of
a report's sections and ``config show`` all read these flags.
"""

from __future__ import annotations

import collections.abc
import enum
import functools
import inspect
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import headscope
from headscope.core.errors import InputError
from headscope.core.options import (
    Declared,
    Option,
    OptionError,
    ThresholdSet,
    Usual,
    options_of,
    parse_pairs,
)
from headscope.reports.registry import function_of
from headscope.session.options import ordered
from headscope.show.style import FORMATS, FigureStyle

FIGURES = "Figures"  # Heading in the help.
HELP_ALL = "--help-all"
_LONGEST = 12  # Longest choices, in characters, in the column of types; longer ones follow the help
#: Any command that prints a result.
FORMAT = Usual(help="What goes to stdout.", choices=("human", "json", "csv"))


@dataclass(frozen=True)
class ModelFlag:
    """The model that a command measures; the command's options come after it."""

    model: Annotated[
        str,
        Option(
            help="A model folder, a hub id, or 'demo' for all-MiniLM-L6-v2.",
            metavar="MODEL",
            argument=True,
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class FolderFlags:
    """What every command has that writes a folder."""

    output: Annotated[
        Path | None,
        Usual(help="Folder for JSON, CSV and figures.", flags=("--output", "-o"), folder=True),
    ] = None
    figures: Annotated[
        str,
        Option(
            help="Kinds of figure files: svg, pdf, png; or none.",
            metavar="KIND,KIND,...",
            panel=FIGURES,
        ),
    ] = "png,svg"
    figure_width: Annotated[
        str | None,
        Option(
            help="Width on paper: one column (3.3 inches) or a page (6.9); type of 8 points or "
            "more. Default: what shows each figure best.",
            choices=("column", "page"),
            panel=FIGURES,
        ),
    ] = None
    no_titles: Annotated[
        bool, Option(help="Leave titles to the caption.", flags=("--no-titles",), panel=FIGURES)
    ] = False


@dataclass(frozen=True, kw_only=True)
class CommonFlags:
    """What every command on a model has."""

    format: Annotated[str, FORMAT] = "human"
    config: Annotated[
        Path | None, Option(help="TOML file with a table per command; flags win over it.")
    ] = None
    dry_run: Annotated[
        bool, Option(help="Say what would be done; do not do it.", flags=("--dry-run",))
    ] = False
    verbose: Annotated[
        bool,
        Usual(help="Print the tables behind the answer, too.", flags=("--verbose", "-v")),
    ] = False
    quiet: Annotated[
        bool, Option(help="No progress bar, no messages.", flags=("--quiet", "-q"))
    ] = False
    debug: Annotated[bool, Option(help="Show tracebacks.", flags=("--debug",))] = False


@dataclass(frozen=True)
class Flag:
    """An option as the command line and config files have it."""

    name: str  # Such as ``no_validate``
    kind: Any  # bool, int, float, str, Path or an enumeration
    repeatable: bool  # Holds a list
    default: Any  # Of an enumeration its value
    marker: Option

    @property
    def required(self) -> bool:
        """Whether it has to be given."""
        return self.marker.argument and self.marker.required

    @property
    def listed(self) -> bool:
        """Whether it holds a string of comma-separated values."""
        return "," in (self.marker.metavar or "") and not self.repeatable

    @property
    def numbered(self) -> bool:
        """Whether its string may be written as a number."""
        return "NUMBER" in (self.marker.metavar or "")

    def parameter(self, **options: Any) -> inspect.Parameter:
        """Return the parameter of a typer command; ``options`` are further ones of typer."""
        marker = self.marker
        default = self.default
        hint: Any = types.GenericAlias(list, self.kind) if self.repeatable else self.kind
        if marker.choices and default is not None:
            default = self.kind(default)
        if default is None and not self.required:
            hint = hint | None
        extra: Any
        metavar = marker.metavar
        words = marker.help
        if self.kind is bool:
            metavar = ""  # a switch takes no value
        elif len("|".join(marker.choices)) > _LONGEST and metavar is None:
            metavar = "NAME"
            words = f"{words} One of {', '.join(marker.choices)}."
        if marker.argument:
            extra = typer.Argument(metavar=metavar, help=words, show_default=False)
        else:
            extra = typer.Option(
                *marker.flags,
                help=words,
                metavar=metavar,
                hidden=not isinstance(marker, Usual),
                show_default=self.kind is not bool or bool(default),
                rich_help_panel=marker.panel,
                file_okay=not marker.folder,
                **options,
            )
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[hint, extra],
            default=inspect.Parameter.empty if self.required else default,
        )


class HelpCommand(TyperCommand):
    """A command whose ``--help`` shows the usual options, and ``--help-all`` every one."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option that shows the help."""
        hidden = sum(getattr(param, "hidden", False) for param in self.params)
        more = f"; {HELP_ALL} shows {hidden} more options" if hidden else " and exit"
        return _switch(super().get_help_option(ctx), f"Show this message{more}.")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line."""
        ctx.meta[HELP_ALL] = HELP_ALL in args
        return super().parse_args(ctx, ["--help"] if HELP_ALL in args else args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help; of a switch that is off no flag that turns it off."""
        options: list[Any] = [param for param in self.params if hasattr(param, "hidden")]
        before = [(option.hidden, option.secondary_opts) for option in options]
        for option in options:
            option.hidden = option.hidden and not ctx.meta[HELP_ALL]
            option.secondary_opts = option.secondary_opts if option.default else []
        try:
            super().format_help(ctx, formatter)
        finally:  # a program may run several commands
            for option, (hidden, secondary) in zip(options, before, strict=True):
                option.hidden = hidden
                option.secondary_opts = secondary


class HelpGroup(TyperGroup):
    """A group of commands."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option that shows the help."""
        return _switch(super().get_help_option(ctx), "Show this message and exit.")


def _switch(option: Any, words: str) -> Any:
    """Say what the help option does; a switch has no type."""
    if option is not None:
        option.metavar = ""
        option.help = words
    return option


def flags_of(*kinds: type) -> dict[str, Flag]:
    """Return the flags of classes of options by name; of equal names that of the first class."""
    flags: dict[str, Flag] = {}
    for kind in kinds:
        for flag in _flags(kind):
            flags.setdefault(flag.name, flag)
    return flags


@functools.cache
def _flags(kind: type) -> tuple[Flag, ...]:
    flags: list[Flag] = []
    for option in ordered(kind).values():
        if option.marker.spelled is not None:
            flags += _flags(option.marker.spelled)
        elif not option.marker.python_only:
            flags.append(_flag(option))
    return tuple(flags)


def _flag(option: Declared) -> Flag:
    marker = option.marker
    default = option.default
    kind: Any = marker.kind or option.kind
    if marker.argument and marker.required:
        default = None
    if option.inverted:
        return Flag(option.spelled_as, bool, False, False, marker)
    if marker.read is not None and marker.kind is None:
        return Flag(option.spelled_as, str, False, None, marker)
    parts = typing.get_args(kind)
    repeatable = False
    if typing.get_origin(kind) in (list, collections.abc.Sequence):
        kind = parts[0]
        repeatable = True
    elif Path in parts:
        kind = Path
    if marker.choices:
        if kind is bool:
            default = marker.choices[default]
        enumeration: Any = enum.StrEnum  # mypy asks for names that it can read
        kind = enumeration("Choice", {name: name for name in marker.choices})
    return Flag(option.spelled_as, kind, repeatable, default, marker)


def style_of(values: Mapping[str, Any]) -> FigureStyle:
    """Return the figures' style that the flags ask for."""
    if "figures" not in values:
        return FigureStyle()
    kinds = tuple(dict.fromkeys(kind.strip() for kind in values["figures"].split(",")))
    kinds = () if kinds == ("none",) else kinds
    wrong = [kind for kind in kinds if kind not in FORMATS]
    if wrong:
        why = f"{wrong[0]!r} is no kind of figure; choose from {', '.join(FORMATS)}, or none"
        raise typer.BadParameter(why, param_hint="'--figures'")
    width = values["figure_width"]
    return FigureStyle(kinds, None if width is None else str(width), not values["no_titles"])


def plain_arguments(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn values of the command line, or of a table, into arguments in Python.

    A value that is None is left out: the class has its default.
    """
    arguments: dict[str, Any] = {}
    for name, option in options_of(kind).items():
        marker = option.marker
        value = values.get(option.spelled_as)
        if marker.spelled is not None:
            inner = plain_arguments(marker.spelled, values)
            set_here = {name: value for name, value in inner.items() if value is not False}
            if len(set_here) > 1:
                first, second = set_here
                raise OptionError(first, f"does not go with {second}; give one of them.")
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
                raise OptionError(option.spelled_as, f"cannot be read: {error}.") from None
        elif isinstance(value, list):
            arguments[name] = [getattr(item, "value", item) for item in value]
        else:
            value = getattr(value, "value", value) if isinstance(value, enum.Enum) else value
            named_bool = marker.choices and option.kind is bool
            arguments[name] = marker.choices.index(value) == 1 if named_bool else value
    return arguments


def thresholds_of(command: str) -> type[ThresholdSet]:
    """Return the class of a command's thresholds."""
    declared = options_of(function_of(command).options)["thresholds"]
    kind: type[ThresholdSet] = getattr(headscope, declared.marker.thresholds)
    return kind


def arguments_of(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn values into arguments, the thresholds and the saved state among them."""
    arguments = plain_arguments(kind, values)
    declared = options_of(kind)
    command = kind.__name__.removesuffix("Options").lower()
    thresholds = declared.get("thresholds")
    if thresholds is not None and thresholds.marker.thresholds:
        arguments.pop("thresholds", None)
        table = values.get("thresholds") or {}
        flags = values.get("threshold") or []
        if table or flags:
            pairs = parse_pairs(flags, example=thresholds.marker.example)
            arguments["thresholds"] = thresholds_of(command).parse({**table, **pairs})
    output = values.get("output")
    if output is None and values.get("resume"):
        raise InputError("There is nothing to resume from: name the folder of the run (-o DIR).")
    if output is not None and "state" in declared and "resume" in values:
        from headscope.reports.files import state_name

        arguments["state"] = output / state_name(command)
    return arguments
