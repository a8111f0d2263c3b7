"""A comparison in the terminal, 80 columns, and as Markdown for a pull request's comment."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.core.safe_text import markdown, visible
from headscope.results.diff import DiffResult
from headscope.results.serialise import to_json
from headscope.show.diff.words import Block, blocks, identity_lines, rest_lines

#: Rows of a table in the terminal, and in Markdown: GitHub takes 65,536 characters in a comment.
_MOST_ROWS, _MOST_ROWS_MARKDOWN = 10, 20
_LONGEST_CELL = 160  # Characters of a cell in Markdown.


def diff_report(diff: DiffResult) -> Iterator[RenderableType]:
    """Show what differs: first about the runs, then tables, last the rest in sentences.

    Nothing at all where the two are equal.
    """
    if diff.equal and not diff.fired:
        return
    yield Text(f"OLD {visible(diff.old)}\nNEW {visible(diff.new)}")
    for caption, change in identity_lines(diff):
        loud = caption.startswith("DIFFERENT")
        yield Text(visible(f"{caption}: {change}"), style="bold red" if loud else "")
    for block in blocks(diff, _MOST_ROWS):
        yield Text(f"\n{visible(block.title)}", style="bold")
        yield _table(block)
        if block.more:
            yield Text(f"... and {block.more:,} more (all with --format json)", style="dim")
    for line in rest_lines(diff):
        yield Text(f"\n{visible(line)}")


def _table(block: Block) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in block.columns:
        table.add_column(column, overflow="fold")
    for row in block.rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    return table


def diff_markdown(diff: DiffResult) -> str:
    """Write the same as Markdown; an empty text where the two are equal."""
    if diff.equal and not diff.fired:
        return ""
    return "\n".join(_lines(diff)) + "\n"


def _lines(diff: DiffResult) -> Iterator[str]:
    yield f"### headscope diff\n\n{markdown(diff.old)} → {markdown(diff.new)}\n"
    for caption, change in identity_lines(diff):
        yield f"* **{markdown(caption)}**: {markdown(change)}"
    for block in blocks(diff, _MOST_ROWS_MARKDOWN):
        yield f"\n#### {markdown(block.title)}\n"
        yield _row(block.columns)
        yield _row(["---"] * len(block.columns))
        yield from (_row([_cell(cell) for cell in row]) for row in block.rows)
        if block.more:
            yield f"\n... and {block.more:,} more"
    yield from (f"\n{markdown(line)}" for line in rest_lines(diff))


def diff_files(diff: DiffResult) -> dict[str, bytes]:
    """Return diff.md and diff.json; where nothing differs the page says so."""
    page = diff_markdown(diff) or "Nothing differs.\n"
    return {"diff.md": page.encode(), "diff.json": to_json(diff).encode() + b"\n"}


def _cell(text: str) -> str:
    return markdown(text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 3]}...")


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
