"""What is shown of rotary models: how far the numbers at distance 0 hang on the distance.

A query and a key that lie D positions apart meet in W_Q R(D) W_K^T. Its *range* is the least and
the largest of a number over all distances D that are measured (:class:`DistanceRange`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headscope.analyses.rank.result import HeadRank, LayerRank, RankResult
from headscope.show import blocks as b
from headscope.show.cells import decimal, mean_of, plural
from headscope.stats.ranks import DISTANCES, DistanceRange

FARTHEST = DISTANCES[-1]
_COLUMNS = ("", "90%", "range", "stable", "range", "asymmetry", "range")


def at_zero(result: RankResult) -> str:
    """Say that the numbers of a rotary model are those at distance 0; nothing for any other."""
    return " at distance 0" if result.rotates else ""


def distances_sentence(result: RankResult) -> str:
    """Say what layers and heads need at other distances, and which head hangs on them most."""
    if not result.rotates:
        return ""
    layers = dims90_text(mean_range(result.layers))
    heads = dims90_text(mean_range(result.heads))
    text = (
        f"At distances of 1 to {FARTHEST} positions a layer needs {layers} dimensions"
        f"{_random(result, result.layers)}, and one head {heads}{_random(result, result.heads)}"
    )
    widest = widest_head(result)
    if widest is not None:
        at_0 = decimal(widest.qk.dims["90"], 0)
        beyond = dims90_text(widest.over_distances)
        text += f"; {widest.name} hangs on the distance most: {at_0} at 0, {beyond} beyond"
    still = sum(layer.over_distances is None for layer in result.layers)
    if still:
        text += f". {still} {plural(still, 'layer')} without rotation are not counted here"
    return f"{text}."


def _random(result: RankResult, rows: Sequence[HeadRank | LayerRank]) -> str:
    """Say what Gaussian weights need at these distances: " (random 121.0 to 123.4)"."""
    spread = mean_control_range(result, rows, "gaussian")
    return "" if spread is None else f" (random weights {dims90_text(spread)})"


def mean_range(rows: Sequence[HeadRank | LayerRank]) -> DistanceRange | None:
    """Return the mean of the least, and of the largest, of each number over heads or layers."""
    return _mean([row.over_distances for row in rows])


def mean_control_range(
    result: RankResult, rows: Sequence[HeadRank | LayerRank], kind: str
) -> DistanceRange | None:
    """Return the same means of one control, in the shapes of the ``rows`` that have a range."""
    rotated = [row for row in rows if row.over_distances is not None]
    return _mean([result.control_range(row, kind) for row in rotated])


def _mean(ranges: Sequence[DistanceRange | None]) -> DistanceRange | None:
    """Average both ends of the numbers that are known; None where there is no range."""
    known = [vars(spread) for spread in ranges if spread is not None]
    if not known:
        return None
    return DistanceRange(**{name: mean_of(spread[name] for spread in known) for name in known[0]})


def widest_head(result: RankResult) -> HeadRank | None:
    """Return the head whose dims90 differs most between distances, distance 0 among them."""
    widths: dict[int, float] = {}
    for index, head in enumerate(result.heads):
        spread = head.over_distances
        at_0 = head.qk.dims["90"]
        if (
            spread is None
            or spread.dims90_low is None
            or spread.dims90_high is None
            or at_0 is None
        ):
            continue
        widths[index] = max(at_0, spread.dims90_high) - min(at_0, spread.dims90_low)
    if not widths:
        return None
    return result.heads[max(widths, key=lambda index: widths[index])]


def range_text(spread: DistanceRange) -> str:
    """Write a head's or a layer's range on a card."""
    dims90 = dims90_text(spread)
    return (
        f"90% in {dims90} dimensions, stable rank {_stable(spread)}, asymmetry {_asymmetry(spread)}"
    )


def dims90_text(spread: DistanceRange | None) -> str:
    """Write both ends of dims90: "24 to 31" of one head, "30.2 to 35.1" of means."""
    if spread is None:
        return "-"
    least = decimal(spread.dims90_low, 1)
    largest = decimal(spread.dims90_high, 1)
    if least.endswith(".0") and largest.endswith(".0"):
        return f"{least.removesuffix('.0')} to {largest.removesuffix('.0')}"
    return f"{least} to {largest}"


def _stable(spread: DistanceRange) -> str:
    """Write both ends of the stable rank."""
    return f"{decimal(spread.stable_rank_low, 1)} to {decimal(spread.stable_rank_high, 1)}"


def _asymmetry(spread: DistanceRange) -> str:
    """Write both ends of the asymmetry."""
    return f"{decimal(spread.asymmetry_low, 2)} to {decimal(spread.asymmetry_high, 2)}"


def distances_tables(result: RankResult) -> Iterator[b.Block]:
    """Show heads (means by layer) and layers at distance 0 and over distances, and the controls."""
    if not result.rotates:
        return
    heads: list[list[str]] = []
    layers: list[list[str]] = []
    for layer in result.layers:
        place = layer.stack, layer.layer
        heads_here = [head for head in result.heads if (head.stack, head.layer) == place]
        heads.append(_row(layer.name, heads_here))
        layers.append(_row(layer.name, [layer]))
    for kind in result.controls:
        heads += _control_rows(result, result.heads, kind)
        layers += _control_rows(result, result.layers, kind)
    title = f"W_Q R(D) W_K^T at distance 0, and its range over distances of 1 to {FARTHEST}: "
    on = b.VERBOSE | b.PAGE
    yield b.text_table(_COLUMNS, heads, f"{title}one head (means of heads)", on)
    yield b.text_table(_COLUMNS, layers, f"{title}all heads of a layer together", on)


def _row(name: str, ranks: Sequence[HeadRank | LayerRank]) -> list[str]:
    """Write the means of some heads, or one layer: at distance 0, and over distances."""
    dims90 = mean_of(row.qk.dims["90"] for row in ranks)
    stable_rank = mean_of(row.qk.stable_rank for row in ranks)
    asymmetry = mean_of(row.asymmetry for row in ranks)
    return _cells(name, dims90, stable_rank, asymmetry, mean_range(ranks))


def _control_rows(
    result: RankResult, ranks: Sequence[HeadRank | LayerRank], kind: str
) -> Iterator[list[str]]:
    """Write the means of a control in the shapes of heads or layers, where it was measured."""
    spread = mean_control_range(result, ranks, kind)
    if spread is None:
        return
    controls = [result.control_of(row, kind, "qk") for row in ranks]
    known = [control for control in controls if control is not None]
    dims90 = mean_of(control.dims["90"] for control in known)
    stable_rank = mean_of(control.stable_rank for control in known)
    yield _cells(kind, dims90, stable_rank, None, spread)


def _cells(
    name: str,
    dims90: float | None,
    stable_rank: float | None,
    asymmetry: float | None,
    spread: DistanceRange | None,
) -> list[str]:
    """Write a row: each number at distance 0, then its range over distances."""
    spans = ["-", "-", "-"]
    if spread is not None:
        spans = [dims90_text(spread), _stable(spread), _asymmetry(spread)]
    numbers = [decimal(dims90, 1), decimal(stable_rank, 1), decimal(asymmetry, 2)]
    cells = [name]
    for number, span_cell in zip(numbers, spans, strict=True):
        cells += [number, span_cell]
    return cells
