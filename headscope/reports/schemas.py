"""The JSON Schema of a command's result, made from the result's class, a dataclass.

Types come from the fields, descriptions from docstrings and from the comments beside fields.
:func:`schema_of` is the entry. Each dataclass is one entry of ``definitions``, written by
:func:`_object` where a field's type refers to it::

    {"$ref": "#/$defs/FlowResult", "$defs": {"FlowResult": {"type": "object", ...}, ...}}
"""

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
#: A field in the source of a class. Three groups: the comments above it (lines of ``#:``), its
#: name, the comment behind it.
_FIELD = re.compile(r"((?:^    #: .*\n)*)^    (\w+): [^#\n]*?(?:  # (.*))?$", re.MULTILINE)


def schema_of(command: str) -> dict[str, Any]:
    """Return the schema of what a command writes.

    Objects may have further fields: a later version may add some under the same schema number.
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
    """Add a dataclass to the definitions if it is not there, and return the reference to it."""
    name = kind.__name__
    reference = {"$ref": f"#/$defs/{name}"}
    if name in definitions:
        return reference
    definitions[name] = {}  # a class may refer to itself

    # The fields of a report have types like ``FlowResult | None`` as text, in a module that does
    # not import these classes: they are given here by name.
    sections = {COMMANDS[section].result_class: COMMANDS[section].result for section in SECTIONS}
    hints = typing.get_type_hints(kind, localns=sections)
    comments = _comments(kind)
    properties: dict[str, Any] = {}
    required = []
    if issubclass(kind, Head):  # its name is a property, which is written to JSON all the same
        properties["name"] = {"type": "string", "description": "L3H5"}
    for field in dataclasses.fields(kind):
        if not field.compare:  # fields with ``compare=False`` are not written to JSON
            continue
        properties[field.name] = {
            **_schema(hints[field.name], definitions),
            **comments.get(field.name, {}),
        }
        missing = dataclasses.MISSING
        if field.default is missing and field.default_factory is missing:
            required.append(field.name)
    definitions[name] = {
        "type": "object",
        "description": (inspect.getdoc(kind) or "").partition("\n\n")[0],
        "properties": properties,
        "required": required,
    }
    return reference


def _comments(kind: type) -> dict[str, dict[str, str]]:
    """Return the comment above or behind each field of a class, as its description."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except OSError:  # no source beside the package
        return {}
    descriptions = {}
    for above, name, behind in _FIELD.findall(source):
        text = behind or above.replace("#:", "")
        if text:
            descriptions[name] = {"description": " ".join(text.split())}
    return descriptions


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type, adding the dataclasses in it to the definitions.

    ``int | None`` becomes anyOf, ``tuple[int, ...]`` an array, ``dict[str, int]`` an object; what
    is none of the known types may be anything: {}.
    """
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(arg, definitions) for arg in args]}
    if origin is tuple:
        return {"type": "array", "items": _schema(args[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(args[1], definitions)}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):  # the class, not an instance
        return dict(_object(hint, definitions))
    return {"type": _PLAIN[hint]} if hint in _PLAIN else {}
