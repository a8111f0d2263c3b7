"""Thresholds that options and TOML tables set by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from headscope.core.errors import InputError, nearest

__all__ = ["ThresholdSet", "parse_pairs"]


def parse_pairs(items: Iterable[str], example: str = "positional=0.8") -> dict[str, str]:
    """Read ``NAME=VALUE`` items; of the same name the last one counts."""
    found = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"threshold {item!r}: write NAME=VALUE, such as {example}.")
        found[name.strip()] = value.strip()
    return found


@dataclass(frozen=True)
class ThresholdSet:
    """Numbers, each with a default; a subclass has one field for each."""

    @classmethod
    def parse(cls, values: Mapping[str, object]) -> Self:
        """Build thresholds from names and values (numbers, or text from the command line)."""
        kinds = {field.name: type(field.default) for field in dataclasses.fields(cls)}
        parsed = {}
        for name, value in values.items():
            if name not in kinds:
                hint = nearest(name, kinds, "known are")
                raise InputError(f"There is no threshold {name!r}; {hint}")
            parsed[name] = _value(name, value, kinds[name])
        return cls(**parsed)


def _value(name: str, value: object, kind: type) -> float | bool:
    if kind is bool:
        if str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        raise InputError(f"The threshold {name} is {value!r}; give true or false.")
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            number = float(value)
            if kind is float or number.is_integer():
                return int(number) if kind is int else number
    whole = "whole " if kind is int else ""
    raise InputError(f"The threshold {name} is {value!r}; give a {whole}number.")
