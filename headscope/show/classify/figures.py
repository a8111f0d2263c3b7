"""Figures of ``classify``: the map of roles and the bars of relations."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from headscope.results import ClassifyResult, HeadResult
from headscope.results.roles import PRIMARY, role_of
from headscope.show.drawing import label_grid, model_name, new_figure

__all__ = ["relation_bars", "role_map"]

#: Relations in the bar chart, by gain over the baseline.
_MOST_BARS = 24


def role_map(result: ClassifyResult) -> Figure:
    """Layers x heads: the colour is the primary role, the shade its score."""
    n_layers = int(result.provenance["model"]["n_layers"])
    n_heads = max(head.head for head in result.heads) + 1
    figure = new_figure(max(5.0, 1.0 + 0.55 * n_heads), 1.4 + 0.55 * n_layers)
    axes = figure.add_subplot()
    image = np.ones((n_layers, n_heads, 3))
    for head in result.heads:
        score = _primary_score(head)
        image[head.layer, head.head] = _shade(role_of(head.primary).colour, score)
        axes.text(
            head.head,
            head.layer,
            _mark(head),
            ha="center",
            va="center",
            fontsize=7,
            color="white" if score > 0.75 else "black",
        )
    axes.imshow(image, aspect="equal")
    label_grid(axes, n_layers, n_heads)
    axes.set_title(f"What the heads of {model_name(result)} do", fontsize=10)
    present = [role for role in PRIMARY if any(head.primary == role.key for head in result.heads)]
    figure.legend(
        handles=[Patch(color=role.colour, label=role.name) for role in present],
        loc="outside lower center",
        ncols=min(4, len(present)),
        fontsize=7,
        frameon=False,
        title="darker: higher score",
        title_fontsize=7,
    )
    return figure


def relation_bars(result: ClassifyResult) -> Figure:
    """Best head of each relation and direction, with interval and baselines."""
    rows = _best_rows(result)[:_MOST_BARS]
    figure = new_figure(7.0, 1.4 + 0.27 * max(1, len(rows)))
    axes = figure.add_subplot()
    if not rows:
        axes.text(0.5, 0.5, "no relation has enough trials", ha="center", va="center")
        axes.set_axis_off()
        return figure
    y = np.arange(len(rows))
    accuracy = np.array([score.accuracy for _, score in rows])
    low, high = np.array([score.interval for _, score in rows]).T
    colours = [role_of("syntactic" if score.labelled else "none").colour for _, score in rows]
    axes.barh(y, accuracy, color=colours, height=0.7)
    axes.errorbar(
        accuracy, y, xerr=(accuracy - low, high - accuracy), fmt="none", ecolor="black", lw=1
    )
    _ticks(axes, y, [score.baseline for _, score in rows], "black", "best fixed offset")
    others = [max(v for k, v in s.baselines.items() if k != "offset") for _, s in rows]
    _ticks(axes, y, others, "#D55E00", "strongest other: first, last, uniform, kernel")
    axes.set_yticks(y, [f"{s.relation} {s.direction}  {h.name}" for h, s in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    caption = "accuracy on all sentences, 95% interval; grey: not confirmed on the held-out half"
    axes.set_xlabel(caption, fontsize=8)
    axes.set_title(f"Best head per relation, {model_name(result)}", fontsize=10)
    axes.tick_params(axis="x", labelsize=7)
    axes.margins(y=0.02)
    figure.legend(loc="outside lower center", fontsize=7, ncols=2, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _ticks(axes: Any, y: Any, values: list[float], colour: str, label: str) -> None:
    axes.vlines(values, y - 0.35, y + 0.35, color=colour, lw=2, label=label)


def _best_rows(result: ClassifyResult) -> list[tuple[HeadResult, Any]]:
    """The best head of each relation and direction with enough trials, largest gain first."""
    best: dict[tuple[str, str], tuple[HeadResult, Any]] = {}
    for head in result.heads:
        for score in head.syntactic:
            key = (score.relation, score.direction)
            if score.trials < result.thresholds["min_trials"]:
                continue
            if key not in best or score.accuracy > best[key][1].accuracy:
                best[key] = (head, score)
    return sorted(best.values(), key=lambda row: max(row[1].baselines.values()) - row[1].accuracy)


def _primary_score(head: HeadResult) -> float:
    """Score of the primary role in [0, 1]."""
    label = next((label for label in head.labels if label.role == head.primary), None)
    return 0.15 if label is None else min(1.0, label.score)


def _shade(colour: str, score: float) -> Any:
    """Mix a colour with white: score 1 is the full colour."""
    return 1 - (1 - np.array(to_rgb(colour))) * (0.15 + 0.85 * score)


def _mark(head: HeadResult) -> str:
    label = next((label for label in head.labels if label.role == head.primary), None)
    if label is None:
        return ""
    if head.primary == "syntactic":
        return label.detail.partition(" ")[0]
    return label.detail
