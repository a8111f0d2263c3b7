"""The scores on repeated tokens: a table, a sentence, a line of the card."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from headscope.analyses.classify.result import ClassifyResult, PrefixScore
from headscope.show.cells import decimal, make_table
from headscope.show.page.parts import Part

#: What the places are called.
PLACES = {
    "after": "after it (induction)",
    "same": "at the earlier copy",
    "before": "before it (mirrored)",
}
_MOST_ROWS = 2  # Heads that the table names for each place.
_HEADER = ("prefix matching", "head", "weight", "control", "gain", "95% interval", "random")


def terminal(result: ClassifyResult) -> Iterator[RenderableType]:
    """Show the heads that look most at each place."""
    if result.prefix is None:
        return
    yield Text("")
    yield make_table(_HEADER, rows(result))
    yield Text(sentence(result), style="dim")


def rows(result: ClassifyResult) -> Iterator[tuple[str, ...]]:
    """The best heads of each place beside the control."""
    random = result.prefix.random_weights if result.prefix else {}
    scored = [(head, head.prefix) for head in result.heads if head.prefix is not None]
    for place, name in PLACES.items():
        ranked = sorted(scored, key=lambda row: -getattr(row[1], place).gain)
        for head, score in ranked[:_MOST_ROWS]:
            match = getattr(score, place)
            numbers = (decimal(x) for x in (match.score, match.control, match.gain))
            ends = " to ".join(decimal(end) for end in match.interval)
            yield name, head.name, *numbers, ends, decimal(random.get(place))


def sentence(result: ClassifyResult) -> str:
    """Say what was measured."""
    p = result.prefix
    if p is None:
        return ""
    return (
        f"{p.sequences} sequences of {p.copy} random tokens, twice; control: the same second half "
        f"after other tokens. Even attention gives {p.uniform:.3f} to a place. random: largest "
        "gain of any head with random weights."
    )


def part(result: ClassifyResult) -> Part | None:
    """The same for the report's page."""
    if result.prefix is None:
        return None
    texts = [sentence(result)]
    return Part(
        "prefix", "Prefix matching", texts, header=_HEADER, rows=list(rows(result)), numbers=2
    )


def card_fact(prefix: PrefixScore) -> tuple[str, str]:
    """Return what a head's card says of repeated tokens."""
    gains = (f"{name} {getattr(prefix, name).gain:+.3f}" for name in PLACES)
    return "Repeated tokens, gain", ", ".join(gains)
