"""The page of ``headscope compare``: maps of heads, and every number, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from headscope.core.safe_text import visible
from headscope.core.serialise import to_json
from headscope.reports.compare_view import (
    SAME,
    cell_texts,
    compare_csv,
    compare_markdown,
    described,
    short_name,
    unlike_lines,
)
from headscope.reports.result import Compared, CompareResult
from headscope.show.cells import tidy
from headscope.show.page.template import page_json, rendered, role_colours


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
    return report.label, visible(short_name(report)), columns, rows


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
        reports=[(r.label, visible(short_name(r)), visible(described(r))) for r in reports],
        alike=SAME,
        unlike=[(visible(caption), visible(who)) for caption, who in unlike_lines(result)],
        sections=[
            (section, [(visible(row.what), [*map(cell_texts, row.cells)]) for row in rows])
            for section, rows in groupby(result.rows, key=lambda row: row.section)
        ],
    )


def compare_files(result: CompareResult, rules: Iterable[object] = ()) -> dict[str, bytes]:
    """Return compare.md, compare.csv, compare.html and compare.json."""
    texts = {
        "compare.md": compare_markdown(result, rules),
        "compare.csv": compare_csv(result),
        "compare.html": compare_html(result),
        "compare.json": f"{to_json(result)}\n",
    }
    return {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
