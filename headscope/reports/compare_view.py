"""What differs between results, as sentences and tables: terminal, Markdown, CSV and the page."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.core.safe_text import listed, markdown, visible
from headscope.core.serialise import to_json
from headscope.reports.compare import apart
from headscope.reports.result import (
    Change,
    Compared,
    ComparedCell,
    ComparedRow,
    CompareResult,
    DiffResult,
    Outcome,
    SetChange,
)
from headscope.reports.rules import Rule, outcomes_of
from headscope.show.cells import folded, frame_csv, head_rows, joined, make_table, table, tidy
from headscope.show.page.script_data import page_json
from headscope.show.page.template import rendered, role_colours

_CAPTIONS = {"schema": "DIFFERENT SCHEMA", "model": "DIFFERENT MODEL", "data": "DIFFERENT DATA"}
_CHANGED = ("where", "what", "old", "new")
_FIRED = ("rule", "reason")
_MOST_LABELS = 4  # Labels of one row that are named
#: Rows of all tables together in the terminal (but 3 of each at least), and of one in Markdown:
#: GitHub takes 65,536 characters in a comment.
_MOST_ROWS = 18
_MOST_ROWS_MARKDOWN = 20

Row = Sequence[str]
#: Differences between the runs: a caption, in capitals if numbers hardly compare, and the values.
Lines = list[tuple[str, str]]


def _caption(what: str, name: str, sections: Sequence[str]) -> str:
    where = f" ({', '.join(sections)})" if sections else ""
    return _CAPTIONS.get(what, f"Setting {name}") + where


def _terminal_lines(lines: Lines) -> Iterator[Text]:
    for caption, values in lines:
        loud = caption.startswith("DIFFERENT")
        yield Text(visible(f"{caption}: {values}"), style="bold red" if loud else "")


def _markdown_lines(lines: Lines) -> list[str]:
    return [f"* **{markdown(caption)}**: {markdown(values)}" for caption, values in lines]


# --- what changed between two ---


def _identity_lines(diff: DiffResult) -> Lines:
    """Say what differs about the runs, what matters most first: a caption, and old -> new."""
    every = set(diff.compared)
    lines = []
    for row in diff.identity:
        sections = () if set(row.sections) == every else row.sections
        lines.append((_caption(row.what, row.name, sections), f"{row.old} -> {row.new}"))
    return lines


def _tables(diff: DiffResult) -> Iterator[tuple[str, Row, list[Row]]]:
    """Yield the title, columns and rows of every table that is not empty."""
    verdicts: dict[bool, list[Row]] = {True: [], False: []}
    for text in diff.verdicts:
        claim = text.section == "insights"
        where = text.where if claim else f"{text.section} {text.where}".strip()
        verdicts[claim].append((where, text.name, text.old, text.new))
    curves: list[Row] = []
    for curve in diff.curves:
        old = _number(curve.worst.old)
        new = _number(curve.worst.new)
        point = curve.worst.where.removeprefix(f"{curve.where}, ")
        beyond = f"{curve.beyond} of {curve.points}"
        curves.append((curve.where, curve.name, beyond, f"{old} -> {new} at {point}"))
    tables: list[tuple[str, Row, list[Row]]] = [
        ("Rules that fired", _FIRED, [(f.rule, f.reason) for f in diff.fired]),
        ("Claims: verdicts that changed", _CHANGED, verdicts[True]),
        ("Other findings that changed", _CHANGED, verdicts[False]),
        (
            f"{len(diff.roles)} head{'' if len(diff.roles) == 1 else 's'} changed role",
            ("head", "primary was", "is", "roles"),
            [(c.where, c.old, c.new, _labels(c)) for c in diff.roles],
        ),
        (
            "Syntactic labels gained (+) and lost (-)",
            ("head", "relations"),
            [(c.where, _labels(c)) for c in diff.relations],
        ),
        (
            "Pruning: values beyond their intervals",
            _CHANGED,
            [_change(change) for change in diff.metrics if change.beyond],
        ),
        (
            "Pruning: heads removed now (+) and no longer (-)",
            ("where", "new", "heads"),
            [(c.where, str(len(c.gained)), _labels(c)) for c in diff.choices],
        ),
        ("Curves beyond their intervals", ("curve", "what", "points", "farthest"), curves),
    ]
    for section in diff.compared:
        title = f"{section.capitalize()}: numbers beyond interval or tolerance"
        scores = [_change(change) for change in diff.scores if change.section == section]
        tables.append((title, _CHANGED, scores))
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


def _labels(change: SetChange) -> str:
    return listed(change.signed, _MOST_LABELS)


def _change(change: Change) -> Row:
    cells = []
    for value, ends in ((change.old, change.old_interval), (change.new, change.new_interval)):
        interval = f" ({_number(ends[0])} to {_number(ends[1])})" if ends else ""
        cells.append(_number(value) + interval)
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
    yield from _terminal_lines(_identity_lines(diff))
    tables = list(_tables(diff))
    most = max(3, _MOST_ROWS // max(1, len(tables)))
    for title, columns, rows in tables:
        yield Text(f"\n{visible(title)}", style="bold")
        cells = ((Text(visible(cell)) for cell in row) for row in rows[:most])
        yield make_table(columns, cells, numbers=False)
        if (more := len(rows) - most) > 0:
            yield Text(f"... and {more:,} more (all with --format json)", style="dim")
    for line in _rest_lines(diff):
        yield Text(f"\n{visible(line)}")


def ticked(outcomes: Iterable[Outcome]) -> list[str]:
    """Write a table of limits with the measured values; failed ones come first."""
    rows = [
        (
            "\u274c" if one.reason else "\u2705",
            one.rule,
            one.reason or one.measured or "did not fire",
        )
        for one in sorted(outcomes, key=lambda outcome: not outcome.reason)
    ]
    return ["", *table(("", "limit", "measured"), rows)] if rows else []


def diff_markdown(diff: DiffResult, rules: Iterable[Rule] = ()) -> str:
    """Write the same as Markdown, with a tick or a cross for each of the rules that were asked for.

    An empty text where the two are equal.
    """
    if diff.equal and not diff.fired:
        return ""
    lines = ["### What changed", "", f"**{markdown(_answer(diff))}**", ""]
    lines += [f"{markdown(diff.old)} → {markdown(diff.new)}", ""]
    outcomes = {outcome.rule: outcome for outcome in (*outcomes_of(diff, rules), *diff.fired)}
    lines += [*ticked(outcomes.values()), ""] if outcomes else []
    lines += _markdown_lines(_identity_lines(diff))
    for title, columns, rows in _tables(diff):
        if columns == _FIRED:
            continue
        shown = rows[:_MOST_ROWS_MARKDOWN]
        more = len(rows) - _MOST_ROWS_MARKDOWN
        rest = ["", f"... and {more:,} more"] if more > 0 else []
        lines += folded(
            title if title[0].isdigit() else f"{title} ({len(rows):,})",
            [*table(columns, shown), *rest],
        )
    lines += (f"\n{markdown(line)}" for line in _rest_lines(diff))
    return "\n".join(lines) + "\n"


def diff_files(diff: DiffResult, rules: Iterable[Rule] = ()) -> dict[str, bytes]:
    """Return diff.md and diff.json; where nothing differs the page says so."""
    texts = {"md": diff_markdown(diff, rules) or "Nothing differs.\n", "json": f"{to_json(diff)}\n"}
    return {f"diff.{k}": text.encode("utf-8", "backslashreplace") for k, text in texts.items()}


# --- reports side by side ---

SAME = "The reports were measured in the same way: schema, data, seeds and settings are the same."
_ACROSS = 3  # Reports that stand side by side in 80 columns
_MOST_NUMBERS = 8  # Numbers that are shown without --verbose


def described(report: Compared) -> str:
    """Say which model a report is of, and how well our attention equals its own."""
    weights = f", weights {report.weights_sha256[:8]}" if report.weights_sha256 else ""
    family = f"{report.family}, " if report.family else ""
    text = f"{report.name} ({report.place}): {family}{report.size}{weights}; {report.certificate}"
    return f"{text}; without {', '.join(report.missing)}" if report.missing else text


def short_name(report: Compared) -> str:
    """Return the last part of a model's path or hub id."""
    return report.name.rstrip("/").rpartition("/")[2] or report.name


def unlike_lines(result: CompareResult) -> Lines:
    """Say what else differs between the runs: a caption, and each report with its value."""
    lines = []
    for row in result.unlike:
        holders: dict[str, list[str]] = {}
        for report, value in zip(result.reports, row.values, strict=True):
            holders.setdefault(value, []).append(report.label)
        values = (f"{', '.join(labels)}: {value}" for value, labels in holders.items())
        lines.append((_caption(row.what, row.name, row.sections), "; ".join(values)))
    return lines


def cell_texts(cell: ComparedCell | None) -> tuple[str, str]:
    """Return a value as a table shows it, and its controls, which are shown below it."""
    if cell is None:
        return "-", ""
    return visible(cell.text), "" if cell.control == "-" else visible(cell.control)


def _is_apart(row: ComparedRow) -> bool:
    """Whether the reports that have a row clearly differ: by their intervals, or in words."""
    cells = [cell for cell in row.cells if cell is not None]
    ranges = [cell.number.interval for cell in cells if cell.number.interval is not None]
    if ranges and len(ranges) == len(cells):
        return apart(ranges)
    words = all(cell.number.value is None for cell in cells)
    return words and len({cell.text for cell in cells}) > 1


def _differs(row: ComparedRow) -> bool:
    """Whether all reports have a row and it changed: beyond its intervals, where it has any."""
    cells = [cell for cell in row.cells if cell is not None]
    if any(cell.number.interval is not None for cell in cells):
        return _is_apart(row)
    return len(cells) == len(row.cells) and len({cell.text for cell in cells}) > 1


def compare_report(result: CompareResult, *, verbose: bool = False) -> Iterator[RenderableType]:
    """Say how many numbers clearly differ, show these, and what else differs between the runs.

    With ``verbose`` every number is shown, with its controls.
    """
    common = [row for row in result.rows if None not in row.cells]
    apart = [row for row in common if _is_apart(row)]
    count = f"{len(apart)} of {len(common)} numbers and verdicts that"
    all_have = "both reports" if len(result.reports) == 2 else f"all {len(result.reports)} reports"
    yield Text(f"{count} {all_have} have are clearly different.", style="bold")
    for report in result.reports:
        yield Text(visible(f"{report.label}  {described(report)}"))
    yield Text("")
    yield from _terminal_lines(unlike_lines(result))
    if not result.unlike:
        yield Text(SAME)
    first = [*apart, *(row for row in common if row not in apart)][:_MOST_NUMBERS]
    wanted = [row for row in result.rows if verbose or row in first]
    for start in range(0, len(result.reports) if wanted else 0, _ACROSS):
        columns = slice(start, start + _ACROSS)
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
        table.add_column("", overflow="fold", ratio=2)
        for report in result.reports[columns]:
            table.add_column(report.label, overflow="fold", ratio=1)
        for section, rows in groupby(wanted, key=lambda row: row.section):
            table.add_row(Text(section, style="bold"))
            for row in rows:
                cells = [Text(f"  {visible(row.what)}")]
                for text, control in map(cell_texts, row.cells[columns]):
                    below = f"\n{control}" if control and verbose else ""
                    cells.append(Text(text).append(below, style="dim"))
                table.add_row(*cells)
        yield Text("")
        yield table
    for changes in result.changes:
        yield Text("")
        yield from diff_report(changes)
    if not verbose:
        places = " ".join(shlex.quote(visible(report.place)) for report in result.reports)
        left = len(result.rows) - len(wanted)
        yield Text(f"\nNext: the other {left} rows: headscope compare {places} --verbose", "dim")


def compare_markdown(result: CompareResult, rules: Iterable[Rule] = ()) -> str:
    """Write the same as Markdown, all reports in one table; every string of a report is inert."""
    lines = [f"### headscope compare: {len(result.reports)} models\n"]
    lines += [f"* **{one.label}** {markdown(described(one))}" for one in result.reports]
    lines.append("")
    lines += _markdown_lines(unlike_lines(result))
    lines += [] if result.unlike else [SAME]
    names = [f"{report.label} {markdown(short_name(report))}" for report in result.reports]
    rows = [["section", "what", *names], ["---"] * (2 + len(names))]
    for row in result.rows:
        cells = []
        for text, control in map(cell_texts, row.cells):
            below = f"<br><sub>{markdown(control)}</sub>" if control else ""
            cells.append(f"{markdown(text)}{below}")
        rows.append([row.section, markdown(row.what), *cells])
    text = "\n".join([*lines, "", *(f"| {' | '.join(cells)} |" for cells in rows)]) + "\n"
    rules = tuple(rules)
    return "\n".join([text, *filter(None, (diff_markdown(one, rules) for one in result.changes))])


def compare_csv(result: CompareResult) -> str:
    """Write one row for each value of each report, with its interval as numbers."""
    inert = result.to_frame().map(lambda cell: visible(cell) if isinstance(cell, str) else cell)
    return frame_csv(inert)


# --- the page ---

SIDE = 16  # Rows and columns of a head's mean attention.
_STYLE = """
.maps { display: grid; gap: 20px 32px; }
.maps { grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.maps .map { min-width: 0; } .told { min-height: 4.6em; font-size: .92rem; }
.cell.same { outline: 2px solid var(--ink); } .cell { position: relative; }
.differs::after { content: ""; position: absolute; top: 0; right: 0; border: 7px solid; }
.differs::after { border-color: var(--ink) var(--ink) transparent transparent; }
.side th[scope=rowgroup] { background: var(--panel); padding: 6px; }
.side th[scope=row] { font-weight: 400; min-width: 9rem; }
.side td { min-width: 7.5rem; }
"""


def compare_html(result: CompareResult) -> str:
    """Write the page; the same result gives the same text."""
    reports = result.reports
    drawn = [report for report in reports if report.heads]
    # How many heads have the same role as in the first report.
    first = {head.name: head.primary for head in reports[0].heads}
    alike = []
    for other in reports[1:]:
        same = [first[head.name] == head.primary for head in other.heads if head.name in first]
        both = f"{reports[0].label} and {other.label}"
        if same:
            alike.append(f"{sum(same)} of {len(same)} heads have the same primary role in {both}")
    maps = []
    for report in drawn:
        cells = {(head.layer, head.head): head for head in report.heads}
        rows = head_rows(cells, range(max(layer for layer, _ in cells) + 1))
        maps.append((report.label, visible(short_name(report)), range(len(rows[0][1])), rows))
    models = [
        {h.name: {"sentence": tidy(visible(h.sentence)), "mean": h.mean_pattern} for h in one.heads}
        for one in drawn
    ]
    roles = [{head.name: head.primary for head in one.heads} for one in drawn]
    names = list(roles[0]) if roles else [""]
    differ = [name for name in names if len({one.get(name) for one in roles}) > 1]
    return rendered(
        "compare.html.j2",
        role_colours() + _STYLE,
        ("pictures.js", "compare.js"),
        data=page_json(
            {"models": models, "first": (differ or names)[0], "side": SIDE, "differ": differ}
        ),
        headline=visible(f"{'; '.join(alike)}." if alike else "Their numbers, side by side."),
        maps=maps,
        reports=[(r.label, visible(short_name(r)), visible(described(r))) for r in reports],
        alike=SAME,
        unlike=[(visible(caption), visible(who)) for caption, who in unlike_lines(result)],
        sections=[
            (
                section,
                [(visible(row.what), [*map(cell_texts, row.cells)], _differs(row)) for row in rows],
            )
            for section, rows in groupby(result.rows, key=lambda row: row.section)
        ],
    )


def compare_files(result: CompareResult, rules: Iterable[Rule] = ()) -> dict[str, bytes]:
    """Return compare.md, compare.csv, compare.html and compare.json."""
    texts = {"md": compare_markdown(result, rules), "csv": compare_csv(result)}
    texts |= {"html": compare_html(result), "json": f"{to_json(result)}\n"}
    return {f"compare.{k}": text.encode("utf-8", "backslashreplace") for k, text in texts.items()}
