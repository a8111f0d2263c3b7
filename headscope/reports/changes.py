"""What differs between two sets of measurements: row by row, and about the runs themselves.

A :class:`Row` says one thing that was measured: in which section (``classify``), where (``L3H5``),
under what name (``entropy``), at which ``point`` if it is of a curve, and what came out: a number,
words, or labels such as roles. The same row has the same ``key`` in both sets. A number moved
*beyond* doubt if its two intervals lie apart (:func:`_is_beyond`).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from headscope.core.errors import InputError
from headscope.core.safe_text import listed, visible
from headscope.core.serialise import SCHEMA
from headscope.reports.baseline import Measurements
from headscope.reports.conditions import NOT_STATED, unequal_conditions
from headscope.reports.result import (
    Change,
    CurveChange,
    DiffResult,
    Identity,
    SetChange,
    TextChange,
)
from headscope.reports.rows import Row

#: Share of a number (of 1, where it is smaller) that it may differ where it has no interval.
TOLERANCE = 0.01
#: Share of a number by which runs on different machines differ; far below anything that is printed.
_NOISE = 1e-6
_CALL = {"created", "command"}  # Keys whose values say when and how a run was called
_MOST_PATHS = 20  # Paths of other differences that are named

#: Rows that are compared, by their keys.
_Rows = dict[tuple[str, ...], Row]
#: The same row of the old measurements and of the new ones.
_Pair = tuple[Row, Row]


def changes_between(
    old: Measurements, new: Measurements, *, tolerance: float = TOLERANCE
) -> DiffResult:
    """Say what differs between two sets of measurements.

    Numbers without an interval have moved when they differ by more than ``tolerance`` as a share of
    the larger (of 1, where it is smaller). Raises InputError where nothing can be compared.
    """
    if not 0 <= tolerance < math.inf:
        raise InputError(f"The tolerance is {tolerance}; give a number of 0 or more.")
    sections = _shared_sections(old, new)
    old_rows = _rows_of(old, sections)
    new_rows = _rows_of(new, sections)
    pairs = [(row, new_rows[key]) for key, row in old_rows.items() if key in new_rows]

    # Numbers. Points of curves are summed up by curve. Of the other numbers, the metric that
    # pruning is judged by is named wherever it differs, the rest only where it moved beyond doubt.
    moved = list(_moved_numbers(pairs, tolerance))
    single = [(row, change) for row, change in moved if not row.point]  # no point of a curve
    metrics = [change for row, change in single if row.of_pruning]
    scores = [change for row, change in single if change.beyond and not row.of_pruning]
    scores.sort(key=_relative_size, reverse=True)

    # Labels, and the conditions of the runs.
    labels = list(_label_changes(old_rows, new_rows))
    unequal = unequal_conditions([old.conditions, new.conditions], sections, same_model=True)
    diff = DiffResult(
        old=old.name,
        new=new.name,
        tolerance=tolerance,
        compared=tuple(sections),
        missing=tuple(_only_in(old, new, old_rows, new_rows)),
        added=tuple(_only_in(new, old, new_rows, old_rows)),
        identity=tuple(Identity(row.what, row.name, row.sections, *row.values) for row in unequal),
        roles=tuple(change for change in labels if change.name == "roles"),
        relations=tuple(change for change in labels if change.name == "relations"),
        choices=tuple(change for change in labels if change.name == "heads removed"),
        verdicts=tuple(_word_changes(pairs)),
        metrics=tuple(metrics),
        scores=tuple(scores),
        curves=_curve_changes(pairs, moved),
        within=len([change for _, change in moved if not change.beyond]),
        not_valid=new.not_valid,
        metrics_compared=len([row for row, _ in _number_pairs(pairs) if row.of_pruning]),
        metric=old.metric if old.metric == new.metric else "",
    )
    if not diff.equal:
        return diff
    # Where nothing else differs, every other value that does is named: nothing changes in silence.
    return dataclasses.replace(diff, other=_other_values(old, new, sections))


def _shared_sections(old: Measurements, new: Measurements) -> list[str]:
    """List the sections that both have; InputError if none, or if both are of a later schema."""
    sections = [name for name in old.conditions if name in new.conditions]
    if not sections:
        had = ", ".join(old.conditions)
        has = ", ".join(new.conditions)
        raise InputError(
            f"{visible(old.name)} holds {had} and {visible(new.name)} holds {has}: nothing to "
            "compare. Give two results of the same command."
        )
    for name in sections:
        old_schema = old.conditions[name].get(("schema", ""), NOT_STATED).value
        new_schema = new.conditions[name].get(("schema", ""), NOT_STATED).value
        known = range(1, SCHEMA + 1)
        if old_schema not in known and new_schema not in known:
            raise InputError(
                f"The results of {name} have schemas {old_schema} and {new_schema}; this headscope "
                f"knows {SCHEMA}. Use the version that wrote them."
            )
    return sections


def _rows_of(measurements: Measurements, sections: Iterable[str]) -> _Rows:
    """Return the rows of some sections that are compared, by their keys."""
    shared = set(sections)
    return {row.key: row for row in measurements.rows if row.compared and row.section in shared}


# --- numbers ---


def _number_pairs(pairs: Iterable[_Pair]) -> Iterator[_Pair]:
    """Yield the pairs of which both rows are numbers, known or not."""
    return ((row, new_row) for row, new_row in pairs if row.is_number and new_row.is_number)


def _moved_numbers(pairs: Iterable[_Pair], tolerance: float) -> Iterator[tuple[Row, Change]]:
    """Yield every number that differs: its old row, and how it changed."""
    for row, new_row in _number_pairs(pairs):
        if not _is_same(row.value, new_row.value):
            where = f"{row.where}, {row.point}" if row.point else row.where
            change = Change(
                section=row.section,
                where=where,
                name=row.name,
                old=row.value,
                new=new_row.value,
                old_interval=row.interval,
                new_interval=new_row.interval,
                beyond=_is_beyond(row, new_row, tolerance),
                worsening=_worsening(row, new_row),
            )
            yield row, change


def _is_same(old: float | None, new: float | None) -> bool:
    """Whether two numbers agree to six digits, or both are unknown."""
    if old is None or new is None:
        return old is new
    return abs(new - old) <= _NOISE * max(1.0, abs(old), abs(new))


def _is_beyond(row: Row, new_row: Row, tolerance: float) -> bool:
    """Whether two intervals lie apart; without any, whether the tolerance is exceeded.

    Where only one of the two has an interval, the other gets one as wide.
    """
    if row.value is None or new_row.value is None:
        return True
    shift = abs(new_row.value - row.value)
    known_or_none = [row.interval, new_row.interval]
    intervals = [interval for interval in known_or_none if interval is not None]
    if not intervals:
        return shift > tolerance * max(1.0, abs(row.value), abs(new_row.value))
    if len(intervals) == 1:
        low, high = intervals[0]
        return shift > high - low
    return apart(intervals)


def apart(intervals: Iterable[tuple[float, float]]) -> bool:
    """Whether some intervals have no number in common."""
    lows, highs = zip(*intervals, strict=True)
    return bool(max(lows) > min(highs))


def _worsening(row: Row, new_row: Row) -> float | None:
    """Say how much worse a number is in its own unit; None where none is better or worse."""
    if row.value is None or new_row.value is None or not row.better:
        return None
    return row.better * (row.value - new_row.value)


def _relative_size(change: Change) -> float:
    """Return the relative change of a number; infinite from or to no value."""
    if change.old is None or change.new is None:
        return math.inf
    return abs(change.new - change.old) / max(1.0, abs(change.old), abs(change.new))


def _curve_changes(
    pairs: Iterable[_Pair], moved: Iterable[tuple[Row, Change]]
) -> tuple[CurveChange, ...]:
    """Return the curves of which some points moved beyond doubt, the farthest first."""
    compared = Counter(row.measure for row, _ in _number_pairs(pairs) if row.point)
    beyond: dict[tuple[str, str, str], list[Change]] = {}
    for row, change in moved:
        if row.point and change.beyond:
            beyond.setdefault(row.measure, []).append(change)
    curves = []
    for measure, changes in beyond.items():
        worst = max(changes, key=_relative_size)
        curves.append(CurveChange(*measure, len(changes), compared[measure], worst))
    curves.sort(key=lambda curve: _relative_size(curve.worst), reverse=True)
    return tuple(curves)


# --- words and labels ---


#: Stands for the labels of a head that one of the two does not have.
_NO_HEAD = Row("", "", "", labels=(), primary="no such head")


def _word_changes(pairs: Iterable[_Pair]) -> Iterator[TextChange]:
    """Yield the words that changed, such as the verdict of a claim."""
    for row, new_row in pairs:
        if row.words is not None and new_row.words is not None and row.words != new_row.words:
            yield TextChange(*row.measure, row.words, new_row.words)


def _label_changes(old_rows: _Rows, new_rows: _Rows) -> Iterator[SetChange]:
    """Yield gained and lost labels; a head that is gone has lost its roles."""
    for key in dict.fromkeys([*old_rows, *new_rows]):  # each once, in order
        row = old_rows.get(key, _NO_HEAD)
        new_row = new_rows.get(key, _NO_HEAD)
        if row.labels is None or new_row.labels is None:
            continue
        section, where, name, _ = key
        gained = sorted(set(new_row.labels) - set(row.labels))
        lost = sorted(set(row.labels) - set(new_row.labels))
        is_in_both = key in old_rows and key in new_rows
        has_new_primary = is_in_both and row.primary != new_row.primary
        # Relations and removed heads that only one of the two has are ``missing`` or ``added``.
        has_new_labels = (gained or lost) and (is_in_both or name == "roles")
        if has_new_labels or has_new_primary:
            yield SetChange(
                section=section,
                where=where,
                name=name,
                gained=tuple(gained),
                lost=tuple(lost),
                old=row.primary,
                new=new_row.primary,
            )


# --- what only one of the two has, and what nothing else names ---


def _only_in(
    measurements: Measurements, other: Measurements, rows: _Rows, other_rows: _Rows
) -> Iterator[str]:
    """List what the other does not have: results, then heads, then measures and where they are."""
    yield from (section for section in measurements.conditions if section not in other.conditions)
    other_places = {(row.section, row.where) for row in other_rows.values()}
    other_measures = {row.measure for row in other_rows.values()}
    # Names of places by section, and by section and name of the measure; each once, in order.
    places: dict[str, dict[str, None]] = {}
    measures: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows.values():
        if (row.section, row.where) not in other_places:
            places.setdefault(row.section, {})[row.where] = None
        elif row.measure not in other_measures:
            measures.setdefault((row.section, row.name), {})[row.where] = None
    for section, names in places.items():
        yield f"{section}: {listed(list(names))}"
    for (section, name), names in measures.items():
        named = [where for where in names if where]
        yield f"{section}: {name} of {listed(named or ['it'])}"


def _other_values(old: Measurements, new: Measurements, sections: Iterable[str]) -> tuple[str, ...]:
    """Return the first paths of values that differ in the files as they were written."""
    if not old.raw or not new.raw:
        return ()
    by_section = (_differing_paths(old.raw[name], new.raw[name], name) for name in sections)
    return tuple(islice(chain.from_iterable(by_section), _MOST_PATHS))


def _differing_paths(old: object, new: object, path: str) -> Iterator[str]:
    """Yield the path of every value that differs, but not when and how the runs were called."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:  # the keys of either
            if key not in _CALL:
                yield from _differing_paths(old.get(key), new.get(key), f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (old_item, new_item) in enumerate(zip(old, new, strict=True)):
            yield from _differing_paths(old_item, new_item, f"{path}[{i}]")
    elif type(old) is float and type(new) is float:
        if not _is_same(old, new):
            yield path
    elif old != new:
        yield path
