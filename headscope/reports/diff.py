"""What differs between two runs themselves: schema, model, data, settings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from headscope.core.errors import InputError
from headscope.core.safe_text import listed, visible
from headscope.core.serialise import SCHEMA
from headscope.models.validation import certificate_of
from headscope.reports.diff_facts import Facts, Interval, Key, Number, facts_of, settings_of
from headscope.reports.reading import Results
from headscope.reports.result import (
    Change,
    CurveChange,
    DiffResult,
    Identity,
    SetChange,
    TextChange,
)

__all__ = ["Described", "conditions", "identity", "TOLERANCE", "compare"]


#: In a result's provenance, and no setting: described apart, or of no importance.
_NO_SETTINGS = ("model", "data", "created", "command", "tokenizer", "warnings")
#: In a result's model, and not what tells one model from another.
_NOT_OF_MODEL = ("id", "revision", "pooling", "pooling_from")
_LONGEST = 120
_ORDER = ("schema", "model", "data", "setting")


@dataclass(frozen=True)
class Described:
    """Something that should be equal, and how it is shown."""

    value: object
    text: str


def identity(old: Results, new: Results, sections: Iterable[str]) -> tuple[Identity, ...]:
    """List what differs, what matters most first; the same in several sections is said once."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for section in sections:
        for row in _differing(conditions(old, section), conditions(new, section)):
            found.setdefault(row, []).append(section)
    rows = [
        Identity(what, name, tuple(where), before, after)
        for (what, name, before, after), where in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: _ORDER.index(row.what)))


def _differing(
    old: dict[tuple[str, str], Described], new: dict[tuple[str, str], Described]
) -> Iterator[tuple[str, str, str, str]]:
    keys = dict.fromkeys([*old, *new])
    differ = [key for key in keys if old.get(key, _NONE).value != new.get(key, _NONE).value]
    for what, name in differ:
        # Another path to the same weights or text is no other model or text; where these differ,
        # their names are part of the description.
        if name.partition(" ")[0] in ("model", "data") and (name.partition(" ")[0], "") in differ:
            continue
        yield what, name, old.get((what, name), _NONE).text, new.get((what, name), _NONE).text


def conditions(results: Results, section: str) -> dict[tuple[str, str], Described]:
    """Return everything that has to be equal for runs to measure the same, by kind and name."""
    result = results.sections[section]
    origin = _mapping(results.raw[section].get("provenance"))
    model, data = _mapping(origin.get("model")), _mapping(origin.get("data"))
    settings = {
        "model id": model.get("id"),
        "model revision": model.get("revision"),
        "data name": data.get("name"),
        "pooling": _pooling(model),
        **{name: value for name, value in origin.items() if name not in _NO_SETTINGS},
        **settings_of(result),
    }
    described = {
        ("schema", ""): Described(result.schema, str(result.schema)),
        ("model", ""): Described(_without(model, *_NOT_OF_MODEL), _model(model)),
        ("data", ""): Described(_without(data, "name"), _data(data)),
    }
    for name, value in settings.items():
        described["setting", name] = Described(value, _text(value))
    return described


def _without(values: Mapping[str, object], *names: str) -> dict[str, object]:
    """Leave some out, and what is null or empty: that is the same as not there."""
    return {k: v for k, v in values.items() if k not in names and v not in (None, [], {})}


def _model(model: Mapping[str, object]) -> str:
    gone = model.get("removed_heads") or []
    less = f", {len(gone)} heads removed" if isinstance(gone, list) and gone else ""
    return _text(
        f"{model.get('id')} ({model.get('family')}, {model.get('n_layers')} layers x "
        f"{model.get('n_heads')} heads{less}, weights {str(model.get('weights_sha256'))[:8]})"
    )


def _pooling(model: Mapping[str, object]) -> str:
    """Return how embeddings were made; older results are all of means.

    Unit length at the end changes no cosine, and nothing else is made of embeddings.
    """
    return str(model.get("pooling") or "mean").removesuffix(", normalize")


def _data(data: Mapping[str, object]) -> str:
    return _text(f"{data.get('name')} (sha256 {str(data.get('sha256'))[:8]})" if data else None)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


_NONE = Described(None, "none")


#: Share of a number (of 1, where it is smaller) that it may differ where it has no interval.
TOLERANCE = 0.01
_NOISE = 1e-6  # The same between runs on different machines; far below anything that is printed.
_CALL = {"created", "command"}  # Keys whose values say when and how a run was called.
_MOST_PATHS = 20  # Paths of other differences that are named.

V = TypeVar("V")


def compare(old: Results, new: Results, *, tolerance: float = TOLERANCE) -> DiffResult:
    """Say what differs between two sets of results.

    Numbers without an interval have moved when they differ by more than ``tolerance`` as a share of
    the larger (of 1, where it is smaller).
    """
    if not 0 <= tolerance < math.inf:
        raise InputError(f"The tolerance is {tolerance}; give a number of 0 or more.")
    sections = [name for name in old.sections if name in new.sections]
    _check(old, new, sections)
    before, after = facts_of(old, sections), facts_of(new, sections)
    numbers = _Moves(tolerance)
    metrics = tuple(numbers.changes(before.metrics, after.metrics, every=True))
    scores = sorted(numbers.changes(before.numbers, after.numbers), key=_size, reverse=True)
    curves = list(numbers.curves(before.curves, after.curves))
    changes = list(_label_changes(before, after))

    def labels(name: str) -> tuple[SetChange, ...]:
        return tuple(change for change in changes if change.name == name)

    found = DiffResult(
        old=old.name,
        new=new.name,
        tolerance=tolerance,
        compared=tuple(sections),
        missing=tuple(_only(old.sections, new.sections, before, after)),
        added=tuple(_only(new.sections, old.sections, after, before)),
        identity=identity(old, new, sections),
        roles=labels("roles"),
        relations=labels("relations"),
        choices=labels("heads removed"),
        verdicts=tuple(_text_changes(before, after)),
        metrics=metrics,
        scores=tuple(scores),
        curves=tuple(sorted(curves, key=lambda curve: _size(curve.worst), reverse=True)),
        within=numbers.within,
        not_valid=tuple(_not_valid(new)),
        metrics_compared=len(before.metrics.keys() & after.metrics.keys()),
        metric=_metric(old) if _metric(old) == _metric(new) else "",
    )
    return found if not found.equal else _with_rest(found, old, new)


def _metric(results: Results) -> str:
    return results.prune.metric if results.prune else ""


def _check(old: Results, new: Results, sections: list[str]) -> None:
    if not sections:
        raise InputError(
            f"{visible(old.name)} holds {', '.join(old.sections)} and {visible(new.name)} holds "
            f"{', '.join(new.sections)}: nothing to compare. Give two results of the same command."
        )
    for name in sections:
        schemas = old.sections[name].schema, new.sections[name].schema
        if min(schemas) > SCHEMA or min(schemas) < 1:
            raise InputError(
                f"The results of {name} have schemas {schemas[0]} and {schemas[1]}; this headscope "
                f"knows {SCHEMA}. Use the version that wrote them."
            )


class _Moves:
    """Compares numbers, and counts those that moved within their intervals."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.within = 0

    def changes(
        self, old: Mapping[Key, Number], new: Mapping[Key, Number], *, every: bool = False
    ) -> Iterator[Change]:
        """Yield the numbers that moved beyond doubt; with ``every`` all that differ."""
        for key, mine, other in _shared(old, new):
            if _same(mine.value, other.value):
                continue
            change = self._change(key, mine, other)
            self.within += not change.beyond
            if change.beyond or every:
                yield change

    def curves(
        self, old: Mapping[Key, Mapping[str, Number]], new: Mapping[Key, Mapping[str, Number]]
    ) -> Iterator[CurveChange]:
        """Yield the curves of which points moved beyond doubt, each with its worst point."""
        for key, mine, other in _shared(old, new):
            keyed = [
                {(key[0], f"{key[1]}, {point}", key[2]): n for point, n in points.items()}
                for points in (mine, other)
            ]
            moved = list(self.changes(*keyed))
            if moved:
                points = len(mine.keys() & other.keys())
                yield CurveChange(*key, len(moved), points, max(moved, key=_size))

    def _change(self, key: Key, old: Number, new: Number) -> Change:
        beyond, worse = self._beyond(old, new), _worsening(old, new)
        return Change(*key, old.value, new.value, old.interval, new.interval, beyond, worse)

    def _beyond(self, old: Number, new: Number) -> bool:
        if old.value is None or new.value is None:
            return True
        if old.interval is None and new.interval is None:
            allowed = self.tolerance * max(1.0, abs(old.value), abs(new.value))
            return abs(new.value - old.value) > allowed
        shift = new.value - old.value
        # Where only one side has an interval, the other gets one as wide.
        mine = old.interval or _shifted(new.interval, -shift)
        other = new.interval or _shifted(old.interval, shift)
        return other[0] > mine[1] or other[1] < mine[0]


def _worsening(old: Number, new: Number) -> float | None:
    if not old.better or old.value is None or new.value is None:
        return None
    return old.better * (old.value - new.value)


def _shifted(interval: Interval | None, by: float) -> Interval:
    low, high = interval or (0.0, 0.0)
    return low + by, high + by


def _same(old: float | None, new: float | None) -> bool:
    if old is None or new is None:
        return old is new
    return abs(new - old) <= _NOISE * max(1.0, abs(old), abs(new))


def _size(change: Change) -> float:
    """How far a number moved, as a share of it; from nothing or to nothing is farthest."""
    if change.old is None or change.new is None:
        return float("inf")
    return abs(change.new - change.old) / max(1.0, abs(change.old), abs(change.new))


def _shared(old: Mapping[Key, V], new: Mapping[Key, V]) -> Iterator[tuple[Key, V, V]]:
    return ((key, value, new[key]) for key, value in old.items() if key in new)


def _label_changes(old: Facts, new: Facts) -> Iterator[SetChange]:
    """Yield gained and lost labels; a head that is gone has lost its roles."""
    for key in dict.fromkeys([*old.labels, *new.labels]):
        mine, other = old.labels.get(key), new.labels.get(key)
        before, after = (item.names if item else frozenset() for item in (mine, other))
        names = [item.primary if item else "no such head" for item in (mine, other)]
        unpaired = (mine is None or other is None) and (key[2] != "roles" or before == after)
        if unpaired or (before == after and names[0] == names[1]):
            continue
        gained, lost = tuple(sorted(after - before)), tuple(sorted(before - after))
        yield SetChange(*key, gained, lost, *names)


def _text_changes(old: Facts, new: Facts) -> Iterator[TextChange]:
    for key, mine, other in _shared(old.texts, new.texts):
        if mine != other:
            yield TextChange(*key, mine, other)


def _not_valid(new: Results) -> Iterator[str]:
    """Say which results are not known to be of the model's own attention."""
    holders = {name: certificate_of(result) for name, result in new.sections.items()}
    if all(holder is None for holder in holders.values()):
        yield "it carries no certificate"
    for name, holder in holders.items():
        if holder is not None and holder.passed is not True:
            words = "not validated" if holder.passed is None else "validation FAILED"
            reasons = "; ".join(getattr(holder, "reasons", ())[:3])
            yield f"{name}: {words}{f' ({reasons})' if reasons else ''}"


def _only(
    mine: Mapping[str, object], other: Mapping[str, object], facts: Facts, others: Facts
) -> Iterator[str]:
    """Say what one side alone has: whole results, heads, then kinds of facts with their number."""
    yield from (name for name in mine if name not in other)
    keys, known = _keys(facts), set(_keys(others))
    places = {key[:2] for key in known}
    gone = dict.fromkeys(key[:2] for key in keys if key[:2] not in places)
    for section in dict.fromkeys(section for section, _ in gone):
        names = [where for place, where in gone if place == section]
        yield f"{section}: {listed(names)}"
    rest: dict[tuple[str, str], list[str]] = {}
    for section, where, name in keys:
        if (section, where, name) not in known and (section, where) not in gone:
            rest.setdefault((section, name), []).append(where)
    for (section, name), names in rest.items():
        yield f"{section}: {name} of {listed([where for where in names if where] or ['it'])}"


def _keys(facts: Facts) -> list[Key]:
    numbers = chain(facts.metrics, facts.numbers, facts.curves)
    return list(dict.fromkeys(chain(facts.labels, facts.texts, numbers)))


def _with_rest(found: DiffResult, old: Results, new: Results) -> DiffResult:
    """Where nothing else differs, name every other value that does: nothing changes in silence."""
    paths: list[str] = []
    for name in found.compared:
        _differing_compare(old.raw[name], new.raw[name], name, paths.append)
    return dataclasses.replace(found, other=tuple(paths[:_MOST_PATHS]))


def _differing_compare(old: object, new: object, where: str, report: Callable[[str], None]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            if key not in _CALL:
                _differing_compare(old.get(key), new.get(key), f"{where}.{key}", report)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (mine, other) in enumerate(zip(old, new, strict=True)):
            _differing_compare(mine, other, f"{where}[{i}]", report)
    elif not _equal(old, new):
        report(where)


def _equal(old: object, new: object) -> bool:
    if type(old) is float and type(new) is float:
        return _same(old, new)
    return bool(old == new)
