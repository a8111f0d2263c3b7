"""Reports side by side as one page that needs nothing else and runs no script."""

from __future__ import annotations

from itertools import groupby

from headscope.core.safe_text import visible
from headscope.results.compare import ComparedCell, CompareResult
from headscope.show.compare.words import (
    ALIKE,
    cell_text,
    control_text,
    described,
    short_name,
    unlike_lines,
)
from headscope.show.page.html import rendered

__all__ = ["compare_html"]


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
            (section, [(visible(row.what), [*map(_cell, row.cells)]) for row in rows])
            for section, rows in groupby(result.rows, key=lambda row: row.section)
        ],
    )


def _cell(cell: ComparedCell | None) -> tuple[str, str]:
    """Return a value, and the controls that stand below it."""
    return visible(cell_text(cell)), visible(control_text(cell))
