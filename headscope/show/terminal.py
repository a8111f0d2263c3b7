"""Blocks in the terminal: rich tables and paragraphs, 80 columns wide or more.

A block's ``on`` says where it is shown: TERMINAL, VERBOSE (in the terminal with --verbose), PAGE.
:func:`terminal` chooses what is shown, :func:`_drawn` draws one block; below it, maps of heads and
matrices take as many columns as fit. ``Table`` and ``Text`` are our blocks; rich's classes are
``RichTable`` and ``rich_text.Text``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

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
    Medium,
    Table,
    Text,
    table_cells,
)
from headscope.show.cells import decimal, head_rows, make_table
from headscope.show.style import is_verbose

#: How rich writes the style of a paragraph.
_STYLES = {
    "": "",
    "control": "",
    "code": "",
    "lead": "bold",
    "formula": "italic",
    "soft": "dim",
    "check": "green",
    "passed": "bold green",
    "failed": "bold red",
    "warning": "yellow",
}
_PREFIXES = {"formula": "   ", "check": "Check: "}
_NAME_WIDTH = 8  # Characters of a row's name
_HEAD_WIDTH = 6  # Characters of a head's cell in a map of heads
# Rows and columns that are shown of a matrix that is not tokens by tokens
_CORNER_ROWS = 4
_CORNER_COLUMNS = 8
#: Styles of a matrix's cells: the least value of a style as a share of the scale, and the style.
_SHADES = (
    (0.6, "bold #ffffff on #005fd7"),
    (0.35, "#ffffff on #4a74ad"),
    (0.15, "#ffffff on #6f7f93"),
)


@dataclass(frozen=True)
class _Fitted:
    """What rich draws as wide as the terminal is at the time when it is printed."""

    draw: Callable[[int], Iterable[RenderableType]]  # Called with the terminal's columns

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        yield from self.draw(options.max_width)


def terminal(
    blocks: Iterable[Block],
    *,
    spaced: bool = True,
    complete: bool | None = None,
    writes_files: bool = True,
) -> Iterator[RenderableType]:
    """Draw the blocks that are for the terminal, an empty line between any two if ``spaced``.

    The answer comes first: after the first map or table only sentences are shown, and tables that
    an option asked for; what is left out is counted at the end. All is shown if ``complete``, by
    default with --verbose. ``writes_files``: whether the command has a folder of results.
    """
    if complete is None:
        complete = is_verbose()
    is_first = True
    has_table = False  # Whether a map or a table is shown already
    n_hidden = 0
    for block in blocks:
        is_for_terminal = bool(block.on & (TERMINAL | VERBOSE))
        is_empty = isinstance(block, Text) and not block.text
        if not is_for_terminal or is_empty:
            continue
        if not complete:
            if _is_left_out(block, has_table):
                # Sentences that are left out explain a table that is counted.
                if not isinstance(block, Text):
                    n_hidden += 1
                continue
            has_table = has_table or isinstance(block, Table | HeadMap | HeadMarks | Matrix)
        if (spaced and not is_first) or isinstance(block, Details):
            yield rich_text.Text("")
        is_first = False
        yield from _drawn(block)
    if n_hidden:
        tables = "table" if n_hidden == 1 else "tables"
        files = "; files: -o DIR" if writes_files else ""
        more = f"{n_hidden} more {tables}: --verbose{files}."
        yield rich_text.Text(f"\n{more}", "dim")


def _is_left_out(block: Block, has_table: bool) -> bool:
    """Whether a block is shown with --verbose alone; ``has_table``: a table or map came before."""
    if TERMINAL not in block.on or isinstance(block, Details):
        return True
    if isinstance(block, Text):
        # A soft sentence that the page has too is the legend of a table that is left out.
        is_legend = block.style == "soft" and block.on != TERMINAL
        return has_table and is_legend
    was_asked_for = Medium.ASKED in block.on
    return has_table and not was_asked_for and not isinstance(block, HeadMarks)


def _drawn(block: Block) -> Iterator[RenderableType]:
    """Draw one block."""
    if isinstance(block, Text):
        yield _paragraph(block)
    elif isinstance(block, Custom):
        yield rich_text.Text(block.text)
    elif isinstance(block, Details):
        yield rich_text.Text.assemble(
            (block.title, "bold underline"), (f" {block.term}" if block.term else "", "dim")
        )
        yield from terminal(block.blocks, spaced=False, complete=True)
    elif isinstance(block, Table):
        if block.title:
            yield rich_text.Text(block.title)
        titles = [title for title, _, _ in block.columns]
        yield make_table(titles, table_cells(block))
    elif isinstance(block, HeadMap):
        yield rich_text.Text(f"{block.title}: {block.legend}")
        layers = dict.fromkeys(layer for layer, _ in block.values)
        yield _Fitted(partial(_head_map, _head_cells(block), layers))
    elif isinstance(block, HeadMarks):
        cells = {head: rich_text.Text(*mark) for head, mark in block.marks.items()}
        yield _Fitted(partial(_head_map, cells, None))
        yield rich_text.Text(block.legend, "dim")
    elif isinstance(block, Matrix) and block.columns:
        yield _Fitted(partial(_square, block))
    elif isinstance(block, Matrix):
        yield from _corner(block)


def _paragraph(block: Text) -> rich_text.Text:
    """Write a paragraph in its style."""
    text = rich_text.Text(_PREFIXES.get(block.style, "") + block.text, _STYLES[block.style])
    if block.style == "code":
        text.no_wrap = True  # lines to paste are not wrapped
    return text


def _head_cells(block: HeadMap) -> dict[tuple[str, int], rich_text.Text]:
    """Write the number of every head that has one, with its mark; large ones stand out."""
    bold_from = float("inf") if block.bold_from is None else block.bold_from
    marks = block.marks or {}
    cells = {}
    for head, value in block.values.items():
        if value is not None:
            style = "bold red" if value >= bold_from else ""
            cells[head] = rich_text.Text(decimal(value, block.digits) + marks.get(head, ""), style)
    return cells


def _head_map(
    cells: Mapping[tuple[str, int], rich_text.Text], layers: Iterable[str] | None, columns: int
) -> Iterator[RichTable]:
    """Draw a map of layers x heads, in several tables if the heads do not fit side by side.

    The cells of missing heads stay empty. ``columns`` is the width of the terminal.
    """
    rows = head_rows(cells, layers)
    name_width = max(5, 1 + max((len(layer) for layer, _ in rows), default=0))
    n_heads = len(rows[0][1]) if rows else 0
    heads_across = max(1, (columns - name_width) // _HEAD_WIDTH)
    for start in range(0, n_heads, heads_across):
        heads = range(start, min(start + heads_across, n_heads))
        table = RichTable(box=None, padding=(0, 0), pad_edge=False, show_edge=False)
        table.add_column("", width=name_width, no_wrap=True)
        for head in heads:
            table.add_column(f"H{head}", width=_HEAD_WIDTH, justify="right", no_wrap=True)
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
    """Draw a matrix of tokens by tokens with shaded numbers; as many as fit into ``columns``."""
    width = 4 if block.weights else 5
    n_tokens = len(block.rows)
    n_shown = min((columns - _NAME_WIDTH - 1) // (width + 1), n_tokens)
    rows = [row[:n_shown] for row in block.values[:n_shown]]
    low, high = _scale(rows, block.weights)
    shown = "" if n_shown == n_tokens else f", first {n_shown} of {n_tokens} tokens"
    yield rich_text.Text(f"{block.title}: queries down, keys across{shown}", style="bold")
    table = _matrix_table([_short(name, width) for name in block.columns[:n_shown]], width)
    for name, row in zip(block.rows[:n_shown], rows, strict=False):
        cells = []
        for value in row:
            share = 0.0 if value is None or high <= low else (value - low) / (high - low)
            cells.append(rich_text.Text(matrix_cell(value, block.weights), _shade(share)))
        table.add_row(_short(name, _NAME_WIDTH), *cells)
    yield table


def _scale(rows: Iterable[Iterable[float | None]], weights: bool) -> tuple[float, float]:
    """Return the values that are shaded least and most.

    Scores below zero are not shaded, unless all are.
    """
    if weights:
        return 0.0, 1.0
    known = [value for value in chain.from_iterable(rows) if value is not None]
    low = min(known, default=0.0)
    high = max(known, default=1.0)
    return (0.0, high) if high > 0 else (low, high)


def _shade(share: float) -> str:
    """Return the style of a cell by its share of the scale."""
    for least, style in _SHADES:
        if share >= least:
            return style
    return ""


def _corner(block: Matrix) -> Iterator[RenderableType]:
    """Show the first rows and columns of a matrix, and how much of it that is."""
    rows = [row[:_CORNER_COLUMNS] for row in block.values[:_CORNER_ROWS]]
    n_columns = len(rows[0]) if rows else 0
    all_rows, all_columns = block.shape
    cuts = []
    if len(rows) < all_rows:
        cuts.append(f"{len(rows)} of {all_rows} rows")
    if n_columns < all_columns:
        cuts.append(f"{n_columns} of {all_columns} columns")
    shown = f", first {' and '.join(cuts)}" if cuts else ""
    yield rich_text.Text(f"{block.title} ({all_rows} x {all_columns}){shown}", style="bold")
    table = _matrix_table([""] * n_columns, 8, header=False)
    for i, row in enumerate(rows):
        name = _short(block.rows[i], _NAME_WIDTH) if block.rows else str(i)
        table.add_row(name, *(_corner_number(value) for value in row))
    yield table


def _corner_number(value: float | None) -> str:
    """Write a number in eight characters."""
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.4g}"


def _matrix_table(columns: Sequence[str], width: int, header: bool = True) -> RichTable:
    """Start a table for a matrix: a column for the names of rows, and columns of one width."""
    table = RichTable(
        box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold", show_header=header
    )
    table.add_column("", width=_NAME_WIDTH, no_wrap=True)
    for name in columns:
        table.add_column(name, width=width, justify="right", no_wrap=True)
    return table


def _short(name: str, width: int) -> str:
    """Cut a name to the terminal's cells that it may take: characters of some scripts take two."""
    name = visible(name)
    if cell_len(name) > width:
        name = name.strip("[]") or name  # [CLS] becomes CLS
    return set_cell_size(name, width).rstrip()
