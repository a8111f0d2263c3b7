"""What the page shows of heads: a card each, and the map that leads to them.

A :class:`Card` is what is known of one head: its primary role and all roles, a sentence, its mean
pattern, numbers, and lines (``facts``: caption and text). Each section of a report, the result of
one command, makes cards with what it knows; here they become one for each head. A :class:`Scale`
is a number in ``card.values`` by which the page can colour heads. A *live* page runs the model
itself and shows the heads of all its stacks; any other page shows those of the classified stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headscope.analyses.classify.cards import head_cards
from headscope.analyses.classify.roles import ROLES
from headscope.analyses.classify.stack_words import STACK_NAMES
from headscope.core.heads import parse_head
from headscope.reports.result import ReportResult
from headscope.show.cells import head_rows, short
from headscope.show.page.parts import Card, Place, Scale
from headscope.show.view import view_of

_NOT_CLASSIFIED = "Not classified: roles of decoders and cross-attention take pairs of texts."


# --- cards of heads -------------------------------------------------------------------------------


def clearest(cards: Sequence[Card]) -> str:
    """Name the head that the page selects first: one whose role is the easiest to see.

    ``ROLES`` are in this order, positional heads first.
    """
    for role in ROLES:
        for card in cards:
            if card.primary == role.key:
                return card.name
    return cards[0].name if cards else ""


def section_cards(report: ReportResult) -> list[Card]:
    """Make a card of every head that samples or sections know, adding up what each section says.

    All of one stack, so that layer and head are enough to tell heads apart.
    """
    stack = _stack_of_page(report)
    cards: dict[Place, Card] = {}  # By layer and head
    for sample in report.samples:
        for name in sample.patterns:
            if _stack_in(name) == stack:
                layer, head = parse_head(name)
                cards[layer, head] = Card(layer, head, stack=stack)
    for section, result in report.sections.items():
        for card in view_of(section).cards(result, sorted(cards)):
            address = (card.layer, card.head)
            # Not every section says on its cards of which stack the head is.
            known = cards.get(address, Card(*address, stack=stack))
            cards[address] = _joined(known, card)
    return [cards[address] for address in sorted(cards)]


def _stack_of_page(report: ReportResult) -> str:
    """Return the stack whose heads the page shows: the classified one, else its sentences'."""
    if report.classify is not None and report.classify.heads:
        return report.classify.heads[0].stack
    names = [name for sample in report.samples for name in sample.patterns]
    return _stack_in(names[0]) if names else "encoder"


def _stack_in(name: str) -> str:
    """Return the stack that a head's name says: ``cross`` of ``cross:L3H5``."""
    return name.rpartition(":")[0] or "encoder"


def _joined(known: Card, card: Card) -> Card:
    """Add what a section says of a head to what is known of it."""
    return replace(
        known,
        primary=card.primary or known.primary,
        mark=card.mark or known.mark,
        sentence=card.sentence or known.sentence,
        mean=card.mean or known.mean,
        values={**known.values, **_rounded(card.values)},
        roles=known.roles + card.roles,
        keys=known.keys + card.keys,
        labels=known.labels + card.labels,
        facts=known.facts + card.facts,
        ranks=known.ranks + card.ranks,
        numbers=known.numbers + card.numbers,
    )


def live_cards(report: ReportResult, heads: Sequence[str]) -> list[Card]:
    """Make a card of each of these heads, which can be switched off on a live page.

    Heads of a stack that is not classified get a card that says so.
    """
    known: dict[str, Card] = {}
    if report.classify is not None:
        known = {card.name: card for card in head_cards(report.classify)}
    cards = []
    for name in heads:
        card = known.get(name)
        if card is None:
            layer, head = parse_head(name)
            card = Card(layer, head, stack=_stack_in(name), sentence=_NOT_CLASSIFIED)
        cards.append(replace(card, values=_rounded(card.values)))
    return cards


def _rounded(values: Mapping[str, float | None]) -> dict[str, float]:
    """Round the numbers that are known to four digits; a rounded zero has no sign."""
    return {key: round(float(v), 4) + 0.0 for key, v in values.items() if v is not None}


def scales_of(report: ReportResult, cards: Sequence[Card]) -> list[Scale]:
    """Return the scales of which some head has a number, those of attention patterns first."""
    scales: list[Scale] = []
    for section in report.sections:
        scales += view_of(section).scales
    scales.sort(key=lambda scale: not scale.of_pattern)  # False sorts before True
    return [scale for scale in scales if any(scale.key in card.values for card in cards)]


def numbers_of(card: Card, scales: Sequence[Scale]) -> list[tuple[str, str]]:
    """Return a head's number on each scale: (as the table sorts it, as it is shown).

    Of a number that is not known: nothing, and a dash.
    """
    numbers = []
    for scale in scales:
        value = card.values.get(scale.key)
        numbers.append(("", "\u2013") if value is None else (f"{value:.4g}", short(value)))
    return numbers


# --- the map --------------------------------------------------------------------------------------

#: A layer, and the cards of its heads by their original numbers; None where one was removed.
Row = tuple[int, list[Card | None]]


class HeadsMap(NamedTuple):
    """The heads of one stack."""

    stack: str  # As the page calls it
    prefix: str  # Begins the names of its heads: ``cross:``
    rows: list[Row]


def maps_of(report: ReportResult, cards: Sequence[Card]) -> list[HeadsMap]:
    """Arrange the cards of every stack; only a live page has more than one."""
    removed = report.provenance["model"].get("removed_heads") or []
    cards_by_stack: dict[str, list[Card]] = {}
    for card in cards:
        cards_by_stack.setdefault(card.stack, []).append(card)
    maps = []
    for stack, cards_of_stack in cards_by_stack.items():
        prefix = "" if stack == "encoder" else f"{stack}:"
        maps.append(HeadsMap(STACK_NAMES[stack], prefix, _rows(cards_of_stack, removed, stack)))
    return maps


def _rows(cards: Sequence[Card], removed: Sequence[Sequence[Any]], stack: str) -> list[Row]:
    """Arrange cards of a stack by layer and head, None where a head was removed.

    ``removed`` are heads as (layer, head), or with their stack in front.
    """
    if not cards:
        return []
    cells: dict[Place, Card | None] = {}
    for head in removed:
        if len(head) == 2 or head[0] == stack:
            cells[head[-2], head[-1]] = None
    for card in cards:
        cells[card.layer, card.head] = card
    return head_rows(cells, range(max(layer for layer, _ in cells) + 1))
