"""Matrices in the terminal: corners of wide ones, and squares of tokens shaded by value."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import set_cell_size
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headscope.core.safe_text import visible
from headscope.results.explain import Matrix

__all__ = ["corner", "score_text", "square", "weight_text"]

#: Columns of a terminal, those of a row's name, and those of one number with its gap.
_WIDE, _NAME, _CELL = 80, 8, 6
#: Rows and columns that are shown of a matrix that has no token across.
_ROWS, _ACROSS = 4, 8
#: How cells look from a share of the scale on: the more, the more vivid, on dark and light ground.
_SHADES = (
    (0.6, "bold #ffffff on #005fd7"),
    (0.35, "#ffffff on #4a74ad"),
    (0.15, "#ffffff on #6f7f93"),
)
#: Weights below this are shown as a dot.
_SMALL = 0.005


def corner(matrix: Matrix, rows: Sequence[str] = (), most: int = _ROWS) -> RenderableType:
    """Show the first rows and columns of a matrix, and say how much of it that is."""
    values = matrix.values[:most]
    across = min(_ACROSS, len(values[0]) if values else 0)
    table = _empty(header=False)
    for _ in range(across):
        table.add_column("", width=8, justify="right", no_wrap=True)
    for i, line in enumerate(values):
        name = _short(rows[i], _NAME) if rows else str(i)
        table.add_row(name, *(_plain(value) for value in line[:across]))
    shown = _legend(matrix, len(values), across)
    return Group(Text(f"{matrix.name} ({_size(matrix)}){shown}", style="bold"), table)


def square(
    matrix: Matrix,
    names: Sequence[str],
    form: Callable[[float | None], str],
    *,
    title: str = "",
    cell: int = _CELL,
    limits: tuple[float, float] | None = None,
) -> RenderableType:
    """Show a matrix of tokens by tokens, queries down and keys across, shaded by value.

    Shading repeats what the numbers say: without colours nothing is lost.
    """
    most = (_WIDE - _NAME - 1) // cell
    keys = queries = range(min(most, len(names)))
    known = [matrix.values[i][j] for i in queries for j in keys]
    low, high = limits or _limits(known)
    table = _empty()
    for j in keys:
        table.add_column(_short(names[j], cell - 1), width=cell - 1, justify="right", no_wrap=True)
    for i in queries:
        cells = (_shaded(matrix.values[i][j], form(matrix.values[i][j]), low, high) for j in keys)
        table.add_row(_short(names[i], _NAME), *cells)
    part = "" if len(keys) == len(names) else f", first {len(keys)} of {len(names)} tokens"
    title = f"{title or matrix.name}: queries down, keys across{part}"
    return Group(Text(title, style="bold"), table)


def weight_text(value: float | None) -> str:
    """Write a weight with two digits; one that is no more than rounding is a dot."""
    if value is None or value < _SMALL:
        return "."
    return f"{value:.2f}".replace("0.", ".", 1) if value < 0.995 else "1.00"


def score_text(value: float | None) -> str:
    """Write a score with one digit; one that a mask hides is a dot."""
    return "." if value is None else f"{value:z.1f}"


def _empty(header: bool = True) -> Table:
    table = Table(
        box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold", show_header=header
    )
    table.add_column("", width=_NAME, no_wrap=True)
    return table


def _legend(matrix: Matrix, rows: int, columns: int) -> str:
    parts = []
    if rows < matrix.shape[0]:
        parts.append(f"{rows} of {matrix.shape[0]} rows")
    if columns < matrix.shape[1]:
        parts.append(f"{columns} of {matrix.shape[1]} columns")
    return f", first {' and '.join(parts)}" if parts else ""


def _size(matrix: Matrix) -> str:
    return " x ".join(map(str, matrix.shape))


def _limits(known: Sequence[float | None]) -> tuple[float, float]:
    numbers = [value for value in known if value is not None]
    return (min(numbers), max(numbers)) if numbers else (0.0, 1.0)


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if abs(value) < 100 else f"{value:.4g}"


def _short(name: str, width: int) -> str:
    """Cut a name to a number of terminal cells: characters of some scripts take two."""
    return set_cell_size(visible(name), width).rstrip()


def _shaded(value: float | None, text: str, low: float, high: float) -> Text:
    if value is None or high <= low:
        return Text(text)
    share = min(1.0, max(0.0, (value - low) / (high - low)))
    style = next((style for least, style in _SHADES if share >= least), "")
    return Text(text, style=style)
