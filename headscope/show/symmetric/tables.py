"""Terminal tables of ``symmetric``, drawn from its result; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.results.symmetric import DrawnEffect, SymmetricResult
from headscope.show.cells import decimal, head_map, make_table, model_line
from headscope.show.estimates import ranged, task_line
from headscope.show.symmetric import words

#: Heads beside each other in one block of the map.
_HEADS_ACROSS = 12


def symmetric_report(result: SymmetricResult) -> Iterator[RenderableType]:
    """Show what was run, all heads at once, random heads, and every head alone."""
    yield model_line(result)
    text = result.text
    yield Text(f"Text    {text['name']}: {text['lines']:,} lines, {text['tokens']:,} tokens")
    if result.task is not None:
        yield Text(f"Task    {task_line(result.task)}")
    yield Text(f"\n{words.whole_sentence(result)}\n", style="bold")
    yield _whole(result)
    yield Text("\nRandom heads: the same sets made symmetric, and removed")
    yield _sets(result)
    alone = words.alone_sentence(result)
    if alone:
        yield Text(f"\n{alone}")
        yield from _map(result)
    for sentence in words.notes(result):
        yield Text(f"\n{sentence}")


def _whole(result: SymmetricResult) -> Table:
    columns = ["all heads at once", "cosine to the model's", "draws"]
    if result.task is not None:
        columns.append(result.task.metric)
    rows = []
    for name, found in result.whole.items():
        rows.append([words.CHANGES[name], ranged(found.cosine), _draws(found)])
        if result.task is not None:
            rows[-1].append(decimal(found.metric, 2))
    return make_table(columns, rows)


def _draws(found: DrawnEffect) -> str:
    return "-" if found.draws == 1 else str(found.draws)


def _sets(result: SymmetricResult) -> Table:
    table = make_table(("heads", "symmetric", "std", "removed", "std"))
    single = [words.mean_alone(result, change) for change in ("symmetric", "removed")]
    if single[0] is not None:
        table.add_row("1 (mean of all)", decimal(single[0]), "-", decimal(single[1]), "-")
    for chosen in result.sets:
        both = (chosen.symmetric, chosen.removed)
        cells = (text for d in both for text in (ranged(d.cosine), decimal(d.cosine_std)))
        table.add_row(str(chosen.heads), *cells)
    return table


def _map(result: SymmetricResult) -> Iterator[RenderableType]:
    """1 minus the cosine of every head alone, in thousandths."""
    cells = {}
    for head in result.heads:
        if head.symmetric is not None and head.symmetric.cosine.value is not None:
            moved = 1000 * (1 - head.symmetric.cosine.value)
            style = "bold red" if moved >= 10 else ""
            cells[head.layer_name, head.head] = Text(f"{moved:.1f}", style=style)
    if not cells:
        return
    yield Text("1000 x (1 - cosine), one head alone with symmetric scores")
    layers = dict.fromkeys(head.layer_name for head in result.heads)
    yield from head_map(cells, layers, across=_HEADS_ACROSS, width=6, name=str)
