"""What a comparison needs of some results: read off them, or kept in ``baseline.json``.

A report takes megabytes and dozens of files. Its rows and conditions fit into one small file that
can stand under version control: numbers with seven digits, and a line for each place.

A :class:`Row` says one thing that was measured: in which section (``classify``), where (``L3H5``),
under what name (``entropy``), at which point of a curve if it is of one, and what came out: a
number with its interval, words, or labels. A :class:`Condition` is what has to be equal for two
results to be compared, such as the seed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headscope.core.errors import InputError
from headscope.core.safe_text import visible
from headscope.core.serialise import from_dict
from headscope.reports.conditions import KINDS, Condition, Conditions, conditions_of
from headscope.reports.reading import Results, load_json, read_results, results_of
from headscope.reports.registry import REPORT
from headscope.reports.rows import Row
from headscope.reports.section_rows import rows_of

#: The file's name in a report's folder.
BASELINE = "baseline.json"


@dataclass(frozen=True)
class Measurements:
    """The rows of some results, and the conditions under which they were measured."""

    name: str  # As the user gave it
    rows: tuple[Row, ...]
    conditions: dict[str, Conditions]  # By section: of each that there is
    #: Results whose certificate, that our attention equals the model's, did not pass; and why
    not_valid: tuple[str, ...]
    metric: str = ""  # The metric that pruning is judged by; empty without pruning
    #: The results as they were written; nothing where they come from a baseline.
    raw: dict[str, dict[str, Any]] = field(default_factory=dict)


def measurements_of(results: Results) -> Measurements:
    """Read the rows and conditions off some results."""
    return Measurements(
        name=results.name,
        rows=rows_of(results),
        conditions={name: conditions_of(results, name) for name in results.sections},
        not_valid=tuple(_not_valid(results)),
        metric=results.prune.metric if results.prune else "",
        raw=results.raw,
    )


def _not_valid(results: Results) -> Iterator[str]:
    """Name the results whose certificate did not pass, and why."""
    if not results.certificates:
        yield "it carries no certificate"
    for section, certificate in results.certificates.items():
        if certificate.passed is None:
            yield f"{section}: not validated"
        elif not certificate.passed:
            reasons = "; ".join(getattr(certificate, "reasons", ())[:3])
            brackets = f" ({reasons})" if reasons else ""
            yield f"{section}: validation FAILED{brackets}"


def read_measurements(path: Path) -> Measurements:
    """Read results or a baseline; of a folder without results its ``baseline.json``."""
    if path.is_dir():
        if (path / REPORT).exists() or not (path / BASELINE).exists():
            return measurements_of(read_results(path))
        path = path / BASELINE
    document = load_json(path)
    if isinstance(document, dict) and "baseline" in document:
        return _measurements_in(document, path)
    return measurements_of(results_of(document, str(path)))


# --- the file ---

_VERSION = 3
#: Fields of a :class:`Row` that the file holds of a number besides its value.
_NUMBER_FIELDS = ("low", "high", "better", "of_pruning")


@dataclass(frozen=True)
class _File:
    """The layout of baseline.json."""

    baseline: int  # Version of this layout
    metric: str
    not_valid: tuple[str, ...]
    #: By section: (kind, name, value, text) of each condition, such as ("setting", "seed", 0, "0")
    conditions: dict[str, tuple[tuple[Any, ...], ...]]
    #: What the rows say, by section, where and name: words, labels, a number, or the points of a
    #: curve. ``{"classify": {"L3H5": {"entropy": {"value": 1.2, "low": 1.1, "high": 1.3}}}}``,
    #: ``{"depth": {"": {"cosine": {"points": {"L1": {"value": 0.9}}}}}}``
    facts: dict[str, dict[str, dict[str, Any]]]


def baseline_json(measurements: Measurements) -> str:
    """Write rows and conditions as one small JSON document."""
    facts: dict[str, dict[str, dict[str, Any]]] = {}
    for row in measurements.rows:
        if not row.compared:
            continue
        facts_by_name = facts.setdefault(row.section, {}).setdefault(row.where, {})
        if row.point:
            curve = facts_by_name.setdefault(row.name, {"points": {}})
            curve["points"][row.point] = _fact(row)
        else:
            facts_by_name[row.name] = _fact(row)
    conditions = {
        section: tuple((kind, name, *condition) for (kind, name), condition in stated.items())
        for section, stated in measurements.conditions.items()
    }
    file = _File(_VERSION, measurements.metric, measurements.not_valid, conditions, facts)
    text = json.dumps(vars(file), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace('},"', '},\n"') + "\n"  # lines, so that version control shows what moved


def _fact(row: Row) -> Any:
    """Write what came out: words, labels, or a number with the fields that differ from defaults."""
    if row.words is not None:
        return row.words
    if row.labels is not None:
        return {"labels": list(row.labels), "primary": row.primary}
    fields = {"value": row.value}
    for name in _NUMBER_FIELDS:
        value = getattr(row, name)
        default = getattr(Row, name)  # a dataclass has its fields' defaults as attributes
        if value != default:
            fields[name] = value
    return {
        name: float(f"{value:.7g}") if isinstance(value, float) else value
        for name, value in fields.items()
    }


def _measurements_in(document: dict[str, Any], path: Path) -> Measurements:
    """Read a document that :func:`baseline_json` wrote."""
    version = document["baseline"]
    try:
        if version != _VERSION:
            raise ValueError(f"this headscope reads version {_VERSION}, not {version}")
        file = from_dict(_File, document)
        conditions = {
            section: _conditions_in(stated) for section, stated in file.conditions.items()
        }
        rows = tuple(_rows_in(file))
    except (TypeError, ValueError) as error:
        hint = "" if version == _VERSION else " Another version of headscope wrote it."
        raise InputError(f"{visible(path)} is damaged: {visible(error)}.{hint}") from None
    return Measurements(str(path), rows, conditions, file.not_valid, file.metric)


def _conditions_in(stated: Iterable[tuple[Any, ...]]) -> Conditions:
    """Read the conditions of one section."""
    conditions = {(kind, name): Condition(value, text) for kind, name, value, text in stated}
    for kind, _ in conditions:
        if kind not in KINDS:
            raise ValueError(f"no condition is called {kind!r}")
    return conditions


def _rows_in(file: _File) -> Iterator[Row]:
    """Make the rows of which the file holds facts."""
    for section, facts_by_place in file.facts.items():
        for where, facts_by_name in facts_by_place.items():
            for name, fact in facts_by_name.items():
                key = {"section": section, "where": where, "name": name}
                if isinstance(fact, str):
                    yield Row(section, where, name, words=fact)
                elif isinstance(fact, dict) and "points" in fact:
                    points = from_dict(dict[str, dict[str, Any]], fact["points"])
                    for point, number in points.items():
                        yield from_dict(Row, {**number, **key, "point": point})
                elif isinstance(fact, dict):
                    yield from_dict(Row, {**fact, **key})
                else:
                    raise TypeError(f"{name} of {section} is not an object")
