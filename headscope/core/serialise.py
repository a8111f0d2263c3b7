"""Results, which are frozen dataclasses of plain values, to JSON and back; no NaN.

:func:`to_dict` and :func:`to_json` write a result, :func:`from_dict` builds it again from what a
file holds, and says where in the file something is not as it should be: ``heads[3].layer is no
int``.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from functools import cache
from typing import Any, TypeVar

from headscope.core.heads import Head

#: Version of the JSON's fields: goes up by one with a release in which a field has changed its
#: meaning or is gone. Since 2, labels are confirmed on held-out sentences, and the cheap forms of
#: attention have a bound and no "best" one.
SCHEMA = 2

#: The largest whole number that is read from a file: counts and indices fit into 64 bits.
_LARGEST_INT = 2**63
#: The largest number that is read from a file: sums and squares of such numbers stay finite.
_LARGEST_FLOAT = 1e150
_PLAIN = {bool, float, int, str, type(None)}  # What JSON takes as it is

R = TypeVar("R")


def to_dict(result: Any) -> Any:
    """Turn a result into plain dicts, lists, numbers and strings; a head gets a field ``name``."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        fields = {f.name: to_dict(getattr(result, f.name)) for f in dataclasses.fields(result)}
        return {"name": result.name, **fields} if isinstance(result, Head) else fields
    if isinstance(result, dict):
        return {key: to_dict(value) for key, value in result.items()}
    if isinstance(result, list | tuple):  # often long and of numbers: these need no call
        return [value if type(value) in _PLAIN else to_dict(value) for value in result]
    return result


def to_json(data: Any, *, indent: int | None = 1) -> str:
    """Write a result (or plain data) as JSON; refuses NaN and infinity."""
    return json.dumps(to_dict(data), indent=indent, allow_nan=False, ensure_ascii=False)


def from_dict(cls: type[R], data: Any) -> R:
    """Build a result of class ``cls`` from what :func:`to_dict` returned.

    Fields that ``cls`` does not know are ignored; those with a default may be missing.
    """
    return typing.cast("R", _convert(cls, data, ""))


@cache
def _fields_of(kind: type) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the types of a dataclass's fields, and the names of those without a default."""
    missing = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    hints = typing.get_type_hints(kind)
    required = [f.name for f in fields if f.default is missing and f.default_factory is missing]
    return {f.name: hints[f.name] for f in fields}, frozenset(required)


def _convert(kind: Any, data: Any, where: str) -> Any:
    """Turn plain data into a value of type ``kind``.

    ``where`` is the place in the document, such as ``.heads[3].layer``, for errors.
    """
    if kind is Any:
        return data
    name = where.lstrip(".") or "the document"
    origin = typing.get_origin(kind)
    args = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):  # in results always a type or None
        if data is None:
            return None
        inner = next(arg for arg in args if arg is not type(None))
        return _convert(inner, data, where)
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise TypeError(f"{name} is not a list")
        return tuple(_convert(args[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if origin is dict or dataclasses.is_dataclass(kind):
        if not isinstance(data, dict):
            raise TypeError(f"{name} is not an object")
        if origin is dict:
            return {key: _convert(args[1], value, f"{where}.{key}") for key, value in data.items()}
        types_of_fields, required = _fields_of(kind)
        missing = required - data.keys()
        if missing:
            raise TypeError(f"{name} has no field {next(iter(missing))!r}")
        values = {
            key: _convert(types_of_fields[key], value, f"{where}.{key}")
            for key, value in data.items()
            if key in types_of_fields
        }
        return kind(**values)
    if kind is float:
        if type(data) not in (int, float) or not abs(data) <= _LARGEST_FLOAT:
            raise TypeError(f"{name} is not a number, or beyond {_LARGEST_FLOAT:.0e}")
        return float(data)
    if type(data) is not kind or (kind is int and abs(data) > _LARGEST_INT):
        raise TypeError(f"{name} is no {kind.__name__}")
    return data


def warnings_of(*results: Any) -> tuple[str, ...]:
    """Return the warnings in the provenance of some results, each once."""
    texts: dict[str, None] = {}  # In the order of their first appearance
    for result in results:
        provenance = getattr(result, "provenance", None) or {}  # a file may hold null
        texts |= dict.fromkeys(map(str, provenance.get("warnings") or ()))
    return tuple(texts)
