"""Figures of ``rank``: shares of the largest singular values, and shared projections by width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from headscope.analyses.rank.result import RankResult, SharedProjections, SharedWidth
from headscope.analyses.rank.tables import NAMES
from headscope.show import blocks as b
from headscope.show.cells import decimal, interval_text, model_name

#: Colours and dashes of the controls' curves.
_COLOURS: dict[str, tuple[str, Any]] = {"gaussian": (b.VERMILION, "--"), "fresh": (b.GREEN, ":")}


def summed(result: RankResult) -> str:
    """Name what is summed: the squares of the singular values, or they themselves."""
    return "sigma^2" if result.settings["share"] == "sigma2" else "sigma"


def cumulative_curves(result: RankResult, matrix: str, on: b.Medium) -> b.Panels:
    """Draw the share of the k largest singular values: heads on the left, layers on the right."""
    heads = [getattr(head, matrix).singular_values for head in result.heads]
    layers = [getattr(layer, matrix).singular_values for layer in result.layers]
    random_heads: dict[str, Sequence[float]] = {}
    random_layers: dict[str, Sequence[float]] = {}
    for name, control in result.controls.items():
        if control is not None and control.geometries:
            random_heads[name] = control.geometries[0].heads[matrix].singular_values
            random_layers[name] = control.geometries[0].layers[matrix].singular_values
    return b.Panels(
        f"{NAMES[matrix]} of {model_name(result)}",
        [
            b.Chart(
                "each head",
                "k",
                f"share of {summed(result)} in the k largest",
                _share_curves(result, heads, random_heads),
                levels={"90%": 0.9},
            ),
            b.Chart(
                "all heads of a layer together",
                "k",
                "",
                _share_curves(result, layers, random_layers),
                levels={"90%": 0.9},
            ),
        ],
        f"cumulative_{matrix}",
        across=2,
        size=(10.0, 3.8),
        alt=f"Share of the k largest singular values of {NAMES[matrix]}, of each head and of each "
        "layer, beside controls; the numbers are in rank.json.",
        on=on,
    )


def _share_curves(
    result: RankResult,
    singular_values: Sequence[Sequence[float]],
    random: Mapping[str, Sequence[float]],
) -> list[b.Series]:
    """Draw one thin curve a matrix, their mean bold, and the controls dashed."""
    power = 2 if result.settings["share"] == "sigma2" else 1
    curves = [_shares(sigmas, power) for sigmas in singular_values if any(sigmas)]
    series = [
        b.Series("", range(len(curve)), curve, colour=b.SKY, marker="", width=0.6)
        for curve in curves
    ]
    if curves:
        longest = max(map(len, curves))
        padded = [curve + [1.0] * (longest - len(curve)) for curve in curves]
        mean = [sum(column) / len(padded) for column in zip(*padded, strict=True)]
        series.append(b.Series("mean", range(longest), mean, marker="", width=2.2))
    for name, sigmas in random.items():
        curve = _shares(sigmas, power)
        colour, dash = _COLOURS[name]
        series.append(
            b.Series(f"{name} control", range(len(curve)), curve, "line", colour, "", dash)
        )
    return series


def _shares(sigmas: Sequence[float], power: int) -> list[float]:
    """Return the share of the sum that the k largest singular values hold, for k = 0, 1, ..."""
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
        f"of {shared.text['name']})",
    )
    knees = {}
    if shared.knee is None:
        yield b.Text("No knee: the error falls evenly, or fewer than three widths were asked for.")
    else:
        yield b.Text(f"The knee of the error is at width {shared.knee}.")
        knees["knee"] = float(shared.knee)

    widths = [width.width for width in shared.widths]
    together = partial(b.Series, "shared projections", widths, colour=b.BLUE)
    each_cut = partial(
        b.Series, "each head cut, equal parameters", widths, colour=b.PURPLE, marker="s"
    )
    control = partial(
        b.Series, "shared, Gaussian control", widths, colour=b.VERMILION, marker="", dash="--"
    )
    errors = [
        together(y=[width.score_error for width in shared.widths]),
        each_cut(y=[width.truncated_score_error for width in shared.widths]),
        control(y=[width.control_score_error for width in shared.widths]),
    ]
    fidelities = [
        together(y=[width.fidelity for width in shared.widths]),
        each_cut(y=[width.truncated_fidelity for width in shared.widths]),
    ]
    x = "width r of the shared W_Q and W_K"
    yield b.Panels(
        f"Heads of {model} made to share projections",
        [
            b.Chart("", x, "relative error of the scores' matrices", errors, x_levels=knees),
            b.Chart("", x, "cosine to the model's own output", fidelities, x_levels=knees),
        ],
        "shared_projections",
        across=2,
        size=(10.0, 3.6),
        alt="Error of the scores and fidelity of the model by the width of shared projections; the "
        "numbers are in shared_projections.csv.",
        on=b.PAGE,
    )


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
