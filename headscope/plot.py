"""Figures for papers and notebooks, drawn from results: on your own ``ax``, or as a new Figure.

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
    """Return the caller's axes with their figure, or new ones of so many inches."""
    if ax is None:
        new_figure = draw.new_figure(width, height)
        return new_figure, new_figure.add_subplot()
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
    rows = getattr(result, "heads", ())
    n_layers = len({head.layer_name for head in rows})
    n_heads = max((head.head for head in rows), default=0) + 1
    figure, axes = _axes(ax, max(5.0, 1.8 + 0.55 * n_heads), 1.6 + 0.55 * n_layers)
    if value == "role":
        role_map_on(axes, result, text=text, legend=legend)
        return figure

    # A map by number: a column of the result's table, with digits to tell its values apart.
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
    return figure


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
    # A result holds the square root of each weight, in a byte.
    roots = np.frombuffer(base64.b64decode(_of_head(means, head)), dtype=np.uint8)
    n_tokens = round(len(roots) ** 0.5)
    figure, axes = _draw_pattern(ax, (roots.reshape(n_tokens, n_tokens) / 255.0) ** 2)
    ticks = [*range(0, n_tokens - 1, 7), n_tokens - 1]
    labels = [*map(str, ticks[:-1]), "last"]
    axes.set_xticks(ticks, labels)
    axes.set_yticks(ticks, labels)
    axes.set_xlabel("token looked at", fontsize=8)
    axes.set_ylabel("token that looks", fontsize=8)
    return figure


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
    pattern = np.array(_of_head(result.patterns, head or result.name))
    figure, axes = _draw_pattern(ax, pattern)
    tokens = [token.replace("$", r"\$") for token in result.tokens]
    axes.set_xticks(range(len(tokens)), tokens, rotation=60, ha="right")
    axes.set_yticks(range(len(tokens)), tokens)
    return figure


def _of_head(patterns: Mapping[str, Any], head: str) -> Any:
    """Return the pattern of a head; refuse a name that is not among them."""
    if head not in patterns:
        first = next(iter(patterns), "none")
        raise InputError(f"There is no attention of {head!r} here; name a head, such as {first}.")
    return patterns[head]


def _draw_pattern(ax: Axes | None, pattern: np.ndarray) -> tuple[Figure, Axes]:
    """Draw attention weights from 0 to 1 as a square, queries down and keys across."""
    figure, axes = _axes(ax, 3.3, 3.3)
    axes.imshow(pattern, cmap="Blues", vmin=0, vmax=1)
    axes.tick_params(labelsize=8)
    return figure, axes
