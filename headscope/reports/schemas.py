"""JSON Schema of a command's result, made of the class of the result."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import types
import typing
from typing import Any

from headscope.commands import COMMANDS, SECTIONS
from headscope.core.errors import InputError, nearest
from headscope.core.heads import Head
from headscope.core.serialise import SCHEMA

_PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
_FIELD = re.compile(r"((?:^    #: .*\n)*)^    (\w+): [^#\n]*?(?:  # (.*))?$", re.MULTILINE)


def schema_of(command: str) -> dict[str, Any]:
    """Return the schema of what a command writes.

    Objects may have further fields: a later version adds some without a new number of the schema.
    """
    writers = [row.name for row in COMMANDS.values() if row.result_class]
    if command not in writers:
        known = nearest(command, writers, "there is that of")
        raise InputError(f"There is no JSON of {command!r}; {known}")
    definitions: dict[str, Any] = {}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"headscope {command}, schema {SCHEMA}",
        **_object(COMMANDS[command].result, definitions),
        "$defs": definitions,
    }


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, str]:
    """Add a dataclass to the definitions, and return what refers to it."""
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}
        # A report names the classes of its sections without importing them.
        sections = {COMMANDS[name].result_class: COMMANDS[name].result for name in SECTIONS}
        missing = dataclasses.MISSING
        hints = typing.get_type_hints(kind, localns=sections)
        fields = [f for f in dataclasses.fields(kind) if f.compare]  # The others are not written.
        comments = _comments(kind)
        named = issubclass(kind, Head)
        definitions[name] = {
            "type": "object",
            "description": (inspect.getdoc(kind) or "").partition("\n\n")[0],
            "properties": {
                **({"name": {"type": "string", "description": "L3H5"}} if named else {}),
                **{
                    f.name: {**_schema(hints[f.name], definitions), **comments.get(f.name, {})}
                    for f in fields
                },
            },
            "required": [
                f.name for f in fields if f.default is missing and f.default_factory is missing
            ],
        }
    return {"$ref": f"#/$defs/{name}"}


def _comments(kind: type) -> dict[str, dict[str, str]]:
    """Return the comment above or behind each field of a class as its description."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except OSError:  # no source beside the package
        return {}
    fields = _FIELD.findall(source)
    texts = {name: behind or above.replace("#:", "") for above, name, behind in fields}
    return {name: {"description": " ".join(text.split())} for name, text in texts.items() if text}


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(arg, definitions) for arg in args]}
    if origin is tuple:
        return {"type": "array", "items": _schema(args[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(args[1], definitions)}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return dict(_object(hint, definitions))
    return {"type": _PLAIN[hint]} if hint in _PLAIN else {}
