"""Figures for papers and notebooks, drawn from results: on your own ``ax``, or as a new Figure.

>>> import headscope
>>> result = headscope.classify("demo", limit=20)
>>> headscope.plot.heads(result).savefig("heads.pdf")  # doctest: +SKIP
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
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


def __dir__() -> list[str]:
    """Offer the plots alone to whoever presses Tab, not what they are made with."""
    return __all__


def heads(
    result: Any,
    value: str = "role",
    ax: Axes | None = None,
    *,
    text: bool = True,
    legend: bool = True,
) -> Figure:
    """Draw the map of layers and heads, coloured by role or by a number of every head.

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
    # Axes with about half an inch for each cell. A result without heads is refused further down.
    head_rows = getattr(result, "heads", ())
    n_layers = len({row.layer_name for row in head_rows})
    n_heads = max((row.head for row in head_rows), default=0) + 1
    figure, axes = _axes(ax, width=max(5.0, 1.8 + 0.55 * n_heads), height=1.6 + 0.55 * n_layers)
    model = draw.model_name(result)
    if value == "role":
        role_map_on(axes, result, text=text, legend=legend)
        axes.set_title(f"Roles of heads, {model}", fontsize=10)
        return figure

    # A map by number: a column of the result's table of heads.
    frame = result.to_frame()
    is_number = value in frame and frame[value].dtype.kind in "fi"
    if not is_number or frame.index.has_duplicates:
        numbers = [name for name in frame if frame[name].dtype.kind == "f"]
        raise InputError(f"There is no number {value!r}; choose from {', '.join(numbers)}.")
    values: dict[tuple[str, int], float | None] = {}
    for row, number in zip(result.heads, frame[value], strict=True):
        values[row.layer_name, row.head] = None if np.isnan(number) else float(number)
    words = value.replace("_", " ")
    block = HeadMap("", words, values, _digits_for(values.values()))
    draw.head_map_on(axes, block, text=text, legend=legend)
    axes.set_title(f"{words.capitalize()} of heads, {model}", fontsize=10)
    return figure


def _digits_for(numbers: Iterable[float | None]) -> int:
    """Return how many decimals tell numbers apart: 2 for 0.31, 3 for 0.031, 4 for 0.0031."""
    largest = max((abs(number) for number in numbers if number), default=1.0)
    if largest >= 0.1:
        return 2
    return min(6, 1 - math.floor(math.log10(largest)))


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
        If there is no such head, or its mean was not kept.
    """
    # A result holds a mean pattern as base64: the square root of each weight, times 255, in a byte.
    encoded = {row.name: row.mean_pattern for row in result.heads if row.mean_pattern}
    in_bytes = base64.b64decode(_pattern_of(encoded, head))
    roots = np.frombuffer(in_bytes, dtype=np.uint8) / 255.0
    n_tokens = math.isqrt(len(roots))
    title = f"{head}: mean attention, {draw.model_name(result)}"
    figure, axes = _draw_pattern(ax, roots.reshape(n_tokens, n_tokens) ** 2, title)
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
    name = head or result.name
    pattern = np.array(_pattern_of(result.patterns, name))
    figure, axes = _draw_pattern(ax, pattern, f"{name} of {draw.model_name(result)}")
    tokens = [token.replace("$", r"\$") for token in result.tokens]  # $ would begin a formula
    axes.set_xticks(range(len(tokens)), tokens, rotation=60, ha="right")
    axes.set_yticks(range(len(tokens)), tokens)
    axes.set_xlabel("token looked at", fontsize=8)
    axes.set_ylabel("token that looks", fontsize=8)
    return figure


def _pattern_of(patterns: Mapping[str, Any], head: str) -> Any:
    """Return the pattern of a head; refuse a name that is not among them."""
    if head not in patterns:
        first = next(iter(patterns), "none")
        raise InputError(f"There is no attention of {head!r} here; name a head, such as {first}.")
    return patterns[head]


def _draw_pattern(ax: Axes | None, pattern: np.ndarray, title: str) -> tuple[Figure, Axes]:
    """Draw attention weights from 0 to 1 as a square, queries down and keys across, and a scale."""
    figure, axes = _axes(ax, width=4.0, height=3.5)
    image = axes.imshow(pattern, cmap="Blues", vmin=0, vmax=1)
    axes.tick_params(labelsize=8)
    axes.set_title(title, fontsize=9)
    draw.small_colour_bar(figure, image, axes, "attention weight", fraction=0.046)
    return figure, axes


def _axes(ax: Axes | None, *, width: float, height: float) -> tuple[Figure, Axes]:
    """Return the caller's axes with their figure, or new ones of so many inches."""
    if ax is None:
        new_figure = draw.new_figure(width, height)
        return new_figure, new_figure.add_subplot()
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    return figure, ax
