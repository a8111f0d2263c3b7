"""The sentences of ``transfer``, the same in the terminal and on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.analyses.transfer.result import (
    TransferBaseline,
    TransferCell,
    TransferDifference,
    TransferResult,
)
from headscope.show.cells import decimal, frame_csv, joined, make_table, model_line, plural, to_csv
from headscope.show.folders import folder_files
from headscope.show.page.parts import Part
from headscope.show.page.svg import Chart, Line, chart
from headscope.show.view import KeyNumber, View
from headscope.stats.estimate import Estimate

__all__ = ["VIEW"]


#: Variants in order, as people read them.
VARIANTS = {
    "head": "head only",
    "layernorm": "LayerNorm only",
    "biases": "as many biases",
    "weights": "as many weights",
    "lora": "rank-1 LoRA, as many",
    "all_biases": "all biases",
    "attention": "attention only",
    "all": "everything",
}
BASELINES = {"majority": "majority class", "words": "words (naive Bayes)"}  # Baselines, likewise.


def task_sentence(result: TransferResult) -> str:
    """Say what was classified, with how many examples."""
    dropped = f", {result.dropped} left out" if result.dropped else ""
    return (
        f"{result.task}: {len(result.classes)} classes; {result.sizes[-1]} training examples at "
        f"most{dropped}, {result.validation_examples} for validation, {result.test_examples} for "
        "the test."
    )


def result_sentence(result: TransferResult) -> str:
    """Compare LayerNorm alone with the others at the largest size."""
    own = result.cell("layernorm", "pretrained", result.sizes[-1])
    if own is None:
        return "LayerNorm alone was not measured at the largest size."
    found = (
        ("as many biases", result.difference("layernorm", "biases")),
        ("as many weights", result.difference("layernorm", "weights")),
        ("rank-1 LoRA of that size", result.difference("layernorm", "lora")),
        ("attention only", result.difference("layernorm", "attention")),
        ("everything", result.difference("layernorm", "all")),
        (
            "the same from random weights",
            result.difference("layernorm", "layernorm", other_weights="random"),
        ),
    )
    parts = [f"{points(d)} against {name}" for name, d in found if d is not None]
    if not parts:
        return f"LayerNorm only: {accuracy(own)}."
    return f"LayerNorm only: {accuracy(own)}; in points, {joined(parts)}."


def accuracy(cell: TransferCell) -> str:
    """Write a cell's accuracy with its interval."""
    return f"{cell.accuracy:.1f} {interval(cell.low, cell.high)}"


def points(found: TransferDifference) -> str:
    """Write a difference with its sign and interval."""
    return f"{found.mean:+.1f} {interval(found.low, found.high)}"


def interval(low: float | None, high: float | None) -> str:
    """Write an interval of percentages."""
    return "[no interval]" if low is None or high is None else f"[{low:.1f}, {high:.1f}]"


def wrong_sentence(result: TransferResult) -> str:
    """Count the runs that diverged or learned nothing, and compare the spreads."""
    diverged = sum(run.diverged for run in result.runs)
    failed = sum(run.failed for run in result.runs)
    text = (
        f"Of {len(result.runs)} runs at the best rates {diverged} diverged, and {failed} did no "
        "better than the majority class."
    )
    for spread in result.spreads:
        if spread.ratio is not None and spread.low is not None and spread.high is not None:
            text += (
                f" Over seeds at {spread.size} examples, attention's standard deviation is "
                f"{spread.ratio:.2f} [{spread.low:.2f}, {spread.high:.2f}] times LayerNorm's."
            )
    return text


def divergence_sentence(result: TransferResult) -> str:
    """Say how many runs diverged at multiples of the best rates; empty where none were made."""
    by_variant: dict[str, list[str]] = {}
    for count in result.divergence:
        found = f"{count.diverged} of {count.runs} runs at {count.factor:g}x"
        by_variant.setdefault(VARIANTS[count.variant], []).append(found)
    if not by_variant:
        return ""
    parts = [f"{name} {joined(found)}" for name, found in by_variant.items()]
    return (
        f"Diverged with {result.sizes[0]} examples, by multiples of each one's best rate: "
        f"{'; '.join(parts)}."
    )


def search_sentence(result: TransferResult) -> str:
    """Say which learning rates are no known optimum; empty where all are."""
    edge = [c for c in result.cells if c.optimum == "edge"]
    text = ""
    if edge:
        names = [
            f"{VARIANTS[c.variant]} ({c.weights}, {c.size} examples, {c.rate:g})" for c in edge
        ]
        text = f"The best rate lies at the edge of what was searched: {joined(names)}."
    if any(c.optimum == "not searched" for c in result.cells):
        text += " Rates marked ? were not searched."
    return text.strip()


def missed_sentence(result: TransferResult) -> str:
    """Say what the budget did not reach; empty where it reached everything."""
    if not result.missed:
        return ""
    counts = Counter((m.variant, m.weights, m.size) for m in result.missed)
    parts = [
        f"{VARIANTS[variant]} ({weights}, {size} examples): {n} {plural(n, 'run')}"
        for (variant, weights, size), n in counts.items()
    ]
    total = len(result.missed) + len(result.runs) + len(result.stress)
    return (
        f"The budget of {result.budget:g} s did not reach {len(result.missed)} of {total} runs: "
        f"{'; '.join(parts)}."
    )


def impossible_sentence(result: TransferResult) -> str:
    """Say which variants the model does not have."""
    return " ".join(result.not_possible.values())


_COLUMNS = ("trained", "parameters", "rate", "seeds", "accuracy", "95%", "sd", "bad")

_MARKS = {"edge": "!", "not searched": "?"}  # Behind a rate that is not known to be the best one.


def transfer_report(result: TransferResult) -> Iterator[RenderableType]:
    """Show what was run, the comparison, a table for each size and start, and what went wrong."""
    yield model_line(result)
    yield Text(f"Task    {task_sentence(result)}")
    yield Text(
        f"Runs    {result.steps} steps of {result.batch} examples at most, stopped early; without "
        "dropout"
    )
    yield Text(f"\n{result_sentence(result)}", style="bold")
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
        search_sentence(result),
        wrong_sentence(result),
        divergence_sentence(result),
        impossible_sentence(result),
        missed_sentence(result),
    ):
        if text:
            yield Text(text)


def _baselines(result: TransferResult, size: int, weights: str) -> list[TransferBaseline]:
    return [b for b in result.baselines if b.size == size and weights == "pretrained"]


def _table(cells: list[TransferCell], baselines: list[TransferBaseline]) -> Table:
    table = make_table(_COLUMNS, map(_row, cells))
    for row in baselines:
        ends = interval(row.low, row.high)
        texts = (BASELINES[row.name], "", "", "", f"{row.accuracy:.1f}", ends, "", "")
        table.add_row(*texts, style="dim")
    return table


def _row(cell: TransferCell) -> tuple[str, ...]:
    return (
        VARIANTS[cell.variant],
        f"{cell.parameters:,}",
        f"{cell.rate:g}{_MARKS.get(cell.optimum, '')}",
        str(cell.seeds),
        f"{cell.accuracy:.1f}",
        interval(cell.low, cell.high),
        decimal(cell.spread, 1),
        f"{cell.diverged}+{cell.failed}",
    )


_HEADER = ("trained", "from", "examples", "parameters", "seeds", "accuracy", "95%", "sd", "bad")


def section(result: TransferResult) -> Part:
    """What each set of trained parameters earns, beside the same from random weights."""
    texts = (
        task_sentence(result),
        result_sentence(result),
        search_sentence(result),
        wrong_sentence(result),
        divergence_sentence(result),
        impossible_sentence(result),
        missed_sentence(result),
    )
    shown = [text for text in texts if text]
    return Part(
        "transfer", "Transfer", shown, _chart(result), _HEADER, list(_rows(result)), numbers=2
    )


def _rows(result: TransferResult) -> Iterator[list[str]]:
    for cell in result.cells:
        yield [
            VARIANTS[cell.variant],
            cell.weights,
            str(cell.size),
            f"{cell.parameters:,}",
            str(cell.seeds),
            f"{cell.accuracy:.1f}",
            interval(cell.low, cell.high),
            decimal(cell.spread, 1),
            f"{cell.diverged}+{cell.failed}",
        ]
    for row in result.baselines:
        ends = interval(row.low, row.high)
        name = BASELINES[row.name]
        yield [name, "-", str(row.size), "-", "-", f"{row.accuracy:.1f}", ends, "-", "-"]


def _chart(result: TransferResult) -> Chart:
    """Mean validation loss by step at the largest size, one line a variant; random dashed."""
    size = result.sizes[-1]
    lines = []
    for cell in result.cells:
        if cell.size == size:
            points = _mean_curve(result, cell.variant, cell.weights)
            dashed = cell.weights == "random"
            name = VARIANTS[cell.variant] + (", random weights" if dashed else "")
            style = list(VARIANTS).index(cell.variant)
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
            beside = "-" if control is None else f"random weights {accuracy(control)}"
            what = f"accuracy, {VARIANTS[variant]} trained"
            found = Estimate(cell.accuracy, cell.low, cell.high)
            yield KeyNumber(what, accuracy(cell), beside, found)


def transfer_files(result: TransferResult) -> dict[str, bytes]:
    """Return the tables, from cells to the rates that were tried, and the two figures."""
    from headscope.analyses.transfer.figures import accuracy_figure, learning_curves

    csv = {
        "transfer": to_csv(result),
        "transfer_runs": frame_csv(result.runs_frame()),
        "transfer_curves": frame_csv(result.curves_frame()),
        "transfer_differences": frame_csv(result.differences_frame()),
        "transfer_divergence": frame_csv(result.divergence_frame()),
        "transfer_rates": frame_csv(result.searched_frame()),
    }
    figures = {"transfer": accuracy_figure(result), "transfer_curves": learning_curves(result)}
    return folder_files(csv, figures)


VIEW = View(transfer_report, transfer_files, section=section, key_numbers=key_numbers)
