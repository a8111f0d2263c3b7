"""An option, stated once: a field of a frozen dataclass, with its help and its bounds beside it.

``draws: Annotated[int, Option(help="Random sets.", at_least=5)] = 20`` in a command's class of
options is all there is to write. The signature in Python, the flags and the help of the command
line, the table of a config file and the checks all come from such fields.

:class:`Option` is what is written beside a field, :class:`Declared` the field with all that is
known of it, and :func:`options_of` returns those of a class. At the end stand readers of text from
the command line, and :class:`ThresholdSet`, several numbers that are one option.
"""

from __future__ import annotations

import dataclasses
import math
import string
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from headscope.core.errors import WrongOptionError, nearest


class OptionError(WrongOptionError):
    """A value that an option does not take, or options that do not go together.

    In its sentence, ``$validate`` stands for the option ``validate``: each interface spells it in
    its own way, Python as ``validate``, the command line as ``--no-validate``. A dollar that is
    text is written twice.
    """

    def __init__(self, sentence: str) -> None:
        self._sentence = string.Template(sentence)
        super().__init__(self.spelled(str))  # names as in Python

    def spelled(self, spell: Callable[[str], str]) -> str:
        """Return the sentence with the options' names as ``spell`` writes them."""
        names = {name: spell(name) for name in self._sentence.get_identifiers()}
        return self._sentence.safe_substitute(names)


@dataclass(frozen=True, kw_only=True)
class Option:
    """What a field's name, type and default do not say; stands in its ``Annotated[...]``."""

    help: str
    python_help: str = ""  # The help in Python, where the flag means the opposite

    # Bounds of a number. ``why`` ends the error about them: "fewer tell no spread"; ``unit`` stands
    # behind the number.
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    why: str = ""
    unit: str = ""
    #: The allowed values; for a bool, what False and True are called on the command line.
    choices: tuple[str, ...] = ()
    free_in_python: bool = False  # Whether Python takes values beyond the choices, as ``cuda:1``

    # On the command line
    #: The flag's spellings: ("--length", "-n"). "--no-validate" sets the option to False.
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    kind: Any = None  # The type of its value there, where the field's own type does not fit
    #: Reads the value from text; raises ValueError with a reason.
    read: Callable[[str], Any] | None = None
    #: Several flags in place of one: a dataclass of options of which one may be set, and whose
    #: ``value()`` is the value of this option.
    flag_class: type | None = None
    folder: bool = False  # Whether the path, if it exists, has to be a folder
    argument: bool = False  # Whether it is an argument and no flag
    required: bool = True  # Whether the argument has to be there
    panel: str | None = None  # Heading in the help; None for the common one
    python_only: bool = False  # Whether there is no flag

    # Options of a special kind
    #: Name of the :class:`ThresholdSet` in ``headscope`` that its value is; empty for others.
    thresholds: str = ""
    example: str = ""  # Shown in the error about a wrong threshold: ``positional=0.8``
    loading: bool = False  # Whether it says how a model is opened: of no use with one in memory

    def allows(self, number: float) -> bool:
        """Whether a number lies within the bounds; nan lies within none."""
        return (
            (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )

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
    """One of the few options that ``--help`` shows; ``--help-all`` shows every option."""


@dataclass(frozen=True)
class Declared:
    """An option as a field of a class declares it."""

    name: str
    kind: Any  # Its type, without None
    marker: Option
    default: Any
    spelled_as: str  # Its name on the command line and in a config file, such as ``no_validate``
    inverted: bool  # Whether its flag turns off what is on by default

    @property
    def takes_several(self) -> bool:
        """Whether its value is a sequence and nothing else."""
        return typing.get_origin(self.kind) is Sequence

    def check(self, value: Any) -> None:
        """Refuse a number out of bounds, or a word that is no choice; of a list, any such item."""
        marker = self.marker
        if isinstance(value, list | tuple):
            for item in value:
                self.check(item)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if not marker.allows(value):
                why = f", {marker.why}" if marker.why else ""
                shown = f"{value:g}" if isinstance(value, float) else value
                raise OptionError(f"${self.name} is {shown}; give {marker.bounds()}{why}.")
        elif isinstance(value, str) and marker.choices and not marker.free_in_python:
            if value in marker.choices:
                return
            hint = nearest(value, marker.choices, "choose from")
            shown = repr(value).replace("$", "$$")
            raise OptionError(f"${self.name} is {shown}; {hint}")


_options_of_classes: dict[Any, dict[str, Declared]] = {}  # What options_of has returned


def options_of(kind: Any) -> dict[str, Declared]:
    """Return the options of a class by their names in Python, in the order of its fields."""
    if kind in _options_of_classes:
        return _options_of_classes[kind]
    hints = typing.get_type_hints(kind, include_extras=True)
    options: dict[str, Declared] = {}
    for field in dataclasses.fields(kind):
        hint, *extras = typing.get_args(hints[field.name])  # of Annotated[type, Option(...)]
        marker = next(extra for extra in extras if isinstance(extra, Option))
        alternatives = typing.get_args(hint)
        not_none = [alternative for alternative in alternatives if alternative is not type(None)]
        is_optional = len(not_none) == 1 and len(alternatives) == 2  # such as ``int | None``
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
    _options_of_classes[kind] = options
    return options


def names(text: str) -> list[str]:
    """Read a list of names such as ``positional,syntactic``."""
    return [name.strip() for name in text.split(",") if name.strip()]


def numbers(plural: str, example: str) -> Callable[[str], tuple[int, ...]]:
    """Return a function that reads a list of numbers such as ``48,96``.

    ``plural`` says in errors what the numbers are, ``example`` how to write them.
    """

    def read(text: str) -> tuple[int, ...]:
        try:
            return tuple(int(number) for number in text.split(","))
        except ValueError:
            raise ValueError(
                f"{text!r} is not a list of {plural}; write them as {example}"
            ) from None

    return read


def parse_pairs(items: Iterable[str], example: str = "positional=0.8") -> dict[str, str]:
    """Read ``NAME=VALUE`` items; refuse a name that is repeated."""
    pairs: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise WrongOptionError(f"threshold {item!r}: write NAME=VALUE, such as {example}.")
        if name.strip() in pairs:
            raise WrongOptionError(f"The threshold {name.strip()} is given twice; give it once.")
        pairs[name.strip()] = value.strip()
    return pairs


_THRESHOLD_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class ThresholdSet:
    """Thresholds of one command, each with a default.

    A subclass has a field (bool, int or float) for each, as
    :class:`headscope.core.roles.Thresholds`.
    """

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
            threshold = _parse_threshold(value, kinds[name])
            if threshold is None:
                needed = _THRESHOLD_KINDS[kinds[name]]
                raise WrongOptionError(f"The threshold {name} is {value!r}; give {needed}.")
            parsed[name] = threshold
        return cls(**parsed)


def _parse_threshold(value: object, kind: type) -> float | bool | None:
    """Read a threshold of type bool, int or float from a value or its text; None if it is neither.

    ``"0.8"`` as float is 0.8, ``"3"`` as int is 3, ``"0.8"`` as int is None.
    """
    if kind is bool:
        return {"true": True, "false": False}.get(str(value).lower())
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if kind is float:
        return number
    return int(number) if number.is_integer() else None
