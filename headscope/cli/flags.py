"""From a class of options to the flags of a command, and from the flags' values to arguments.

:func:`parameters_of` goes one way: it makes, field by field, the signature that typer reads (a
config file is checked against the same signature). :func:`arguments_of` goes back: it turns what
the flags hold into the arguments that the class of options takes in Python. Above them are the
flags that all commands share.
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

FIGURES = "Figures"  # Heading in the help
MODEL_HELP = "A model folder, a hub id, or 'demo' for all-MiniLM-L6-v2."
#: ``[human|json]`` of at most so many characters stands in the help's column of types; a longer
#: list of choices is written out after the option's own sentence.
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
        str, Option(help=MODEL_HELP, metavar="MODEL", argument=True, required=False)
    ] = ""


@dataclass(frozen=True, kw_only=True)
class FolderFlags:
    """The flags of every command that writes a folder."""

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
    """The flags of every command on a model."""

    format: Annotated[str, _FORMAT] = "human"
    verbose: Annotated[
        bool,
        Usual(help="Print the tables behind the answer, too.", flags=("--verbose", "-v")),
    ] = False
    quiet: Annotated[
        bool, Option(help="No progress bar, no messages.", flags=("--quiet", "-q"))
    ] = False
    debug: Annotated[bool, Option(help="Show tracebacks.", flags=("--debug",))] = False


# The same for commands that measure nothing, which are plain functions of typer.
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
    """Typer's parser of a flag whose word has to be one of some names."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        in_brackets = f"[{'|'.join(names)}]"
        self.is_short = len(in_brackets) <= _LONGEST_CHOICES
        #: What the help shows in the column of types
        self.metavar = in_brackets if self.is_short else "NAME"

    def __call__(self, word: str) -> str:
        """Return the word; refuse one that is no name."""
        if word not in self.names:
            hint = did_you_mean(word, self.names).capitalize()
            raise typer.BadParameter(
                f"there is no {word!r}; choose from {', '.join(self.names)}. {hint}".strip()
            )
        return word


def chosen_format(*names: str) -> Any:
    """Return the option ``--format`` of a command that prints in one of these formats."""
    choice = Choice(names)
    words = "What goes to stdout."
    if not choice.is_short:
        words = f"{words} One of {', '.join(names)}."
    return typer.Option(help=words, metavar=choice.metavar, parser=choice)


def parameters_of(*kinds: type) -> dict[str, inspect.Parameter]:
    """Return the parameters of a typer command by name: the options of some classes, as flags.

    Where two classes have an option of the same name, the first class's is taken.
    """
    parameters: dict[str, inspect.Parameter] = {}
    for kind in kinds:
        for option in ordered(kind).values():
            if option.marker.flag_class is not None:
                parameters |= parameters_of(option.marker.flag_class)
            elif not option.marker.python_only:
                parameters.setdefault(option.spelled_as, _parameter(option))
    return parameters


def _parameter(option: Declared) -> inspect.Parameter:
    """Return one option as a parameter of which typer makes a flag, or an argument."""
    marker = option.marker
    required = marker.argument and marker.required
    hint, default = _type_and_default(option)
    choice = Choice(marker.choices) if marker.choices else None

    # What the help shows.
    help_text = marker.help
    metavar = marker.metavar
    if hint is bool:
        metavar = ""  # a switch takes no value
    elif choice is not None and metavar is None:
        metavar = choice.metavar
        if not choice.is_short:
            help_text = f"{marker.help} One of {', '.join(marker.choices)}."

    # The parameter.
    if default is None and not required:
        hint = hint | None
    flag: Any
    if marker.argument:
        flag = typer.Argument(metavar=metavar, help=help_text, show_default=False, parser=choice)
    else:
        flag = typer.Option(
            *marker.flags,
            help=help_text,
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
    """Return the type and the default that an option has on the command line."""
    marker = option.marker
    if option.inverted:  # a switch such as --no-validate
        return bool, False
    if marker.read is not None and marker.kind is None:
        return str, None  # the text that ``read`` reads
    hint = marker.kind or option.kind
    if typing.get_origin(hint) in (list, collections.abc.Sequence):
        (item,) = typing.get_args(hint)
        return types.GenericAlias(list, item), option.default
    if Path in typing.get_args(hint):
        return Path, option.default  # from str | Path
    if hint is bool and marker.choices:
        return str, marker.choices[option.default]
    return hint, option.default


def arguments_of(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn values of flags, or of a table of a config file, into arguments of a class of options.

    A value that is None is left out, and so the class's default holds.
    """
    arguments: dict[str, Any] = {}
    for name, option in options_of(kind).items():
        if option.marker.flag_class is not None:
            value = _from_flag_class(option.marker.flag_class, values)
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
    """Turn the value of one flag into that of its option in Python; None if it was not set."""
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


def _from_flag_class(flag_class: type, values: Mapping[str, Any]) -> Any:
    """Return the value of an option that has several flags, of which only one may be set."""
    arguments = arguments_of(flag_class, values)
    set_flags = {name: value for name, value in arguments.items() if value is not False}
    if len(set_flags) > 1:
        first, second = set_flags
        raise OptionError(f"${first} does not go with ${second}; give one of them.")
    return flag_class(**set_flags).value() if set_flags else None


def _thresholds(option: Declared, values: Mapping[str, Any]) -> ThresholdSet | None:
    """Read thresholds from a table of a config file; NAME=VALUE of the command line overrides."""
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
