"""What the report's page says about every head, gathered from all sections."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headscope.results.heads import parse_head
from headscope.results.report import ReportResult
from headscope.show.page.parts import Card, Scale
from headscope.show.view import view_of


def cards(report: ReportResult) -> list[Card]:
    """Make a card of every head that samples or sections know, by their original numbers."""
    made = {
        place: Card(*place)
        for sample in report.samples
        for place in map(parse_head, sample.patterns)
    }
    for name, result in report.sections.items():
        for said in view_of(name).facts(result, sorted(made)):
            place = said.layer, said.head
            made[place] = _with(made.get(place, Card(*place)), said)
    return [made[place] for place in sorted(made)]


def scales(report: ReportResult, made: list[Card]) -> list[Scale]:
    """Return the scales that any card has a value of: those of patterns first."""
    every = [scale for name in report.sections for scale in view_of(name).scales]
    every.sort(key=lambda scale: not scale.of_pattern)
    return [scale for scale in every if any(scale.key in card.values for card in made)]


def _with(card: Card, said: Card) -> Card:
    """Add what one section says of a head."""
    lists: dict[str, Any] = {
        field: [*getattr(card, field), *getattr(said, field)]
        for field in ("roles", "keys", "labels", "facts", "ranks")
    }
    known = {key: round(float(v), 4) + 0.0 for key, v in said.values.items() if v is not None}
    return replace(
        card,
        primary=said.primary or card.primary,
        mark=said.mark or card.mark,
        values={**card.values, **known},
        **lists,
    )
