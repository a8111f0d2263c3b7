"""What differs between many runs besides the model: schema, data, settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headscope.results.compare import Unlike
from headscope.results.sections import SECTIONS
from headscope.verdicts.diff.identity import Described, conditions
from headscope.verdicts.reading import Results

__all__ = ["unlike"]

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
