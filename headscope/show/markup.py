"""Pieces of GitHub's Markdown: tables, what is folded up, and one line for each limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headscope.core.safe_text import markdown


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], bold: int | None = None
) -> Iterator[str]:
    """Write a table of plain strings; the column ``bold`` stands out."""
    yield f"| {' | '.join(map(markdown, header))} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        cells = [markdown(cell) for cell in row]
        if bold is not None:
            cells[bold] = f"**{cells[bold]}**"
        yield f"| {' | '.join(cells)} |"


def folded(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Fold lines up under a title that opens them; nothing where there are none."""
    lines = list(lines)
    if lines:
        yield from ("", f"<details><summary>{markdown(title)}</summary>", "", *lines, "")
        yield "</details>"


def ticked(limits: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Write one line for each limit and the reason why it fails; failed ones come first."""
    for limit, reason in sorted(limits, key=lambda row: not row[1]):
        mark, why = ("\u274c", f": {markdown(reason)}") if reason else ("\u2705", "")
        yield f"* {mark} {markdown(limit)}{why}"
