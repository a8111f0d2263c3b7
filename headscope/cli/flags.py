"""From a class of options to the flags of a command, and from what they were given to arguments.

The signature that typer reads is made here, field by field; a config file is checked against that
same signature.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import headscope
from headscope.core.errors import did_you_mean
from headscope.core.options import (
    Declared,
    Option,
    OptionError,
    ThresholdSet,
    Usual,
    options_of,
    parse_pairs,
)
from headscope.session.options import ordered
from headscope.show.style import FORMATS

FIGURES = "Figures"  # Heading in the help.
MODEL_HELP = "A model folder, a hub id, or 'demo' for all-MiniLM-L6-v2."
#: Longest choices, in characters, in the column of types; longer ones follow the help
_LONGEST_CHOICES = 14
_FORMAT = Usual(help="What goes to stdout.", choices=("human", "json", "csv"))


@dataclass(frozen=True)
class ModelFlag:
    """The model that a command measures; the command's options come after it."""

    model: Annotated[
        str,
        Option(help=MODEL_HELP, metavar="MODEL", argument=True),
    ]


@dataclass(frozen=True)
class OptionalModelFlag:
    """The model of a command that may find out by itself which one is meant."""

    model: Annotated[
        str, Option(help=MODEL_HELP, metavar="[MODEL]", argument=True, required=False)
    ] = ""


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


@dataclass(frozen=True, kw_only=True)
class CommonFlags:
    """What every command on a model has."""

    format: Annotated[str, _FORMAT] = "human"
    verbose: Annotated[
        bool,
        Usual(help="Print the tables behind the answer, too.", flags=("--verbose", "-v")),
    ] = False
    quiet: Annotated[
        bool, Option(help="No progress bar, no messages.", flags=("--quiet", "-q"))
    ] = False
    debug: Annotated[bool, Option(help="Show tracebacks.", flags=("--debug",))] = False


#: Options of commands that measure nothing, which are plain functions of typer.
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.", metavar="", hidden=True)]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No progress bar, no messages.", metavar="", hidden=True),
]

Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Print the tables behind the answer, too.", metavar=""),
]


class Choice:
    """Reads a word of the command line that has to be one of some names."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        #: What the help shows in place of a word: the names, where they are short
        self.metavar = f"[{'|'.join(names)}]"
        self.is_short = len(self.metavar) <= _LONGEST_CHOICES
        if not self.is_short:
            self.metavar = "NAME"

    def __call__(self, word: str) -> str:
        """Return the word; refuse one that is no name."""
        if word not in self.names:
            hint = did_you_mean(word, self.names).capitalize()
            raise typer.BadParameter(
                f"there is no {word!r}; choose from {', '.join(self.names)}. {hint}".strip()
            )
        return word


def chosen_format(*names: str) -> Any:
    """Return the option ``--format`` of a command that prints its result in one of these."""
    choice = Choice(names)
    words = "What goes to stdout."
    if not choice.is_short:
        words = f"{words} One of {', '.join(names)}."
    return typer.Option(help=words, metavar=choice.metavar, parser=choice)


def parameters_of(*kinds: type) -> dict[str, inspect.Parameter]:
    """Return the parameters of a typer command, by name: the options of some classes, as flags.

    Of equal names that of the first class counts.
    """
    parameters: dict[str, inspect.Parameter] = {}
    for kind in kinds:
        for option in ordered(kind).values():
            if option.marker.spelled is not None:
                parameters = {**parameters, **parameters_of(option.marker.spelled)}
            elif not option.marker.python_only:
                parameters.setdefault(option.spelled_as, _parameter(option))
    return parameters


def _parameter(option: Declared) -> inspect.Parameter:
    """Return one option as the parameter that typer makes a flag, or an argument, of."""
    marker = option.marker
    required = marker.argument and marker.required
    hint, default = _type_and_default(option)
    choice = Choice(marker.choices) if marker.choices else None
    words = marker.help
    metavar = marker.metavar
    if hint is bool:
        metavar = ""  # a switch takes no value
    elif choice is not None and metavar is None:
        metavar = choice.metavar
        if not choice.is_short:
            words = f"{marker.help} One of {', '.join(marker.choices)}."
    if default is None and not required:
        hint = hint | None
    flag: Any
    if marker.argument:
        flag = typer.Argument(metavar=metavar, help=words, show_default=False, parser=choice)
    else:
        flag = typer.Option(
            *marker.flags,
            help=words,
            metavar=metavar,
            hidden=not isinstance(marker, Usual),
            show_default=hint is not bool or bool(default),
            rich_help_panel=marker.panel,
            file_okay=not marker.folder,
            parser=choice,
        )
    return inspect.Parameter(
        option.spelled_as,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[hint, flag],
        default=inspect.Parameter.empty if required else default,
    )


def _type_and_default(option: Declared) -> tuple[Any, Any]:
    """Return what an option is on the command line: its type, and its default."""
    marker = option.marker
    if option.inverted:
        return bool, False
    if marker.read is not None and marker.kind is None:
        return str, None  # the text that ``read`` reads
    hint = marker.kind or option.kind
    default = option.default
    several = typing.get_origin(hint) in (list, collections.abc.Sequence)
    if several:
        (hint,) = typing.get_args(hint)
    elif Path in typing.get_args(hint):
        hint = Path  # str | Path
    if marker.choices and hint is bool:
        hint = str
        default = marker.choices[default]
    return (types.GenericAlias(list, hint) if several else hint), default


def arguments_of(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn values of the command line, or of a table of a config file, into arguments in Python.

    A value that is None is left out: the class has its default.
    """
    arguments: dict[str, Any] = {}
    for name, option in options_of(kind).items():
        if option.marker.spelled is not None:
            value = _spelled(option.marker.spelled, values)
        elif option.marker.thresholds:
            value = _thresholds(option, values)
        elif option.marker.python_only:
            value = None
        else:
            value = _in_python(option, values.get(option.spelled_as))
        if value is not None:
            arguments[name] = value
    return arguments


def _in_python(option: Declared, value: Any) -> Any:
    """Turn what was given for one option into its value in Python; None where nothing was."""
    if value is None:
        return None
    if option.inverted:
        return not value
    if option.marker.read is not None:
        try:
            return option.marker.read(value)
        except ValueError as error:
            raise OptionError(f"${option.spelled_as} cannot be read: {error}.") from None
    if option.marker.choices and option.kind is bool:
        return option.marker.choices.index(value) == 1
    return value


def _spelled(kind: type, values: Mapping[str, Any]) -> Any:
    """Return the value of an option that has several flags, of which one may be given."""
    arguments = arguments_of(kind, values)
    set_flags = {name: value for name, value in arguments.items() if value is not False}
    if len(set_flags) > 1:
        first, second = set_flags
        raise OptionError(f"${first} does not go with ${second}; give one of them.")
    return kind(**set_flags).value() if set_flags else None


def _thresholds(option: Declared, values: Mapping[str, Any]) -> ThresholdSet | None:
    """Read thresholds: a table of a config file, under NAME=VALUE of the command line."""
    table = values.get("thresholds") or {}
    pairs = parse_pairs(values.get(option.spelled_as) or [], example=option.marker.example)
    if not table and not pairs:
        return None
    thresholds: type[ThresholdSet] = getattr(headscope, option.marker.thresholds)
    return thresholds.parse({**table, **pairs})


def flag_of(kind: type, name: str) -> str:
    """Spell the name of an option as the command line does: ``--no-validate`` for ``validate``."""
    option = options_of(kind).get(name)
    if option is not None and option.marker.argument:
        return option.marker.metavar or name.upper()
    spelled = name if option is None else option.spelled_as
    return f"--{spelled.replace('_', '-')}"


def figure_formats(text: str) -> tuple[str, ...]:
    """Read the kinds of figure files: ``png,svg``, or ``none``."""
    if text.strip() == "none":
        return ()
    formats = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in formats:
        if name not in FORMATS:
            raise OptionError(
                f"$figures has no kind {name!r}; choose from {', '.join(FORMATS)}, or none."
            )
    return formats


def epilog_of(examples: Sequence[str]) -> str:
    """Return the examples at the end of a command's help."""
    if len(examples) == 1:
        return f"Example: `{examples[0]}`"
    lines = "  \n".join(f"`{line}`" for line in examples)
    return f"Examples:\n\n{lines}"
