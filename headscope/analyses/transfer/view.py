"""What is shown of ``transfer``: what training some of the parameters gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headscope.analyses.transfer.result import TransferResult
from headscope.show import blocks as b
from headscope.show.cells import joined, model_line, model_name, plural
from headscope.show.estimates import ranged
from headscope.show.view import KeyNumber, next_step, view

#: Variants in the order in which people read them.
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
BASELINES = {"majority": "majority class", "words": "words (naive Bayes)"}
_MARKS = {"edge": "!", "not searched": "?"}  # After a rate that is not known to be the best one.


def blocks(result: TransferResult) -> Iterator[b.Block]:
    """Show the comparison, a table for each size and start, and the runs that went wrong."""
    dropped = f", {result.dropped} left out" if result.dropped else ""
    task = (
        f"{result.task}: {len(result.classes)} classes; {result.sizes[-1]} training examples at "
        f"most{dropped}, {result.validation_examples} for validation, {result.test_examples} for "
        "the test."
    )
    steps = f"{result.steps} steps of {result.batch} examples at most, stopped early; no dropout"
    yield b.Text(result_sentence(result), "lead")
    yield b.Text(task, on=b.PAGE)
    panels = _panels(result)
    main = next((p for p in reversed(panels) if p[1] == "pretrained"), panels[-1])
    runs = [run for run in result.runs if run.factor == 1 and (run.diverged or run.failed)]
    bad = Counter((run.variant, run.weights, run.size) for run in runs)
    for size, weights in panels:
        cells = [c for c in result.cells if (c.size, c.weights) == (size, weights)]
        rows: list[tuple[object, ...]] = [
            (
                VARIANTS[cell.variant],
                f"{cell.parameters:,}",
                cell.accuracy,
                cell.spread,
                f"{cell.rate:g}{_MARKS.get(cell.optimum, '')}",
                f"{bad[cell.variant, weights, size]} of {cell.seeds}",
            )
            for cell in cells
        ]
        rows += [
            (BASELINES[known.name], "", known.accuracy, "", "", "")
            for known in result.baselines
            if cells and known.size == size and weights == "pretrained"
        ]
        titles = ("trained", "parameters", "accuracy, 95%", "std", "learning rate", "failed")
        columns: list[b.Column] = [(title, i, 1) for i, title in enumerate(titles)]
        title = f"From {weights} weights, {size} training examples"
        on = b.BOTH if (size, weights) == main else b.VERBOSE | b.PAGE
        yield b.Table(columns, rows, title, on=on)
    yield b.Text(
        "accuracy: % on the test part, interval over seeds and examples; std: over seeds. "
        "learning rate: the best on the validation part; ! at the edge of what was searched, "
        "? not searched. failed: runs that diverged, or did no better than the majority class.",
        on=b.VERBOSE | b.PAGE,
    )
    yield b.Text(wrong_sentence(result))
    multiples: dict[str, list[str]] = {}
    for count in result.divergence:
        text = f"{count.diverged} of {count.runs} runs at {count.factor:g}x"
        multiples.setdefault(VARIANTS[count.variant], []).append(text)
    if multiples:
        parts = [f"{name} {joined(counts)}" for name, counts in multiples.items()]
        yield b.Text(
            f"Diverged with {result.sizes[0]} examples, by multiples of each one's best rate: "
            f"{'; '.join(parts)}.",
            on=b.VERBOSE | b.PAGE,
        )
    yield b.Text(" ".join(result.not_possible.values()))
    missed = Counter((m.variant, m.weights, m.size) for m in result.missed)
    if missed:
        parts = [
            f"{VARIANTS[variant]} ({weights}, {size} examples): {n} {plural(n, 'run')}"
            for (variant, weights, size), n in missed.items()
        ]
        total = len(result.missed) + len(result.runs)
        yield b.Text(
            f"The budget of {result.budget:g} s did not reach {len(result.missed)} of {total} "
            f"runs: {'; '.join(parts)}."
        )
    header = f"{model_line(result).plain}\nTask    {task}\nRuns    {steps}"
    yield b.Text(header, "soft", on=b.TERMINAL)
    yield next_step(result, "which heads can be removed?", "prune {}")
    yield _accuracies(result)


def _panels(result: TransferResult) -> list[tuple[int, str]]:
    """Return size and start of every table and panel."""
    starts = [(size, weights) for size in result.sizes for weights in ("pretrained", "random")]
    measured = {(cell.size, cell.weights) for cell in result.cells}
    return [start for start in starts if start in measured] or [(result.sizes[-1], "pretrained")]


def result_sentence(result: TransferResult) -> str:
    """Compare LayerNorm alone with the others at the largest size."""
    alone = result.cell("layernorm", "pretrained", result.sizes[-1])
    if alone is None:
        return "LayerNorm alone was not measured at the largest size."
    others = (
        ("as many biases", "biases", "pretrained"),
        ("as many weights", "weights", "pretrained"),
        ("rank-1 LoRA of that size", "lora", "pretrained"),
        ("attention only", "attention", "pretrained"),
        ("everything", "all", "pretrained"),
        ("the same from random weights", "layernorm", "random"),
    )
    parts = [
        f"{ranged(difference.points, 1)} against {name}"
        for name, other, weights in others
        if (difference := result.difference("layernorm", other, other_weights=weights)) is not None
    ]
    points = f" In points, the difference is {joined(parts)}." if parts else ""
    return f"Trained LayerNorm alone reaches an accuracy of {ranged(alone.accuracy, 1)}%.{points}"


def wrong_sentence(result: TransferResult) -> str:
    """Count the runs that diverged or learned nothing, and compare the spreads."""
    runs = [run for run in result.runs if run.factor == 1]
    diverged, failed = (sum(getattr(run, what) for run in runs) for what in ("diverged", "failed"))
    text = (
        f"Of {len(runs)} runs at the best rates {diverged} diverged, and {failed} did no better "
        "than the majority class."
    )
    for spread in result.spreads:
        if spread.ratio.value is not None:
            text += (
                f" Over seeds at {spread.size} examples, attention's standard deviation is "
                f"{ranged(spread.ratio, 2)} times LayerNorm's."
            )
    return text


def _accuracies(result: TransferResult) -> b.Panels:
    """Draw every variant's accuracy with its interval, one panel for each size and start."""
    panels: list[b.Chart] = []
    measured = [name for name in VARIANTS if any(c.variant == name for c in result.cells)]
    places = {variant: x for x, variant in enumerate(measured)}
    for size, weights in _panels(result):
        cells = [c for c in result.cells if (c.size, c.weights) == (size, weights)]
        kind = (size, weights, 1)
        runs = [run for run in result.runs if (run.size, run.weights, run.factor) == kind]
        mean = b.Series(
            "mean over seeds, 95% interval",
            [places[cell.variant] for cell in cells],
            [cell.accuracy for cell in cells],
            "points",
            b.BLACK,
        )
        seeds = b.Series(
            "each seed",
            [places[run.variant] + 0.25 for run in runs],
            [run.accuracy.value for run in runs],
            "points",
            b.ORANGE,
            ".",
        )
        known = [row for row in result.baselines if row.size == size]
        panels.append(
            b.Chart(
                f"{weights}, {size} examples",
                "",
                "" if panels else "accuracy x 100",
                [mean, seeds],
                levels={BASELINES[row.name]: row.accuracy.value or 0.0 for row in known},
                x_names=[VARIANTS[name] for name in measured],
            )
        )
    return b.Panels(
        f"Test accuracy by what is trained, {model_name(result)}",
        panels,
        "transfer",
        across=len(panels),
        size=(2.0 + 2.3 * len(panels), 4.4),
        alt="Test accuracy by what is trained; the numbers are in transfer.csv.",
        on=b.PAGE,
    )


def _key_numbers(result: TransferResult) -> Iterator[KeyNumber]:
    """Yield LayerNorm alone and everything, each with the same from random weights."""
    size = result.sizes[-1]
    for variant in ("layernorm", "all"):
        cell = result.cell(variant, "pretrained", size)
        control = result.cell(variant, "random", size)
        if cell is not None:
            random = "-" if control is None else f"random weights {ranged(control.accuracy, 1)}"
            what = f"accuracy, {VARIANTS[variant]} trained"
            yield KeyNumber(what, ranged(cell.accuracy, 1), random, cell.accuracy)


VIEW = view(
    "Transfer",
    blocks,
    {
        "transfer": TransferResult.to_frame,
        "transfer_runs": TransferResult.runs_frame,
        "transfer_curves": TransferResult.curves_frame,
        "transfer_differences": TransferResult.differences_frame,
        "transfer_rates": TransferResult.searched_frame,
    },
    key_numbers=_key_numbers,
)
