"""What the report's page says about every head, gathered from all sections."""

from __future__ import annotations

from headscope.results import ReportResult
from headscope.results.heads import parse_head
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
            _add(made.setdefault((said.layer, said.head), Card(said.layer, said.head)), said)
    return [made[place] for place in sorted(made)]


def scales(report: ReportResult, made: list[Card]) -> list[Scale]:
    """Return the scales that any card has a value of: those of patterns first."""
    every = [scale for name in report.sections for scale in view_of(name).scales]
    every.sort(key=lambda scale: not scale.of_pattern)
    return [scale for scale in every if any(scale.key in card.values for card in made)]


def _add(card: Card, said: Card) -> None:
    """Add what one section says of a head."""
    card.primary, card.mark = said.primary or card.primary, said.mark or card.mark
    for field in ("roles", "keys", "labels", "facts", "ranks"):
        getattr(card, field).extend(getattr(said, field))
    known = {key: value for key, value in said.values.items() if value is not None}
    card.values = {**card.values, **{key: round(float(v), 4) for key, v in known.items()}}
