"""What the sections put on the report's page: a part of it, and what they know of single heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headscope.results.heads import head_name
from headscope.show.page.svg import Chart

Place = tuple[int, int]


@dataclass(frozen=True)
class Part:
    """A section of the page: sentences, a chart, a table.

    Attributes
    ----------
    anchor : str
        Its id on the page.
    title : str
        Its heading, and its line in the contents.
    texts : sequence of str
        Sentences, a paragraph each; plain text, which the page escapes.
    chart : Chart or None
        Below the sentences.
    header : sequence of str
        Captions of the table's columns.
    rows : sequence of rows of str
        The table's cells; no table where there are none.
    numbers : int
        First column that holds numbers, zero-based.
    """

    anchor: str
    title: str
    texts: Sequence[str] = ()
    chart: Chart | None = None
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    numbers: int = 1


@dataclass(frozen=True)
class Scale:
    """A number of every head that the map can be coloured by.

    Attributes
    ----------
    key : str
        Its name in a card's ``values``.
    caption : str
        What a reader chooses it by.
    of_pattern : bool
        Whether it is measured on attention patterns; such scales stand first.
    """

    key: str
    caption: str
    of_pattern: bool = False


@dataclass
class Card:
    """One head as the page shows it; every text is plain, nothing is markup.

    A section fills in what it knows; the page adds up the cards of all sections.

    Attributes
    ----------
    layer, head : int
        Zero-based, as the model numbered them before anything was removed.
    primary : str
        Key of its primary role; empty where the section says nothing of roles.
    mark : str
        At most three characters for the map.
    roles, keys : list of str
        Names of the roles, and what the results call them.
    labels : list of rows
        Role, detail, score, baseline, 95% interval, adjusted p.
    facts : list of (caption, text)
        Lines of the card; the first four show when the mouse is over the head.
    ranks : list of rows
        Matrix, dims90 and the same of each control, effective and stable rank.
    values : mapping of str to float or None
        By :attr:`Scale.key`; what is None is left out.
    """

    layer: int
    head: int
    primary: str = ""
    mark: str = ""
    roles: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    labels: list[list[str]] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    ranks: list[list[str]] = field(default_factory=list)
    values: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``L3H5``."""
        return head_name(self.layer, self.head)
