"""``headscope diff``: what differs between two sets of results, and between the runs themselves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from headscope.core.errors import InputError
from headscope.core.safe_text import listed, visible
from headscope.core.serialise import SCHEMA
from headscope.reports.baseline import NO_CONDITION, Side, side_of
from headscope.reports.diff_facts import Facts, Key, Number
from headscope.reports.reading import Results
from headscope.reports.result import (
    Change,
    CurveChange,
    DiffResult,
    Identity,
    SetChange,
    TextChange,
)

#: Share of a number (of 1, where it is smaller) that it may differ where it has no interval.
TOLERANCE = 0.01
_NOISE = 1e-6  # The same between runs on different machines; far below anything that is printed
_CALL = {"created", "command"}  # Keys whose values say when and how a run was called
_MOST_PATHS = 20  # Paths of other differences that are named
V = TypeVar("V")


def compare(
    old: Results | Side, new: Results | Side, *, tolerance: float = TOLERANCE
) -> DiffResult:
    """Say what differs between two sets of results.

    Numbers without an interval have moved when they differ by more than ``tolerance`` as a share of
    the larger (of 1, where it is smaller).
    """
    if not 0 <= tolerance < math.inf:
        raise InputError(f"The tolerance is {tolerance}; give a number of 0 or more.")
    old, new = (side_of(side) if isinstance(side, Results) else side for side in (old, new))
    sections = [name for name in old.schemas if name in new.schemas]
    if not sections:
        raise InputError(
            f"{visible(old.name)} holds {', '.join(old.schemas)} and {visible(new.name)} holds "
            f"{', '.join(new.schemas)}: nothing to compare. Give two results of the same command."
        )
    for name in sections:
        schemas = old.schemas[name], new.schemas[name]
        if min(schemas) > SCHEMA or min(schemas) < 1:
            raise InputError(
                f"The results of {name} have schemas {schemas[0]} and {schemas[1]}; this headscope "
                f"knows {SCHEMA}. Use the version that wrote them."
            )
    before, after = (_of(side.facts, sections) for side in (old, new))
    metrics = list(_changes(before.metrics, after.metrics, tolerance))
    numbers = list(_changes(before.numbers, after.numbers, tolerance))
    scores = sorted((c for c in numbers if c.beyond), key=_size, reverse=True)
    changes = [*metrics, *numbers]
    curves = []
    for key, mine, other in _in_both(before.curves, after.curves):
        section, where, name = key
        points, new_points = (
            {(section, f"{where}, {point}", name): number for point, number in curve.items()}
            for curve in (mine, other)
        )
        moved = list(_changes(points, new_points, tolerance))
        changes += moved
        if beyond := [change for change in moved if change.beyond]:
            shared = len(mine.keys() & other.keys())
            curves.append(CurveChange(*key, len(beyond), shared, max(beyond, key=_size)))
    labels: dict[str, list[SetChange]] = {"roles": [], "relations": [], "heads removed": []}
    for change in _label_changes(before, after):
        labels[change.name].append(change)
    texts = _in_both(before.texts, after.texts)
    diff = DiffResult(
        old=old.name,
        new=new.name,
        tolerance=tolerance,
        compared=tuple(sections),
        missing=tuple(_only(old.schemas, new.schemas, before, after)),
        added=tuple(_only(new.schemas, old.schemas, after, before)),
        identity=_identity(old, new, sections),
        roles=tuple(labels["roles"]),
        relations=tuple(labels["relations"]),
        choices=tuple(labels["heads removed"]),
        verdicts=tuple(
            TextChange(*key, mine, other) for key, mine, other in texts if mine != other
        ),
        metrics=tuple(metrics),
        scores=tuple(scores),
        curves=tuple(sorted(curves, key=lambda curve: _size(curve.worst), reverse=True)),
        within=sum(not change.beyond for change in changes),
        not_valid=new.not_valid,
        metrics_compared=len(before.metrics.keys() & after.metrics.keys()),
        metric=old.metric if old.metric == new.metric else "",
    )
    if not diff.equal:
        return diff
    # Where nothing else differs, every other value that does is named: nothing changes in silence.
    paths: list[str] = []
    for name in sections if old.raw and new.raw else ():
        _differing(old.raw[name], new.raw[name], name, paths.append)
    return dataclasses.replace(diff, other=tuple(paths[:_MOST_PATHS]))


def _of(facts: Facts, sections: Sequence[str]) -> Facts:
    """Keep the facts of some sections."""
    kinds = vars(facts).items()
    return Facts(**{kind: {k: v for k, v in f.items() if k[0] in sections} for kind, f in kinds})


def _identity(old: Side, new: Side, sections: Iterable[str]) -> tuple[Identity, ...]:
    """List what differs of the runs, what matters most first, and once for several sections."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for section in sections:
        mine, other = old.conditions[section], new.conditions[section]
        both = {
            key: [side.get(key, NO_CONDITION) for side in (mine, other)] for key in mine | other
        }
        differ = {key: pair for key, pair in both.items() if pair[0].value != pair[1].value}
        for (what, name), (before, after) in differ.items():
            # Another path to the same weights or text is no other model or text; where these
            # differ, their names are part of the description.
            if (name.partition(" ")[0], "") not in differ:
                rows.setdefault((what, name, before.text, after.text), []).append(section)
    order = ("schema", "model", "data", "setting")
    identity = (Identity(*row[:2], tuple(where), *row[2:]) for row, where in rows.items())
    return tuple(sorted(identity, key=lambda row: order.index(row.what)))


def _changes(
    old: Mapping[Key, Number], new: Mapping[Key, Number], tolerance: float
) -> Iterator[Change]:
    """Yield the numbers that differ, each with whether it moved beyond doubt."""
    for key, mine, other in _in_both(old, new):
        if mine.value is None or other.value is None:
            if mine.value is other.value:
                continue
            beyond, worsening = True, None
        else:
            shift = other.value - mine.value
            larger = max(1.0, abs(mine.value), abs(other.value))
            if abs(shift) <= _NOISE * larger:
                continue
            if mine.interval is None and other.interval is None:
                beyond = abs(shift) > tolerance * larger
            else:  # Where only one side has an interval, the other gets one as wide.
                low, high = mine.interval or [end - shift for end in other.interval or ()]
                new_low, new_high = other.interval or [end + shift for end in (low, high)]
                beyond = new_low > high or new_high < low
            worsening = mine.better * (mine.value - other.value) if mine.better else None
        yield Change(
            *key, mine.value, other.value, mine.interval, other.interval, beyond, worsening
        )


def _size(change: Change) -> float:
    """How far a number moved, as a share of it; from nothing or to nothing is farthest."""
    if change.old is None or change.new is None:
        return math.inf
    return abs(change.new - change.old) / max(1.0, abs(change.old), abs(change.new))


def _in_both(old: Mapping[Key, V], new: Mapping[Key, V]) -> Iterator[tuple[Key, V, V]]:
    return ((key, value, new[key]) for key, value in old.items() if key in new)


def _label_changes(old: Facts, new: Facts) -> Iterator[SetChange]:
    """Yield gained and lost labels; a head that is gone has lost its roles."""
    for key in old.labels | new.labels:
        mine, other = old.labels.get(key), new.labels.get(key)
        before, after = (item.names if item else frozenset() for item in (mine, other))
        primary = [item.primary if item else "no such head" for item in (mine, other)]
        unpaired = (mine is None or other is None) and (key[2] != "roles" or before == after)
        if not unpaired and (before != after or primary[0] != primary[1]):
            gained, lost = sorted(after - before), sorted(before - after)
            yield SetChange(*key, tuple(gained), tuple(lost), *primary)


def _only(
    mine: Mapping[str, object], other: Mapping[str, object], facts: Facts, others: Facts
) -> Iterator[str]:
    """Say what one side alone has: whole results, heads, then kinds of facts with their number."""
    yield from (name for name in mine if name not in other)
    keys, other_keys = (
        dict.fromkeys(chain(f.labels, f.texts, f.metrics, f.numbers, f.curves))
        for f in (facts, others)
    )
    measured = {key[:2] for key in other_keys}
    gone = dict.fromkeys(key[:2] for key in keys if key[:2] not in measured)
    for section in dict.fromkeys(section for section, _ in gone):
        yield f"{section}: {listed([where for name, where in gone if name == section])}"
    rest: dict[tuple[str, str], list[str]] = {}
    for section, where, name in keys:
        if (section, where, name) not in other_keys and (section, where) not in gone:
            rest.setdefault((section, name), []).append(where)
    for (section, name), names in rest.items():
        yield f"{section}: {name} of {listed([where for where in names if where] or ['it'])}"


def _differing(old: object, new: object, where: str, report: Callable[[str], None]) -> None:
    """Report the path of every value that differs but when and how the runs were called."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            if key not in _CALL:
                _differing(old.get(key), new.get(key), f"{where}.{key}", report)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (mine, other) in enumerate(zip(old, new, strict=True)):
            _differing(mine, other, f"{where}[{i}]", report)
    elif type(old) is float and type(new) is float:
        if abs(new - old) > _NOISE * max(1.0, abs(old), abs(new)):
            report(where)
    elif old != new:
        report(where)
