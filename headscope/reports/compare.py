"""What differs between results: the runs themselves, fact by fact, and key numbers side by side."""

from __future__ import annotations

import dataclasses
import math
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, product
from pathlib import Path

from headscope.analyses.classify.cards import head_sentence, mark_of
from headscope.analyses.classify.result import ClassifyResult
from headscope.commands import SECTIONS
from headscope.core.errors import InputError
from headscope.core.safe_text import listed, visible
from headscope.core.serialise import SCHEMA, to_dict
from headscope.reports.baseline import Condition, Conditions, Side, conditions, side_of, size_of
from headscope.reports.facts import Facts, Key, Labels, Number
from headscope.reports.reading import Results, read_results, results_of
from headscope.reports.result import (
    Change,
    Compared,
    ComparedCell,
    ComparedHead,
    ComparedRow,
    CompareResult,
    CurveChange,
    DiffResult,
    Identity,
    ReportResult,
    SetChange,
    TextChange,
    Unlike,
)
from headscope.reports.rules import Rule, parse_rules, with_fired
from headscope.show.cells import tiny
from headscope.show.view import KeyNumber, view_of

#: Share of a number (of 1, where it is smaller) that it may differ where it has no interval.
TOLERANCE = 0.01
_NOISE = 1e-6  # The same between runs on different machines; far below anything that is printed
_CALL = {"created", "command"}  # Keys whose values say when and how a run was called
_MOST_PATHS = 20  # Paths of other differences that are named
_NONE = Condition()  # Of a side that does not state it
_ORDER = ("schema", "model", "data", "setting")  # What matters most first
#: What differs between two models by nature, or does not matter where the data are the same.
_OF_THE_MODEL = {"model id", "model revision", "data name", "LayerNorm"}

# --- the runs: what should be equal ---


def _unequal(
    sides: Sequence[Mapping[str, Conditions]], sections: Iterable[str], *, models: bool
) -> list[Unlike]:
    """List the conditions that differ between the sides that have a section, each once.

    Another path to the same weights or text is no other model or text: where these differ, their
    names are part of the description. ``models`` says whether the model should be the same.
    """
    rows: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for section in sections:
        every = [side.get(section) for side in sides]
        first, *others = [side for side in every if side is not None]
        differ = [
            key
            for key in dict.fromkeys(key for side in (first, *others) for key in side)
            if any(side.get(key, _NONE).value != first.get(key, _NONE).value for side in others)
        ]
        for what, name in differ:
            if not models and (what == "model" or name in _OF_THE_MODEL):
                continue
            if (name.partition(" ")[0], "") not in differ:
                key = what, name
                texts = ("-" if side is None else side.get(key, _NONE).text for side in every)
                rows.setdefault((*key, tuple(texts)), []).append(section)
    unequal = [Unlike(what, name, tuple(at), texts) for (what, name, texts), at in rows.items()]
    return sorted(unequal, key=lambda row: _ORDER.index(row.what))


# --- two sides, fact by fact ---


def changes_between(
    old: Results | Side, new: Results | Side, *, tolerance: float = TOLERANCE
) -> DiffResult:
    """Say what differs between two sets of results.

    Numbers without an interval have moved when they differ by more than ``tolerance`` as a share of
    the larger (of 1, where it is smaller).
    """
    if not 0 <= tolerance < math.inf:
        raise InputError(f"The tolerance is {tolerance}; give a number of 0 or more.")
    old, new = (side_of(side) if isinstance(side, Results) else side for side in (old, new))
    sections = [name for name in old.conditions if name in new.conditions]
    if not sections:
        had, has = (", ".join(side.conditions) for side in (old, new))
        raise InputError(
            f"{visible(old.name)} holds {had} and {visible(new.name)} holds {has}: nothing to "
            "compare. Give two results of the same command."
        )
    for name in sections:
        schemas = [side.conditions[name].get(("schema", ""), _NONE).value for side in (old, new)]
        if not any(schema in range(1, SCHEMA + 1) for schema in schemas):
            raise InputError(
                f"The results of {name} have schemas {schemas[0]} and {schemas[1]}; this headscope "
                f"knows {SCHEMA}. Use the version that wrote them."
            )
    before, after = (
        {key: fact for key, fact in side.facts.items() if key[0] in sections} for side in (old, new)
    )
    metrics: list[Change] = []
    scores: list[Change] = []
    curves: list[CurveChange] = []
    verdicts = list[TextChange]()
    within = metrics_compared = 0
    for key, mine in before.items():
        section, where, name = key
        other = after.get(key)
        if isinstance(mine, Number) and isinstance(other, Number):
            moved = list(_moved(key, mine, other, tolerance))
            beyond = [change for change in moved if change.beyond]
            metrics_compared += mine.of_pruning
            metrics += moved if mine.of_pruning else []
            scores += [] if mine.of_pruning else beyond
            within += len(moved) - len(beyond)
        elif isinstance(mine, dict) and isinstance(other, dict):
            shared = [point for point in mine if point in other]
            sides = [((section, f"{where}, {p}", name), mine[p], other[p]) for p in shared]
            moved = [change for side in sides for change in _moved(*side, tolerance)]
            beyond = [change for change in moved if change.beyond]
            within += len(moved) - len(beyond)
            if beyond:
                worst = max(beyond, key=_size)
                curves.append(CurveChange(*key, len(beyond), len(shared), worst))
        elif isinstance(mine, str) and isinstance(other, str) and mine != other:
            verdicts.append(TextChange(*key, mine, other))
    labels = list(_label_changes(before, after))
    diff = DiffResult(
        old=old.name,
        new=new.name,
        tolerance=tolerance,
        compared=tuple(sections),
        missing=tuple(_only(old.conditions, new.conditions, before, after)),
        added=tuple(_only(new.conditions, old.conditions, after, before)),
        identity=tuple(
            Identity(row.what, row.name, row.sections, *row.values)
            for row in _unequal((old.conditions, new.conditions), sections, models=True)
        ),
        roles=tuple(label for label in labels if label.name == "roles"),
        relations=tuple(label for label in labels if label.name == "relations"),
        choices=tuple(label for label in labels if label.name == "heads removed"),
        verdicts=tuple(verdicts),
        metrics=tuple(metrics),
        scores=tuple(sorted(scores, key=_size, reverse=True)),
        curves=tuple(sorted(curves, key=lambda curve: _size(curve.worst), reverse=True)),
        within=within,
        not_valid=new.not_valid,
        metrics_compared=metrics_compared,
        metric=old.metric if old.metric == new.metric else "",
    )
    if not diff.equal:
        return diff
    # Where nothing else differs, every other value that does is named: nothing changes in silence.
    paths: list[str] = []
    for name in sections if old.raw and new.raw else ():
        _differing(old.raw[name], new.raw[name], name, paths.append)
    return dataclasses.replace(diff, other=tuple(paths[:_MOST_PATHS]))


def _moved(key: Key, mine: Number, other: Number, tolerance: float) -> Iterator[Change]:
    """Yield a number that differs, with whether it moved beyond doubt; nothing if it does not."""
    if mine.value is None or other.value is None:
        if mine.value is other.value:
            return
        beyond = True
        worsening = None
    else:
        shift = other.value - mine.value
        larger = max(1.0, abs(mine.value), abs(other.value))
        if abs(shift) <= _NOISE * larger:
            return
        if mine.interval is None and other.interval is None:
            beyond = abs(shift) > tolerance * larger
        else:  # Where only one side has an interval, the other gets one as wide.
            low, high = mine.interval or [end - shift for end in other.interval or ()]
            beyond = apart([(low, high), other.interval or (low + shift, high + shift)])
        worsening = mine.better * (mine.value - other.value) if mine.better else None
    yield Change(*key, mine.value, other.value, mine.interval, other.interval, beyond, worsening)


def apart(intervals: Iterable[tuple[float, float]]) -> bool:
    """Whether some intervals have no number in common."""
    lows, highs = zip(*intervals, strict=True)
    return bool(max(lows) > min(highs))


def _size(change: Change) -> float:
    """Return the relative change of a number; infinite from or to no value."""
    if change.old is None or change.new is None:
        return math.inf
    return abs(change.new - change.old) / max(1.0, abs(change.old), abs(change.new))


def _label_changes(old: Facts, new: Facts) -> Iterator[SetChange]:
    """Yield gained and lost labels; a head that is gone has lost its roles."""
    sides = [{k: f for k, f in side.items() if isinstance(f, Labels)} for side in (old, new)]
    for key in dict.fromkeys((*sides[0], *sides[1])):
        mine = sides[0].get(key)
        other = sides[1].get(key)
        before, after = (item.names if item else frozenset() for item in (mine, other))
        primary = [item.primary if item else "no such head" for item in (mine, other)]
        unpaired = (mine is None or other is None) and (key[2] != "roles" or before == after)
        if not unpaired and (before != after or primary[0] != primary[1]):
            gained = sorted(after - before)
            lost = sorted(before - after)
            yield SetChange(*key, tuple(gained), tuple(lost), *primary)


def _only(
    mine: Mapping[str, object], other: Mapping[str, object], facts: Facts, others: Facts
) -> Iterator[str]:
    """List what one side alone has: results, heads, then kinds of facts with their number."""
    yield from (name for name in mine if name not in other)
    measured = {key[:2] for key in others}
    gone = dict.fromkeys(key[:2] for key in facts if key[:2] not in measured)
    for section in dict.fromkeys(section for section, _ in gone):
        yield f"{section}: {listed([where for name, where in gone if name == section])}"
    rest: dict[tuple[str, str], list[str]] = {}
    for section, where, name in facts:
        if (section, where, name) not in others and (section, where) not in gone:
            rest.setdefault((section, name), []).append(where)
    for (section, name), names in rest.items():
        yield f"{section}: {name} of {listed([where for where in names if where] or ['it'])}"


def _differing(old: object, new: object, where: str, report: Callable[[str], None]) -> None:
    """Yield the path of every value that differs, except when and how the runs were called."""
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


# --- two reports or more, side by side ---


def compare(
    reports: Sequence[str | Path | ReportResult],
    *,
    fail_on: Sequence[str] = (),
    tolerance: float = TOLERANCE,
) -> CompareResult:
    """Compare several models' reports: the key numbers of each, with their intervals.

    Parameters
    ----------
    reports : list of str, Path or result
        Two or more: folders of reports, their ``report.json``, or what :func:`headscope.report`
        (or one command, such as :func:`headscope.classify`) returned.
    fail_on : list of str, optional
        Rules such as ``role-lost`` and ``metric-drop=2%``: the result then holds what changed from
        the first report to each other one, and which rules fired.
    tolerance : float, default 0.01
        Share of a number (of 1, where it is smaller) that it may differ where it has no interval.

    Returns
    -------
    CompareResult
        Frozen raw values; ``.to_frame()`` gives pandas.

    Raises
    ------
    InputError
        For fewer than two reports, or for what cannot be read as one.
    """
    if isinstance(reports, str | Path):
        raise InputError("Comparing takes a list of two reports or more; give them in one list.")
    sides = [
        read_results(Path(report))
        if isinstance(report, str | Path)
        else results_of(to_dict(report), str(report.provenance["model"]["id"]))
        for report in reports
    ]
    return side_by_side(sides, parse_rules(fail_on), tolerance=tolerance)


def side_by_side(
    reports: Sequence[Results], rules: Sequence[Rule] = (), *, tolerance: float = TOLERANCE
) -> CompareResult:
    """Compare reports: each section's key numbers, and what else its view compares.

    With ``rules``, the changes from the first report to each other one are checked.
    """
    if len(reports) < 2:
        raise InputError("Comparing takes two reports or more; give another.")
    rows = []
    for section in SECTIONS:
        numbers = [_key_numbers(section, report) for report in reports]
        for what in dict.fromkeys(what for report in numbers for what in report):
            cells = (report.get(what) for report in numbers)
            written = (c if c is None else ComparedCell(c.text, c.control, c.number) for c in cells)
            rows.append(ComparedRow(section, what, tuple(written)))
    if all(row.cells.count(None) >= len(reports) - 1 for row in rows):
        names = (f"{visible(one.name)} has {', '.join(one.sections)}" for one in reports)
        text = f"These reports have nothing in common to compare: {'; '.join(names)}."
        raise InputError(text)
    sections = [name for name in SECTIONS if any(name in report.sections for report in reports)]
    letters = (product(string.ascii_uppercase, repeat=length) for length in count(1))
    labels = ("".join(letter) for length in letters for letter in length)  # A to Z, AA, AB ...
    compared = (_compared(next(labels), report, sections) for report in reports)
    changes = (
        with_fired(changes_between(reports[0], report, tolerance=tolerance), rules)
        for report in (reports[1:] if rules else ())
    )
    return CompareResult(tuple(compared), tuple(rows), unlike(reports), tuple(changes))


def unlike(reports: Sequence[Results]) -> tuple[Unlike, ...]:
    """List what is not the same in all reports that have a section, besides the model."""
    made = [{name: conditions(report, name) for name in report.sections} for report in reports]
    sections = [name for name in SECTIONS if any(name in one for one in made)]
    return tuple(_unequal(made, sections, models=False))


def _key_numbers(section: str, report: Results) -> dict[str, KeyNumber]:
    result = report.sections.get(section)
    if result is None:
        return {}
    view = view_of(section)
    try:
        rows = [*view.compared(result), *view.key_numbers(result)]
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        # The file's fields have the right types, but what stands in them does not fit together.
        raise InputError(
            f"{visible(report.name)} ({section}) is damaged: it lacks something that its key "
            "numbers are made of; measure it again."
        ) from None
    return {row.what: row for row in rows}


def _compared(label: str, report: Results, sections: Sequence[str]) -> Compared:
    """Say which model a report is of, and whether our attention equals the model's."""
    origins = (raw.get("provenance") for raw in report.raw.values())
    models = (origin.get("model") for origin in origins if isinstance(origin, dict))
    model = next((model for model in models if isinstance(model, dict)), {})
    known = report.certificates
    errors = [c.max_abs_hidden for c in known.values() if c.max_abs_hidden is not None]
    certificate = "no certificate"
    if errors:
        certificate = f"checked against the model: differs by at most {tiny(max(errors))}"
    for passed, words in ((None, "not validated"), (False, "validation FAILED")):
        if names := [name for name, one in known.items() if one.passed is passed]:
            certificate = f"{words} ({', '.join(names)})"
    return Compared(
        label=label,
        name=str(model.get("id") or "unknown model"),
        place=report.name,
        family=str(model.get("family") or ""),
        size=size_of(model),
        weights_sha256=str(model.get("weights_sha256") or ""),
        certificate=certificate,
        missing=tuple(name for name in sections if name not in report.sections),
        heads=_heads(report),
    )


def _heads(report: Results) -> tuple[ComparedHead, ...]:
    """Return the heads of the first stack that was classified, with their pictures."""
    classified = report.sections.get("classify")
    if not isinstance(classified, ClassifyResult) or not classified.heads:
        return ()
    try:
        return tuple(
            ComparedHead(
                head.layer,
                head.head,
                head.primary,
                mark_of(head),
                head_sentence(head),
                head.mean_pattern,
                stack=head.stack,
            )
            for head in classified.only(classified.stacks[0]).heads
        )
    except (LookupError, TypeError, ValueError, AttributeError):  # a damaged file has no map
        return ()
