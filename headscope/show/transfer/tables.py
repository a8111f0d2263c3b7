"""Terminal tables of ``transfer``, drawn from its result; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.results.transfer import TransferBaseline, TransferCell, TransferResult
from headscope.show.cells import decimal, make_table, model_line
from headscope.show.transfer import words

_COLUMNS = ("trained", "parameters", "rate", "seeds", "accuracy", "95%", "sd", "bad")

_MARKS = {"edge": "!", "not searched": "?"}  # Behind a rate that is not known to be the best one.


def transfer_report(result: TransferResult) -> Iterator[RenderableType]:
    """Show what was run, the comparison, a table for each size and start, and what went wrong."""
    yield model_line(result)
    yield Text(f"Task    {words.task_sentence(result)}")
    yield Text(
        f"Runs    {result.steps} steps of {result.batch} examples at most, stopped early; without "
        "dropout"
    )
    yield Text(f"\n{words.result_sentence(result)}", style="bold")
    for size in result.sizes:
        for weights in ("pretrained", "random"):
            cells = [c for c in result.cells if (c.size, c.weights) == (size, weights)]
            if cells:
                yield Text(f"\nFrom {weights} weights, {size} training examples")
                yield _table(cells, _baselines(result, size, weights))
    yield Text(
        "\nAccuracy x 100 on the test part; its interval is over seeds and examples. sd: over "
        "seeds.\nbad: runs that diverged, and runs no better than the majority class.\n"
        "rate: best on the validation part; ! at the edge of what was searched, ? not searched."
    )
    for text in (
        words.search_sentence(result),
        words.wrong_sentence(result),
        words.divergence_sentence(result),
        words.impossible_sentence(result),
        words.missed_sentence(result),
    ):
        if text:
            yield Text(text)


def _baselines(result: TransferResult, size: int, weights: str) -> list[TransferBaseline]:
    return [b for b in result.baselines if b.size == size and weights == "pretrained"]


def _table(cells: list[TransferCell], baselines: list[TransferBaseline]) -> Table:
    table = make_table(_COLUMNS, map(_row, cells))
    for row in baselines:
        ends = words.interval(row.low, row.high)
        texts = (words.BASELINES[row.name], "", "", "", f"{row.accuracy:.1f}", ends, "", "")
        table.add_row(*texts, style="dim")
    return table


def _row(cell: TransferCell) -> tuple[str, ...]:
    return (
        words.VARIANTS[cell.variant],
        f"{cell.parameters:,}",
        f"{cell.rate:g}{_MARKS.get(cell.optimum, '')}",
        str(cell.seeds),
        f"{cell.accuracy:.1f}",
        words.interval(cell.low, cell.high),
        decimal(cell.spread, 1),
        f"{cell.diverged}+{cell.failed}",
    )
