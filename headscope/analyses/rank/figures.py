"""The figure of ``rank`` that no block can show: heads x heads overlaps, two panels a layer."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from headscope.analyses.rank.result import RankResult
from headscope.show import drawing as draw

_ACROSS = 6  # Layers beside each other.


def draw_overlaps(axes: Axes, result: RankResult) -> None:
    """Put heads x heads in place of the axes, a pair of panels a layer: queries above, keys below.

    The diagonal, a head with itself, stays empty.
    """
    figure: Any = axes.figure
    axes.remove()
    layers = [layer for layer in result.layers if layer.heads]
    across = min(_ACROSS, max(1, len(layers)))
    down = max(1, -(-len(layers) // across))
    figure.set_size_inches(1.6 * across + 0.9, 3.3 * down + 0.6)
    grid: Any = figure.subplots(2 * down, across, squeeze=False)
    for panel in grid.flat:
        panel.set_axis_off()
    shown = [[np.array(x.overlap.query), np.array(x.overlap.key)] for x in layers]
    for overlap in (overlap for pair in shown for overlap in pair):
        np.fill_diagonal(overlap, np.nan)
    finite = [v for pair in shown for overlap in pair for v in overlap[np.isfinite(overlap)]]
    image = None
    for i, (layer, pair) in enumerate(zip(layers, shown, strict=True)):
        row, column = 2 * (i // across), i % across
        for panel, what, overlap in zip(
            grid[row:, column], ("queries", "keys"), pair, strict=False
        ):
            panel.set_axis_on()
            image = panel.imshow(overlap, cmap="viridis", vmin=0, vmax=max(finite, default=1.0))
            panel.set_xticks([])
            panel.set_yticks([])
            panel.set_title(f"{layer.name} {what}", fontsize=7)
    if image is not None:
        bar = draw.small_colour_bar(figure, image, grid, "mean cos² of principal angles", 0.02)
        gaussian = result.controls["gaussian"]
        control = gaussian.geometries[0].overlap["query"] if gaussian else None
        if control is not None:
            bar.axhline(control, color="white", lw=1.5)
            edge = bar.get_yaxis_transform()
            bar.text(1.3, control, "Gaussian", fontsize=6, va="center", transform=edge)
    figure.suptitle(f"Do heads of {draw.model_name(result)} read the same subspace?", fontsize=10)
