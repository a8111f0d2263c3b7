"""``headscope compare``: reports side by side, for the terminal, Markdown, CSV and the page."""

from __future__ import annotations

import shlex
import string
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, groupby, product
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.classify.view import mark_of
from headscope.analyses.classify.words import head_sentence
from headscope.core.errors import InputError
from headscope.core.safe_text import markdown, visible
from headscope.core.serialise import to_json
from headscope.models.validation import certificate_of
from headscope.reports.baseline import NO_CONDITION, conditions
from headscope.reports.reading import Results
from headscope.reports.registry import SECTIONS
from headscope.reports.result import (
    Compared,
    ComparedCell,
    ComparedHead,
    ComparedRow,
    CompareResult,
    Unlike,
)
from headscope.show.cells import csv_text, tidy, tiny
from headscope.show.page.template import page_json, rendered, role_colours
from headscope.show.view import KeyNumber, view_of

_SAME = "The reports were measured in the same way: schema, data, seeds and settings are the same."
_CAPTIONS = {"schema": "DIFFERENT SCHEMA", "data": "DIFFERENT DATA"}
#: What differs between two models by nature, or does not matter where the data are the same.
_OF_THE_MODEL = {"model id", "model revision", "data name", "LayerNorm"}
_ACROSS = 3  # Reports that stand side by side in 80 columns
_MOST_ROWS = 8  # That are shown without --verbose
_COLUMNS = ("report", "model", "section", "what", "value", "low", "high", "text", "control")


def gather(reports: Sequence[Results]) -> CompareResult:
    """Lay reports side by side: each section's key numbers, and what else its view compares."""
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
    return CompareResult(tuple(compared), tuple(rows), unlike(reports))


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
    model: Mapping[str, Any] = {}
    for raw in report.raw.values():
        origin = raw.get("provenance")
        if isinstance(origin, dict) and isinstance(origin.get("model"), dict):
            model = origin["model"]
            break
    removed = model.get("removed_heads")
    less = f", {len(removed)} heads removed" if isinstance(removed, list) and removed else ""
    pairs = ((name, certificate_of(result)) for name, result in report.sections.items())
    known = {name: certificate for name, certificate in pairs if certificate is not None}
    errors = [c.max_abs_hidden for c in known.values() if c.max_abs_hidden is not None]
    if failed := [name for name, one in known.items() if one.passed is False]:
        certificate = f"validation FAILED ({', '.join(failed)})"
    elif unknown := [name for name, one in known.items() if one.passed is None]:
        certificate = f"not validated ({', '.join(unknown)})"
    elif errors:
        certificate = f"our attention equals the model's to {tiny(max(errors))}"
    else:
        certificate = "no certificate"
    return Compared(
        label=label,
        name=str(model.get("id") or "unknown model"),
        place=report.name,
        family=str(model.get("family") or ""),
        size=f"{model.get('n_layers', '?')} layers x {model.get('n_heads', '?')} heads{less}",
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
                *(head.layer, head.head, head.primary, mark_of(head), head_sentence(head)),
                head.mean_pattern,
                stack=head.stack,
            )
            for head in classified.only(classified.stacks[0]).heads
        )
    except (LookupError, TypeError, ValueError, AttributeError):  # a damaged file has no map
        return ()


def _headline(reports: Sequence[Compared]) -> str:
    """Say what differs most: how many heads have the same role as in the first report."""
    first = {head.name: head.primary for head in reports[0].heads}
    parts = []
    for other in reports[1:]:
        roles = {head.name: head.primary for head in other.heads}
        both = [name for name in first if name in roles]
        if both:
            same = sum(first[name] == roles[name] for name in both)
            parts.append(
                f"{same} of {len(both)} heads have the same primary role in {reports[0].label} and "
                f"{other.label}"
            )
    return f"{'; '.join(parts)}." if parts else "Their numbers, side by side."


def _map(report: Compared) -> tuple[str, str, list[int], list[tuple[int, list[Any]]]]:
    """Arrange a report's heads as layers and heads, None where there is none."""
    by_place = {(head.layer, head.head): head for head in report.heads}
    columns = list(range(max(head for _, head in by_place) + 1))
    layers = range(max(layer for layer, _ in by_place) + 1)
    rows = [(layer, [by_place.get((layer, head)) for head in columns]) for layer in layers]
    return report.label, visible(_short_name(report)), columns, rows


def unlike(reports: Sequence[Results]) -> tuple[Unlike, ...]:
    """List what is not the same in all reports that have a section, what matters most first.

    The same in several sections is said once.
    """
    rows: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for section in SECTIONS:
        every = [conditions(r, section) if section in r.sections else None for r in reports]
        measured = [report for report in every if report is not None]
        for what, name in dict.fromkeys(key for report in measured for key in report):
            if what == "model" or name in _OF_THE_MODEL:
                continue
            values = [report.get((what, name), NO_CONDITION).value for report in measured]
            if any(value != values[0] for value in values[1:]):
                texts = tuple(
                    "-" if report is None else report.get((what, name), NO_CONDITION).text
                    for report in every
                )
                rows.setdefault((what, name, texts), []).append(section)
    order = ("schema", "data", "setting")
    different = (Unlike(what, name, tuple(in_), texts) for (what, name, texts), in_ in rows.items())
    return tuple(sorted(different, key=lambda row: order.index(row.what)))


def _described(report: Compared) -> str:
    """Say which model a report is of, and how well our attention equals its own."""
    weights = f", weights {report.weights_sha256[:8]}" if report.weights_sha256 else ""
    family = f"{report.family}, " if report.family else ""
    text = f"{report.name} ({report.place}): {family}{report.size}{weights}; {report.certificate}"
    return f"{text}; without {', '.join(report.missing)}" if report.missing else text


def _short_name(report: Compared) -> str:
    """Return the last part of a model's path or hub id."""
    return report.name.rstrip("/").rpartition("/")[2] or report.name


def _unlike_lines(result: CompareResult) -> Iterator[tuple[str, str]]:
    """Say what else differs between the runs: a caption, and each value after who has it."""
    for row in result.unlike:
        holders: dict[str, list[str]] = {}
        for report, value in zip(result.reports, row.values, strict=True):
            holders.setdefault(value, []).append(report.label)
        caption = _CAPTIONS.get(row.what, f"Setting {row.name}")
        values = (f"{', '.join(labels)}: {value}" for value, labels in holders.items())
        yield f"{caption} ({', '.join(row.sections)})", "; ".join(values)


def _cell_texts(cell: ComparedCell | None) -> tuple[str, str]:
    """Return a value as it stands in a table, and its controls, which stand below it."""
    if cell is None:
        return "-", ""
    return visible(cell.text), "" if cell.control == "-" else visible(cell.control)


def _is_apart(row: ComparedRow) -> bool:
    """Whether the reports that have a row clearly differ: by their intervals, or in words."""
    cells = [cell for cell in row.cells if cell is not None]
    ranges = [cell.number.interval for cell in cells if cell.number.interval is not None]
    if ranges and len(ranges) == len(cells):
        return max(low for low, _ in ranges) > min(high for _, high in ranges)
    words = all(cell.number.value is None for cell in cells)
    return words and len({cell.text for cell in cells}) > 1


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
        yield Text(visible(f"{report.label}  {_described(report)}"))
    yield Text("")
    for caption, who in _unlike_lines(result):
        loud = caption.startswith("DIFFERENT")
        yield Text(visible(f"{caption}: {who}"), style="bold red" if loud else "")
    if not result.unlike:
        yield Text(_SAME)
    first = [*apart, *(row for row in common if row not in apart)][:_MOST_ROWS]
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
                for text, control in map(_cell_texts, row.cells[columns]):
                    below = f"\n{control}" if control and verbose else ""
                    cells.append(Text(text).append(below, style="dim"))
                table.add_row(*cells)
        yield Text("")
        yield table
    if not verbose:
        places = " ".join(shlex.quote(visible(report.place)) for report in result.reports)
        left = len(result.rows) - len(wanted)
        yield Text(f"\nNext: the other {left} rows: headscope compare {places} --verbose", "dim")


def compare_markdown(result: CompareResult) -> str:
    """Write the same as Markdown, all reports in one table; every string of a report is inert."""
    lines = [f"### headscope compare: {len(result.reports)} models\n"]
    lines += [f"* **{one.label}** {markdown(_described(one))}" for one in result.reports]
    lines.append("")
    lines += [f"* **{markdown(what)}**: {markdown(who)}" for what, who in _unlike_lines(result)]
    lines += [] if result.unlike else [_SAME]
    names = [f"{report.label} {markdown(_short_name(report))}" for report in result.reports]
    rows = [["section", "what", *names], ["---"] * (2 + len(names))]
    for row in result.rows:
        cells = []
        for text, control in map(_cell_texts, row.cells):
            below = f"<br><sub>{markdown(control)}</sub>" if control else ""
            cells.append(f"{markdown(text)}{below}")
        rows.append([row.section, markdown(row.what), *cells])
    return "\n".join([*lines, "", *(f"| {' | '.join(cells)} |" for cells in rows)]) + "\n"


def compare_csv(result: CompareResult) -> str:
    """Write one row for each value of each report, with its interval as numbers."""
    rows = []
    for row in result.rows:
        for report, cell in zip(result.reports, row.cells, strict=True):
            if cell is not None:
                where = report.label, visible(report.name), row.section, visible(row.what)
                number = cell.number.value, cell.number.low, cell.number.high
                rows.append((*where, *number, visible(cell.text), visible(cell.control)))
    return csv_text(_COLUMNS, rows)


SIDE = 16  # Rows and columns of a head's mean attention.
_STYLE = """
.maps { display: grid; gap: 20px 32px; }
.maps { grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.maps .map { min-width: 0; } .told { min-height: 4.6em; font-size: .92rem; }
.cell.same { outline: 2px solid var(--ink); }
.side th[scope=rowgroup] { background: var(--panel); padding: 6px; }
.side th[scope=row] { font-weight: 400; min-width: 9rem; }
.side td { min-width: 7.5rem; }
"""


def compare_html(result: CompareResult) -> str:
    """Write the page; the same result gives the same text."""
    reports = result.reports
    drawn = [report for report in reports if report.heads]
    fields = ("sentence", "mean_pattern")
    models = [{h.name: {f: getattr(h, f) for f in fields} for h in one.heads} for one in drawn]
    for heads in models:
        for head in heads.values():
            head.update(sentence=tidy(visible(head["sentence"])), mean=head.pop("mean_pattern"))
    roles = [{head.name: head.primary for head in one.heads} for one in drawn]
    names = list(roles[0]) if roles else [""]
    differ = [name for name in names if len({one.get(name) for one in roles}) > 1]
    return rendered(
        "compare.html.j2",
        role_colours() + _STYLE,
        ("pictures.js", "compare.js"),
        data=page_json({"models": models, "first": (differ or names)[0], "side": SIDE}),
        headline=visible(_headline(reports)),
        maps=[_map(report) for report in drawn],
        reports=[(r.label, visible(_short_name(r)), visible(_described(r))) for r in reports],
        alike=_SAME,
        unlike=[(visible(caption), visible(who)) for caption, who in _unlike_lines(result)],
        sections=[
            (section, [(visible(row.what), [*map(_cell_texts, row.cells)]) for row in rows])
            for section, rows in groupby(result.rows, key=lambda row: row.section)
        ],
    )


def compare_files(result: CompareResult) -> dict[str, bytes]:
    """Return compare.md, compare.csv, compare.html and compare.json."""
    texts = {
        "compare.md": compare_markdown(result),
        "compare.csv": compare_csv(result),
        "compare.html": compare_html(result),
        "compare.json": f"{to_json(result)}\n",
    }
    return {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
