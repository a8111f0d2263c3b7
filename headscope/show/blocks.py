"""What a person is shown of a result, as a list of plain values: the *blocks*.

A command's view returns blocks (:data:`Block` lists their kinds). Each renderer draws those that
are for it: the terminal (``show/terminal.py``), the page (``show/page/html_blocks.py``), and figure
files (``show/figures.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from headscope.show.cells import decimal
from headscope.show.estimates import ranged
from headscope.stats.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The palette of Okabe & Ito 2008, which stays apart for colour-blind readers, and a grey.
BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
BLUE = "#0072B2"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#999999"


class Medium(Flag):
    """Where a block is shown.

    Whether it is drawn into a figure file, too, its field ``file`` says: the file's name.
    """

    TERMINAL = auto()
    PAGE = auto()
    VERBOSE = auto()  # In the terminal with --verbose
    #: In the terminal even after the first table: the answer to an option that was given.
    ASKED = auto()


TERMINAL = Medium.TERMINAL
PAGE = Medium.PAGE
BOTH = Medium.TERMINAL | Medium.PAGE
VERBOSE = Medium.VERBOSE
ASKED = Medium.TERMINAL | Medium.ASKED
NOWHERE = Medium(0)
#: A column of a table: (title, source, form). The source says where a row has the value (an
#: attribute, an index, or a function of the row), the form how it is written (the number of digits,
#: or a function of the value): ``("rank", "w_v.effective_rank", 1)``, ``("layer", 0, str)``.
Column = tuple[str, str | int | Callable[[Any], Any], int | Callable[[Any], str]]
#: How a paragraph is set. "lead" is the answer, "soft" a legend, "control" what a number is
#: compared with, "check" what proves the numbers.
Style = Literal[
    "", "lead", "formula", "check", "soft", "control", "passed", "failed", "warning", "code"
]


@dataclass(frozen=True)
class Text:
    """A paragraph; an empty one is left out."""

    text: str
    style: Style = ""
    on: Medium = BOTH


@dataclass(frozen=True)
class Table:
    """A table: its first column is text, the others are numbers."""

    columns: Sequence[Column]
    rows: Iterable[Any]
    title: str = ""
    on: Medium = BOTH


@dataclass(frozen=True)
class Series:
    """Values of a chart with one colour and one name in its legend.

    Of an estimate the interval is drawn, too; None is left out.
    """

    name: str  # In the legend; empty for no entry there
    x: Sequence[Any]  # Numbers; of bars their names
    y: Sequence[Estimate | float | None]
    kind: Literal["line", "points", "bars"] = "line"
    colour: str | Sequence[str] = BLUE
    marker: str = "o"  # Marker and dash as matplotlib writes them
    dash: Literal["-", "--", ":"] = "-"
    width: float = 1.5  # Of the line
    groups: Sequence[int] = ()  # The number of each point's group, by which it is coloured
    band: Sequence[tuple[float, float]] = ()  # Low and high end at each x, drawn as a band


#: In a legend: what dashed lines in the colours of the others are.
RANDOM_WEIGHTS = Series("dashed: random weights", (), (), colour=GREY, marker="", dash="--")


@dataclass(frozen=True)
class Chart:
    """Lines, points or bars over x."""

    title: str
    x: str  # Captions of the axes
    y: str
    series: Sequence[Series]
    alt: str = ""  # What it shows, for those who cannot see it
    #: Name of the figure's file, without its ending; empty for a panel of :class:`Panels`.
    file: str = ""
    #: Horizontal lines: their names and values of y (for bars, vertical lines at such a length).
    levels: Mapping[str, float] | None = None
    x_levels: Mapping[str, float] | None = None  # Vertical lines, by their values of x
    #: "log" counts in powers of 2, "log10" of 10; "percent" writes shares.
    x_scale: Literal["linear", "log", "log10", "percent"] = "linear"
    x_names: Sequence[str] = ()  # Names of x = 0, 1, 2 ..., instead of numbers
    y_scale: Literal["linear", "log10"] = "linear"
    size: tuple[float, float] = (6.6, 4.2)
    on: Medium = PAGE


@dataclass(frozen=True)
class HeadMap:
    """A number of every head, in a row for each layer."""

    title: str
    legend: str
    values: Mapping[tuple[str, int], float | None]  # By (layer's name, number of the head)
    digits: int  # Behind the decimal point
    file: str = ""
    bold_from: float | None = None  # The least value that is bold in the terminal
    #: Signs that are written behind some of the numbers in the terminal.
    marks: Mapping[tuple[str, int], str] | None = None
    on: Medium = TERMINAL


@dataclass(frozen=True)
class HeadMarks:
    """A short mark of every head in the terminal."""

    #: (mark, style as rich writes it) by (layer's name, number of the head)
    marks: Mapping[tuple[str, int], tuple[str, str]]
    legend: str
    on: Medium = TERMINAL


@dataclass(frozen=True)
class Matrix:
    """A matrix of tokens by tokens, shaded by value.

    Without names of columns it is some other matrix, of which only the first rows and columns are
    shown.
    """

    title: str
    values: Sequence[Sequence[float | None]]
    rows: Sequence[str]
    columns: Sequence[str] = ()
    shape: tuple[int, ...] = ()  # Of the whole matrix, if ``values`` are a corner of it
    #: Whether values are weights from 0 to 1, written with two digits; others are scores, with one.
    weights: bool = False
    on: Medium = BOTH


@dataclass(frozen=True)
class Panels:
    """Charts and matrices side by side in one figure file."""

    title: str
    panels: Sequence[Chart | Matrix]
    file: str  # Empty if the page alone shows them
    across: int  # How many panels stand side by side; more go below
    size: tuple[float, float]  # Width and height in inches
    alt: str = ""
    #: The groups of points in the charts: a caption for their colours, and a name for each.
    groups: tuple[str, Sequence[str]] = ("", ())
    on: Medium = NOWHERE


@dataclass(frozen=True)
class Details:
    """A part that the page folds up and the terminal shows under its title."""

    title: str
    blocks: Sequence[Block]
    on: Medium = BOTH
    term: str = ""  # What the field calls it, in grey behind the title


@dataclass(frozen=True)
class Custom:
    """Content that no other block can show."""

    html: str = ""  # Escaped already
    text: str = ""
    on: Medium = BOTH


@dataclass(frozen=True)
class Drawing:
    """A figure file that no chart can show; the page lacks it."""

    file: str  # Its name, without its ending
    draw: Callable[[], Figure]
    alt: str = ""
    on: Medium = NOWHERE


Block = Text | Table | Chart | HeadMap | HeadMarks | Matrix | Panels | Details | Drawing | Custom


def behind(blocks: Iterable[Block]) -> Iterator[Block]:
    """Move blocks behind the answer: in the terminal they are shown only with ``--verbose``.

    On the page they are shown as before. Blocks that are for one medium alone are left as they are.
    """
    for block in blocks:
        yield replace(block, on=VERBOSE | PAGE) if block.on == BOTH else block


def text_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", on: Medium = BOTH
) -> Table:
    """Make a table from cells that are texts."""
    return Table([(name, i, str) for i, name in enumerate(columns)], rows, title, on)


def table_cells(table: Table) -> list[list[str]]:
    """Return the text of every cell, row by row, which is the same for all renderers."""
    return [[_cell_text(row, column) for column in table.columns] for row in table.rows]


def _cell_text(row: Any, column: Column) -> str:
    """Return the text of a row's cell in a column."""
    _, source, form = column
    if isinstance(source, int):
        value = row[source]
    elif isinstance(source, str):
        value = attrgetter(source)(row)
    else:
        value = source(row)
    if isinstance(value, str):
        return value
    if callable(form):
        return form(value)
    return ranged(value, form) if isinstance(value, Estimate) else decimal(value, form)
