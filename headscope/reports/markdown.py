"""``report.md``, short enough for a comment on a pull request; and words that the page shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headscope.core.safe_text import markdown
from headscope.core.serialise import warnings_of
from headscope.reports.result import ReportResult
from headscope.show.blocks import PAGE, Block, Table, Text, table_cells
from headscope.show.cells import tiny
from headscope.show.page.template import versions
from headscope.show.view import view_of


def certificate(report: ReportResult) -> str:
    """Say whether our attention equals the model's."""
    summaries = (getattr(result, "validation", None) for result in report.sections.values())
    summary: Any = report.validate or next(filter(None, summaries), None)
    if summary is None or summary.passed is None:
        return "Not validated: nothing proves that our attention equals the model's."
    if not summary.passed:
        reasons = report.validate.reasons if report.validate else ["see headscope validate"]
        return f"Validation FAILED, so nothing is reported on this model: {'; '.join(reasons)}."
    return (
        f"Validated: our attention equals the model's own to {tiny(summary.max_abs_hidden)} on the "
        "last hidden state."
    )


def proof(report: ReportResult) -> str:
    """Say the same in a few words."""
    text = certificate(report)
    if text.startswith("Validated"):
        return f"✓ equals the model to {text.partition(' to ')[2].partition(' on ')[0]}"
    return "✗ validation failed" if "FAILED" in text else "not validated"


def key_numbers(report: ReportResult) -> list[tuple[str, str, str]]:
    """Return what the report leads with: what it is, this model's value, the controls'."""
    return [
        (number.what, number.text, number.control)
        for name, result in report.sections.items()
        for number in view_of(name).key_numbers(result)
    ]


def settings_rows(report: ReportResult) -> list[tuple[str, str, str]]:
    """Return (section, setting, value) of everything that differs from the defaults."""
    tables = report.settings.items()
    return [(name, key, str(value)) for name, table in tables for key, value in table.items()]


def report_markdown(report: ReportResult) -> str:
    """Write the report in GitHub's Markdown; every string of a model or corpus is inert."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: ReportResult) -> Iterator[str]:
    model = report.provenance["model"]
    gone = model.get("removed_heads")
    removed = f", {len(gone)} of them removed" if isinstance(gone, list) and gone else ""
    yield f"# headscope: {markdown(model['id'])}"
    yield ""
    yield (
        f"{markdown(model['family'])}, {model['n_layers']} layers x {model['n_heads']} heads"
        f"{removed}. {markdown(certificate(report))}"
    )
    for warning in warnings_of(report):
        yield from ("", f"**Warning:** {markdown(warning)}")
    if report.insights is not None:
        claims = report.insights.insights
        decided = [
            (
                *(str(claim.number), claim.claim, claim.verdict, claim.measured),
                "; ".join(f"{part.name}: {part.verdict} ({part.measured})" for part in claim.parts)
                if len(claim.parts) > 1
                else "",
                claim.control,
            )
            for claim in claims
            if claim.verdict != "not measured yet"
        ]
        yield from ("", "## Claims", "")
        if decided:
            columns = ("#", "claim", "verdict", "measured", "parts", "control")
            yield from _table(columns, decided, bold=2)
        waiting = [str(claim.number) for claim in claims if claim.verdict == "not measured yet"]
        if waiting:
            yield from ("", f"Not measured yet: claims {', '.join(waiting)}.")
    if report.classify is not None:
        view = view_of("classify")
        yield from ("", f"## {view.title}", "")
        yield from _written(view.blocks(report.classify) if view.blocks else ())
    for name, result in report.sections.items():
        for part in view_of(name).more(result):
            yield from ("", f"## {part.title}", "", *_written(part.blocks))
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = (
        ("Key numbers", ("", "this model", "control"), key_numbers(report)),
        ("Left out", ("section", "why"), list(report.left_out.items())),
        (
            "Settings other than the defaults",
            ("section", "setting", "value"),
            settings_rows(report),
        ),
    )
    for title, header, rows in tables:
        if rows:
            yield from ("", f"## {title}", "", *_table(header, rows))
    yield ""
    yield f"_{markdown(versions(report))}_"


def _written(blocks: Iterable[Block]) -> Iterator[str]:
    """Write the sentences and tables that are for the page."""
    shown = [block for block in blocks if PAGE in block.on and block != Text("", on=block.on)]
    for i, block in enumerate(block for block in shown if isinstance(block, Text | Table)):
        yield from [""] if i else []
        if isinstance(block, Text):
            yield markdown(block.text)
        else:
            yield from _table([name for name, *_ in block.columns], table_cells(block))


def _table(
    header: Sequence[str], rows: Iterable[Sequence[str]], bold: int | None = None
) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        cells = [markdown(cell) for cell in row]
        if bold is not None:
            cells[bold] = f"**{cells[bold]}**"
        yield f"| {' | '.join(cells)} |"
