"""Reading results back from files and folders: ``read_results("out/").classify``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from headscope.commands import COMMANDS, SECTIONS
from headscope.core.errors import InputError
from headscope.core.files import no_text_in
from headscope.core.safe_text import visible
from headscope.core.serialise import SCHEMA, from_dict
from headscope.models.certificate.validation import (
    ValidationResult,
    ValidationSummary,
    certificate_of,
)
from headscope.reports.registry import REPORT, Sections, marks_of


@dataclass(frozen=True)
class Results(Sections):
    """The results that one file or folder holds, by section."""

    name: str  # The file or folder, as the user gave it
    #: The results as they were written, with fields that only later versions know.
    raw: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def certificates(self) -> dict[str, ValidationResult | ValidationSummary]:
        """The certificates in the results, by section; not every result has one."""
        certificates = {name: certificate_of(result) for name, result in self.sections.items()}
        return {
            name: certificate
            for name, certificate in certificates.items()
            if certificate is not None
        }


def read_results(path: str | Path) -> Results:
    """Read a result file, or a folder that holds some.

    In a folder ``report.json`` comes first; a section that it lacks is taken from its own file.
    """
    path = Path(path)
    if not path.is_dir():
        return results_of(load_json(path), str(path))
    raw: dict[str, dict[str, Any]] = {}
    if (path / REPORT).exists():
        raw |= _split(load_json(path / REPORT), str(path / REPORT))
    for section in SECTIONS:
        file = path / f"{section}.json"
        if section in raw or not file.exists():
            continue
        document = _split(load_json(file), str(file))
        if set(document) != {section}:
            raise InputError(
                f"{visible(file)} holds {' and '.join(document)}, not {section}; rename it, or "
                "give the file instead of its folder."
            )
        raw |= document
    if not raw:
        names = ", ".join([REPORT, *(f"{section}.json" for section in SECTIONS)])
        raise InputError(f"The folder {visible(path)} holds no results; looked for {names}.")
    return _typed(raw, str(path))


def results_of(
    document: Mapping[str, Any], name: str, sections: Mapping[str, Any] | None = None
) -> Results:
    """Build the results of a document of plain values, which messages call ``name``.

    ``sections`` are the results themselves, if they are at hand and need not be built.
    """
    if sections is None:
        return _typed(_split(document, name), name)
    return Results(name, {section: document[section] for section in sections}, **sections)


def load_json(path: Path) -> Any:
    """Read a file as JSON, with one sentence for whatever is wrong with it."""

    def no_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON number")

    try:
        text = path.read_text(encoding="utf-8-sig")
        data = json.loads(text, parse_constant=no_constant)
        if "\\ud" in text.lower():  # halves of surrogate pairs: JSON allows them, no output does
            data = json.loads(json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"))
        return data
    except FileNotFoundError:
        raise InputError(f"There is no file or folder {visible(path)}.") from None
    except OSError as error:
        raise InputError(f"{visible(path)} cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        what = no_text_in(path) or "not UTF-8 text, so no result of headscope"
        raise InputError(f"{visible(path)} is {what}.") from None
    except RecursionError:
        raise InputError(f"{visible(path)} is nested too deeply for a result.") from None
    except ValueError as error:
        raise InputError(f"{visible(path)} is not whole JSON ({visible(error)}).") from None


def _split(document: Any, where: str) -> dict[str, dict[str, Any]]:
    """Return the sections of a document, as written: those of a report, or the one that it is."""
    if isinstance(document, Mapping):
        # The result of one section is recognised by its fields.
        for name in SECTIONS:
            marks = marks_of(name)
            if len(marks & document.keys()) > len(marks) / 2:
                return {name: dict(document)}
        # A report has a field for each section.
        sections = {
            name: document[name] for name in SECTIONS if isinstance(document.get(name), dict)
        }
        if sections:
            return sections
    raise InputError(
        f"{visible(where)} is no result of headscope: give the JSON of {', '.join(SECTIONS)} or "
        "report, or a folder that holds some."
    )


def _typed(raw: dict[str, dict[str, Any]], name: str) -> Results:
    """Build each section's result; raises InputError that names a field which does not fit."""
    sections: dict[str, Any] = {}
    for section in SECTIONS:
        if section not in raw:
            continue
        try:
            sections[section] = from_dict(COMMANDS[section].result, raw[section])
        except TypeError as error:
            message = f"{visible(name)} ({section}) is damaged: {visible(error)}."
            schema = raw[section].get("schema")
            if schema != SCHEMA:
                message += f" It has schema {visible(schema)}; this headscope reads {SCHEMA}."
            raise InputError(message) from None
    return Results(name, raw, **sections)
