"""How ``list`` looks: a table of names, each with a line about it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.results.list import ListResult

__all__ = ["list_report"]


def list_report(result: ListResult) -> Iterator[RenderableType]:
    """Show every entry; the literature stands below what it is the source of, pages at the end."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for entry in result.entries:
        table.add_row(entry.name, _words(entry.words, entry.source))
    yield table
    if not result.kind:
        yield Text(f"\nOne of them: headscope list {result.entries[0].name}")
        return
    pages = dict.fromkeys(entry.page for entry in result.entries)
    yield Text(f"\nMore in {' and '.join(pages)}.")


def _words(words: str, source: str) -> Text:
    text = Text(words)
    return text.append(f"\n{source}", style="dim") if source else text
