"""Thresholds that options and TOML tables set by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from headscope.core.errors import InputError, nearest


def parse_pairs(items: Iterable[str], example: str = "positional=0.8") -> dict[str, str]:
    """Read ``NAME=VALUE`` items; where a name is repeated, the last one counts."""
    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"threshold {item!r}: write NAME=VALUE, such as {example}.")
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
                raise InputError(f"There is no threshold {name!r}; {hint}")
            kind, wanted = kinds[name], "true or false"
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
                raise InputError(f"The threshold {name} is {value!r}; give {wanted}.")
        return cls(**parsed)
