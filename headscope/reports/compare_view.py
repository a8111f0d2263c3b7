"""Several reports side by side, drawn: in the terminal, in Markdown and as CSV.

The words come first, since the page (``compare_page``) shares them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.core.safe_text import markdown, visible
from headscope.reports.agreement import agreement_sentence, group_words
from headscope.reports.compare import can_differ, is_apart
from headscope.reports.diff_view import (
    RunDifference,
    diff_markdown,
    diff_report,
    run_lines,
    run_markdown,
)
from headscope.reports.result import (
    Agreement,
    Compared,
    ComparedCell,
    ComparedRow,
    CompareResult,
)
from headscope.reports.rules import Rule
from headscope.show.cells import frame_csv, plural, table
from headscope.show.estimates import ranged

SAME = "The reports were measured in the same way: schema, data, seeds and settings are the same."
_ACROSS = 3  # Reports that stand side by side in 80 columns
_MOST_NUMBERS = 8  # Numbers that are shown without --verbose


# --- words that all formats share ---


def described(report: Compared) -> str:
    """Say which model a report is of, and how well our attention equals its own."""
    family = f"{report.family}, " if report.family else ""
    weights = f", weights {report.weights_sha256[:8]}" if report.weights_sha256 else ""
    text = f"{report.name} ({report.place}): {family}{report.size}{weights}; {report.certificate}"
    return f"{text}; without {', '.join(report.missing)}" if report.missing else text


def short_name(report: Compared) -> str:
    """Return the last part of a model's path or hub id."""
    return report.name.rstrip("/").rpartition("/")[2] or report.name


def run_differences(result: CompareResult) -> list[RunDifference]:
    """Say what else differs between the runs, and which reports have which value."""
    differences = []
    for row in result.unlike:
        labels: dict[str, list[str]] = {}  # of the reports that have a value
        for report, value in zip(result.reports, row.values, strict=True):
            labels.setdefault(value, []).append(report.label)
        values = "; ".join(f"{', '.join(names)}: {value}" for value, names in labels.items())
        differences.append(RunDifference.of_kind(row.what, row.name, row.sections, values))
    return differences


def cell_texts(cell: ComparedCell | None) -> tuple[str, str]:
    """Return a value as a table shows it, and its controls, which are shown below it."""
    if cell is None:
        return "-", ""
    return visible(cell.text), "" if cell.control == "-" else visible(cell.control)


def answer(result: CompareResult) -> str:
    """Say how many numbers clearly differ, of those of which that could be said."""
    comparable = [row for row in result.rows if None not in row.cells and can_differ(row)]
    clear = [row for row in comparable if is_apart(row)]
    n_reports = len(result.reports)
    all_have = "both reports" if n_reports == 2 else f"all {n_reports} reports"
    if not comparable:
        return (
            f"Nothing that {all_have} have could be called clearly different: no number has an "
            "interval, and counts of roles are of different heads."
        )
    return (
        f"{len(clear)} of {len(comparable)} numbers and verdicts that {all_have} have, and that "
        "have an interval or a test, are clearly different."
    )


# --- the terminal ---


def compare_report(result: CompareResult, *, verbose: bool = False) -> Iterator[RenderableType]:
    """Say how many numbers clearly differ, show these, and what else differs between the runs.

    With ``verbose`` every number is shown, with its controls.
    """
    # The answer, the reports, and what else differs between them.
    shared = [row for row in result.rows if None not in row.cells]
    clear = [row for row in shared if is_apart(row)]
    n_reports = len(result.reports)
    yield Text(answer(result), style="bold")
    for agreement in result.agreement:
        yield Text(visible(f"{agreement_sentence(agreement)} {group_words(agreement)}".strip()))
    for report in result.reports:
        yield Text(visible(f"{report.label}  {described(report)}"))
    yield Text("")
    yield from run_lines(run_differences(result))
    if not result.unlike:
        yield Text(SAME)

    # The numbers, those that clearly differ first; a table for each three reports.
    unclear = [row for row in shared if row not in clear]
    leading = [*clear, *unclear][:_MOST_NUMBERS]
    rows = [row for row in result.rows if verbose or row in leading]
    if rows:
        for start in range(0, n_reports, _ACROSS):
            yield Text("")
            yield _numbers_table(result, rows, slice(start, start + _ACROSS), verbose)

    # What changed by the rules that were asked for, and where to read on.
    for changes in result.changes:
        yield Text("")
        yield from diff_report(changes)
    if not verbose:
        places = " ".join(shlex.quote(visible(report.place)) for report in result.reports)
        hidden = len(result.rows) - len(rows)
        what = f"the other {hidden} {plural(hidden, 'row')}" if hidden else "controls"
        yield Text(f"\nNext: {what}: headscope compare {places} --verbose", "dim")


def _numbers_table(
    result: CompareResult, rows: Sequence[ComparedRow], columns: slice, verbose: bool
) -> Table:
    """Lay rows out under their sections, for some of the reports."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold", ratio=2)
    for report in result.reports[columns]:
        table.add_column(report.label, overflow="fold", ratio=1)
    for section, section_rows in groupby(rows, key=lambda row: row.section):
        table.add_row(Text(section, style="bold"))
        for row in section_rows:
            cells = [_value_above_control(cell, verbose) for cell in row.cells[columns]]
            table.add_row(Text(f"  {visible(row.what)}"), *cells)
    return table


def _value_above_control(cell: ComparedCell | None, verbose: bool) -> Text:
    value, control = cell_texts(cell)
    text = Text(value)
    return text.append(f"\n{control}", style="dim") if control and verbose else text


# --- Markdown and CSV ---


def compare_markdown(result: CompareResult, rules: Iterable[Rule] = ()) -> str:
    """Write the same as Markdown, all reports in one table; every string of a report is inert."""
    rules = tuple(rules)
    lines = [f"### headscope compare: {len(result.reports)} models\n"]
    lines += [f"* **{report.label}** {markdown(described(report))}" for report in result.reports]
    lines.append("")
    lines += run_markdown(run_differences(result)) or [SAME]
    lines.append("")
    for agreement in result.agreement:
        lines += _agreement_markdown(agreement)
    names = [f"{report.label} {markdown(short_name(report))}" for report in result.reports]
    lines.append(f"| {' | '.join(['section', 'what', *names])} |")
    lines.append(f"| {' | '.join(['---'] * (2 + len(names)))} |")
    for row in result.rows:
        cells = [_markdown_cell(cell) for cell in row.cells]
        lines.append(f"| {' | '.join([row.section, markdown(row.what), *cells])} |")
    pages = ["\n".join(lines) + "\n"]
    pages += [diff_markdown(changes, rules) for changes in result.changes]
    return "\n".join(page for page in pages if page)


def _agreement_markdown(agreement: Agreement) -> Iterator[str]:
    """Write how many labels two reports share, all together and by relation and role."""
    yield markdown(agreement_sentence(agreement))
    yield ""
    rows = [
        (row.what, str(row.first), str(row.other), str(row.shared), ranged(row.kappa, 2))
        for row in agreement.groups
    ]
    if rows:
        yield from table(("labels", agreement.first, agreement.other, "shared", "kappa"), rows)
        yield ""


def _markdown_cell(cell: ComparedCell | None) -> str:
    value, control = cell_texts(cell)
    below = f"<br><sub>{markdown(control)}</sub>" if control else ""
    return f"{markdown(value)}{below}"


def compare_csv(result: CompareResult) -> str:
    """Write one row for each value of each report, with its interval as numbers."""
    inert = result.to_frame().map(lambda cell: visible(cell) if isinstance(cell, str) else cell)
    return frame_csv(inert)
