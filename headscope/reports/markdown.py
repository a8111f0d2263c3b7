"""``report.md``: short enough for a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headscope.core.safe_text import markdown
from headscope.core.serialise import warnings_of
from headscope.reports.result import Insight, InsightsResult, ReportResult
from headscope.reports.words import certificate, key_numbers, settings_rows
from headscope.show.blocks import PAGE, Block, Table, Text, table_cells
from headscope.show.page.template import versions
from headscope.show.view import view_of


def report_markdown(report: ReportResult) -> str:
    """Write the report in GitHub's Markdown; every string of a model or corpus is inert."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: ReportResult) -> Iterator[str]:
    model = report.provenance["model"]
    yield f"# headscope: {markdown(model['id'])}"
    yield ""
    yield (
        f"{markdown(model['family'])}, {model['n_layers']} layers x {model['n_heads']} heads"
        f"{_removed(model)}. {markdown(certificate(report))}"
    )
    for warning in warnings_of(report):
        yield from ("", f"**Warning:** {markdown(warning)}")
    if report.insights is not None:
        yield from _part("Claims", _claims(report.insights))
    if report.classify is not None:
        view = view_of("classify")
        yield from _part(view.title, _written(view.blocks(report.classify) if view.blocks else ()))
    for name, result in report.sections.items():
        for part in view_of(name).more(result):
            yield from _part(part.title, _written(part.blocks))
    number, why = ("", "this model", "control"), ("section", "why")
    setting = ("section", "setting", "value")
    yield from _table_part("Key numbers", number, list(key_numbers(report)))
    yield from _table_part("Left out", why, list(report.left_out.items()))
    yield from _table_part("Settings other than the defaults", setting, settings_rows(report))
    yield ""
    yield f"_{markdown(versions(report))}_"


def _removed(model: dict[str, object]) -> str:
    removed = model.get("removed_heads")
    return f", {len(removed)} of them removed" if isinstance(removed, list) and removed else ""


def _claims(result: InsightsResult) -> Iterator[str]:
    """Write the claims that have a verdict as a table, and list the others."""
    decided = [found for found in result.insights if found.verdict != "not measured yet"]
    if decided:
        header = ("#", "claim", "verdict", "measured", "parts", "control")
        rows = [
            (str(i.number), i.claim, i.verdict, i.measured, _in_parts(i), i.control)
            for i in decided
        ]
        yield from _table(header, rows, bold=2)
    waiting = [str(i.number) for i in result.insights if i.verdict == "not measured yet"]
    if waiting:
        yield ""
        yield f"Not measured yet: claims {', '.join(waiting)}."


def _in_parts(found: Insight) -> str:
    """Write each part with its verdict and numbers, where there are several."""
    if len(found.parts) < 2:
        return ""
    return "; ".join(f"{part.name}: {part.verdict} ({part.measured})" for part in found.parts)


def _part(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield from ("", f"## {title}", "")
    yield from lines


def _written(blocks: Iterable[Block]) -> Iterator[str]:
    """Write the sentences and tables that are for the page."""
    shown = [block for block in blocks if PAGE in block.on and block != Text("", on=block.on)]
    for i, block in enumerate(block for block in shown if isinstance(block, Text | Table)):
        yield from [""] if i else []
        if isinstance(block, Text):
            yield markdown(block.text)
        else:
            yield from _table([name for name, *_ in block.columns], table_cells(block))


def _table_part(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        yield from _part(title, _table(header, rows))


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
