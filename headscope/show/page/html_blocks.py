"""Blocks as HTML. Every string of a block is escaped, here or by the template of its table.

:func:`body` writes blocks, :func:`_block_html` one of them; the tables are below.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from headscope.core.safe_text import visible
from headscope.show.blocks import (
    PAGE,
    Block,
    Chart,
    Custom,
    Details,
    Matrix,
    Panels,
    Table,
    Text,
    table_cells,
)
from headscope.show.cells import decimal, tidy
from headscope.show.page.environment import templates
from headscope.show.page.script_data import chart_html
from headscope.show.terminal import matrix_cell

_TOKENS = 16  # Tokens of a matrix that are shown
_CORNER_COLUMNS = 8  # Columns and rows that are shown of a matrix that is not tokens by tokens
_CORNER_ROWS = 6
_PARAGRAPHS = {
    "formula": Markup("<p><code>{}</code></p>"),
    "check": Markup('<p class="check">{}</p>'),
    "soft": Markup('<p class="soft">{}</p>'),
    "failed": Markup('<p class="warn">{}</p>'),
    "warning": Markup('<p class="warn">{}</p>'),
}


def body(blocks: Iterable[Block], *, opened: bool = False) -> Markup:
    """Write the blocks that are for the page; details are folded up, unless ``opened``."""
    html_of_blocks = [_block_html(block, opened) for block in _on_page(blocks)]
    return Markup("\n").join(html for html in html_of_blocks if html is not None)


def _on_page(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks that are for the page, without empty texts."""
    for block in blocks:
        if PAGE in block.on and not (isinstance(block, Text) and not block.text):
            yield block


def _block_html(block: Block, opened: bool) -> Markup | None:
    """Write one block; None for a kind of block that pages do not show."""
    if isinstance(block, Text):
        paragraph = _PARAGRAPHS.get(block.style, Markup("<p>{}</p>"))
        return paragraph.format(tidy(block.text))
    if isinstance(block, Table):
        return _table_of_block(block)
    if isinstance(block, Matrix):
        return _square(block) if block.columns else _corner(block)
    if isinstance(block, Chart | Panels):
        return chart_html(block)
    if isinstance(block, Details):
        details = Markup('<details class="step"{}><summary>{}</summary>{}</details>')
        state = Markup(" open") if opened else ""
        return details.format(state, tidy(block.title), body(block.blocks))
    if isinstance(block, Custom):
        return Markup(block.html)
    return None


def answered(blocks: Iterable[Block]) -> tuple[list[Text], list[Block], list[Block]]:
    """Split the blocks of the page: the sentence that answers, its evidence, and the rest.

    The evidence is the first figure, or the first table if there is no figure. The first two lists
    have one block at most.
    """
    on_page = list(_on_page(blocks))
    texts = [block for block in on_page if isinstance(block, Text)]
    leads = [text for text in texts if text.style in ("lead", "failed")]
    lead = leads[:1] if leads else texts[:1]
    figures = [block for block in on_page if isinstance(block, Chart | Panels | Custom)]
    tables = [block for block in on_page if isinstance(block, Table)]
    evidence: list[Block] = list([*figures, *tables][:1])
    used = [*lead, *evidence]
    rest = [block for block in on_page if not any(block is other for other in used)]
    return lead, evidence, rest


# --- tables ---------------------------------------------------------------------------------------


class _Cell(NamedTuple):
    """A cell of a table."""

    text: str
    kind: str = ""  # Its class in style.css: ``n`` for a number, ``q0`` to ``q9`` for a shade
    names_row: bool = False


def _table(
    header: Sequence[str], rows: Iterable[Sequence[_Cell]], caption: str, kind: str = ""
) -> Markup:
    """Write a table of cells; ``kind`` is its class in style.css."""
    # ``cells`` is a macro of the template, which is called like a function.
    macros = templates().get_template("table.html.j2").module
    html: Markup = macros.cells(header, list(rows), caption, kind)  # type: ignore[attr-defined]
    return html.strip()


def _row(texts: Sequence[str]) -> list[_Cell]:
    """Make the cells of a row: the first is text, the others are numbers."""
    first, *numbers = texts
    return [_Cell(first), *(_Cell(number, "n") for number in numbers)]


def _table_of_block(block: Table) -> Markup:
    """Write a table block."""
    header = [name for name, *_ in block.columns]
    return _table(header, map(_row, table_cells(block)), block.title)


def _corner(block: Matrix) -> Markup:
    """Show the first rows and columns of a wide matrix."""
    values = [row[:_CORNER_COLUMNS] for row in block.values[:_CORNER_ROWS]]
    n_columns = len(values[0]) if values else 0
    names = [visible(name) for name in block.rows] or [str(i) for i in range(len(values))]
    caption = f"{block.title} ({' x '.join(map(str, block.shape))})"
    if (len(values), n_columns) != block.shape:
        caption += f", its first {len(values)} rows and {n_columns} columns"
    rows = [_row([name, *map(decimal, row)]) for name, row in zip(names, values, strict=False)]
    return _table(["", *map(str, range(n_columns))], rows, caption)


def _shade(value: float | None, low: float, high: float) -> str:
    """Return the class of a cell: one of ten steps from the least number to the largest.

    Where there are numbers of both signs, the steps go from zero in two colours.
    """
    if value is None or not high > low:
        return "q0"
    if low < 0 < high:
        step = min(9, int(10 * abs(value) / max(-low, high)))
        return f"less q{step}" if value < 0 else f"q{step}"
    return f"q{min(9, int(10 * (value - low) / (high - low)))}"


def _square(block: Matrix) -> Markup:
    """Draw a matrix of tokens by tokens as a table whose cells are shaded in ten steps."""
    n_tokens = min(_TOKENS, len(block.rows))
    corner = [values[:n_tokens] for values in block.values[:n_tokens]]
    known: list[float] = []
    for values in corner:
        known += [value for value in values if value is not None]
    low = 0.0 if block.weights else min(known)
    high = 1.0 if block.weights else max(known)

    rows = []
    for name, values in zip(block.rows, corner, strict=False):
        cells = [_Cell(name, names_row=True)]
        for value in values:
            shade = _shade(value, low, high)
            cells.append(_Cell(matrix_cell(value, block.weights), shade))
        rows.append(cells)

    # A pattern has the same tokens on both sides; titles of other matrices name their sides.
    caption = block.title
    if block.rows == block.columns:
        caption += ": queries down, keys across"
    if n_tokens < len(block.rows):
        caption += f", the first {n_tokens} of {len(block.rows)} tokens"
    return _table(["", *block.columns[:n_tokens]], rows, caption, "matrix")
