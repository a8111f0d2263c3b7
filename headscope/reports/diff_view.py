"""What differs between two results, drawn: sentences and tables in the terminal and in Markdown.

Both are drawn from the same values: what differs between the runs, the tables of changes, and the
sentences before and after them. ``diff_report`` and ``diff_markdown`` put them together.

A :class:`DiffResult` lists changes by kind, each with its ``section``, ``where`` (a head or a
curve) and ``name``. Of a number ``beyond`` says whether it moved by more than its intervals allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from headscope.core.safe_text import listed, markdown, visible
from headscope.core.serialise import to_json
from headscope.reports.result import Change, CurveChange, DiffResult, Outcome, SetChange
from headscope.reports.rules import Rule, outcomes_of
from headscope.show.cells import folded, interval_text, joined, make_table, table

_MOST_LABELS = 4  # Labels of one row that are named
#: Rows of all tables together in the terminal (but 3 of each at least), and of one in Markdown:
#: GitHub takes 65,536 characters in a comment.
_MOST_ROWS = 18
_MOST_ROWS_MARKDOWN = 20


@dataclass(frozen=True)
class _ChangeTable:
    """Changes of one kind, as they are written in the terminal and in Markdown."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class RunDifference:
    """One difference between the runs, before any number: what it is, and who has what."""

    caption: str
    values: str
    is_serious: bool  # Whether numbers hardly compare: another schema, model or data

    @classmethod
    def of_kind(cls, kind: str, name: str, sections: Sequence[str], values: str) -> RunDifference:
        """Say what differs: ``kind`` is ``schema``, ``model``, ``data`` or ``setting``."""
        is_serious = kind != "setting"
        caption = f"DIFFERENT {kind.upper()}" if is_serious else f"Setting {name}"
        where = f" ({', '.join(sections)})" if sections else ""
        return cls(caption + where, values, is_serious)


def run_lines(differences: Iterable[RunDifference]) -> Iterator[Text]:
    """Write differences between runs for the terminal, those first that matter most."""
    for difference in differences:
        style = "bold red" if difference.is_serious else ""
        yield Text(visible(f"{difference.caption}: {difference.values}"), style=style)


def run_markdown(differences: Iterable[RunDifference]) -> list[str]:
    """Write the same in Markdown."""
    return [
        f"* **{markdown(difference.caption)}**: {markdown(difference.values)}"
        for difference in differences
    ]


def _run_differences(diff: DiffResult) -> list[RunDifference]:
    """List what differs of the runs; its sections are named where it does not concern all."""
    differences = []
    for identity in diff.identity:
        concerns_all = set(identity.sections) == set(diff.compared)
        sections = () if concerns_all else identity.sections
        values = f"{identity.old} -> {identity.new}"
        difference = RunDifference.of_kind(identity.what, identity.name, sections, values)
        differences.append(difference)
    return differences


# --- the tables ---

_CHANGED = ("where", "what", "old", "new")
_RULES_FIRED = "Rules that fired"


def _tables(diff: DiffResult) -> list[_ChangeTable]:
    """Return every table that is not empty, what matters most first."""
    claims = [change for change in diff.verdicts if change.section == "insights"]
    findings = [change for change in diff.verdicts if change.section != "insights"]
    heads = "1 head" if len(diff.roles) == 1 else f"{len(diff.roles)} heads"
    tables = [
        _ChangeTable(
            _RULES_FIRED,
            ("rule", "reason"),
            [(outcome.rule, outcome.reason) for outcome in diff.fired],
        ),
        _ChangeTable(
            "Claims: verdicts that changed",
            _CHANGED,
            [(change.where, change.name, change.old, change.new) for change in claims],
        ),
        _ChangeTable(
            "Other findings that changed",
            _CHANGED,
            [
                (f"{change.section} {change.where}".strip(), change.name, change.old, change.new)
                for change in findings
            ],
        ),
        _ChangeTable(
            f"{heads} changed role",
            ("head", "primary was", "is", "roles"),
            [(change.where, change.old, change.new, _labels(change)) for change in diff.roles],
        ),
        _ChangeTable(
            "Syntactic labels gained (+) and lost (-)",
            ("head", "relations"),
            [(change.where, _labels(change)) for change in diff.relations],
        ),
        _ChangeTable(
            "Pruning: values beyond their intervals",
            _CHANGED,
            [_number_cells(change) for change in diff.metrics if change.beyond],
        ),
        _ChangeTable(
            "Pruning: heads removed now (+) and no longer (-)",
            ("where", "new", "heads"),
            [(change.where, str(len(change.gained)), _labels(change)) for change in diff.choices],
        ),
        _ChangeTable(
            "Curves beyond their intervals",
            ("curve", "what", "points", "farthest"),
            [_curve_cells(curve) for curve in diff.curves],
        ),
    ]
    for section in diff.compared:
        title = f"{section.capitalize()}: numbers beyond interval or tolerance"
        rows = [_number_cells(change) for change in diff.scores if change.section == section]
        tables.append(_ChangeTable(title, _CHANGED, rows))
    return [change_table for change_table in tables if change_table.rows]


def _curve_cells(curve: CurveChange) -> tuple[str, str, str, str]:
    """Name a curve that moved, how many of its points did, and the one that moved farthest."""
    worst = curve.worst
    point = worst.where.removeprefix(f"{curve.where}, ")
    farthest = f"{_number(worst.old)} -> {_number(worst.new)} at {point}"
    return curve.where, curve.name, f"{curve.beyond} of {curve.points}", farthest


def _labels(change: SetChange) -> str:
    """List what was lost and gained: ``-syntactic, +positional -1``."""
    return listed(change.signed, _MOST_LABELS)


def _number_cells(change: Change) -> tuple[str, str, str, str]:
    """Write a number that moved as a row of :data:`_CHANGED`."""
    old = _with_interval(change.old, change.old_interval)
    new = _with_interval(change.new, change.new_interval)
    return change.where, change.name, old, new


def _with_interval(value: float | None, interval: Sequence[float] | None) -> str:
    if interval is None:
        return _number(value)
    return f"{_number(value)} {interval_text(interval, _number)}"


def _number(value: float | None) -> str:
    """Write a number: 12, 0.123, 1.235e+04; a count without decimals."""
    if value is None:
        return "none"
    if isinstance(value, int) or value == int(value):
        return f"{value:.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.3f}" if 0.001 <= abs(value) < 100 else f"{value:.4g}"


# --- the sentences before and after them ---


def _answer(diff: DiffResult) -> str:
    """Count what changed, in one sentence."""
    beyond = [change for change in (*diff.metrics, *diff.scores) if change.beyond]
    counts = (
        (len(diff.fired), "rule fired", "rules fired"),
        (len(diff.verdicts), "verdict changed", "verdicts changed"),
        (len(diff.roles), "head changed role", "heads changed role"),
        (len(diff.choices), "choice of heads changed", "choices of heads changed"),
        (len(beyond), "number moved beyond its interval", "numbers moved beyond their intervals"),
    )
    said = []
    for count, singular, plural in counts:
        if count:
            noun = singular if count == 1 else plural
            said.append(f"{count:,} {noun}")
    return f"{joined(said)}." if said else "No verdict, role or number changed clearly."


def _rest(diff: DiffResult, tables: Sequence[_ChangeTable]) -> Iterator[str]:
    """Say what only one of the two results has, and what differs that no table shows."""
    if diff.missing:
        yield f"Only in OLD: {_listed(diff.missing)}."
    if diff.added:
        yield f"Only in NEW: {_listed(diff.added)}."
    if diff.within:
        differ = "number differs" if diff.within == 1 else "numbers differ"
        yield (
            f"{diff.within:,} more {differ}, but within 95% intervals (without an interval: "
            f"within {diff.tolerance:.3g} times the number, or 1 where it is smaller)."
        )
    if diff.other:
        yield f"Other values that differ: {_listed(diff.other)}."
    if not (diff.missing or diff.added or diff.within or diff.other or tables):
        yield "The results themselves are equal."


def _listed(items: Sequence[str], most: int = 8) -> str:
    text = "; ".join(items[:most])
    return f"{text}; and {len(items) - most} more" if len(items) > most else text


# --- terminal and Markdown ---


def diff_report(diff: DiffResult) -> Iterator[RenderableType]:
    """Show what differs: first about the runs, then tables, last the rest in sentences.

    Nothing at all where the two are equal.
    """
    if diff.equal and not diff.fired:
        return
    yield Text(_answer(diff), style="bold")
    yield Text(f"OLD {visible(diff.old)}\nNEW {visible(diff.new)}")
    yield from run_lines(_run_differences(diff))
    tables = _tables(diff)
    most = max(3, _MOST_ROWS // max(1, len(tables)))
    for change_table in tables:
        yield Text(f"\n{visible(change_table.title)}", style="bold")
        cells = [[Text(visible(cell)) for cell in row] for row in change_table.rows[:most]]
        yield make_table(change_table.columns, cells, numbers=False)
        hidden = len(change_table.rows) - most
        if hidden > 0:
            yield Text(f"... and {hidden:,} more (all with --format json)", style="dim")
    for sentence in _rest(diff, tables):
        yield Text(f"\n{visible(sentence)}")


def diff_markdown(diff: DiffResult, rules: Iterable[Rule] = ()) -> str:
    """Write the same as Markdown, with a tick or a cross for each of the rules that were asked for.

    An empty text where the two are equal.
    """
    if diff.equal and not diff.fired:
        return ""
    lines = ["### What changed", "", f"**{markdown(_answer(diff))}**", ""]
    lines += [f"{markdown(diff.old)} → {markdown(diff.new)}", ""]
    outcomes = {outcome.rule: outcome for outcome in (*outcomes_of(diff, rules), *diff.fired)}
    if outcomes:
        lines += [*ticked(outcomes.values()), ""]
    lines += run_markdown(_run_differences(diff))
    tables = _tables(diff)
    for change_table in tables:
        if change_table.title != _RULES_FIRED:  # they are ticked above
            lines += _folded_table(change_table)
    lines += [f"\n{markdown(sentence)}" for sentence in _rest(diff, tables)]
    return "\n".join(lines) + "\n"


def _folded_table(change_table: _ChangeTable) -> Iterator[str]:
    """Fold a table up under its title, with the number of its rows if the title has none."""
    title = change_table.title
    rows = change_table.rows
    if not title[0].isdigit():
        title = f"{title} ({len(rows):,})"
    lines = list(table(change_table.columns, rows[:_MOST_ROWS_MARKDOWN]))
    hidden = len(rows) - _MOST_ROWS_MARKDOWN
    if hidden > 0:
        lines += ["", f"... and {hidden:,} more"]
    yield from folded(title, lines)


def ticked(outcomes: Iterable[Outcome]) -> list[str]:
    """Write a table of rules or limits with the measured values; failed ones come first."""
    rows = []
    for outcome in sorted(outcomes, key=lambda outcome: not outcome.reason):
        mark = "\u274c" if outcome.reason else "\u2705"
        measured = outcome.reason or outcome.measured or "did not fire"
        rows.append((mark, outcome.rule, measured))
    return ["", *table(("", "limit", "measured"), rows)] if rows else []


def diff_files(diff: DiffResult, rules: Iterable[Rule] = ()) -> dict[str, bytes]:
    """Return diff.md and diff.json; where nothing differs the page says so."""
    page = diff_markdown(diff, rules) or "Nothing differs.\n"
    return {
        "diff.md": page.encode("utf-8", "backslashreplace"),
        "diff.json": f"{to_json(diff)}\n".encode("utf-8", "backslashreplace"),
    }
