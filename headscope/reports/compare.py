"""What the terminal, Markdown and the page say of reports side by side."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, groupby, product
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.core.errors import InputError
from headscope.core.safe_text import markdown, visible
from headscope.core.serialise import to_json
from headscope.models.validation import certificate_of
from headscope.reports.reading import Results, unlike
from headscope.reports.registry import SECTIONS
from headscope.reports.result import Compared, ComparedCell, ComparedRow, CompareResult, Unlike
from headscope.show.cells import csv_text, tiny
from headscope.show.page.template import rendered
from headscope.show.view import KeyNumber, view_of

__all__ = [
    "ALIKE",
    "cell_text",
    "control_text",
    "described",
    "short_name",
    "unlike_lines",
    "gather",
    "compare_csv",
    "compare_markdown",
    "compare_report",
    "compare_html",
    "compare_files",
]


#: Said where nothing but the models may differ.
ALIKE = "The reports were measured alike: schema, data, seeds and settings are the same."
_CAPTIONS = {"schema": "DIFFERENT SCHEMA", "data": "DIFFERENT DATA"}


def described(report: Compared) -> str:
    """Say which model a report is of, and how well our attention equals its own."""
    weights = f", weights {report.weights_sha256[:8]}" if report.weights_sha256 else ""
    family = f"{report.family}, " if report.family else ""
    text = f"{report.name} ({report.place}): {family}{report.size}{weights}; {report.certificate}"
    return f"{text}; without {', '.join(report.missing)}" if report.missing else text


def short_name(report: Compared) -> str:
    """Return the last part of a model's path or hub id."""
    return report.name.rstrip("/").rpartition("/")[2] or report.name


def unlike_lines(result: CompareResult) -> Iterator[tuple[str, str]]:
    """Say what else differs between the runs, what matters most first: a caption, and who has what.

    Nothing where only the model differs.
    """
    for row in result.unlike:
        caption = _CAPTIONS.get(row.what, f"Setting {row.name}")
        yield f"{caption} ({', '.join(row.sections)})", _who(result, row)


def _who(result: CompareResult, row: Unlike) -> str:
    """Write each value once, after the reports that have it."""
    holders: dict[str, list[str]] = {}
    for report, value in zip(result.reports, row.values, strict=True):
        holders.setdefault(value, []).append(report.label)
    return "; ".join(f"{', '.join(labels)}: {value}" for value, labels in holders.items())


def cell_text(cell: ComparedCell | None) -> str:
    """Write a value as it stands in a table."""
    return "-" if cell is None else cell.text


def control_text(cell: ComparedCell | None) -> str:
    """Write the controls of a value; nothing where there is none."""
    return "" if cell is None or cell.control == "-" else cell.control


def gather(reports: Sequence[Results]) -> CompareResult:
    """Lay reports side by side: each section's key numbers, and what else its view compares."""
    if len(reports) < 2:
        raise InputError("Comparing takes two reports or more; give another.")
    rows = tuple(row for section in SECTIONS for row in _rows(section, reports))
    if not any(len([cell for cell in row.cells if cell is not None]) > 1 for row in rows):
        raise InputError(
            "These reports have nothing in common to compare: "
            + "; ".join(f"{visible(found.name)} has {_sections(found)}" for found in reports)
            + "."
        )
    every = [name for name in SECTIONS if any(name in found.sections for found in reports)]
    labels = _labels()
    shown = tuple(_report(next(labels), found, every) for found in reports)
    return CompareResult(shown, rows, unlike(reports))


def _sections(found: Results) -> str:
    return ", ".join(found.sections)


def _labels() -> Iterator[str]:
    """Yield A to Z, then AA, AB and so on."""
    for length in count(1):
        for letters in product(string.ascii_uppercase, repeat=length):
            yield "".join(letters)


def _report(label: str, found: Results, every: Sequence[str]) -> Compared:
    model: Mapping[str, Any] = {}
    for raw in found.raw.values():
        origin = raw.get("provenance")
        if isinstance(origin, dict) and isinstance(origin.get("model"), dict):
            model = origin["model"]
            break
    return Compared(
        label=label,
        name=str(model.get("id") or "unknown model"),
        place=found.name,
        family=str(model.get("family") or ""),
        size=_size(model),
        weights_sha256=str(model.get("weights_sha256") or ""),
        certificate=_certificate(found),
        missing=tuple(name for name in every if name not in found.sections),
    )


def _size(model: Mapping[str, Any]) -> str:
    removed = model.get("removed_heads")
    less = f", {len(removed)} heads removed" if isinstance(removed, list) and removed else ""
    return f"{model.get('n_layers', '?')} layers x {model.get('n_heads', '?')} heads{less}"


def _certificate(found: Results) -> str:
    """Say whether every result is of the model's own attention, and how well it is met."""
    known = {name: certificate_of(result) for name, result in found.sections.items()}
    bad = [name for name, one in known.items() if one is not None and one.passed is False]
    if bad:
        return f"validation FAILED ({', '.join(bad)})"
    open_ = [name for name, one in known.items() if one is not None and one.passed is None]
    if open_:
        return f"not validated ({', '.join(open_)})"
    largest = [one.max_abs_hidden for one in known.values() if one is not None]
    numbers = [value for value in largest if value is not None]
    if not numbers:
        return "no certificate"
    return f"our attention equals the model's to {tiny(max(numbers))}"


def _rows(section: str, reports: Sequence[Results]) -> Iterator[ComparedRow]:
    """Yield a row for everything that any of the reports says in one section."""
    said = [_said(section, found) for found in reports]
    for what in dict.fromkeys(what for rows in said for what in rows):
        yield ComparedRow(section, what, tuple(_cell(rows.get(what)) for rows in said))


def _said(section: str, found: Results) -> dict[str, KeyNumber]:
    result = found.sections.get(section)
    if result is None:
        return {}
    view = view_of(section)
    try:
        rows = [*view.compared(result), *view.key_numbers(result)]
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        # The file's fields have the right types, but what stands in them does not fit together.
        raise InputError(
            f"{visible(found.name)} ({section}) is damaged: it lacks something that its key "
            "numbers are made of; measure it again."
        ) from None
    return {row.what: row for row in rows}


def _cell(found: KeyNumber | None) -> ComparedCell | None:
    return None if found is None else ComparedCell(found.text, found.control, found.number)


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
        table.add_row(Text(f"  {visible(row.what)}"), *map(_cell_tables, row.cells[columns]))
    return table


def _cell_tables(cell: ComparedCell | None) -> Text:
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


_STYLE = """
.side th[scope=rowgroup] { background: var(--panel); padding: 6px; }
.side th[scope=row] { font-weight: 400; min-width: 9rem; }
.side td { min-width: 7.5rem; }
"""


def compare_html(result: CompareResult) -> str:
    """Write the page; the same result gives the same text."""
    return rendered(
        "compare.html.j2",
        _STYLE,
        (),
        reports=[
            (report.label, visible(short_name(report)), visible(described(report)))
            for report in result.reports
        ],
        alike=ALIKE,
        unlike=[(visible(caption), visible(who)) for caption, who in unlike_lines(result)],
        sections=[
            (section, [(visible(row.what), [*map(_cell_page, row.cells)]) for row in rows])
            for section, rows in groupby(result.rows, key=lambda row: row.section)
        ],
    )


def _cell_page(cell: ComparedCell | None) -> tuple[str, str]:
    """Return a value, and the controls that stand below it."""
    return visible(cell_text(cell)), visible(control_text(cell))


def compare_files(result: CompareResult) -> dict[str, bytes]:
    """Return compare.md, compare.csv, compare.html and compare.json."""
    texts = {
        "compare.md": compare_markdown(result),
        "compare.csv": compare_csv(result),
        "compare.html": compare_html(result),
        "compare.json": f"{to_json(result)}\n",
    }
    return {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
