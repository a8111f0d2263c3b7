"""What is shown of ``depth``: how fast tokens become alike, and what keeps them apart."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from headscope.analyses.depth.result import DepthCurves, DepthResult
from headscope.core.heads import layer_numbers
from headscope.show import blocks as b
from headscope.show.cells import (
    decimal,
    joined,
    model_line,
    model_name,
    plural,
    ratio_text,
    tiny,
)
from headscope.show.estimates import ranged
from headscope.show.view import KeyNumber, next_step, view
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import FEWEST_UNITS, finite, t_half_width


class _Shown(NamedTuple):
    """How a variant of the layers, or a part of them, is shown."""

    title: str
    column: str  # Of the table
    colour: str


#: The variants of the layers, by their names in the result.
VARIANTS = {
    "full": _Shown("full model", "full model", b.BLACK),
    "full-without-layernorm": _Shown("full, LayerNorm off", "no LayerNorm", b.PURPLE),
    "attention+skip": _Shown("attention + skip", "+ skip", b.BLUE),
    "attention+ffn": _Shown("attention + feed-forward", "+ FFN", b.ORANGE),
    "attention": _Shown("attention only", "attention", b.VERMILION),
}
#: The parts of a layer, by their names in the result.
PARTS = {
    "skip": _Shown("the skip connection", "skip", b.BLUE),
    "ffn": _Shown("the feed-forward network", "FFN", b.ORANGE),
    "layernorm": _Shown("LayerNorm", "LayerNorm", b.PURPLE),
}
#: What a part protects is measured in two ways: by removing it, and by adding it to attention.
WAYS = {
    "removed": "lost without each part",
    "added": "kept by adding each part to attention",
}
PLACEMENTS = {
    "post": "after each sum (post-LN)",
    "pre": "before each sublayer (pre-LN)",
    "mixed": "on both sides of the sums, layer by layer (mixed)",
}


def blocks(result: DepthResult) -> Iterator[b.Block]:
    """Show whether attention alone collapses, the ratios, and what each part of a layer keeps."""
    yield b.Text(f"{collapse_sentence(result)} {protection_sentence(result)}", "lead")
    yield b.Text(control_sentence(result))
    if 0 < len(result.layers) < len(layer_numbers(result.provenance["model"])):
        yield b.Text(f"Measured in the {result.stack} alone; the decoder reads two texts.")
    ratio_cells = {
        shown.column: functools.partial(_ratio, name) for name, shown in reversed(VARIANTS.items())
    }
    yield _table(
        "How different the tokens still are: ||res(H)|| / ||H||, 0 where all are the same; mean "
        "(standard deviation over windows)",
        result,
        ratio_cells,
    )
    yield b.Text(
        f"{model_line(result).plain}\n"
        f"Text    {result.provenance['data']['name']}: {result.sequences:,} of "
        f"{result.available:,} windows of {result.length} tokens\n"
        f"Layers  LayerNorm {PLACEMENTS[result.layer_norm]}; taken apart and put together again "
        f"they give the model's own states to {tiny(result.decomposition.max_abs)}",
        on=b.TERMINAL,
    )
    yield _ratio_chart(result)
    for way in WAYS:
        yield _protected_table(result, way)
    yield _protected_panels(result)
    yield next_step(result, "what do heads pass on?", "flow {}")


def _protected_table(result: DepthResult, way: str) -> b.Table:
    """List the share that each part protects, a row for each layer."""
    cells: dict[str, Callable[[DepthCurves, int], str]] = {}
    for protection in result.protected:
        if protection.way == way:
            # As wide as a share with its interval, so that the columns of both tables align
            column = f"{PARTS[protection.part].column:>20}"
            cells[column] = functools.partial(_share, protection.part, way)
    title = f"Share of the full model's ratio {WAYS[way]}, % [95% interval]"
    return _table(title, result, cells, first_point=1)


def _table(
    title: str,
    result: DepthResult,
    cells: Mapping[str, Callable[[DepthCurves, int], str]],
    first_point: int = 0,
) -> b.Table:
    """Make a table with a row for each point, and one for the last point of random weights.

    Points are the embeddings (0) and the layers. ``cells`` has for each column the function that
    writes a cell from the curves and a point.
    """

    def row(name: str, curves: DepthCurves, point: int) -> tuple[str, ...]:
        """Write the cells of one point."""
        return (name, *(cell(curves, point) for cell in cells.values()))

    points = _points(result)
    rows = [row(points[point], result, point) for point in range(first_point, len(points))]
    if result.control is not None:
        rows.append(row("random weights", result.control, -1))
    columns: list[b.Column] = [(name, i, str) for i, name in enumerate(("after layer", *cells))]
    return b.Table(columns, rows, title)


def _points(result: DepthResult) -> list[str]:
    """Name the embeddings and the layers."""
    layers = result.layers or layer_numbers(result.provenance["model"])
    return ["embed.", *(f"L{layer}" for layer in layers)]


def _ratio(name: str, curves: DepthCurves, point: int) -> str:
    """Write a ratio and its standard deviation; one too small for three digits stands alone."""
    text = ratio_text(curves.variants[name][point])
    has_exponent = "e" in text
    std = None if has_exponent else curves.std[name][point]
    return text if std is None else f"{text} ({std:.2f})"


def _per_cent(share: float) -> str:
    return decimal(100 * share, 1)


def _share(layer_part: str, way: str, curves: DepthCurves, point: int) -> str:
    """Write the share that a part protects, with its interval, in percent without the sign."""
    p = curves.protection(layer_part, way)
    return ranged(Estimate(p.mean[point], p.low[point], p.high[point]), _per_cent)


def _ratio_chart(result: DepthResult) -> b.Chart:
    """Draw ratios by layer: a line and a band of one deviation per variant; control dashed."""
    series = []
    for name, shown in VARIANTS.items():
        means = result.variants[name]
        band = []
        for mean, std in zip(means, result.std[name], strict=True):
            middle = mean or 0.0
            deviation = std or 0.0
            # No ratio lies below zero: where the band would, only its upper half is drawn.
            low = middle - deviation if deviation < middle else middle
            band.append((low, middle + deviation))
        x = range(len(means))
        series.append(b.Series(shown.title, x, means, colour=shown.colour, band=band))
        if result.control is not None and name in ("full", "attention"):
            curve = result.control.variants[name]
            series.append(b.Series("", x, curve, colour=shown.colour, marker="", dash="--"))
    if result.control is not None:
        series.append(b.RANDOM_WEIGHTS)
    return b.Chart(
        f"How different the tokens still are, {model_name(result)}",
        "after layer",
        "share of the states that differs between tokens",
        series,
        "How different the tokens still are by layer, one line for each variant of the layers; "
        "the numbers are in depth.csv.",
        "depth",
        x_names=_points(result),
        size=(7.0, 4.6),
    )


def _protected_panels(result: DepthResult) -> b.Panels:
    """Draw the share that each part keeps by layer, with 95% intervals; control dashed."""
    panels: list[b.Chart] = []
    for way, title in WAYS.items():
        series = []
        for i, (layer_part, shown) in enumerate(PARTS.items()):
            p = result.protection(layer_part, way)
            x = [point + 0.1 * (i - 1) for point in range(len(p.mean))]  # dots side by side
            y = [Estimate(*numbers) for numbers in zip(p.mean, p.low, p.high, strict=True)]
            series.append(b.Series(shown.title.removeprefix("the "), x, y, colour=shown.colour))
            if result.control is not None:
                mean = result.control.protection(layer_part, way).mean
                series.append(b.Series("", x, mean, colour=shown.colour, marker="", dash="--"))
        if result.control is not None:
            series.append(b.RANDOM_WEIGHTS)
        panels.append(
            b.Chart(
                title,
                "after layer",
                "" if panels else "share of the full model's ratio",
                series,
                x_names=_points(result),
            )
        )
    return b.Panels(
        f"What each part of a layer keeps, {model_name(result)}",
        panels,
        "protected",
        across=2,
        size=(10.0, 4.2),
        alt="Share of the full model's ratio that each part of a layer keeps; the numbers are in "
        "protected.csv.",
        on=b.PAGE,
    )


def collapse_sentence(result: DepthResult) -> str:
    """Say whether attention alone collapses, from which layer on, and what the model keeps."""
    alone = result.variants["attention"]
    full = result.variants["full"]
    n = len(alone) - 1
    after = result.collapsed_after["attention"]
    layers = f"{n} {plural(n, 'layer')}"
    from_to = f"{ratio_text(alone[0])} at the embeddings, {ratio_text(alone[-1])} after {layers}"
    if after is None:
        text = f"Attention alone does not make all tokens the same within {layers}: {from_to}"
    else:
        rounding = ""
        if alone[-1] is not None and alone[-1] < result.floor:
            rounding = f", no more than {result.provenance['dtype']}'s rounding"
        text = (
            f"Attention alone collapses: after {after} {plural(after, 'layer')} the tokens differ "
            f"by less than 1% of what they did at first ({from_to}{rounding})"
        )
    return f"{text}. The full model still has {ratio_text(full[-1])}."


def protection_sentence(result: DepthResult) -> str:
    """Say which parts keep the tokens of the full model apart at the end, and which cost it."""
    removed = [p for p in result.protected if p.way == "removed" and p.mean[-1] is not None]
    overflow = ""
    if result.variants["full-without-layernorm"][-1] is None:
        overflow = f"without LayerNorm the states overflow {result.provenance['dtype']}"
    if any(p.low[-1] is None for p in removed):
        text = (
            f"From {result.sequences} {plural(result.sequences, 'window')} there is no interval "
            f"({FEWEST_UNITS} are needed), so nothing is said of what each part keeps"
        )
        return f"{text}; {overflow}." if overflow else f"{text}."
    lost: list[str] = []
    gained: list[str] = []
    same: list[str] = []
    for p in sorted(removed, key=lambda p: -abs(p.mean[-1] or 0.0)):
        name = PARTS[p.part].title
        mean = p.mean[-1] or 0.0
        if (p.low[-1] or 0.0) > 0:
            share = "all" if mean > 0.9995 else f"{mean:.0%}"
            lost.append(f"{name} {share}" if lost else f"{name} loses {share} of that")
        elif (p.high[-1] or 0.0) < 0:
            gained.append(f"{name} {-mean:.0%}")
        else:
            same.append(name)
    clauses = []
    if lost:
        clauses.append(f"removing {joined(lost)}")
    if gained:
        clauses.append(f"without {joined(gained)} more is left")
    if same:
        clauses.append(f"removing {joined(same, 'or')} makes no clear difference")
    if overflow:
        clauses.append(overflow)
    if not clauses:
        return ""
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]} (each removed alone)."


def control_sentence(result: DepthResult) -> str:
    """Say what the same architecture with random weights does."""
    control = result.control
    if control is None:
        return "Control: not run; --control measures the same architecture with random weights."
    after = control.collapsed_after["attention"]
    alone = "does not collapse"
    if after is not None:
        alone = f"is below 1% of its start after {after} {plural(after, 'layer')}"
    return (
        f"Control: with random weights (seed {control.seed}) attention alone {alone}; the full "
        f"model has {ratio_text(control.variants['full'][-1])} at the end, "
        f"{ratio_text(control.variants['attention+ffn'][-1])} without its skip connections."
    )


def _key_numbers(result: DepthResult) -> Iterator[KeyNumber]:
    """Yield what is left after the last layer, of attention alone and of the full model."""
    for name in ("attention", "full"):
        std = result.std[name][-1]
        windows = result.sequences
        half_width = None
        if std is not None:
            half_width = finite(float(t_half_width(std / math.sqrt(windows), windows)))
        ratio = Estimate.around(result.variants[name][-1], half_width)
        text = ranged(ratio, ratio_text)
        control = "-"
        if result.control is not None:
            control = f"random weights {ratio_text(result.control.variants[name][-1])}"
        yield KeyNumber(
            f"residual after the last layer, {VARIANTS[name].title}", text, control, ratio
        )


VIEW = view(
    "Do tokens grow alike from layer to layer?",
    blocks,
    {"depth": DepthResult.to_frame, "protected": DepthResult.protected_frame},
    key_numbers=_key_numbers,
    term="rank collapse",
)
