"""What the page shows of heads: a card each, and the map that leads to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
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
    """Name the head that the page selects first: that whose role comes first of all roles."""
    for role in ROLES:
        for card in cards:
            if card.primary == role.key:
                return card.name
    return cards[0].name if cards else ""


def section_cards(report: ReportResult) -> list[Card]:
    """Make a card of every head that samples or sections know, adding up what each section says."""
    cards: dict[Place, Card] = {}
    for sample in report.samples:
        for name in sample.patterns:
            layer, head = parse_head(name)
            cards[layer, head] = Card(layer, head)
    for name, result in report.sections.items():
        for card in view_of(name).facts(result, sorted(cards)):
            head_place = (card.layer, card.head)
            known = cards.get(head_place)
            cards[head_place] = _joined(known or Card(*head_place), card)
    return [cards[head] for head in sorted(cards)]


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
    """Make a card of every head that can be switched off; some stacks may not be classified."""
    known: dict[str, Card] = {}
    if report.classify is not None:
        known = {card.name: card for card in head_cards(report.classify)}
    cards = []
    for name in heads:
        card = known.get(name)
        if card is None:
            stack = name.rpartition(":")[0] or "encoder"
            card = Card(*parse_head(name), stack=stack, sentence=_NOT_CLASSIFIED)
        cards.append(replace(card, values=_rounded(card.values)))
    return cards


def _rounded(values: Mapping[str, float | None]) -> dict[str, float]:
    """Round what is known to four digits; a rounded zero has no sign."""
    return {key: round(float(v), 4) + 0.0 for key, v in values.items() if v is not None}


def scales_of(report: ReportResult, cards: Sequence[Card]) -> list[Scale]:
    """Return the numbers that some head has, those of attention patterns first."""
    scales: list[Scale] = []
    for name in report.sections:
        scales += view_of(name).scales
    scales.sort(key=lambda scale: not scale.of_pattern)
    return [scale for scale in scales if any(scale.key in card.values for card in cards)]


def numbers_of(card: Card, scales: Sequence[Scale]) -> list[tuple[str, str]]:
    """Return a head's numbers, to sort by and as they are shown."""
    numbers = []
    for scale in scales:
        value = card.values.get(scale.key)
        numbers.append(("", "\u2013") if value is None else (f"{value:.4g}", short(value)))
    return numbers


# --- the map --------------------------------------------------------------------------------------

#: A layer and its heads by their original numbers, None where one was removed.
Row = tuple[int, list[Card | None]]


class HeadsMap(NamedTuple):
    """The heads of one stack."""

    stack: str  # As the page calls it
    prefix: str  # Of the names of its heads
    rows: list[Row]


def maps_of(report: ReportResult, cards: Sequence[Card], *, live: bool) -> list[HeadsMap]:
    """Arrange the cards of every stack; only a live page has more than one."""
    removed = report.provenance["model"].get("removed_heads") or []
    classified = report.classify
    only_stack = "encoder"
    if classified is not None and classified.heads:
        only_stack = classified.heads[0].stack
    maps = []
    for stack, group in groupby(cards, lambda card: card.stack if live else only_stack):
        prefix = "" if stack == "encoder" else f"{stack}:"
        maps.append(HeadsMap(STACK_NAMES[stack], prefix, _rows(group, removed, stack)))
    return maps


def _rows(cards: Iterable[Card], removed: Sequence[Sequence[Any]], stack: str) -> list[Row]:
    """Arrange cards of a stack by layer and head, None where a head was removed.

    ``removed`` are heads as (layer, head), or with their stack in front.
    """
    by_place = {(card.layer, card.head): card for card in cards}
    if not by_place:
        return head_rows({}, range(0))
    cells: dict[tuple[int, int], Card | None] = {}
    for head in removed:
        if len(head) == 2 or head[0] == stack:
            cells[head[-2], head[-1]] = None
    cells |= by_place
    return head_rows(cells, range(max(layer for layer, _ in cells) + 1))
