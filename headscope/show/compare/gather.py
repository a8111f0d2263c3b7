"""From several reports to one table: what the views of their sections put first."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, product
from typing import Any

from headscope.core.errors import InputError
from headscope.core.safe_text import visible
from headscope.results.compare import Compared, ComparedCell, ComparedRow, CompareResult
from headscope.results.sections import SECTIONS
from headscope.results.validate import certificate_of
from headscope.show.cells import tiny
from headscope.show.view import KeyNumber, view_of
from headscope.verdicts.alike import unlike
from headscope.verdicts.reading import Results

__all__ = ["gather"]


def gather(reports: Sequence[Results]) -> CompareResult:
    """Lay reports side by side: each section's key numbers, and what else its view compares."""
    if len(reports) < 2:
        raise InputError("Comparing takes two reports or more; give another.")
    rows = tuple(row for section in SECTIONS for row in _rows(section, reports))
    if not any(len([cell for cell in row.cells if cell is not None]) > 1 for row in rows):
        raise InputError(
            "These reports have nothing in common to compare: "
            + "; ".join(f"{visible(found.name)} has {_sections(found)}" for found in reports)
            + "."
        )
    every = [name for name in SECTIONS if any(name in found.sections for found in reports)]
    labels = _labels()
    shown = tuple(_report(next(labels), found, every) for found in reports)
    return CompareResult(shown, rows, unlike(reports))


def _sections(found: Results) -> str:
    return ", ".join(found.sections)


def _labels() -> Iterator[str]:
    """Yield A to Z, then AA, AB and so on."""
    for length in count(1):
        for letters in product(string.ascii_uppercase, repeat=length):
            yield "".join(letters)


def _report(label: str, found: Results, every: Sequence[str]) -> Compared:
    model: Mapping[str, Any] = {}
    for raw in found.raw.values():
        origin = raw.get("provenance")
        if isinstance(origin, dict) and isinstance(origin.get("model"), dict):
            model = origin["model"]
            break
    return Compared(
        label=label,
        name=str(model.get("id") or "unknown model"),
        place=found.name,
        family=str(model.get("family") or ""),
        size=_size(model),
        weights_sha256=str(model.get("weights_sha256") or ""),
        certificate=_certificate(found),
        missing=tuple(name for name in every if name not in found.sections),
    )


def _size(model: Mapping[str, Any]) -> str:
    removed = model.get("removed_heads")
    less = f", {len(removed)} heads removed" if isinstance(removed, list) and removed else ""
    return f"{model.get('n_layers', '?')} layers x {model.get('n_heads', '?')} heads{less}"


def _certificate(found: Results) -> str:
    """Say whether every result is of the model's own attention, and how well it is met."""
    known = {name: certificate_of(result) for name, result in found.sections.items()}
    bad = [name for name, one in known.items() if one is not None and one.passed is False]
    if bad:
        return f"validation FAILED ({', '.join(bad)})"
    open_ = [name for name, one in known.items() if one is not None and one.passed is None]
    if open_:
        return f"not validated ({', '.join(open_)})"
    largest = [one.max_abs_hidden for one in known.values() if one is not None]
    numbers = [value for value in largest if value is not None]
    if not numbers:
        return "no certificate"
    return f"our attention equals the model's to {tiny(max(numbers))}"


def _rows(section: str, reports: Sequence[Results]) -> Iterator[ComparedRow]:
    """Yield a row for everything that any of the reports says in one section."""
    said = [_said(section, found) for found in reports]
    for what in dict.fromkeys(what for rows in said for what in rows):
        yield ComparedRow(section, what, tuple(_cell(rows.get(what)) for rows in said))


def _said(section: str, found: Results) -> dict[str, KeyNumber]:
    result = found.sections.get(section)
    if result is None:
        return {}
    view = view_of(section)
    try:
        rows = [*view.compared(result), *view.key_numbers(result)]
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        # The file's fields have the right types, but what stands in them does not fit together.
        raise InputError(
            f"{visible(found.name)} ({section}) is damaged: it lacks something that its key "
            "numbers are made of; measure it again."
        ) from None
    return {row.what: row for row in rows}


def _cell(found: KeyNumber | None) -> ComparedCell | None:
    return None if found is None else ComparedCell(found.text, found.control, found.number)
