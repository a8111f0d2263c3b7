"""Figures of ``classify`` that need axes of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from headscope.analyses.classify.cards import primary_label
from headscope.analyses.classify.result import (
    ClassifyResult,
    Confirmation,
    HeadResult,
    SyntacticScore,
)
from headscope.core.heads import layer_name
from headscope.core.roles import NO_ROLE, Role, role_of
from headscope.show import figures as draw

_NONE = 0.15  # Shade of a head without a role
_MOST_BARS = 24  # Relations in the bar chart, by gain over the baseline.
#: Diameter of a dot with the gap around it, in points; least height of a panel, in dots.
_DOT, _TALL = 4.5, 40


def role_map(result: ClassifyResult) -> Figure:
    """Layers x heads, stack by stack: the colour is the primary role, the shade its score."""
    n_heads, n_layers = max(head.head for head in result.heads) + 1, len(_row_names(result))
    figure = draw.new_figure(max(5.0, 1.2 + 0.55 * n_heads), 1.6 + 0.55 * n_layers)
    role_map_on(figure.add_subplot(), result)
    figure.axes[0].set_title(f"What the heads of {draw.model_name(result)} do", fontsize=10)
    return figure


def role_map_on(
    axes: Axes, result: ClassifyResult, *, text: bool = True, legend: bool = True
) -> None:
    """Draw the map of roles on axes: in each cell the offset, the token, the relation or a mark."""
    names = _row_names(result)
    n_heads = max(head.head for head in result.heads) + 1
    image = np.ones((len(names), n_heads, 3))
    for head in result.heads:
        row, role, label = names.index(head.layer_name), role_of(head.primary), primary_label(head)
        score, mark = _NONE, ""
        if label is not None:
            score = min(1.0, abs(float(label.score)))
            mark = label.detail.partition(" ")[0] or role.mark
        image[row, head.head] = _shade(role, score)
        if text:
            size = 7 if len(mark) < 7 else 5.5
            draw.cell_text(axes, row, head.head, mark, image[row, head.head], size)
    axes.imshow(image, aspect="equal")
    draw.label_grid(axes, len(names), n_heads, names)
    shown = {head.primary for head in result.heads}
    present = [role for role in (*result.possible_roles, NO_ROLE) if role.key in shown]
    # The labels of pairs have one colour; the cells name them.
    names_of: dict[str, list[str]] = {}
    for role in present:
        shade = to_hex(_shade(role, 1.0 if role.words else _NONE))
        names_of.setdefault(shade, []).append(role.name)
    if legend:
        axes.legend(
            handles=[Patch(color=shade, label=", ".join(n)) for shade, n in names_of.items()],
            loc="upper center",
            bbox_to_anchor=(0.5, 0),
            borderaxespad=4.5,
            ncols=min(4, len(names_of)),
            fontsize=7,
            frameon=False,
            title="darker: higher score",
            title_fontsize=7,
        )


def _shade(role: Role, score: float) -> Any:
    """Return a role's colour, the paler the lower the score."""
    return 1 - (1 - np.array(to_rgb(role.colour))) * (0.15 + 0.85 * score)


def _row_names(result: ClassifyResult) -> list[str]:
    """Name the layers, with those that have no head left where one stack was measured."""
    if len(result.stacks) == 1:
        return [layer_name(layer, *result.stacks) for layer in result.layers]
    return list(dict.fromkeys(head.layer_name for head in result.heads))


def cause_map(result: ClassifyResult) -> Figure:
    """Draw the losses of removed heads by layer, and against those of noise of the same size.

    Heads of a layer stand beside each other, so that no dot hides another.
    """
    rows = [(head, head.cause) for head in result.heads if head.cause is not None]
    names = _row_names(result)
    layers = np.array([names.index(head.layer_name) for head, _ in rows])
    losses, noise = (
        np.array([float(getattr(cause, name)) for _, cause in rows]) for name in ("zero", "noise")
    )
    ends = np.array([cause.zero.interval or 2 * (float(cause.zero),) for _, cause in rows])
    shown = np.concatenate([losses, noise, ends.ravel()])
    scale = draw.signed_scale(shown)
    heights = _TALL * draw.fractions(scale, losses, shown)
    shifts = np.zeros(len(rows))
    for layer in set(layers.tolist()):
        shifts[layers == layer] = draw.swarm(heights[layers == layer])
    column = 2 * np.abs(shifts).max() + 2.0  # in dots, with a gap
    wide = max(3.6, len(names) * column * _DOT / 72)
    figure = draw.new_figure(wide + 4.6, 4.4)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(wide, 3.6))
    for axes in (left, right):
        axes.set_yscale(scale)
    right.set_xscale(scale)
    for role in (*result.possible_roles, NO_ROLE):
        mine = np.array([head.primary == role.key for head, _ in rows])
        if not mine.any():
            continue
        error = np.abs(ends[mine] - losses[mine, None]).T
        style = {"color": role.colour, "ms": 4, "mew": 0, "lw": 0.8, "fmt": "o", "yerr": error}
        place = layers[mine] + shifts[mine] / column
        left.errorbar(place, losses[mine], label=role.name, **style)
        right.errorbar(noise[mine], losses[mine], **style)
    same = [min(losses.min(), noise.min()), max(losses.max(), noise.max())]
    right.plot(same, same, color=draw.GREY, lw=0.8, zorder=0)
    left.set_xticks(range(len(names)), names)
    left.set_xlim(-0.5, len(names) - 0.5)
    metric = result.causes.metric if result.causes else ""
    draw.plain_axes(left, "layer", f"loss of {metric} without the head", "by layer", title_size=9)
    draw.plain_axes(right, "loss with noise of the same size", "", "against noise", title_size=9)
    figure.suptitle(f"Heads of {draw.model_name(result)}, removed one at a time", fontsize=10)
    draw.legend_beside(figure, "outside lower center", 5)
    return figure


def relation_bars(result: ClassifyResult) -> Figure:
    """Best head of each relation that was selected for any head, on the held-out half.

    With interval and baselines; a head that this half confirms comes before all that it does not.
    """
    best: dict[tuple[str, str], tuple[HeadResult, SyntacticScore, Confirmation]] = {}
    for head in result.heads:
        for score in head.syntactic:
            key, held_out = (score.relation, score.direction), score.confirmed
            if held_out is None:
                continue
            rank = (score.labelled, float(held_out.accuracy))
            if key not in best or rank > (best[key][1].labelled, float(best[key][2].accuracy)):
                best[key] = head, score, held_out
    rows = sorted(best.values(), key=lambda row: (not row[1].labelled, -row[2].gain))
    left_out, rows = len(rows[_MOST_BARS:]), rows[:_MOST_BARS]
    figure = draw.new_figure(7.0, 1.4 + 0.27 * max(1, len(rows)))
    axes = figure.add_subplot()
    if not rows:
        axes.text(0.5, 0.5, "no relation of any head was selected", ha="center", va="center")
        axes.set_axis_off()
        return figure
    y = np.arange(len(rows))
    confirmed = [row[2] for row in rows]
    accuracy = np.array([float(item.accuracy) for item in confirmed])
    low, high = np.array([item.accuracy.interval for item in confirmed]).T
    colours = [role_of("syntactic" if row[1].labelled else "none").colour for row in rows]
    axes.barh(y, accuracy, color=colours, height=0.7)
    axes.errorbar(
        accuracy, y, xerr=(accuracy - low, high - accuracy), fmt="none", ecolor="black", lw=1
    )
    others = [max(v for k, v in item.baselines.items() if k != "offset") for item in confirmed]
    for values, colour, label in (
        ([item.baselines["offset"] for item in confirmed], "black", "best fixed offset"),
        (others, draw.VERMILION, "strongest other: first, last, uniform, kernel"),
    ):
        axes.vlines(values, y - 0.35, y + 0.35, color=colour, lw=2, label=label)
    names = [f"{score.relation} {score.direction}  {head.name}" for head, score, _ in rows]
    axes.set_yticks(y, names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.margins(y=0.02)
    caption = "accuracy on the held-out half of the sentences, 95% interval; grey: not confirmed"
    if left_out:
        caption += f"; {left_out} more in relations.csv"
    draw.plain_axes(axes, caption, title=f"Best head per relation, {draw.model_name(result)}")
    draw.legend_beside(figure, "outside lower center", 2)
    return figure
