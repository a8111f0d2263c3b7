"""What sections add to the report's page: a part of the page, and cards of single heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from markupsafe import Markup

from headscope.core.heads import Head

Place = tuple[int, int]


@dataclass(frozen=True)
class Part:
    """A section of the page; its title stands in the contents, where it leads to the anchor."""

    anchor: str
    title: str
    body: Markup  # As ``headscope.show.page.html_blocks.body`` writes blocks
    more: Markup | None = None  # What is folded up, under this caption
    fold: str = "All numbers"
    wide: bool = False  # Whether it takes a whole row


@dataclass(frozen=True)
class Scale:
    """A number of every head that the map can be coloured by: its key in a card's ``values``.

    Scales that are measured on attention patterns stand first.
    """

    key: str
    caption: str
    of_pattern: bool = False


@dataclass(frozen=True)
class Card(Head):
    """One head as the page shows it; every text is plain, nothing is markup.

    A section fills in what it knows; the page adds up the cards of all sections.
    """

    primary: str = ""  # Key of its primary role; empty where the section says nothing of roles.
    mark: str = ""  # At most five characters for the map.
    sentence: str = ""  # What the head does, in plain words.
    #: Three numbers at most: what it is, its value, what to compare it with.
    numbers: list[tuple[str, str, str]] = field(default_factory=list)
    mean: str = ""  # Its mean attention: base64 of a byte a cell, row by row.
    #: Names of the roles, and what the results call them.
    roles: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    #: Role, detail, score, baseline, 95% interval, adjusted p.
    labels: list[list[str]] = field(default_factory=list)
    #: Lines of the card; the first four show when the mouse is over the head.
    facts: list[tuple[str, str]] = field(default_factory=list)
    #: Matrix, dims90 and the same of each control, effective and stable rank.
    ranks: list[list[str]] = field(default_factory=list)
    #: By :attr:`Scale.key`; what is None is left out.
    values: Mapping[str, float | None] = field(default_factory=dict)
