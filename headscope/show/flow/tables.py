"""Terminal tables of ``flow``, drawn from its result; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.core.safe_text import visible
from headscope.results.flow import FlowResult, HeadFlow, Trees
from headscope.show.cells import decimal, make_table, mean_of, model_line, plural
from headscope.show.flow import words


def flow_report(result: FlowResult) -> Iterator[RenderableType]:
    """Show what was read, the findings, the layers, the hubs and the trees."""
    yield model_line(result, len(result.heads))
    yield Text(f"Text    {words.sentences_text(result)}")
    if result.sentences.note:
        yield Text(f"        {result.sentences.note}", style="dim")
    texts = (
        words.width_sentence(result),
        words.recovery_sentence(result),
        words.hub_sentence(result),
        *words.tree_sentences(result),
    )
    for text in texts:
        yield Text(f"\n{text}", style="bold")
    yield Text(
        "\nBy layer, mean of heads: the width of W_V (effective rank over d_head); the share of "
        "variance that a linear readout recovers (held out): of all that is read, from z and from "
        "random directions; of the word attended to most, with this W_V and with a Gaussian one, "
        "and of a random word; the attention that the most-attended tenth receives"
    )
    yield _layers(result)
    if result.graph.hubs:
        yield Text("\nHubs: attention received by one occurrence, mean of heads, +-95%")
        yield _hubs(result)
    if result.trees is not None:
        yield Text("\nTrees: unlabelled attachment, the gold root given, +-95% over sentences")
        yield _trees(result, result.trees)


#: Columns of held-out R^2, by number.
_COLUMNS = {
    "whole": "all read",
    "directions": "random",
    "value": "word",
    "gaussian": "Gaussian",
    "other": "other word",
}


def _layers(result: FlowResult) -> Table:
    """One row a layer, then random weights and the other controls."""
    table = make_table(("layer", "width", *_COLUMNS.values(), "top tenth"))
    names = dict.fromkeys(head.layer_name for head in result.heads)
    for name in names:
        here = [head for head in result.heads if head.layer_name == name]
        table.add_row(name, *_cells(here))
    if result.control is not None:
        control = result.control
        r2 = (getattr(control.recovery, name).value for name in _COLUMNS)
        cells = (words.control_wide(result, "fresh"), *r2, control.top_share.value)
        name = "random weights"
        table.add_row(name, *(decimal(cell, 2) for cell in cells), style="dim")
    gaussian = decimal(words.control_wide(result, "gaussian"), 2)
    even = decimal(result.graph.even_top_share, 2)
    table.add_row("chance", gaussian, *["-"] * len(_COLUMNS), even, style="dim")
    return table


def _cells(heads: list[HeadFlow]) -> list[str]:
    r2 = [mean_of(getattr(h.recovery, name).value for h in heads) for name in _COLUMNS]
    share = mean_of(head.graph.top_share.value for head in heads)
    wide = mean_of(head.wide() for head in heads)
    return [decimal(value, 2) for value in (wide, *r2, share)]


def _hubs(result: FlowResult) -> Table:
    rows = (
        [
            visible(hub.name),
            decimal(hub.received, 2),
            decimal(hub.even, 2),
            words.number(hub.ratio),
            str(hub.occurrences),
        ]
        for hub in result.graph.hubs
    )
    return make_table(("hub", "received", "if even", "ratio", "seen"), rows)


def _trees(result: FlowResult, trees: Trees) -> Table:
    table = make_table(("", "UAS", "no punct.", "swapped trees"))
    n = len(trees.combination.heads)
    for name, found in (
        (f"best head, {words.heads_text(trees.best)}", trees.best),
        (f"{n} {plural(n, 'head')} added up", trees.combination),
    ):
        cells = (found.uas, found.uas_no_punct, found.swapped)
        table.add_row(name, *(words.number(cell, 3) for cell in cells))
    for name, said in words.BASELINE_NAMES.items():
        text = f"{said} {trees.offset}" if name == "offset" else said
        pair = (trees.baselines[name], trees.baselines_no_punct[name])
        table.add_row(text, *(words.number(cell, 3) for cell in pair), "", style="dim")
    if result.control is not None and result.control.best_uas is not None:
        uas = words.number(result.control.best_uas, 3)
        table.add_row("best head of random weights", uas, "", "", style="dim")
    return table
