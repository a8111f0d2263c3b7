"""A comparison as sentences and tables, the same for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.core.safe_text import markdown, visible
from headscope.core.serialise import to_json
from headscope.reports.result import Change, DiffResult, SetChange
from headscope.show.cells import joined
from headscope.show.markup import folded, table, ticked

_CAPTIONS = {"schema": "DIFFERENT SCHEMA", "model": "DIFFERENT MODEL", "data": "DIFFERENT DATA"}
_COLUMNS = ("where", "what", "old", "new")
_FIRED = ("rule", "reason")
_MOST_LABELS = 4  # Labels of one row that are named
#: Rows of all tables together in the terminal (but 3 of each at least), and of one in Markdown:
#: GitHub takes 65,536 characters in a comment.
_MOST_ROWS, _MOST_ROWS_MARKDOWN = 18, 20
_LONGEST_CELL = 160  # Characters of a cell in Markdown

Row = Sequence[str]


def _identity_lines(diff: DiffResult) -> Iterator[tuple[str, str]]:
    """Say what differs about the runs, what matters most first: a caption, and old -> new."""
    for row in diff.identity:
        caption = _CAPTIONS.get(row.what, f"Setting {row.name}")
        where = "" if set(row.sections) == set(diff.compared) else f" ({', '.join(row.sections)})"
        yield caption + where, f"{row.old} -> {row.new}"


def _tables(diff: DiffResult) -> Iterator[tuple[str, Row, list[Row]]]:
    """Yield the title, columns and rows of every table that is not empty."""
    insights: list[Row] = []
    others: list[Row] = []
    for text in diff.verdicts:
        if text.section == "insights":
            insights.append((text.where, text.name, text.old, text.new))
        else:
            where = f"{text.section} {text.where}".strip()
            others.append((where, text.name, text.old, text.new))
    heads = f"{len(diff.roles)} head{'' if len(diff.roles) == 1 else 's'} changed role"
    curves: list[Row] = []
    for curve in diff.curves:
        worst = curve.worst
        point = worst.where.removeprefix(f"{curve.where}, ")
        beyond = f"{curve.beyond} of {curve.points}"
        farthest = f"{_number(worst.old)} -> {_number(worst.new)} at {point}"
        curves.append((curve.where, curve.name, beyond, farthest))
    tables: list[tuple[str, Row, list[Row]]] = [
        ("Rules that fired", _FIRED, [(f.rule, f.reason) for f in diff.fired]),
        ("Claims: verdicts that changed", _COLUMNS, insights),
        ("Other findings that changed", _COLUMNS, others),
        (
            heads,
            ("head", "primary was", "is", "roles"),
            [(c.where, c.old, c.new, _signed(c)) for c in diff.roles],
        ),
        (
            "Syntactic labels gained (+) and lost (-)",
            ("head", "relations"),
            [(c.where, _signed(c)) for c in diff.relations],
        ),
        (
            "Pruning: values beyond their intervals",
            _COLUMNS,
            [_change(change) for change in diff.metrics if change.beyond],
        ),
        (
            "Pruning: heads removed now (+) and no longer (-)",
            ("where", "new", "heads"),
            [(c.where, str(len(c.gained)), _signed(c)) for c in diff.choices],
        ),
        (
            "Curves beyond their intervals",
            ("curve", "what", "points", "farthest"),
            curves,
        ),
    ]
    for section in diff.compared:
        title = f"{section.capitalize()}: numbers beyond interval or tolerance"
        scores = [_change(change) for change in diff.scores if change.section == section]
        tables.append((title, _COLUMNS, scores))
    return (table for table in tables if table[2])


def _rest_lines(diff: DiffResult) -> Iterator[str]:
    """Say what only one side has, what moved within its interval, and what else differs."""
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
    if not (diff.missing or diff.added or diff.within or diff.other or any(_tables(diff))):
        yield "The results themselves are equal."


def _listed(items: Sequence[str], most: int = 8) -> str:
    more = f"; and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more


def _signed(change: SetChange) -> str:
    """List labels gained and lost: ``+positional -1``, ``-syntactic``."""
    signed = [f"+{name}" for name in change.gained] + [f"-{name}" for name in change.lost]
    more = len(signed) - _MOST_LABELS
    return ", ".join(signed[:_MOST_LABELS]) + (f", and {more} more" if more > 0 else "")


def _change(change: Change) -> Row:
    cells = []
    for value, ends in ((change.old, change.old_interval), (change.new, change.new_interval)):
        interval = f" ({_number(ends[0])} to {_number(ends[1])})" if ends else ""
        cells.append(_number(value) + ("" if value is None else interval))
    return change.where, change.name, *cells


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, int) or value == int(value):
        return f"{value:.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.3f}" if 0.001 <= abs(value) < 100 else f"{value:.4g}"


def _answer(diff: DiffResult) -> str:
    """Count what changed, in one sentence."""
    beyond = sum(change.beyond for change in (*diff.metrics, *diff.scores))
    counts = (
        (len(diff.fired), "rule fired", "rules fired"),
        (len(diff.verdicts), "verdict changed", "verdicts changed"),
        (len(diff.roles), "head changed role", "heads changed role"),
        (len(diff.choices), "choice of heads changed", "choices of heads changed"),
        (beyond, "number moved beyond its interval", "numbers moved beyond their intervals"),
    )
    said = [f"{n:,} {one if n == 1 else many}" for n, one, many in counts if n]
    return f"{joined(said)}." if said else "No verdict, role or number changed clearly."


def diff_report(diff: DiffResult) -> Iterator[RenderableType]:
    """Show what differs: first about the runs, then tables, last the rest in sentences.

    Nothing at all where the two are equal.
    """
    if diff.equal and not diff.fired:
        return
    yield Text(_answer(diff), style="bold")
    yield Text(f"OLD {visible(diff.old)}\nNEW {visible(diff.new)}")
    for caption, change in _identity_lines(diff):
        loud = caption.startswith("DIFFERENT")
        yield Text(visible(f"{caption}: {change}"), style="bold red" if loud else "")
    tables = list(_tables(diff))
    most = max(3, _MOST_ROWS // max(1, len(tables)))
    for title, columns, rows in tables:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows[:most]:
            table.add_row(*(Text(visible(cell)) for cell in row))
        yield Text(f"\n{visible(title)}", style="bold")
        yield table
        if (more := len(rows) - most) > 0:
            yield Text(f"... and {more:,} more (all with --format json)", style="dim")
    for line in _rest_lines(diff):
        yield Text(f"\n{visible(line)}")


def diff_markdown(diff: DiffResult, rules: Iterable[object] = ()) -> str:
    """Write the same as Markdown, with a tick or a cross for each of the rules that were asked for.

    An empty text where the two are equal.
    """
    if diff.equal and not diff.fired:
        return ""
    lines = ["### What changed", "", f"**{markdown(_answer(diff))}**", ""]
    lines += [f"{markdown(diff.old)} → {markdown(diff.new)}", ""]
    reasons = {fired.rule: fired.reason for fired in diff.fired}
    asked = dict.fromkeys((*map(str, rules), *reasons))
    lines += ticked((rule, reasons.get(rule, "")) for rule in asked)
    for caption, change in _identity_lines(diff):
        lines.append(f"* **{markdown(caption)}**: {markdown(change)}")
    for title, columns, rows in _tables(diff):
        if columns == _FIRED:
            continue
        shown = [[_cut(cell) for cell in row] for row in rows[:_MOST_ROWS_MARKDOWN]]
        more = len(rows) - len(shown)
        rest = ["", f"... and {more:,} more"] if more else []
        lines += folded(
            title if title[0].isdigit() else f"{title} ({len(rows):,})",
            [*table(columns, shown), *rest],
        )
    lines += (f"\n{markdown(line)}" for line in _rest_lines(diff))
    return "\n".join(lines) + "\n"


def _cut(cell: str) -> str:
    return cell if len(cell) <= _LONGEST_CELL else f"{cell[: _LONGEST_CELL - 3]}..."


def diff_files(diff: DiffResult, rules: Iterable[object] = ()) -> dict[str, bytes]:
    """Return diff.md and diff.json; where nothing differs the page says so."""
    page = diff_markdown(diff, rules) or "Nothing differs.\n"
    return {"diff.md": page.encode(), "diff.json": to_json(diff).encode() + b"\n"}
