"""Tables of ``rank``: heads and layers beside random weights.

A row of random weights comes from a control, a :class:`LayerControl`: the mean ranks of random
layers with the same shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from headscope.analyses.rank.result import (
    MATRICES,
    HeadRank,
    LayerRank,
    RankResult,
    symmetry_of,
)
from headscope.show import blocks as b
from headscope.show.cells import decimal, mean_of
from headscope.stats.ranks import ControlStatistics, LayerControl, MatrixRank, statistics

#: How the matrices are written.
NAMES = {"qk": "W_QW_Kᵀ", "ov": "W_VW_O", "w_q": "W_Q", "w_k": "W_K"}
_COLUMNS = ("numerical", "stable", "effective", "90%", "95%", "99%", "asymmetry", "symmetry")


def means_of_heads(result: RankResult) -> b.Table:
    """Show the means over heads of each matrix, with its controls below."""
    rows: list[list[str]] = []
    for matrix in MATRICES:
        heads = [_numbers(matrix, getattr(head, matrix), head.asymmetry) for head in result.heads]
        means = [mean_of(column) for column in zip(*heads, strict=True)]
        rows.append(_row(NAMES[matrix], means))
        for name, control in _controls(result):
            numbers = _numbers(matrix, control.heads[matrix], control.asymmetry)
            rows.append(_row(f"  {name}", numbers))
    return b.text_table(("mean of heads", *_COLUMNS), rows, on=b.VERBOSE | b.PAGE)


def layers_table(result: RankResult, matrix: str) -> b.Table:
    """Show each layer's heads as one matrix, and the controls of as many heads."""
    numbers: dict[str, list[float | None]] = {}
    for layer in result.layers:
        numbers[layer.name] = _numbers(matrix, getattr(layer, matrix), layer.asymmetry)
    for name, control in _controls(result):
        numbers[name] = _numbers(matrix, control.layers[matrix], control.layer_asymmetry)
    rows = [_row(name, row_numbers) for name, row_numbers in numbers.items()]
    title = f"{NAMES[matrix]} of all heads of a layer together"
    return b.text_table(("", *_COLUMNS), rows, title, b.VERBOSE | b.PAGE)


def _numbers(
    matrix: str, ranks: MatrixRank | ControlStatistics, asymmetry: float | None
) -> list[float | None]:
    """Return the numbers of a row, in the order of the columns; only ``qk`` has an asymmetry."""
    if matrix != "qk":
        asymmetry = None
    return [*statistics(ranks).values(), asymmetry, symmetry_of(asymmetry)]


def _row(name: str, numbers: Sequence[float | None]) -> list[str]:
    """Write the name and the numbers of one row."""
    numerical, stable, effective, dims90, dims95, dims99, asymmetry, symmetry = numbers
    return [
        name,
        _count(numerical),
        decimal(stable, 1),
        decimal(effective, 1),
        _count(dims90),
        _count(dims95),
        _count(dims99),
        decimal(asymmetry, 2),
        decimal(symmetry, 2),
    ]


def _count(value: float | None) -> str:
    """Write a count without decimals, and a mean of counts with one: 12.0 -> 12, 12.5 -> 12.5."""
    return decimal(value, 1).removesuffix(".0")


def overlaps_table(result: RankResult) -> b.Table:
    """Show how far the subspaces of a layer's heads overlap, and how far those of random heads do.

    An overlap is a matrix, heads by heads. A head's query subspace overlaps with itself fully, so
    the diagonal counts only where query subspaces meet key subspaces.
    """
    rows = []
    for layer in result.layers:
        overlap = layer.overlap
        query_query = _mean_off_diagonal(overlap.query)
        key_key = _mean_off_diagonal(overlap.key)
        query_key = mean_of(itertools.chain.from_iterable(overlap.query_key))
        rows.append([layer.name, decimal(query_query), decimal(key_key), decimal(query_key)])
    for name, control in _controls(result):
        rows.append([name, *map(decimal, control.overlap.values())])
    return b.text_table(
        ("", "query-query", "key-key", "query-key"),
        rows,
        "Overlap of different heads' subspaces (mean cos^2 of principal angles)",
    )


def _mean_off_diagonal(overlap: Sequence[Sequence[float]]) -> float | None:
    """Return the mean over pairs of different heads; None where there is one head."""
    values: list[float] = []
    for head, overlaps in enumerate(overlap):
        values += [value for other_head, value in enumerate(overlaps) if other_head != head]
    return mean_of(values)


def _controls(result: RankResult) -> Iterator[tuple[str, LayerControl]]:
    """Yield every control by its name.

    ``gaussian`` and ``fresh``; where layers of a pruned model differ in their number of heads, one
    for each number: ``gaussian/12``, ``gaussian/8``, ``fresh/12``, ``fresh/8``.
    """
    for kind, control in result.controls.items():
        if control is None:
            continue
        for geometry in control.geometries:
            name = kind
            if len(control.geometries) > 1:
                name = f"{kind}/{geometry.n_heads}"
            yield name, geometry


def control_means(result: RankResult, rows: Sequence[HeadRank | LayerRank]) -> Mapping[str, float]:
    """Return each control's mean dims90 of W_Q W_K^T, over the same shapes as ``rows``.

    dims90 is the number of dimensions that hold 90% of the sum of (squared) singular values.
    """
    means = {}
    for name in result.controls:
        controls = [result.control_of(row, name, "qk") for row in rows]
        mean = mean_of(control.dims["90"] if control else None for control in controls)
        if mean is not None:
            means[name] = mean
    return means
