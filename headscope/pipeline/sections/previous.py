"""Results of an earlier run, taken over where nothing that they depend on has changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headscope.core.files import before_of
from headscope.pipeline.sections.keys import digest
from headscope.results.sections import section_of
from headscope.results.serialise import SCHEMA, from_dict, to_dict

#: The file that holds every section.
REPORT = "report.json"


@dataclass(frozen=True)
class Previous:
    """What an earlier run left: its document, or an empty one."""

    document: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path | None) -> Previous:
        """Read the report in a folder; whatever cannot be read counts as not there.

        Where a run was killed while it put its files in place, that is the report before it.
        """
        if folder is None:
            return cls()
        path = folder / REPORT
        try:
            whole = path if path.exists() else before_of(path)
            document = json.loads(whole.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return cls()
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            return cls()
        return cls(document)

    def section(self, name: str, key: str, command: str) -> Any | None:
        """Return the section made under this key, if it is there and as it was written."""
        document = self.document
        if _item(document, "keys", name) != key:
            return None
        data = document.get(name)
        if not isinstance(data, dict) or _item(document, "digests", name) != content_digest(data):
            return None
        data["provenance"]["command"] = command
        return from_dict(section_of(name).kind, data)


def _item(document: Mapping[str, Any], table: str, name: str) -> Any:
    found = document.get(table)
    return found.get(name) if isinstance(found, dict) else None


def content_digest(section: Any) -> str:
    """Hash a section, but for when and by which command it was made."""
    data = dict(to_dict(section))
    made = dict(data.get("provenance") or {})
    made.pop("created", None)
    made.pop("command", None)
    return digest({**data, "provenance": made})
