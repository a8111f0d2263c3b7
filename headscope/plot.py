"""Figures for papers and notebooks: every function draws on ``ax``, or makes a Figure, returned.

>>> import headscope
>>> result = headscope.classify("demo", limit=20)
>>> headscope.plot.heads(result).savefig("heads.pdf")  # doctest: +SKIP
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.analyses.classify.figures import role_map_on
from headscope.analyses.classify.result import ClassifyResult
from headscope.core.errors import InputError
from headscope.show import figures as draw
from headscope.show.blocks import HeadMap

__all__ = ["attention", "heads", "mean_attention"]


def _axes(ax: Axes | None, width: float, height: float) -> tuple[Figure, Axes]:
    """Return the axes that were given with their figure, or new ones."""
    if ax is None:
        made = draw.new_figure(width, height)
        return made, made.add_subplot()
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    return figure, ax


def heads(
    result: Any,
    value: str = "role",
    ax: Axes | None = None,
    *,
    text: bool = True,
    legend: bool = True,
) -> Figure:
    """Draw the map of layers and heads, by role or by a number of every head.

    Parameters
    ----------
    result : a result with one row per head
        What ``headscope.classify`` returned; for numbers also that of ``flow``, ``spectrum``,
        ``linear``, ``symmetric`` or ``attribute``.
    value : str, default "role"
        ``role``, or a column of ``result.to_frame()`` such as ``entropy`` or ``zero_loss``.
    ax : matplotlib Axes, optional
        Where to draw.
    text : bool, default True
        Write the role's mark, or the number, into each cell.
    legend : bool, default True
        Put the roles' colours below the map, or a colour bar beside it.

    Returns
    -------
    matplotlib.figure.Figure
        The whole figure.

    Raises
    ------
    InputError
        If there is no such column of numbers.
    """
    if value == "role" and not isinstance(result, ClassifyResult):
        raise InputError(f"A {type(result).__name__} has no roles; name a column of numbers.")
    layers = dict.fromkeys(head.layer_name for head in getattr(result, "heads", ()))
    n_heads = max((head.head for head in getattr(result, "heads", ())), default=0) + 1
    made, axes = _axes(ax, max(5.0, 1.8 + 0.55 * n_heads), 1.6 + 0.55 * len(layers))
    if value == "role":
        role_map_on(axes, result, text=text, legend=legend)
        return made
    frame = result.to_frame()
    if value not in frame or frame[value].dtype.kind not in "fi" or frame.index.has_duplicates:
        numbers = [name for name in frame if frame[name].dtype.kind == "f"]
        raise InputError(f"There is no number {value!r}; choose from {', '.join(numbers)}.")
    values = {
        (head.layer_name, head.head): None if np.isnan(number) else float(number)
        for head, number in zip(result.heads, frame[value], strict=True)
    }
    largest = max((abs(number) for number in values.values() if number), default=1.0)
    digits = 2 if largest >= 0.1 else min(6, 1 - int(np.floor(np.log10(largest))))
    block = HeadMap("", value.replace("_", " "), values, digits)
    draw.head_map_on(axes, block, text=text, legend=legend)
    return made


def mean_attention(result: Any, head: str, ax: Axes | None = None) -> Figure:
    """Draw one head's mean attention between the first 15 tokens of a sentence and the last.

    Parameters
    ----------
    result : ClassifyResult
        What ``headscope.classify`` returned.
    head : str
        Its name, such as ``L3H5``.
    ax : matplotlib Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.figure.Figure
        The whole figure.

    Raises
    ------
    InputError
        If there is no such head, or nothing was kept of it.
    """
    means = {head.name: head.mean_pattern for head in result.heads if head.mean_pattern}
    cells = np.frombuffer(base64.b64decode(_of(head, means)), dtype=np.uint8)
    side = round(len(cells) ** 0.5)
    made, axes = _square(ax, (cells.reshape(side, side) / 255.0) ** 2)
    ticks = [*range(0, side - 1, 7), side - 1]
    labels = [*map(str, ticks[:-1]), "last"]
    axes.set_xticks(ticks, labels)
    axes.set_yticks(ticks, labels)
    axes.set_xlabel("token looked at", fontsize=8)
    axes.set_ylabel("token that looks", fontsize=8)
    return made


def attention(result: Any, head: str = "", ax: Axes | None = None) -> Figure:
    """Draw one head's attention on the sentence of ``headscope.explain``.

    Parameters
    ----------
    result : ExplainResult
        What ``headscope.explain`` returned.
    head : str, optional
        Its name, such as ``L3H5``. Default: the head that is explained.
    ax : matplotlib Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.figure.Figure
        The whole figure.

    Raises
    ------
    InputError
        If there is no such head.
    """
    made, axes = _square(ax, np.array(_of(head or result.name, result.patterns)))
    tokens = [token.replace("$", r"\$") for token in result.tokens]
    axes.set_xticks(range(len(tokens)), tokens, rotation=60, ha="right")
    axes.set_yticks(range(len(tokens)), tokens)
    return made


def _of(head: str, patterns: Mapping[str, Any]) -> Any:
    """Return what is known of a head; refuse a name that there is not."""
    if head not in patterns:
        first = next(iter(patterns), "none")
        raise InputError(f"There is no attention of {head!r} here; name a head, such as {first}.")
    return patterns[head]


def _square(ax: Axes | None, weights: np.ndarray) -> tuple[Figure, Axes]:
    """Draw weights from 0 to 1, queries down and keys across."""
    made, axes = _axes(ax, 3.3, 3.3)
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    axes.tick_params(labelsize=8)
    return made, axes
