"""Terminal tables of ``linear``, drawn from its result; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.results.linear import HeadLinear, LinearResult
from headscope.show.cells import decimal, make_table, model_line, p_text
from headscope.show.estimates import cosine_text, ranged, task_line
from headscope.show.linear import words

#: Heads in the table of those that lose least and most.
_HEADS = 4


def linear_report(result: LinearResult) -> Iterator[RenderableType]:
    """Show what was run, the forms, the heads, the correlations, and stored keys."""
    yield model_line(result)
    text = result.text
    yield Text(f"Text    {text['name']}: {text['lines']:,} lines, {text['tokens']:,} tokens")
    if result.task is not None:
        yield Text(f"Task    {task_line(result.task)}")
    yield Text(f"\n{words.loss_sentence(result)}\n", style="bold")
    yield _forms(result)
    yield Text(f"\n{words.coherence_sentence(result)} {words.correlation_sentence(result)}\n")
    yield _correlations(result)
    yield Text("")
    yield _heads(result)
    yield Text(f"\n{words.memory_sentence(result)}\n")
    yield _memory(result)
    for sentence in words.notes(result):
        yield Text(f"\n{sentence}")


def _forms(result: LinearResult) -> Table:
    columns = ["all heads", "error", "scaled", "+ offset", "cosine", "cosine, scaled"]
    if result.task is not None:
        columns.append(f"{result.task.metric}, scaled")
    table = make_table(columns)
    for form in result.forms:
        mean = form.mean
        errors = (decimal(e.value, 2) for e in (mean.error, mean.scaled, mean.fitted))
        cells = [
            mean.form,
            *errors,
            cosine_text(form.whole, 3),
            ranged(form.whole_scaled.cosine, 2),
        ]
        if result.task is not None:
            cells.append(decimal(form.whole_scaled.metric, 2))
        table.add_row(*cells)
    last = ["constant output", *["1.00"] * 3, "", ranged(result.mean_output.cosine, 2)]
    table.add_row(*last, *([decimal(result.mean_output.metric, 2)] if result.task else []))
    return table


def _correlations(result: LinearResult) -> Table:
    table = make_table(("within layers", "with error of", "Spearman", "Pearson", "p"))
    every = [("", row) for row in result.correlations]
    if result.control is not None:
        every += [("random: ", row) for row in result.control.correlations[:3]]
    for weights, row in every:
        number = words.NUMBERS[row.number].replace("without the keys' mean", "centred")
        given = f" | {row.given}" if row.given else ""
        fit = {"error": "as it is"}.get(row.fit, row.fit)
        cells = (ranged(row.spearman, 2), decimal(row.pearson.value, 2), p_text(row.p))
        table.add_row(f"{weights}{number}{given}", f"{row.form}, {fit}", *cells)
    return table


def _heads(result: LinearResult) -> Table:
    table = make_table(
        ("heads", "error, scaled", "scale", "coherence", "centred", "entropy", "alone, cos")
    )
    known = [head for head in result.heads if head.error("linear").scaled.value is not None]
    known.sort(key=lambda head: head.error("linear").scaled.value or 0.0)
    shown = known if len(known) <= 2 * _HEADS else [*known[:_HEADS], *known[-_HEADS:]]
    for head in shown:
        table.add_row(*_head_row(head))
    return table


def _head_row(head: HeadLinear) -> list[str]:
    error = head.error("linear")
    return [
        head.name,
        ranged(error.scaled, 2),
        decimal(error.scale, 3),
        decimal(head.coherence.value, 2),
        decimal(head.coherence_centred.value, 2),
        decimal(head.entropy.value, 2),
        cosine_text(head.alone),
    ]


def _memory(result: LinearResult) -> Table:
    """Error of reading back N values: measured, closed form, own keys."""
    table = make_table(
        ("N keys", "d", "readout", "random keys", "closed form", "in s.e.", "own keys")
    )
    own = {(row.keys, row.readout): row for row in result.memory if row.kind == "own"}
    for row in result.memory:
        if row.kind != "random":
            continue
        mine = own.get((row.keys, row.readout))
        table.add_row(
            str(row.keys),
            str(row.width),
            words.READOUTS[row.readout],
            ranged(row.error),
            decimal(row.expected),
            "-" if row.sems is None else f"{row.sems:+.1f}",
            "-" if mine is None else decimal(mine.error.value),
        )
    return table
