"""Figures of ``transfer``: accuracy of every cell, and the learning curves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headscope.analyses.transfer.result import TransferResult, TransferRun
from headscope.analyses.transfer.view import BASELINES, VARIANTS
from headscope.show import drawing as draw

_COLOURS = {
    "head": draw.GREY,
    "layernorm": draw.PURPLE,
    "biases": draw.SKY,
    "weights": draw.GREEN,
    "lora": draw.ORANGE,
    "all_biases": draw.BLUE,
    "attention": draw.VERMILION,
    "all": draw.BLACK,
}
_Panel = tuple[int, str]  # What stands beside each other: (size, start).


def accuracy_figure(result: TransferResult) -> Figure:
    """Accuracy with its interval, one panel for each size and start; small dots are seeds."""
    panels = _panels(result)
    figure = draw.new_figure(2.0 + 2.3 * len(panels), 3.6)
    for axes, panel in zip(_row(figure, len(panels)), panels, strict=True):
        _accuracies(axes, result, panel)
    figure.suptitle(f"Test accuracy by what is trained, {draw.model_name(result)}", fontsize=10)
    return figure


def _accuracies(axes: Axes, result: TransferResult, panel: _Panel) -> None:
    size, weights = panel
    for y, variant in enumerate(VARIANTS):
        cell = result.cell(variant, weights, size)
        if cell is None:
            continue
        colour = _COLOURS[variant]
        if cell.low is not None and cell.high is not None:
            axes.plot([cell.low, cell.high], [y, y], color=colour, lw=1.5)
        axes.plot(cell.accuracy, y, "o", color=colour, ms=5)
        seeds = [run.accuracy for run in _runs(result, panel) if run.variant == variant]
        axes.plot(seeds, np.full(len(seeds), y + 0.22), ".", color=colour, ms=3.5, alpha=0.7)
    for baseline in result.baselines:
        if baseline.size == size:
            style = ":" if baseline.name == "majority" else "--"
            axes.axvline(baseline.accuracy, color="0.5", lw=0.8, ls=style)
            text = BASELINES[baseline.name].partition(" ")[0]
            at = (baseline.accuracy, 1.0)
            axes.annotate(
                text,
                at,
                xycoords=axes.get_xaxis_transform(),
                fontsize=6,
                color="0.4",
                rotation=90,
                va="top",
                ha="right",
            )
    axes.set_yticks(range(len(VARIANTS)), list(VARIANTS.values()))
    axes.set_ylim(len(VARIANTS) - 0.4, -0.6)
    draw.plain_axes(axes, "accuracy x 100", title=f"{weights}, {size} examples", title_size=8)
    axes.grid(axis="x", color="0.92", lw=0.8)
    axes.set_axisbelow(True)


def learning_curves(result: TransferResult) -> Figure:
    """Validation and training loss by step, thin lines for seeds and thick ones for their mean."""
    panels = _panels(result)
    figure = draw.new_figure(1.5 + 2.6 * len(panels), 5.0)
    grid = figure.subplots(2, len(panels), sharex=True, sharey="row", squeeze=False)
    for column, panel in enumerate(panels):
        for axes, part in zip(grid[:, column], ("validation", "training"), strict=True):
            _curves(axes, _runs(result, panel), "train_loss" if part == "training" else None)
            title = f"{panel[1]}, {panel[0]} examples" if part == "validation" else ""
            bottom = part == "training"
            draw.plain_axes(axes, "step" if bottom else "", title=title, title_size=8)
            axes.grid(axis="y", color="0.92", lw=0.8)
        grid[0, 0].set_ylabel("validation loss (nats)", fontsize=8)
        grid[1, 0].set_ylabel("training loss (nats)", fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylim(0, _highest(result))
    figure.suptitle(f"Learning curves, {draw.model_name(result)}", fontsize=10)
    shown = {run.variant for run in result.runs}
    handles = [
        Line2D([], [], color=colour, lw=1.8, label=VARIANTS[name])
        for name, colour in _COLOURS.items()
        if name in shown
    ]
    columns = 4 if len(panels) > 2 else 3
    draw.legend_beside(figure, "outside lower center", columns, handles=handles)
    return figure


def _curves(axes: Axes, runs: Sequence[TransferRun], name: str | None) -> None:
    for variant, colour in _COLOURS.items():
        own = [run for run in runs if run.variant == variant]
        by_step: dict[int, list[float]] = {}
        for run in own:
            values = [getattr(point, name or "validation_loss") for point in run.curve]
            steps = [point.step for point in run.curve]
            shown = np.array(values, dtype=float)  # None becomes NaN
            axes.plot(steps, shown, color=colour, lw=0.7, alpha=0.4)
            for step, value in zip(steps, shown.tolist(), strict=True):
                by_step.setdefault(step, []).append(value)
        # The mean ends where the first seed stopped: after that it would be one of other seeds.
        whole = [step for step, found in sorted(by_step.items()) if len(found) == len(own)]
        axes.plot(whole, [float(np.mean(by_step[s])) for s in whole], color=colour, lw=1.8)


def _highest(result: TransferResult) -> float:
    """Twice the highest loss of a start: what diverges leaves the panel at the top."""
    starts = [run.curve[0] for run in result.runs]
    found = [v for p in starts for v in (p.train_loss, p.validation_loss) if v is not None]
    return 2 * max(found, default=1.0)


def _panels(result: TransferResult) -> list[_Panel]:
    found = dict.fromkeys((cell.size, cell.weights) for cell in result.cells)
    return list(found) or [(result.sizes[-1], "pretrained")]


def _runs(result: TransferResult, panel: _Panel) -> list[TransferRun]:
    return [run for run in result.runs if (run.size, run.weights) == panel]


def _row(figure: Figure, n: int) -> list[Axes]:
    return list(figure.subplots(1, n, sharex=True, sharey=True, squeeze=False)[0])
