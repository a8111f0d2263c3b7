"""JSON Schema of every result, made of its class.

``python -m headscope.reports.schemas`` writes them anew.

The files stand in ``headscope/schemas``, one for each command, and are published with the package.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import textwrap
import types
import typing
from pathlib import Path
from typing import Any

from headscope.core.serialise import SCHEMA
from headscope.reports.registry import SECTIONS, section_of
from headscope.reports.result import CompareResult, DiffResult

FOLDER = Path(__file__).parents[1] / "schemas"
_PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
#: What ``report.json`` holds beside its sections.
_OF_REPORT = ("schema", "provenance", "settings", "left_out", "keys")
_FIELD = re.compile(r"^    (\w+): [^#\n]*?(?:  # (.*))?$", re.MULTILINE)


def schema_of(kind: type, title: str) -> dict[str, Any]:
    """Return the schema of a dataclass as it stands in a file.

    Objects may have further fields: a later version adds some without a new number of the schema.
    """
    definitions: dict[str, Any] = {}
    _object(kind, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"headscope {title}, schema {SCHEMA}",
        "$ref": f"#/$defs/{kind.__name__}",
        "$defs": definitions,
    }


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, str]:
    """Add a dataclass to the definitions, and return what refers to it."""
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}
        missing, hints = dataclasses.MISSING, typing.get_type_hints(kind)
        fields = dataclasses.fields(kind)
        comments = _comments(kind)
        definitions[name] = {
            "type": "object",
            "description": (inspect.getdoc(kind) or "").partition("\n\n")[0],
            "properties": {
                f.name: {**_schema(hints[f.name], definitions), **comments.get(f.name, {})}
                for f in fields
            },
            "required": [
                f.name for f in fields if f.default is missing and f.default_factory is missing
            ],
        }
    return {"$ref": f"#/$defs/{name}"}


def _comments(kind: type) -> dict[str, dict[str, str]]:
    """Return the comment behind each field of a class as its description."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except OSError:  # no source beside the package
        return {}
    return {name: {"description": text} for name, text in _FIELD.findall(source) if text}


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(arg, definitions) for arg in args]}
    if origin is tuple:
        return {"type": "array", "items": _schema(args[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(args[1], definitions)}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return dict(_object(hint, definitions))
    return {"type": _PLAIN[hint]} if hint in _PLAIN else {}


def schemas() -> dict[str, dict[str, Any]]:
    """Return every schema by the name of its command; that of a report refers to the others."""
    made = {name: schema_of(section_of(name).kind, name) for name in SECTIONS}
    made["compare"] = schema_of(CompareResult, "compare")
    made["diff"] = schema_of(DiffResult, "diff")
    made["report"] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"headscope report, schema {SCHEMA}",
        "type": "object",
        "required": list(_OF_REPORT),
        "properties": {
            name: {"anyOf": [{"type": "null"}, {"$ref": f"{name}.schema.json"}]}
            for name in SECTIONS
        },
    }
    return made


def files() -> dict[str, str]:
    """Return the text of every file by its name."""
    return {
        f"{name}.schema.json": json.dumps(schema, indent=1) + "\n"
        for name, schema in schemas().items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
