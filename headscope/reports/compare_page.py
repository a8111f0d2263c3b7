"""Several reports side by side as one HTML page: maps of their heads, and all numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from headscope.core.safe_text import visible
from headscope.core.serialise import to_json
from headscope.reports.agreement import agreement_sentence
from headscope.reports.compare import is_changed
from headscope.reports.compare_view import (
    SAME,
    cell_texts,
    compare_csv,
    compare_markdown,
    described,
    run_differences,
    short_name,
)
from headscope.reports.result import Compared, ComparedHead, CompareResult
from headscope.reports.rules import Rule
from headscope.show.cells import head_rows, tidy
from headscope.show.page.script_data import page_json
from headscope.show.page.template import rendered, role_colours

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
    """Fill in the page's template; the same result gives the same text."""
    classified = [report for report in result.reports if report.heads]
    return rendered(
        "compare.html.j2",
        role_colours() + _STYLE,
        ("pictures.js", "compare.js"),
        data=page_json(_script_data(classified)),
        headline=_headline(result),
        maps=[_map(report) for report in classified],
        reports=[
            (report.label, visible(short_name(report)), visible(described(report)))
            for report in result.reports
        ],
        alike=SAME,
        unlike=[
            (visible(difference.caption), visible(difference.values))
            for difference in run_differences(result)
        ],
        sections=_sections(result),
    )


def _headline(result: CompareResult) -> str:
    """Say how many heads of each other report have the first's primary role, and labels shared."""
    reports = result.reports
    first = reports[0]
    primary = {head.name: head.primary for head in first.heads}
    sentences = []
    for other in reports[1:]:
        shared = [head for head in other.heads if head.name in primary]
        same = [head for head in shared if head.primary == primary[head.name]]
        if shared:
            heads = f"{len(same)} of {len(shared)} heads"
            both = f"{first.label} and {other.label}"
            sentences.append(f"{heads} have the same primary role in {both}")
    roles = f"{'; '.join(sentences)}." if sentences else "Their numbers, side by side."
    agreements = [agreement_sentence(agreement) for agreement in result.agreement]
    return visible(" ".join([roles, *agreements]))


def _script_data(classified: Sequence[Compared]) -> dict[str, Any]:
    """Return what the page's script shows of a head: its sentence and its mean attention.

    ``differ`` names the heads whose role is not the same in all reports; the first of them is
    selected, else the first head.
    """
    models = [{head.name: _head_data(head) for head in report.heads} for report in classified]
    roles = [{head.name: head.primary for head in report.heads} for report in classified]
    names = list(roles[0]) if roles else []
    differ = [name for name in names if len({primary.get(name) for primary in roles}) > 1]
    selected = next(iter([*differ, *names]), "")
    return {"models": models, "first": selected, "side": SIDE, "differ": differ}


def _head_data(head: ComparedHead) -> dict[str, str]:
    return {"sentence": tidy(visible(head.sentence)), "mean": head.mean_pattern}


def _map(report: Compared) -> tuple[Any, ...]:
    """Return what the template draws a map of: label, name, columns, and rows of heads."""
    heads = {(head.layer, head.head): head for head in report.heads}
    last_layer = max(layer for layer, _ in heads)
    rows = head_rows(heads, range(last_layer + 1))
    columns = range(len(rows[0][1]))
    return report.label, visible(short_name(report)), columns, rows


def _sections(result: CompareResult) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Return each section with its rows: what it is, a cell for each report, whether it changed."""
    sections = []
    for section, rows in groupby(result.rows, key=lambda row: row.section):
        written = []
        for row in rows:
            cells = [cell_texts(cell) for cell in row.cells]
            written.append((visible(row.what), cells, is_changed(row)))
        sections.append((section, written))
    return sections


def compare_files(result: CompareResult, rules: Iterable[Rule] = ()) -> dict[str, bytes]:
    """Return compare.md, compare.csv, compare.html and compare.json."""
    texts = {
        "compare.md": compare_markdown(result, rules),
        "compare.csv": compare_csv(result),
        "compare.html": compare_html(result),
        "compare.json": f"{to_json(result)}\n",
    }
    return {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
