"""Tables of the search for a number of heads, and of even layers against uneven ones."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from headscope.results.even import EvenPrice
from headscope.results.max_drop import DropLook, DropPart, MaxDrop
from headscope.results.prune import PruneResult
from headscope.show.cells import csv_text, make_table
from headscope.show.prune import words
from headscope.show.prune.words import number


def max_drop_report(result: PruneResult, found: MaxDrop) -> Iterator[RenderableType]:
    """Show both halves, one head more, and every model that was tried."""
    name = words.version_name(found.method, found.repair)
    yield Text(
        f"\nA number of heads that is confirmed to cost at most "
        f"{words.amount(found.wanted, result.metric)}: {found.count} of {result.n_heads}, {name}"
    )
    columns = ("", "heads", "examples", result.metric, "change", "interval", "level")
    table = make_table(columns)
    for text, part in _parts(result, found):
        table.add_row(text, *_cells(result, part))
    yield table
    yield Text(f"Tried   {'; '.join(_tried(found.looks))}")
    for sentence in words.search_notes(result, found):
        yield Text(sentence, style="dim")


def _parts(result: PruneResult, found: MaxDrop) -> Iterator[tuple[str, DropPart]]:
    yield "chosen on one half", found.chosen
    if found.refused is not None:
        yield "refused by the other", found.refused
    yield "confirmed on the other", found.confirmed
    if (more := found.one_more) is not None:
        whole = (result.measured_examples, result.baseline.value)
        one_more = DropPart(more.heads, *whole, more.value, more.difference, more.ci, 0.95)
        where = "the same" if found.measured_on == "confirming" else "both halves"
        yield f"one more, {where}", one_more


def _cells(result: PruneResult, part: DropPart) -> tuple[str, ...]:
    return (
        str(part.heads),
        f"{part.examples:,}",
        number(part.value, result.metric),
        number(part.difference, result.metric, signed=True),
        words.span(part.ci, result.metric, signed=True),
        words.percent(part.level),
    )


def _tried(looks: tuple[DropLook, ...]) -> Iterator[str]:
    """Yield what was asked of each candidate on each half: ``fisher-joint: 36 no, 18 yes``."""
    asked: dict[str, list[str]] = {}
    for look in looks:
        name = words.version_name(look.method, look.repair)
        where = name if look.part == "choosing" else "confirming"
        asked.setdefault(where, []).append(f"{look.heads} {'yes' if look.allowed else 'no'}")
    return (f"{where}: {', '.join(answers)}" for where, answers in asked.items())


def looks_csv(found: MaxDrop) -> str:
    """One line for every model that was tried on a half."""
    header = ("method", "repair", "heads", "part", "lost", "most_lost", "level", "allowed")
    rows = [[getattr(look, name) for name in header] for look in found.looks]
    return csv_text(header, rows)


def even_report(result: PruneResult) -> Iterator[RenderableType]:
    """Show what it costs that every layer loses the same number of heads."""
    if not result.even:
        return
    yield Text("\nThe same number of heads from every layer (even), and as many from any (uneven):")
    columns = ("removed by", "a layer", "heads", "even", "uneven", "difference", "95% interval")
    yield make_table(columns, (_price_cells(result, price) for price in result.even))


def _price_cells(result: PruneResult, price: EvenPrice) -> tuple[str, ...]:
    return (
        words.short_name(price.method, price.repair),
        str(price.per_layer),
        str(price.heads),
        number(price.value, result.metric),
        number(price.uneven, result.metric),
        number(price.difference, result.metric, signed=True),
        words.span(price.ci, result.metric, signed=True),
    )


def even_csv(result: PruneResult) -> str:
    """One line for every even model."""
    names = ("method", "repair", "per_layer", "heads", "value", "uneven", "difference")
    rows = [
        [*(getattr(price, name) for name in names), *(price.ci or (None, None))]
        for price in result.even
    ]
    return csv_text((*names, "low", "high"), rows)
