"""Reports side by side in the terminal, 80 columns, as Markdown and as CSV."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.core.safe_text import markdown, visible
from headscope.results.compare import ComparedCell, ComparedRow, CompareResult
from headscope.show.cells import csv_text
from headscope.show.compare.words import (
    ALIKE,
    cell_text,
    control_text,
    described,
    short_name,
    unlike_lines,
)

__all__ = ["compare_csv", "compare_markdown", "compare_report"]

_ACROSS = 3  # Reports that stand side by side in 80 columns.
_COLUMNS = ("report", "model", "section", "what", "value", "low", "high", "text", "control")


def compare_report(result: CompareResult) -> Iterator[RenderableType]:
    """Show which reports there are, what differs between their runs, then the table."""
    for report in result.reports:
        yield Text(visible(f"{report.label}  {described(report)}"))
    yield Text("")
    for caption, who in unlike_lines(result):
        loud = caption.startswith("DIFFERENT")
        yield Text(visible(f"{caption}: {who}"), style="bold red" if loud else "")
    if not result.unlike:
        yield Text(ALIKE)
    for start in range(0, len(result.reports), _ACROSS):
        yield Text("")
        yield _block(result, slice(start, start + _ACROSS))


def _block(result: CompareResult, columns: slice) -> Table:
    """Lay some of the reports side by side, every value above its controls."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold", ratio=2)
    for report in result.reports[columns]:
        table.add_column(report.label, overflow="fold", ratio=1)
    section = ""
    for row in result.rows:
        if row.section != section:
            section = row.section
            table.add_row(Text(section, style="bold"))
        table.add_row(Text(f"  {visible(row.what)}"), *map(_cell, row.cells[columns]))
    return table


def _cell(cell: ComparedCell | None) -> Text:
    text, control = Text(visible(cell_text(cell))), control_text(cell)
    return text.append(f"\n{visible(control)}", style="dim") if control else text


def compare_markdown(result: CompareResult) -> str:
    """Write the same as Markdown, all reports in one table; every string of a report is inert."""
    return "\n".join(_lines(result)) + "\n"


def _lines(result: CompareResult) -> Iterator[str]:
    yield f"### headscope compare: {len(result.reports)} models\n"
    for report in result.reports:
        yield f"* **{report.label}** {markdown(described(report))}"
    yield ""
    for caption, who in unlike_lines(result):
        yield f"* **{markdown(caption)}**: {markdown(who)}"
    if not result.unlike:
        yield ALIKE
    yield ""
    names = [f"{report.label} {markdown(short_name(report))}" for report in result.reports]
    yield _row(["section", "what", *names])
    yield _row(["---"] * (2 + len(names)))
    for row in result.rows:
        yield _row([row.section, markdown(row.what), *map(_markdown_cell, row.cells)])


def _markdown_cell(cell: ComparedCell | None) -> str:
    text, control = markdown(cell_text(cell)), control_text(cell)
    return f"{text}<br><sub>{markdown(control)}</sub>" if control else text


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def compare_csv(result: CompareResult) -> str:
    """Write one row for each value of each report, with its interval as numbers."""
    return csv_text(_COLUMNS, (line for row in result.rows for line in _csv_lines(result, row)))


def _csv_lines(result: CompareResult, row: ComparedRow) -> Iterator[tuple[object, ...]]:
    for report, cell in zip(result.reports, row.cells, strict=True):
        if cell is not None:
            numbers = cell.number.value, cell.number.low, cell.number.high
            where = report.label, visible(report.name), row.section, visible(row.what)
            yield *where, *numbers, visible(cell.text), visible(cell.control)
