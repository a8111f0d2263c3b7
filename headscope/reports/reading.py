"""What differs between many runs besides the model: schema, data, settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from headscope.core.errors import InputError
from headscope.core.revisions import InRevision
from headscope.core.safe_text import visible
from headscope.core.serialise import SCHEMA, from_dict
from headscope.reports.diff import Described, conditions
from headscope.reports.registry import SECTIONS, Sections, section_of
from headscope.reports.result import Unlike

__all__ = ["unlike", "Results", "read_results", "results_of"]


_ORDER = ("schema", "data", "setting")
#: What differs between two models by nature, or does not matter where the data are the same.
_OF_THE_MODEL = {"model id", "model revision", "data name", "LayerNorm"}
_LACKING = "-"  # What stands for a report that lacks the section.
_Key = tuple[str, str]
_Row = tuple[str, str, tuple[str, ...]]


def unlike(reports: Sequence[Results]) -> tuple[Unlike, ...]:
    """List what is not the same in all reports that have a section, what matters most first.

    The same in several sections is said once.
    """
    found: dict[_Row, list[str]] = {}
    for section in SECTIONS:
        for row in _differing(reports, section):
            found.setdefault(row, []).append(section)
    rows = [Unlike(what, name, tuple(where), vs) for (what, name, vs), where in found.items()]
    return tuple(sorted(rows, key=lambda row: _ORDER.index(row.what)))


def _differing(reports: Sequence[Results], section: str) -> Iterator[_Row]:
    """Yield what differs in one section."""
    all_of_them = [
        conditions(found, section) if section in found.sections else None for found in reports
    ]
    there = [found for found in all_of_them if found is not None]
    for key in dict.fromkeys(key for found in there for key in found):
        what, name = key
        if what == "model" or name in _OF_THE_MODEL:
            continue
        values = [found.get(key, _NONE).value for found in there]
        if any(value != values[0] for value in values[1:]):
            yield what, name, tuple(_text(found, key) for found in all_of_them)


def _text(found: dict[_Key, Described] | None, key: _Key) -> str:
    return _LACKING if found is None else found.get(key, _NONE).text


_NONE = Described(None, "none")


_REPORT = "report.json"


@dataclass(frozen=True)
class Results(Sections):
    """The results that one file or folder holds, by section."""

    name: str  # As the user gave it
    #: The results as they were written, fields of later versions included.
    raw: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_results(path: Path | InRevision) -> Results:
    """Read a result file, or a folder that holds some.

    In a folder ``report.json`` comes first; a section that it lacks is taken from its own file.
    """
    name = str(path)
    if not path.is_dir():
        return results_of(_load(path), name)
    raw: dict[str, dict[str, Any]] = {}
    if (path / _REPORT).exists():
        raw |= _split(_load(path / _REPORT), str(path / _REPORT))
    for section in SECTIONS:
        files = section_of(section).files
        file = next((path / name for name in files if (path / name).exists()), None)
        if file is not None and section not in raw:
            raw[section] = _only(section, _split(_load(file), str(file)), file)
    if not raw:
        known = ", ".join([_REPORT, *(f"{section}.json" for section in SECTIONS)])
        raise InputError(f"The folder {visible(name)} holds no results; looked for {known}.")
    return _typed(raw, name)


def results_of(document: Mapping[str, Any], name: str) -> Results:
    """Read what a result file holds, given as plain values."""
    return _typed(_split(document, name), name)


def _load(path: Path | InRevision) -> Any:
    try:
        text = path.read_text(encoding="utf-8-sig")
        data = json.loads(text, parse_constant=_no_constant)
        if "\\ud" in text.lower():  # halves of surrogate pairs: JSON allows them, no output does
            data = json.loads(json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"))
    except FileNotFoundError:
        raise InputError(f"There is no file or folder {visible(path)}.") from None
    except OSError as error:
        raise InputError(f"{visible(path)} cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise InputError(f"{visible(path)} is not UTF-8 text, so no result of headscope.") from None
    except RecursionError:
        raise InputError(f"{visible(path)} is nested too deeply for a result.") from None
    except ValueError as error:
        raise InputError(f"{visible(path)} is not whole JSON ({visible(error)}).") from None
    return data


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _split(document: Any, where: str) -> dict[str, dict[str, Any]]:
    """Return the sections of a document, as written."""
    if isinstance(document, Mapping):
        kind = _kind(document)
        if kind is not None:
            return {kind: dict(document)}
        found = {name: document[name] for name in SECTIONS if isinstance(document.get(name), dict)}
        if found:
            return found
    raise InputError(
        f"{visible(where)} is no result of headscope: give the JSON of {', '.join(SECTIONS)} or "
        "report, or a folder that holds some."
    )


def _kind(document: Mapping[str, Any]) -> str | None:
    """Return the section whose fields are there, most of them at least."""
    marks = {name: section_of(name).marks for name in SECTIONS}
    shares = {name: len(mine & document.keys()) / len(mine) for name, mine in marks.items()}
    best = max(shares, key=lambda name: shares[name])
    if best == "insights" and not isinstance(document["insights"], list):
        return None  # a report's section has that name too
    return best if shares[best] > 0.5 else None


def _only(
    section: str, found: dict[str, dict[str, Any]], file: Path | InRevision
) -> dict[str, Any]:
    if set(found) != {section}:
        raise InputError(
            f"{visible(file)} holds {' and '.join(found)}, not {section}; rename it, or give the "
            "file instead of its folder."
        )
    return found[section]


def _typed(raw: dict[str, dict[str, Any]], name: str) -> Results:
    sections: dict[str, Any] = {}
    for section in SECTIONS:
        if section in raw:
            try:
                sections[section] = from_dict(section_of(section).kind, raw[section])
            except TypeError as error:
                _refuse(f"{visible(name)} ({section})", raw[section], error)
    return Results(name, raw, **sections)


def _refuse(where: str, data: dict[str, Any], error: TypeError) -> NoReturn:
    schema = data.get("schema")
    later = f" It has schema {visible(schema)}; this headscope reads {SCHEMA}."
    raise InputError(
        f"{where} is damaged: {visible(error)}.{later if schema != SCHEMA else ''}"
    ) from None
