"""What ``transfer`` puts on the report's page: accuracy by what is trained."""

from __future__ import annotations

from collections.abc import Iterator

from headscope.results.estimated import Estimated
from headscope.results.transfer import TransferResult
from headscope.show.cells import decimal
from headscope.show.page.parts import Part
from headscope.show.page.svg import Chart, Line, chart
from headscope.show.transfer import words
from headscope.show.view import KeyNumber

_HEADER = ("trained", "from", "examples", "parameters", "seeds", "accuracy", "95%", "sd", "bad")


def section(result: TransferResult) -> Part:
    """What each set of trained parameters earns, beside the same from random weights."""
    texts = (
        words.task_sentence(result),
        words.result_sentence(result),
        words.search_sentence(result),
        words.wrong_sentence(result),
        words.divergence_sentence(result),
        words.impossible_sentence(result),
        words.missed_sentence(result),
    )
    shown = [text for text in texts if text]
    return Part(
        "transfer", "Transfer", shown, _chart(result), _HEADER, list(_rows(result)), numbers=2
    )


def _rows(result: TransferResult) -> Iterator[list[str]]:
    for cell in result.cells:
        yield [
            words.VARIANTS[cell.variant],
            cell.weights,
            str(cell.size),
            f"{cell.parameters:,}",
            str(cell.seeds),
            f"{cell.accuracy:.1f}",
            words.interval(cell.low, cell.high),
            decimal(cell.spread, 1),
            f"{cell.diverged}+{cell.failed}",
        ]
    for row in result.baselines:
        ends = words.interval(row.low, row.high)
        name = words.BASELINES[row.name]
        yield [name, "-", str(row.size), "-", "-", f"{row.accuracy:.1f}", ends, "-", "-"]


def _chart(result: TransferResult) -> Chart:
    """Mean validation loss by step at the largest size, one line a variant; random dashed."""
    size = result.sizes[-1]
    lines = []
    for cell in result.cells:
        if cell.size == size:
            points = _mean_curve(result, cell.variant, cell.weights)
            dashed = cell.weights == "random"
            name = words.VARIANTS[cell.variant] + (", random weights" if dashed else "")
            style = list(words.VARIANTS).index(cell.variant)
            lines.append(Line(name, points, style, dashed=dashed))
    starts = [y for line in lines for _, y in line.points[:1] if y is not None]
    top = 2 * max(starts, default=1.0)
    shown = [
        Line(
            line.name,
            [(x, None if y is None else min(y, top)) for x, y in line.points],
            line.style,
            dashed=line.dashed,
        )
        for line in lines
    ]
    return chart(
        shown,
        label=f"Validation loss by step, mean over seeds, {size} training examples; the numbers "
        "are in transfer_curves.csv.",
        x_title="step",
        y_title="validation loss",
        y_limits=(0.0, top),
    )


def _mean_curve(
    result: TransferResult, variant: str, weights: str
) -> list[tuple[float, float | None]]:
    """Average the seeds' curves, up to where the first of them stopped."""
    wanted = (variant, weights, result.sizes[-1])
    curves = [r.curve for r in result.runs if (r.variant, r.weights, r.size) == wanted]
    points: list[tuple[float, float | None]] = []
    for at_one_step in zip(*curves, strict=False):
        values = [p.validation_loss for p in at_one_step if p.validation_loss is not None]
        mean = sum(values) / len(values) if len(values) == len(at_one_step) else None
        points.append((float(at_one_step[0].step), mean))
    return points


def key_numbers(result: TransferResult) -> Iterator[KeyNumber]:
    """LayerNorm alone and everything, each beside the same from random weights."""
    size = result.sizes[-1]
    for variant in ("layernorm", "all"):
        cell = result.cell(variant, "pretrained", size)
        control = result.cell(variant, "random", size)
        if cell is not None:
            beside = "-" if control is None else f"random weights {words.accuracy(control)}"
            what = f"accuracy, {words.VARIANTS[variant]} trained"
            found = Estimated(cell.accuracy, cell.low, cell.high)
            yield KeyNumber(what, words.accuracy(cell), beside, found)
