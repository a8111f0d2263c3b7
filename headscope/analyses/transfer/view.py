"""What is shown of ``transfer``: what training some of the parameters gives.

:func:`blocks` lists the sentences, tables and the figure (all made with :mod:`headscope.show`,
here ``b``), each for the terminal, the page or both. A *cell* of the result is one variant, from
pretrained or random weights, with one number of training examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

from headscope.analyses.transfer.result import TransferCell, TransferResult
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
    """Show the comparison, a table for each size and kind of weights, and runs that went wrong."""
    task = _task_words(result)
    yield b.Text(result_sentence(result), "lead")
    yield b.Text(task, on=b.PAGE)
    yield from _tables(result)
    yield b.Text(
        "accuracy: % on the test part, interval over seeds and examples; std: over seeds. "
        "learning rate: the best on the validation part; ! at the edge of what was searched, "
        "? not searched. failed: runs that diverged, or did no better than the majority class.",
        on=b.VERBOSE | b.PAGE,
    )
    yield b.Text(wrong_sentence(result))
    yield b.Text(_divergence_words(result), on=b.VERBOSE | b.PAGE)
    yield b.Text(" ".join(result.not_possible.values()))
    yield b.Text(_missed_words(result))
    steps = f"{result.steps} steps of {result.batch} examples at most, stopped early; no dropout"
    header = f"{model_line(result).plain}\nTask    {task}\nRuns    {steps}"
    yield b.Text(header, "soft", on=b.TERMINAL)
    yield next_step(result, "which heads can be removed?", "prune {}")
    if result.cells:
        yield _accuracies(result)


def _task_words(result: TransferResult) -> str:
    """Say what is classified, and how many examples there are of each kind."""
    dropped = f", {result.dropped} left out" if result.dropped else ""
    return (
        f"{result.task}: {len(result.classes)} classes; {result.sizes[-1]} training examples at "
        f"most{dropped}, {result.validation_examples} for validation, {result.test_examples} for "
        "the test."
    )


def _tables(result: TransferResult) -> Iterator[b.Table]:
    """Yield a table of the cells of each size and kind of weights.

    Without ``--verbose`` the terminal shows one: the largest size, from pretrained weights.
    """
    tables = _sizes_and_weights(result)
    if not tables:
        return
    pretrained = [(size, weights) for size, weights in tables if weights == "pretrained"]
    main_table = pretrained[-1] if pretrained else tables[-1]  # sizes ascend
    at_best_rates = [run for run in result.runs if run.factor == 1]
    bad_runs = Counter(
        (run.variant, run.weights, run.size) for run in at_best_rates if run.diverged or run.failed
    )
    titles = ("trained", "parameters", "accuracy, 95%", "std", "learning rate", "failed")
    digits = 1
    columns: list[b.Column] = [(title, index, digits) for index, title in enumerate(titles)]
    for size, weights in tables:
        cells = _cells_of(result, size, weights)
        rows: list[tuple[object, ...]] = [
            (
                VARIANTS[cell.variant],
                f"{cell.parameters:,}",
                cell.accuracy,
                cell.spread,
                f"{cell.rate:g}{_MARKS.get(cell.optimum, '')}",
                f"{bad_runs[cell.variant, weights, size]} of {cell.seeds}",
            )
            for cell in cells
        ]
        if cells and weights == "pretrained":
            baselines = [row for row in result.baselines if row.size == size]
            rows += [(BASELINES[row.name], "", row.accuracy, "", "", "") for row in baselines]
        title = f"From {weights} weights, {size} training examples"
        is_main = (size, weights) == main_table
        yield b.Table(columns, rows, title, on=b.BOTH if is_main else b.VERBOSE | b.PAGE)


def _divergence_words(result: TransferResult) -> str:
    """Count the runs that diverged at each multiple of the best rates, if there are any."""
    counts_of_variants: dict[str, list[str]] = {}
    for count in result.divergence:
        text = f"{count.diverged} of {count.runs} runs at {count.factor:g}x"
        counts_of_variants.setdefault(VARIANTS[count.variant], []).append(text)
    if not counts_of_variants:
        return ""
    words = [f"{name} {joined(counts)}" for name, counts in counts_of_variants.items()]
    return (
        f"Diverged with {result.sizes[0]} examples, by multiples of each one's best rate: "
        f"{'; '.join(words)}."
    )


def _missed_words(result: TransferResult) -> str:
    """Say which runs the budget did not reach; nothing if it reached all."""
    if not result.missed:
        return ""
    missed = Counter((run.variant, run.weights, run.size) for run in result.missed)
    words = [
        f"{VARIANTS[variant]} ({weights}, {size} examples): {n} {plural(n, 'run')}"
        for (variant, weights, size), n in missed.items()
    ]
    total = len(result.missed) + len(result.runs)
    return (
        f"The budget of {result.budget:g} s did not reach {len(result.missed)} of {total} "
        f"runs: {'; '.join(words)}."
    )


def _cells_of(result: TransferResult, size: int, weights: str) -> list[TransferCell]:
    """Return the cells of one table, or of one panel of the figure."""
    return [cell for cell in result.cells if (cell.size, cell.weights) == (size, weights)]


def _sizes_and_weights(result: TransferResult) -> list[tuple[int, str]]:
    """List what there is a table of, and a panel of the figure: ``(64, "pretrained")``, ...

    Where nothing was measured, there is none.
    """
    measured = {(cell.size, cell.weights) for cell in result.cells}
    possible = product(result.sizes, ("pretrained", "random"))
    return [pair for pair in possible if pair in measured]


def result_sentence(result: TransferResult) -> str:
    """Compare LayerNorm alone with the others at the largest size."""
    alone = result.cell("layernorm", "pretrained", result.sizes[-1])
    if alone is None:
        return _accuracies_sentence(result)
    compared = (
        ("as many biases", "biases", "pretrained"),
        ("as many weights", "weights", "pretrained"),
        ("rank-1 LoRA of that size", "lora", "pretrained"),
        ("attention only", "attention", "pretrained"),
        ("everything", "all", "pretrained"),
        ("the same from random weights", "layernorm", "random"),
    )
    differences: list[str] = []
    for name, variant, weights in compared:
        difference = result.difference("layernorm", variant, other_weights=weights)
        if difference is not None:
            differences.append(f"{ranged(difference.points, 1)} against {name}")
    points = f" In points, the difference is {joined(differences)}." if differences else ""
    return f"Trained LayerNorm alone reaches an accuracy of {ranged(alone.accuracy, 1)}%.{points}"


def _accuracies_sentence(result: TransferResult) -> str:
    """Say what was reached where LayerNorm alone was not trained at the largest size."""
    if not result.cells:
        return (
            f"Nothing was measured: the budget of {result.budget:g} s ended before the first of "
            f"{len(result.missed)} runs; --budget sets another."
        )
    largest = max(cell.size for cell in result.cells)
    accuracies = [
        f"{VARIANTS[cell.variant]} ({cell.weights} weights) {ranged(cell.accuracy, 1)}%"
        for cell in result.cells
        if cell.size == largest
    ]
    baselines = [
        f"{BASELINES[row.name]} {ranged(row.accuracy, 1)}%"
        for row in result.baselines
        if row.size == largest
    ]
    beside = f"; for comparison {joined(baselines)}" if baselines else ""
    return f"Accuracy with {largest} training examples: {joined(accuracies)}{beside}."


def wrong_sentence(result: TransferResult) -> str:
    """Count the runs that diverged or learned nothing, and compare how much variants vary."""
    runs = [run for run in result.runs if run.factor == 1]
    if not runs:
        return ""
    diverged = sum(run.diverged for run in runs)
    failed = sum(run.failed for run in runs)
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
    """Draw every variant's accuracy with its interval, a panel for each size and weights."""
    panels: list[b.Chart] = []
    measured = [name for name in VARIANTS if any(c.variant == name for c in result.cells)]
    x_of_variant = {variant: x for x, variant in enumerate(measured)}  # places on the x axis
    for size, weights in _sizes_and_weights(result):
        cells = _cells_of(result, size, weights)
        at_best_rate = (size, weights, 1)
        runs = [run for run in result.runs if (run.size, run.weights, run.factor) == at_best_rate]
        mean = b.Series(
            name="mean over seeds, 95% interval",
            x=[x_of_variant[cell.variant] for cell in cells],
            y=[cell.accuracy for cell in cells],
            kind="points",
            colour=b.BLACK,
        )
        seeds = b.Series(
            name="each seed",
            x=[x_of_variant[run.variant] + 0.25 for run in runs],  # beside the mean
            y=[run.accuracy.value for run in runs],
            kind="points",
            colour=b.ORANGE,
            marker=".",
        )
        baselines = [row for row in result.baselines if row.size == size]
        panel = b.Chart(
            title=f"{weights}, {size} examples",
            x="",
            y="" if panels else "accuracy x 100",  # beside the first panel only
            series=[mean, seeds],
            levels={BASELINES[row.name]: row.accuracy.value or 0.0 for row in baselines},
            x_names=[VARIANTS[name] for name in measured],
        )
        panels.append(panel)
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
            name = f"accuracy, {VARIANTS[variant]} trained"
            yield KeyNumber(name, ranged(cell.accuracy, 1), random, cell.accuracy)


VIEW = view(
    "What is enough to train for a new task?",
    blocks,
    {
        "transfer": TransferResult.to_frame,
        "transfer_runs": TransferResult.runs_frame,
        "transfer_curves": TransferResult.curves_frame,
        "transfer_differences": TransferResult.differences_frame,
        "transfer_rates": TransferResult.searched_frame,
    },
    key_numbers=_key_numbers,
    term="transfer",
)
