"""Results to JSON and back: frozen dataclasses, plain values, no NaN."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

__all__ = ["SCHEMA", "from_dict", "to_dict", "to_json"]

#: Counts up when the meaning of a field changes; later versions add fields and never rename one.
SCHEMA = 1

R = TypeVar("R")


def to_dict(result: Any) -> Any:
    """Turn a result into plain dicts, lists, numbers and strings."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {f.name: to_dict(getattr(result, f.name)) for f in dataclasses.fields(result)}
    if isinstance(result, dict):
        return {key: to_dict(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [to_dict(value) for value in result]
    return result


def to_json(data: Any, *, indent: int | None = 1) -> str:
    """Write a result (or plain data) as JSON; refuses NaN and infinity."""
    return json.dumps(to_dict(data), indent=indent, allow_nan=False, ensure_ascii=False)


def from_dict(cls: type[R], data: Any) -> R:
    """Build a result of class ``cls`` from what :func:`to_dict` gave."""
    return typing.cast("R", _convert(cls, data))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _convert(kind: Any, data: Any) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if data is None or kind is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        return _convert(next(arg for arg in args if arg is not type(None)), data)
    if dataclasses.is_dataclass(kind):
        hints = _hints(typing.cast(type, kind))
        known = {f.name for f in dataclasses.fields(kind)}
        build = typing.cast("Callable[..., Any]", kind)
        return build(**{k: _convert(hints[k], v) for k, v in data.items() if k in known})
    if origin is tuple:
        return tuple(_convert(args[0], item) for item in data)
    if origin is dict:
        return {key: _convert(args[1], value) for key, value in data.items()}
    return float(data) if kind is float else data
