"""Blocks in the terminal: rich tables and paragraphs, 80 columns wide or more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rich import text as rich_text
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table as RichTable

from headscope.core.safe_text import visible
from headscope.show.blocks import (
    TERMINAL,
    VERBOSE,
    Block,
    Custom,
    Details,
    HeadMap,
    HeadMarks,
    Matrix,
    Table,
    Text,
    table_cells,
)
from headscope.show.cells import decimal, head_rows, make_table
from headscope.show.style import is_verbose

_STYLES = {"": "", "control": "", "code": "", "lead": "bold", "formula": "italic", "soft": "dim"}
_STYLES |= {"check": "green", "passed": "bold green", "failed": "bold red", "warning": "yellow"}
_PREFIXES = {"formula": "   ", "check": "Check: "}
_NAME = 8  # Columns of a row's name
#: Rows and columns that are shown of a matrix that has no token across.
_ROWS = 4
_ACROSS = 8
#: Styles of cells by their share of the scale, more vivid for more, on dark and light ground.
_SHADES = (
    (0.6, "bold #ffffff on #005fd7"),
    (0.35, "#ffffff on #4a74ad"),
    (0.15, "#ffffff on #6f7f93"),
)


@dataclass(frozen=True)
class _Fitted:
    """A table with as many columns as fit in the terminal."""

    draw: Callable[[int], Iterable[RenderableType]]  # Takes the terminal's columns

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        yield from self.draw(options.max_width)


def terminal(
    blocks: Iterable[Block], *, spaced: bool = True, complete: bool | None = None
) -> Iterator[RenderableType]:
    """Draw the blocks that are for the terminal, an empty line between any two if ``spaced``.

    The answer comes first: unless the run is verbose or ``complete`` is set, only sentences are
    shown after the first map or table; what is left out is counted at the end.
    """
    complete = is_verbose() if complete is None else complete
    first = True
    drawn = False
    hidden = 0
    for block in blocks:
        if not block.on & (TERMINAL | VERBOSE) or block == Text("", on=block.on):
            continue
        if not complete:
            style = block.style if isinstance(block, Text) else None
            legend = style == "soft" and block.on != TERMINAL  # explains a block that is left out
            always = isinstance(block, HeadMarks) or (style is not None and not legend)
            if TERMINAL not in block.on or (drawn and not always) or isinstance(block, Details):
                hidden += style is None
                continue
            drawn = drawn or isinstance(block, Table | HeadMap | HeadMarks | Matrix)
        if (spaced and not first) or isinstance(block, Details):
            yield rich_text.Text("")
        first = False
        title = getattr(block, "title", "")
        if isinstance(block, Text | Custom):
            style = block.style if isinstance(block, Text) else ""
            text = rich_text.Text(f"{_PREFIXES.get(style, '')}{block.text}", _STYLES[style])
            text.no_wrap = True if style == "code" else None  # lines to paste are not wrapped
            yield text
        elif isinstance(block, Details):
            yield rich_text.Text(title, style="bold underline")
            yield from terminal(block.blocks, spaced=False, complete=True)
        elif isinstance(block, Table):
            if title:
                yield rich_text.Text(title)
            yield make_table([name for name, *_ in block.columns], table_cells(block))
        elif isinstance(block, HeadMap):
            yield rich_text.Text(f"{title}: {block.legend}")
            bold = float("inf") if block.bold_from is None else block.bold_from
            cells = {
                head: rich_text.Text(
                    decimal(v, block.digits) + (block.marks or {}).get(head, ""),
                    "bold red" if v >= bold else "",
                )
                for head, v in block.values.items()
                if v is not None
            }
            layers = dict.fromkeys(layer for layer, _ in block.values)
            yield _Fitted(partial(_head_map, cells, layers))
        elif isinstance(block, HeadMarks):
            cells = {head: rich_text.Text(*mark) for head, mark in block.marks.items()}
            yield _Fitted(partial(_head_map, cells, None))
            yield rich_text.Text(block.legend, "dim")
        elif isinstance(block, Matrix):
            if block.columns:
                yield _Fitted(partial(_square, block))
            else:
                yield from _corner(block)
    if hidden:
        more = f"{hidden} more {'table' if hidden == 1 else 'tables'}: --verbose; files: -o DIR."
        yield rich_text.Text(f"\n{more}", "dim")


def _head_map(
    cells: Mapping[tuple[str, int], rich_text.Text], layers: Iterable[str] | None, columns: int
) -> Iterator[RichTable]:
    """Lay layers x heads out in blocks of heads; those that are missing stay empty."""
    rows = head_rows(cells, layers)
    first = max(5, 1 + max((len(layer) for layer, _ in rows), default=0))
    n_heads = len(rows[0][1]) if rows else 0
    across = max(1, (columns - first) // 6)
    for start in range(0, n_heads, across):
        heads = range(start, min(start + across, n_heads))
        table = RichTable(box=None, padding=(0, 0), pad_edge=False, show_edge=False)
        table.add_column("", width=first, no_wrap=True)
        for head in heads:
            table.add_column(f"H{head}", width=6, justify="right", no_wrap=True)
        for layer, row in rows:
            table.add_row(layer, *(row[head] or rich_text.Text("") for head in heads))
        yield table


def matrix_cell(value: float | None, weights: bool) -> str:
    """Write a weight with two digits, a score with one; what is hidden or tiny is a dot."""
    if value is None or (weights and value < 0.005):
        return "."
    if not weights:
        return f"{value:z.1f}"
    return f"{value:.2f}".replace("0.", ".", 1) if value < 0.995 else "1.00"


def _square(block: Matrix, columns: int) -> Iterator[RenderableType]:
    """Shade tokens by tokens; shading repeats what the numbers say."""
    width = 4 if block.weights else 5
    n = min((columns - _NAME - 1) // (width + 1), len(block.rows))
    known = [v for row in block.values[:n] for v in row[:n] if v is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if block.weights:
        low = 0.0
        high = 1.0
    elif high > 0:
        low = 0.0  # what lies below it is not shaded
    part = "" if n == len(block.rows) else f", first {n} of {len(block.rows)} tokens"
    yield rich_text.Text(f"{block.title}: queries down, keys across{part}", style="bold")
    table = _matrix_table([_short(name, width) for name in block.columns[:n]], width)
    for name, row in zip(block.rows[:n], block.values, strict=False):
        cells = []
        for value in row[:n]:
            share = 0.0 if value is None or high <= low else (value - low) / (high - low)
            style = next((style for least, style in _SHADES if share >= least), "")
            cells.append(rich_text.Text(matrix_cell(value, block.weights), style))
        table.add_row(_short(name, _NAME), *cells)
    yield table


def _corner(block: Matrix) -> Iterator[RenderableType]:
    """Show the first rows and columns of a matrix, and how much of it that is."""
    values = [row[:_ACROSS] for row in block.values[:_ROWS]]
    columns = len(values[0]) if values else 0
    parts = [
        f"{shown} of {size} {what}"
        for shown, size, what in zip(
            (len(values), columns), block.shape, ("rows", "columns"), strict=True
        )
        if shown < size
    ]
    size = " x ".join(map(str, block.shape))
    part = f", first {' and '.join(parts)}" if parts else ""
    yield rich_text.Text(f"{block.title} ({size}){part}", style="bold")
    table = _matrix_table([""] * columns, 8, header=False)
    for i, row in enumerate(values):
        name = _short(block.rows[i], _NAME) if block.rows else str(i)
        plain = ("-" if v is None else f"{v:.3f}" if abs(v) < 100 else f"{v:.4g}" for v in row)
        table.add_row(name, *plain)
    yield table


def _matrix_table(columns: Sequence[str], width: int, header: bool = True) -> RichTable:
    table = RichTable(
        box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold", show_header=header
    )
    table.add_column("", width=_NAME, no_wrap=True)
    for name in columns:
        table.add_column(name, width=width, justify="right", no_wrap=True)
    return table


def _short(name: str, width: int) -> str:
    """Cut a name to a number of terminal cells: characters of some scripts take two."""
    name = visible(name)
    if cell_len(name) > width:
        name = name.strip("[]") or name  # CLS of [CLS]
    return set_cell_size(name, width).rstrip()
