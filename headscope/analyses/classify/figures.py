"""The map of roles as a figure."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from headscope.analyses.classify.cards import primary_label
from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.classify.roles import NO_ROLE, Role, role_of
from headscope.core.heads import layer_name
from headscope.show import figures as draw

_PALEST = 0.15  # The score by which a head without a role is shaded


def role_map(result: ClassifyResult) -> Figure:
    """Layers x heads, stack by stack: the colour is the primary role, the shade its score."""
    n_heads = max(head.head for head in result.heads) + 1
    n_layers = len(_row_names(result))
    figure = draw.new_figure(max(5.0, 1.2 + 0.55 * n_heads), 1.6 + 0.55 * n_layers)
    role_map_on(figure.add_subplot(), result)
    figure.axes[0].set_title(f"What the heads of {draw.model_name(result)} do", fontsize=10)
    return figure


def role_map_on(
    axes: Axes, result: ClassifyResult, *, text: bool = True, legend: bool = True
) -> None:
    """Draw the map of roles on axes: in each cell the offset, the token, the relation or a mark."""
    # The cells.
    names = _row_names(result)
    n_heads = max(head.head for head in result.heads) + 1
    image = np.ones((len(names), n_heads, 3))
    for head in result.heads:
        row = names.index(head.layer_name)
        role = role_of(head.primary)
        label = primary_label(head)
        score = _PALEST
        mark = ""
        if label is not None:
            score = min(1.0, abs(float(label.score)))
            mark = label.detail.partition(" ")[0] or role.mark
        image[row, head.head] = _shade(role, score)
        if text:
            size = 7 if len(mark) < 7 else 5.5
            draw.cell_text(axes, row, head.head, mark, image[row, head.head], size)
    axes.imshow(image, aspect="equal")
    draw.label_grid(axes, len(names), n_heads, names)
    if not legend:
        return

    # The legend: the labels of a user's pairs share one colour, and so one entry.
    shown = {head.primary for head in result.heads}
    names_by_shade: dict[str, list[str]] = {}
    for role in (*result.possible_roles, NO_ROLE):
        if role.key in shown:
            shade = to_hex(_shade(role, _PALEST if role is NO_ROLE else 1.0))
            names_by_shade.setdefault(shade, []).append(role.name)
    axes.legend(
        handles=[
            Patch(color=shade, label=", ".join(role_names))
            for shade, role_names in names_by_shade.items()
        ],
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        borderaxespad=4.5,
        ncols=min(4, len(names_by_shade)),
        fontsize=7,
        frameon=False,
        title="darker: higher score",
        title_fontsize=7,
    )


def _shade(role: Role, score: float) -> Any:
    """Return a role's colour as RGB: the full colour at a score of 1, 15% of it at 0."""
    return 1 - (1 - np.array(to_rgb(role.colour))) * (0.15 + 0.85 * score)


def _row_names(result: ClassifyResult) -> list[str]:
    """Name the layers, with those that have no head left where one stack was measured."""
    if len(result.stacks) == 1:
        return [layer_name(layer, *result.stacks) for layer in result.layers]
    return list(dict.fromkeys(head.layer_name for head in result.heads))
