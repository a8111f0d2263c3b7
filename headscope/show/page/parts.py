"""What sections add to a report's page: parts of the page, and cards of single heads.

A *section* of a report is the result of one command. The page has a map of all heads; a click on a
head shows its card.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from markupsafe import Markup

from headscope.core.heads import Head

Place = tuple[int, int]  # (layer, head)


@dataclass(frozen=True)
class Part:
    """A part of the page below a title; the page's contents link to its anchor."""

    anchor: str
    title: str  # The question that it answers
    body: Markup  # As ``headscope.show.page.html_blocks.body`` writes blocks
    more: Markup | None = None  # What is folded up
    fold: str = "All numbers"  # The caption under which it is
    wide: bool = False  # Whether it takes a whole row
    term: str = ""  # What the field calls it, in grey behind the title


@dataclass(frozen=True)
class Scale:
    """A number of every head by which the map of heads can be coloured."""

    key: str  # Under which the ``values`` of a card have it
    caption: str
    of_pattern: bool = False  # Whether it is measured on attention patterns: such scales come first


@dataclass(frozen=True)
class Card(Head):
    """One head as the page shows it; every text is plain, nothing is markup.

    A section fills in what it knows; the page makes one card of those of all sections.
    """

    primary: str = ""  # Key of its primary role; empty if the section says nothing of roles
    mark: str = ""  # At most five characters for the map
    sentence: str = ""  # What the head does, in plain words
    #: Three numbers at most: (what it is, its value, what to compare it with).
    numbers: list[tuple[str, str, str]] = field(default_factory=list)
    mean: str = ""  # Its mean attention: base64 of one byte for each cell, row by row
    roles: list[str] = field(default_factory=list)  # Names of its roles
    keys: list[str] = field(default_factory=list)  # What the results call these roles
    #: One row for each label: role, detail, score, baseline, 95% interval, adjusted p.
    labels: list[list[str]] = field(default_factory=list)
    #: (caption, text) of the card's lines; the first four show when the mouse is over the head.
    facts: list[tuple[str, str]] = field(default_factory=list)
    #: One row for each matrix: its name, dims90, those of the controls, effective and stable rank.
    ranks: list[list[str]] = field(default_factory=list)
    #: Numbers by :attr:`Scale.key`; None for those that are not known.
    values: Mapping[str, float | None] = field(default_factory=dict)
