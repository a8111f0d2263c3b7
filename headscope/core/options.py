"""An option, stated once: a field of a frozen dataclass, with its help and its bounds beside it.

From such a class come the signature in Python, the flags and help of the command line, the table of
a config file, and the checks: ``draws: Annotated[int, Option("Random sets.", at_least=5)] = 20``.
"""

from __future__ import annotations

import dataclasses
import math
import string
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from headscope.core.errors import WrongOptionError, nearest


class OptionError(WrongOptionError):
    """A value that an option does not take, or options that do not go together.

    In its sentence ``$name`` stands for the option of that name in Python; each interface spells it
    in its own way: ``validate``, ``--no-validate``. A dollar of a value is written twice.
    """

    def __init__(self, sentence: str) -> None:
        self._sentence = string.Template(sentence)
        super().__init__(self.spelled(str))

    def spelled(self, spell: Callable[[str], str]) -> str:
        """Return the sentence with the options' names as ``spell`` writes them."""
        names = {name: spell(name) for name in self._sentence.get_identifiers()}
        return self._sentence.safe_substitute(names)


@dataclass(frozen=True, kw_only=True)
class Option:
    """What a field's name, type and default do not say; goes into its ``Annotated[...]``."""

    help: str
    python_help: str = ""  # The help in Python, where a flag says the opposite.
    # Bounds of a number, and why: "fewer tell no spread".
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    why: str = ""
    unit: str = ""
    # The allowed values; for a bool, what False and True are called on the command line.
    choices: tuple[str, ...] = ()
    #: Python takes other values than the choices of the command line, such as ``cuda:1``.
    others: bool = False
    # How the command line spells it: ("--length", "-n"); "--no-validate" negates the value.
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    example: str = ""  # Shown in the error about a wrong threshold: ``positional=0.8``.
    thresholds: str = ""  # The class in ``headscope`` that checks thresholds.
    kind: Any = None  # The type on the command line, where the field's own does not say it.
    #: Reads the text of the command line; raises ValueError with a reason.
    read: Callable[[str], Any] | None = None
    #: Several flags for one option: a dataclass of options, of which one may be set, and that has
    #: ``value()``.
    spelled: type | None = None
    folder: bool = False  # A path that has to be a folder, where there is one.
    argument: bool = False  # An argument of the command line, not a flag.
    required: bool = True  # Whether the command line needs it, if it is an argument.
    panel: str | None = None  # Heading in the help of the command line; None for the common one.
    python_only: bool = False  # Whether the command line lacks it.
    #: Whether it says how a model is opened: a model that is in memory has no use for it.
    loading: bool = False

    def bounds(self) -> str:
        """Say what a number must be: ``1 or more``, ``a number between 0 and 1``."""
        if self.above is not None and self.below is not None and math.isfinite(self.below):
            return f"a number between {self.above:g} and {self.below:g}"
        unit = f" {self.unit}" if self.unit else ""
        words = [
            "" if self.at_least is None else f"{self.at_least}{unit} or more",
            "" if self.above is None else f"more than {self.above:g}",
            "" if self.at_most is None else f"at most {self.at_most}",
            "" if self.below is None else f"less than {self.below:g}".replace("inf", "infinity"),
        ]
        return " and ".join(filter(None, words))


class Usual(Option):
    """One of the ten options at most that ``--help`` shows; ``--help-all`` shows every option."""


@dataclass(frozen=True)
class Declared:
    """A field of an options class: its name, its type without None, its marker and its default."""

    name: str
    kind: Any
    marker: Option
    default: Any
    #: Its name on the command line and in a config file, such as ``no_validate``.
    spelled_as: str
    #: Whether its flag turns off what is on by default.
    inverted: bool

    def check(self, value: Any) -> None:
        """Refuse a value out of bounds (nan is out of all), or one that is no choice."""
        marker = self.marker
        if isinstance(value, list | tuple):
            for item in value:
                self.check(item)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if not (
                (marker.at_least is None or value >= marker.at_least)
                and (marker.above is None or value > marker.above)
                and (marker.at_most is None or value <= marker.at_most)
                and (marker.below is None or value < marker.below)
            ):
                why = f", {marker.why}" if marker.why else ""
                shown = f"{value:g}" if isinstance(value, float) else value
                raise OptionError(f"${self.name} is {shown}; give {marker.bounds()}{why}.")
        elif isinstance(value, str) and marker.choices and not marker.others:
            if value in marker.choices:
                return
            hint = nearest(value, marker.choices, "choose from")
            shown = repr(value).replace("$", "$$")
            raise OptionError(f"${self.name} is {shown}; {hint}")


_DECLARED: dict[Any, dict[str, Declared]] = {}


def options_of(kind: Any) -> dict[str, Declared]:
    """Return the options of a class by their names in Python, in the order of its fields."""
    if kind in _DECLARED:
        return _DECLARED[kind]
    hints = typing.get_type_hints(kind, include_extras=True)
    options: dict[str, Declared] = {}
    for field in dataclasses.fields(kind):
        hint, *extras = typing.get_args(hints[field.name])
        marker = next(extra for extra in extras if isinstance(extra, Option))
        alternatives = typing.get_args(hint)
        not_none = [kind for kind in alternatives if kind is not type(None)]
        is_optional = len(not_none) == 1 and len(alternatives) == 2
        flag = marker.flags[0] if marker.flags else field.name
        spelled_as = flag.lstrip("-").replace("-", "_")
        options[field.name] = Declared(
            name=field.name,
            kind=not_none[0] if is_optional else hint,
            marker=marker,
            default=field.default,
            spelled_as=spelled_as,
            inverted=field.default is True and spelled_as == f"no_{field.name}",
        )
    _DECLARED[kind] = options
    return options


def names(text: str) -> list[str]:
    """Read a list of names such as ``positional,syntactic``."""
    return [name.strip() for name in text.split(",") if name.strip()]


def numbers(what: str, example: str) -> Callable[[str], tuple[int, ...]]:
    """Return a function that reads a list of numbers such as ``48,96``."""

    def read(text: str) -> tuple[int, ...]:
        try:
            return tuple(int(part) for part in text.split(","))
        except ValueError:
            raise ValueError(f"{text!r} is not a list of {what}; write them as {example}") from None

    return read


def parse_pairs(items: Iterable[str], example: str = "positional=0.8") -> dict[str, str]:
    """Read ``NAME=VALUE`` items; where a name is repeated, the last one counts."""
    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise WrongOptionError(f"threshold {item!r}: write NAME=VALUE, such as {example}.")
        pairs[name.strip()] = value.strip()
    return pairs


@dataclass(frozen=True)
class ThresholdSet:
    """Numbers, each with a default; a subclass has one field for each."""

    @classmethod
    def parse(cls, values: Mapping[str, object]) -> Self:
        """Build thresholds from names and values (numbers, or text from the command line)."""
        kinds: dict[str, type] = {
            field.name: type(field.default) for field in dataclasses.fields(cls)
        }
        parsed: dict[str, float | bool] = {}
        for name, value in values.items():
            if name not in kinds:
                hint = nearest(name, kinds, "known are")
                raise WrongOptionError(f"There is no threshold {name!r}; {hint}")
            kind = kinds[name]
            wanted = "true or false"
            if kind is bool:
                if str(value).lower() in ("true", "false"):
                    parsed[name] = str(value).lower() == "true"
            else:
                wanted = "a whole number" if kind is int else "a number"
                if isinstance(value, int | float | str) and not isinstance(value, bool):
                    with suppress(ValueError, OverflowError):
                        number = float(value)
                        if kind is float or number.is_integer():
                            parsed[name] = int(number) if kind is int else number
            if name not in parsed:
                raise WrongOptionError(f"The threshold {name} is {value!r}; give {wanted}.")
        return cls(**parsed)
