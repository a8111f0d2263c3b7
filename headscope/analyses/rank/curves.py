"""Figures of ``rank``: shares of the largest singular values, and shared projections by width.

They are *blocks* of :mod:`headscope.show.blocks`: plain values that the terminal, the page and the
figure files draw. :func:`cumulative_curves` is the first figure, :func:`shared_blocks` the second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from headscope.analyses.rank.result import RankResult, SharedProjections, SharedWidth
from headscope.analyses.rank.tables import NAMES
from headscope.show import blocks as b
from headscope.show.cells import decimal, interval_text, last_part, model_name

#: Colour and dash of each control's curve: random Gaussian weights, and a new initialisation.
_CONTROL_STYLES: dict[str, dict[str, Any]] = {
    "gaussian": {"name": "random weights, Gaussian", "colour": b.VERMILION, "dash": "--"},
    "fresh": {"name": "random weights, freshly initialised", "colour": b.GREEN, "dash": ":"},
}


def summed(result: RankResult) -> str:
    """Name what is summed: squares of singular values, or these themselves."""
    is_squared = result.settings["share"] == "sigma2"
    return "squared singular values" if is_squared else "singular values"


def cumulative_curves(result: RankResult, matrix: str, on: b.Medium) -> b.Panels:
    """Draw the share of the k largest singular values: heads on the left, layers on the right.

    ``matrix`` is ``qk``, ``ov``, ``w_q`` or ``w_k``; ``on`` says where the figure is shown.
    """
    heads = [getattr(head, matrix).singular_values for head in result.heads]
    layers = [getattr(layer, matrix).singular_values for layer in result.layers]
    random_heads: dict[str, Sequence[float]] = {}
    random_layers: dict[str, Sequence[float]] = {}
    for name, control in result.controls.items():
        if control is not None and control.geometries:
            largest_layer = control.geometries[0]  # of those drawn, the one with most heads
            random_heads[name] = largest_layer.heads[matrix].singular_values
            random_layers[name] = largest_layer.layers[matrix].singular_values
    return b.Panels(
        title=f"How many dimensions hold {NAMES[matrix]} of {model_name(result)}",
        panels=[
            b.Chart(
                title="each head",
                x="largest singular values counted",
                y=f"share of {summed(result)} that they hold",
                series=_share_curves(result, heads, random_heads),
                levels={"90%": 0.9},
            ),
            b.Chart(
                title="all heads of a layer together",
                x="largest singular values counted",
                y="",
                series=_share_curves(result, layers, random_layers),
                levels={"90%": 0.9},
            ),
        ],
        file=f"cumulative_{matrix}",
        across=2,
        size=(10.0, 3.8),
        alt=f"Share of the k largest singular values of {NAMES[matrix]}, of each head and of each "
        "layer, beside controls; the numbers are in rank.json.",
        on=on,
    )


def _share_curves(
    result: RankResult,
    singular_values: Sequence[Sequence[float]],
    control_values: Mapping[str, Sequence[float]],
) -> list[b.Series]:
    """Draw one thin curve a matrix, their mean bold, and the controls dashed.

    ``singular_values`` has one sequence a matrix, ``control_values`` one a control, by its name.
    """
    power = 2 if result.settings["share"] == "sigma2" else 1
    nonzero = [sigmas for sigmas in singular_values if any(sigmas)]
    curves = [_shares(sigmas, power) for sigmas in nonzero]
    series = [
        b.Series(name="", x=range(len(curve)), y=curve, colour=b.SKY, marker="", width=0.6)
        for curve in curves
    ]
    if curves:
        longest = max(map(len, curves))
        # A curve that ends earlier has reached 1.
        padded = [curve + [1.0] * (longest - len(curve)) for curve in curves]
        mean = [sum(column) / len(padded) for column in zip(*padded, strict=True)]
        series.append(b.Series("mean", range(longest), mean, marker="", width=2.2))
    for name, sigmas in control_values.items():
        curve = _shares(sigmas, power)
        series.append(
            b.Series(
                x=range(len(curve)),
                y=curve,
                marker="",
                **_CONTROL_STYLES[name],
            )
        )
    return series


def _shares(sigmas: Sequence[float], power: int) -> list[float]:
    """Return the share of the sum that the k largest singular values hold, for k = 0, 1, ...

    Of [3.0, 1.0], descending, with power 1: [0.0, 0.75, 1.0]; with power 2: [0.0, 0.9, 1.0].
    """
    largest = max(sigmas)
    terms = [(sigma / largest) ** power for sigma in sigmas]
    total = sum(terms)
    return [0.0, *(partial_sum / total for partial_sum in accumulate(terms))]


# --- shared projections ---------------------------------------------------------------------------


def shared_blocks(shared: SharedProjections, model: str) -> Iterator[b.Block]:
    """Compare shared projections of each width with heads cut to a rank of the same cost."""
    yield b.text_table(
        ("width", "error", "gaussian", "fidelity", "95%", "| rank", "error", "fidelity", "saved"),
        [_row_of_width(width, shared.knee) for width in shared.widths],
        "Heads of each layer sharing projections of a width, or each cut to a rank that costs as "
        f"much\n(fidelity: mean cosine to the model's own output, {shared.text['lines']:,} lines "
        f"of {last_part(shared.text['name'])})",
        on=b.ASKED | b.PAGE,
    )
    knees: dict[str, float] = {}  # a vertical line in both charts
    if shared.knee is None:
        yield b.Text("No knee: the error falls evenly, or fewer than three widths were asked for.")
    else:
        yield b.Text(f"The knee of the error is at width {shared.knee}.")
        knees["knee"] = float(shared.knee)

    x_title = "width r of the shared W_Q and W_K"
    yield b.Panels(
        title=f"Heads of {model} made to share projections",
        panels=[
            b.Chart(
                title="",
                x=x_title,
                y="relative error of the scores' matrices",
                series=_error_lines(shared.widths),
                x_levels=knees,
            ),
            b.Chart(
                title="",
                x=x_title,
                y="cosine to the model's own output",
                series=_fidelity_lines(shared.widths),
                x_levels=knees,
            ),
        ],
        file="shared_projections",
        across=2,
        size=(10.0, 3.6),
        alt="Error of the scores and fidelity of the model by the width of shared projections; the "
        "numbers are in shared_projections.csv.",
        on=b.PAGE,
    )


_SHARED_LINE: dict[str, Any] = {"name": "shared projections", "colour": b.BLUE}
_CUT_LINE: dict[str, Any] = {
    "name": "each head cut, equal parameters",
    "colour": b.PURPLE,
    "marker": "s",
}
_CONTROL_LINE: dict[str, Any] = {
    "name": "shared, Gaussian control",
    "colour": b.VERMILION,
    "marker": "",
    "dash": "--",
}


def _error_lines(results: Sequence[SharedWidth]) -> list[b.Series]:
    """Draw the errors of the scores over the width."""
    widths = [result.width for result in results]
    shared = [result.score_error for result in results]
    cut = [result.truncated_score_error for result in results]
    control = [result.control_score_error for result in results]
    return [
        b.Series(x=widths, y=shared, **_SHARED_LINE),
        b.Series(x=widths, y=cut, **_CUT_LINE),
        b.Series(x=widths, y=control, **_CONTROL_LINE),
    ]


def _fidelity_lines(results: Sequence[SharedWidth]) -> list[b.Series]:
    """Draw the fidelities over the width."""
    widths = [result.width for result in results]
    shared = [result.fidelity for result in results]
    cut = [result.truncated_fidelity for result in results]
    return [
        b.Series(x=widths, y=shared, **_SHARED_LINE),
        b.Series(x=widths, y=cut, **_CUT_LINE),
    ]


def _row_of_width(width: SharedWidth, knee: int | None) -> list[str]:
    """Write shared projections of one width, then heads cut to the rank of the same cost."""
    return [
        f"{width.width} knee" if width.width == knee else str(width.width),
        decimal(width.score_error),
        decimal(width.control_score_error),
        decimal(width.fidelity.value),
        interval_text(width.fidelity.interval),
        f"| {width.truncated_rank}",
        decimal(width.truncated_score_error),
        decimal(width.truncated_fidelity.value),
        f"{width.share_saved:.0%}",
    ]
