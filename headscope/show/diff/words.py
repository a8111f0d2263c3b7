"""A comparison as sentences and tables, the same for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headscope.results.diff import Change, CurveChange, DiffResult, SetChange, TextChange

_CAPTIONS = {"schema": "DIFFERENT SCHEMA", "model": "DIFFERENT MODEL", "data": "DIFFERENT DATA"}
_COLUMNS = ("where", "what", "old", "new")
_MOST_LABELS = 4  # Labels of one row that are named.

Row = tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A table with its title; ``more`` counts the rows that were left out."""

    title: str
    columns: Row
    rows: tuple[Row, ...]
    more: int = 0


def identity_lines(diff: DiffResult) -> Iterator[tuple[str, str]]:
    """Say what differs about the runs, what matters most first: a caption, and old -> new."""
    for row in diff.identity:
        caption = _CAPTIONS.get(row.what, f"Setting {row.name}")
        where = "" if set(row.sections) == set(diff.compared) else f" ({', '.join(row.sections)})"
        yield caption + where, f"{row.old} -> {row.new}"


def blocks(diff: DiffResult, most: int) -> Iterator[Block]:
    """Yield the tables that are not empty, each with at most ``most`` rows."""
    for title, columns, rows in _tables(diff):
        if rows:
            yield Block(title, columns, tuple(rows[:most]), max(0, len(rows) - most))


def _tables(diff: DiffResult) -> Iterator[tuple[str, Row, list[Row]]]:
    yield "Rules that fired", ("rule", "reason"), [(f.rule, f.reason) for f in diff.fired]
    insights = [verdict for verdict in diff.verdicts if verdict.section == "insights"]
    yield "Insights: verdicts that changed", _COLUMNS, list(map(_text, insights))
    words = [verdict for verdict in diff.verdicts if verdict.section != "insights"]
    yield "Findings that changed", _COLUMNS, [_text(word, section=True) for word in words]
    roles: list[Row] = [(c.where, c.old, c.new, _signed(c)) for c in diff.roles]
    title = f"{len(roles)} head{'' if len(roles) == 1 else 's'} changed role"
    yield title, ("head", "primary was", "is", "roles"), roles
    relations: list[Row] = [(c.where, _signed(c)) for c in diff.relations]
    yield "Syntactic labels gained (+) and lost (-)", ("head", "relations"), relations
    metrics = [_change(change) for change in diff.metrics if change.beyond]
    yield "Pruning: values beyond their intervals", _COLUMNS, metrics
    choices: list[Row] = [(c.where, str(len(c.gained)), _signed(c)) for c in diff.choices]
    yield "Pruning: heads removed now (+) and not any more (-)", ("where", "new", "heads"), choices
    columns: Row = ("curve", "what", "points", "farthest", "old", "new")
    yield "Curves beyond their intervals", columns, list(map(_curve, diff.curves))
    for section in diff.compared:
        scores = [_change(change) for change in diff.scores if change.section == section]
        yield f"{section.capitalize()}: numbers beyond interval or tolerance", _COLUMNS, scores


def rest_lines(diff: DiffResult) -> Iterator[str]:
    """Say what only one side has, what moved within doubt, and what else differs."""
    if diff.missing:
        yield f"Only in OLD: {_listed(diff.missing)}."
    if diff.added:
        yield f"Only in NEW: {_listed(diff.added)}."
    if diff.within:
        yield (
            f"{diff.within:,} more number{' differs' if diff.within == 1 else 's differ'}, but "
            f"within 95% intervals (without an interval: within {diff.tolerance:.3g} times "
            "the number, or 1 where it is smaller)."
        )
    if diff.other:
        yield f"Other values that differ: {_listed(diff.other)}."
    if not (diff.missing or diff.added or diff.within or diff.other or any(blocks(diff, 1))):
        yield "The results themselves are equal."


def _listed(items: Iterable[str], most: int = 8) -> str:
    items = list(items)
    more = f"; and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more


def _text(change: TextChange, *, section: bool = False) -> Row:
    where = f"{change.section} {change.where}".strip() if section else change.where
    return where, change.name, change.old, change.new


def _signed(change: SetChange) -> str:
    """List labels gained and lost: ``+positional -1``, ``-syntactic``."""
    signed = [f"+{name}" for name in change.gained] + [f"-{name}" for name in change.lost]
    more = len(signed) - _MOST_LABELS
    return ", ".join(signed[:_MOST_LABELS]) + (f", and {more} more" if more > 0 else "")


def _change(change: Change) -> Row:
    old, new = _value(change.old, change.old_interval), _value(change.new, change.new_interval)
    return change.where, change.name, old, new


def _curve(curve: CurveChange) -> Row:
    worst = curve.worst
    point = worst.where.removeprefix(f"{curve.where}, ")
    beyond, values = f"{curve.beyond} of {curve.points}", (_number(worst.old), _number(worst.new))
    return curve.where, curve.name, beyond, point, *values


def _value(value: float | None, interval: Iterable[float] | None) -> str:
    text = _number(value)
    if interval is None or value is None:
        return text
    low, high = interval
    return f"{text} ({_number(low)} to {_number(high)})"


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, int) or value == int(value):
        return f"{value:.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.3f}" if 0.001 <= abs(value) < 100 else f"{value:.4g}"
