"""A comparison as sentences and tables, the same for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.core.safe_text import markdown, visible
from headscope.core.serialise import to_json
from headscope.reports.result import Change, CurveChange, DiffResult, SetChange, TextChange

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


#: Rows of a table in the terminal, and in Markdown: GitHub takes 65,536 characters in a comment.
_MOST_ROWS, _MOST_ROWS_MARKDOWN = 10, 20
_LONGEST_CELL = 160  # Characters of a cell in Markdown.


def diff_report(diff: DiffResult) -> Iterator[RenderableType]:
    """Show what differs: first about the runs, then tables, last the rest in sentences.

    Nothing at all where the two are equal.
    """
    if diff.equal and not diff.fired:
        return
    yield Text(f"OLD {visible(diff.old)}\nNEW {visible(diff.new)}")
    for caption, change in identity_lines(diff):
        loud = caption.startswith("DIFFERENT")
        yield Text(visible(f"{caption}: {change}"), style="bold red" if loud else "")
    for block in blocks(diff, _MOST_ROWS):
        yield Text(f"\n{visible(block.title)}", style="bold")
        yield _table(block)
        if block.more:
            yield Text(f"... and {block.more:,} more (all with --format json)", style="dim")
    for line in rest_lines(diff):
        yield Text(f"\n{visible(line)}")


def _table(block: Block) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in block.columns:
        table.add_column(column, overflow="fold")
    for row in block.rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    return table


def diff_markdown(diff: DiffResult) -> str:
    """Write the same as Markdown; an empty text where the two are equal."""
    if diff.equal and not diff.fired:
        return ""
    return "\n".join(_lines(diff)) + "\n"


def _lines(diff: DiffResult) -> Iterator[str]:
    yield f"### headscope diff\n\n{markdown(diff.old)} → {markdown(diff.new)}\n"
    for caption, change in identity_lines(diff):
        yield f"* **{markdown(caption)}**: {markdown(change)}"
    for block in blocks(diff, _MOST_ROWS_MARKDOWN):
        yield f"\n#### {markdown(block.title)}\n"
        yield _row(block.columns)
        yield _row(["---"] * len(block.columns))
        yield from (_row([_cell(cell) for cell in row]) for row in block.rows)
        if block.more:
            yield f"\n... and {block.more:,} more"
    yield from (f"\n{markdown(line)}" for line in rest_lines(diff))


def diff_files(diff: DiffResult) -> dict[str, bytes]:
    """Return diff.md and diff.json; where nothing differs the page says so."""
    page = diff_markdown(diff) or "Nothing differs.\n"
    return {"diff.md": page.encode(), "diff.json": to_json(diff).encode() + b"\n"}


def _cell(text: str) -> str:
    return markdown(text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 3]}...")


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
