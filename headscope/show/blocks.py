"""What a person is shown of a result, as a list of plain values that each renderer draws."""

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


class Place(Flag):
    """Where a block appears; figure files and CSV files are named separately."""

    TERMINAL = auto()
    PAGE = auto()
    VERBOSE = auto()  # In the terminal only where the user asks for more.


TERMINAL = Place.TERMINAL
PAGE = Place.PAGE
BOTH = Place.TERMINAL | Place.PAGE
VERBOSE = Place.VERBOSE
NOWHERE = Place(0)
#: Title; attribute, index or function of a row that gives the value; and how that is written: so
#: many digits, or by a function.
Column = tuple[str, str | int | Callable[[Any], Any], int | Callable[[Any], str]]


#: Controls, leading sentences and warnings are always shown, however long the output is.
Style = Literal[
    "", "lead", "formula", "check", "soft", "control", "passed", "failed", "warning", "code"
]


@dataclass(frozen=True)
class Text:
    """A paragraph; an empty one is left out."""

    text: str
    style: Style = ""
    on: Place = BOTH


@dataclass(frozen=True)
class Table:
    """A table: its first column is text, the others are numbers."""

    columns: Sequence[Column]
    rows: Iterable[Any]
    title: str = ""
    on: Place = BOTH


@dataclass(frozen=True)
class Series:
    """Some values of a chart; an estimate has its interval as a bar, None is left out."""

    name: str
    x: Sequence[Any]
    y: Sequence[Estimate | float | None]
    kind: Literal["line", "points", "bars"] = "line"
    colour: str | Sequence[str] = BLUE
    marker: str = "o"
    dash: Literal["-", "--", ":"] = "-"
    width: float = 1.5  # Of the line.
    #: Number of each point's group, which chooses its colour from dark to light.
    groups: Sequence[int] = ()
    band: Sequence[tuple[float, float]] = ()  # Low and high end at each x, drawn as a band.


@dataclass(frozen=True)
class Chart:
    """Lines, points or bars over x; ``alt`` says where the numbers are."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    alt: str = ""
    #: Name of the figure's file, without its ending; a panel of a larger figure has none.
    file: str = ""
    #: Lines across the panel at a value of y (of x for bars), by their name.
    levels: Mapping[str, float] | None = None
    x_levels: Mapping[str, float] | None = None  # The same at a value of x.
    #: "log" counts in powers of 2, "log10" of 10, "percent" writes shares.
    x_scale: Literal["linear", "log", "log10", "percent"] = "linear"
    x_names: Sequence[str] = ()  # Names of x = 0, 1, 2 ..., instead of numbers.
    y_scale: Literal["linear", "log10"] = "linear"
    size: tuple[float, float] = (6.6, 4.2)
    on: Place = PAGE


@dataclass(frozen=True)
class HeadMap:
    """A number of every head: (row's name, head) -> value."""

    title: str
    legend: str
    values: Mapping[tuple[str, int], float | None]
    digits: int
    file: str = ""
    bold_from: float | None = None  # Values from here on are bold in the terminal.
    marks: Mapping[tuple[str, int], str] | None = None  # Written behind values in the terminal.
    on: Place = TERMINAL


@dataclass(frozen=True)
class HeadMarks:
    """A short mark of every head in the terminal: (row's name, head) -> (mark, rich style)."""

    marks: Mapping[tuple[str, int], tuple[str, str]]
    legend: str
    on: Place = TERMINAL


@dataclass(frozen=True)
class Matrix:
    """Tokens by tokens, shaded by value; without names of columns the corner of a wide matrix."""

    title: str
    values: Sequence[Sequence[float | None]]
    rows: Sequence[str]
    columns: Sequence[str] = ()
    #: Of all of it, where ``values`` are only the first rows and columns.
    shape: tuple[int, ...] = ()
    weights: bool = False  # Weights have two digits and go from 0 to 1; scores have one.
    on: Place = BOTH


@dataclass(frozen=True)
class Panels:
    """Charts and matrices side by side in one figure file."""

    title: str
    panels: Sequence[Chart | Matrix]
    file: str  # Empty where the page alone shows them.
    across: int
    size: tuple[float, float]
    alt: str = ""
    #: The groups of points: a caption for their colours, and a name for each.
    groups: tuple[str, Sequence[str]] = ("", ())
    on: Place = NOWHERE


@dataclass(frozen=True)
class Details:
    """A part that the page folds up and the terminal shows under its title."""

    title: str
    blocks: Sequence[Block]
    on: Place = BOTH


@dataclass(frozen=True)
class Custom:
    """Content that no other block can show."""

    html: str = ""  # Markup that is safe already.
    text: str = ""
    on: Place = BOTH


@dataclass(frozen=True)
class Drawing:
    """A figure that no chart can show; ``draw`` loads matplotlib when it is called."""

    file: str  # Name of the figure's file, without its ending; the page has none of it.
    draw: Callable[[], Figure]
    alt: str = ""
    on: Place = NOWHERE


Block = Text | Table | Chart | HeadMap | HeadMarks | Matrix | Panels | Details | Drawing | Custom


def behind(blocks: Iterable[Block]) -> Iterator[Block]:
    """Keep blocks on the page, and show them in the terminal only with ``--verbose``."""
    for block in blocks:
        yield replace(block, on=VERBOSE | PAGE) if block.on == BOTH else block


def text_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", on: Place = BOTH
) -> Table:
    """Make a table of cells that are written already."""
    return Table([(name, i, str) for i, name in enumerate(columns)], rows, title, on)


def table_cells(table: Table) -> list[list[str]]:
    """Write every cell of a table, the same for all renderers."""
    return [[_cell_text(row, column) for column in table.columns] for row in table.rows]


def _cell_text(row: Any, column: Column) -> str:
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
