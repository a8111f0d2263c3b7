"""Terminal tables of ``rank``, drawn from its result; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.results.rank import (
    ControlStatistics,
    DataControl,
    HeadRank,
    LayerControl,
    LayerRank,
    MatrixRank,
    NumericalRank,
    RankResult,
    symmetry_of,
)
from headscope.show.cells import decimal, interval_text, make_table, mean_of, model_line, tiny
from headscope.show.rank.words import NAMES, rank_notes, rank_sentence

_PAIRS = (("qk", "ov"), ("w_q", "w_k"))


def rank_report(result: RankResult) -> Iterator[RenderableType]:
    """Show heads, then layers, each table with its controls; what it comes to stands last."""
    yield from _header(result)
    for kind, rows in (
        ("Each head", result.heads),
        ("Heads of a layer concatenated", result.layers),
    ):
        for pair in _PAIRS:
            left, right = (NAMES[matrix] for matrix in pair)
            yield Text(f"\n{kind}: {left} (left), {right} (right)", style="bold")
            yield _pair_table(result, rows, pair)
    yield from _overlap_table(result)
    yield from _text_tables(result)
    yield from _shared_table(result)
    yield Text("\n" + rank_sentence(result), style="bold")
    for note in rank_notes(result):
        yield Text(note, style="yellow")


def _header(result: RankResult) -> Iterator[Text]:
    yield model_line(result)
    settings = result.settings
    what = "sigma^2" if settings["share"] == "sigma2" else "sigma"
    folded = ", LayerNorm gain folded in" if settings["fold_layernorm"] else ""
    yield Text(
        f"Weights stored as {settings['stored_dtype']}, analysed in float64; biases "
        f"{settings['biases']}d{folded}"
    )
    gaussian = result.controls["gaussian"]
    seeds = len(gaussian.seeds) if gaussian else 0
    yield Text(
        f"num: numerical rank (sigma > {_rtol(result)} sigma_1); stable: ||B||_F^2 / sigma_1^2;\n"
        "eff: exp(entropy of sigma); "
        f"dims: least k with 90/95/99% of {what}; asym: ||B - B^T|| / ||B||;\n"
        "sym: 1 - asym^2 / 2, 1 symmetric, 0 random, -1 antisymmetric. "
        f"gaussian: i.i.d. factors, mean of {seeds} seeds; fresh: the architecture newly "
        "initialised.",
        style="dim",
    )


def _rtol(result: RankResult) -> str:
    values = sorted({layer.qk.numerical_rank.rtol for layer in result.layers})
    return " to ".join(f"{value:.1e}" for value in {values[0]: 0, values[-1]: 0})


def _pair_table(
    result: RankResult, rows: Sequence[HeadRank] | Sequence[LayerRank], pair: tuple[str, str]
) -> Table:
    left, right = pair
    with_asymmetry = left == "qk"
    columns = ("num", "stable", "eff", "dims")
    table = make_table(("", *columns, *["asym", "sym"] * with_asymmetry, *columns))
    for name, control in _controls(result):
        heads = isinstance(rows[0], HeadRank)
        known = control.heads if heads else control.layers
        mean = control.asymmetry if heads else control.layer_asymmetry
        extra = [decimal(x, 2) for x in (mean, symmetry_of(mean))] * with_asymmetry
        table.add_row(name, *_cells(known[left]), *extra, *_cells(known[right]), style="dim")
    for row in rows:
        extra = [decimal(x, 2) for x in (row.asymmetry, row.symmetry)] * with_asymmetry
        mine, other = (_cells(getattr(row, matrix)) for matrix in pair)
        table.add_row(_row_name(row), *mine, *extra, *other)
    return table


def _row_name(row: HeadRank | LayerRank) -> str:
    return row.name


def _controls(result: RankResult) -> Iterator[tuple[str, LayerControl]]:
    """Name and numbers of every control; one for each number of heads where layers differ."""
    for kind, control in result.controls.items():
        for geometry in control.geometries if control else ():
            many = control is not None and len(control.geometries) > 1
            yield (f"{kind}/{geometry.n_heads}" if many else kind), geometry


def _cells(found: MatrixRank | ControlStatistics) -> list[str]:
    numerical = found.numerical_rank
    value = numerical.value if isinstance(numerical, NumericalRank) else numerical
    dims = "/".join(decimal(dim, 0) for dim in found.dims.values())
    ranks = decimal(found.stable_rank, 1), decimal(found.effective_rank, 1)
    return [decimal(value, 0), *ranks, dims]


def _overlap_table(result: RankResult) -> Iterator[RenderableType]:
    yield Text("\nOverlap of different heads' subspaces (mean cos^2 of principal angles)", "bold")
    table = make_table(("", "query-query", "key-key", "query-key"))
    for name, control in _controls(result):
        table.add_row(name, *map(decimal, control.overlap.values()), style="dim")
    for layer in result.layers:
        pairs = (layer.overlap.query, layer.overlap.key, layer.overlap.query_key)
        means = [_off_diagonal(pair, every=i == 2) for i, pair in enumerate(pairs)]
        table.add_row(layer.name, *map(decimal, means))
    yield table


def _off_diagonal(overlap: Sequence[Sequence[float]], *, every: bool) -> float | None:
    return mean_of(
        value for i, row in enumerate(overlap) for j, value in enumerate(row) if every or i != j
    )


def _text_tables(result: RankResult) -> Iterator[RenderableType]:
    if result.text is None:
        return
    text = result.text
    yield Text(
        f"\nOn {text['name']} ({text['lines']:,} lines, {text['skipped']:,} skipped, "
        f"{text['tokens']:,} tokens): S^(1/2) W_Q W_K^T S^(1/2), S the inputs' covariance",
        style="bold",
    )
    columns = ("num", "stable", "eff", "dims", "gaussian dims", "pattern asym", "sem", "sym")
    table = make_table(("", *columns))
    controls = {(x.stack, x.layer): x.qk_data_control for x in result.layers}
    for layer in result.layers:
        if layer.qk_data:
            control = _control_dims(controls[layer.stack, layer.layer], "layer")
            cells = (*_cells(layer.qk_data), control, "", "", "")
            table.add_row(_row_name(layer), *cells, style="bold")
    for head in result.heads:
        if head.qk_data:
            control, pattern = (
                _control_dims(controls[head.stack, head.layer], "heads"),
                head.pattern_asymmetry,
            )
            asymmetry = decimal(pattern.mean if pattern else None)
            error = tiny(pattern.sem if pattern else None)
            cells = (*_cells(head.qk_data), control, asymmetry, error)
            table.add_row(head.name, *cells, decimal(head.pattern_symmetry, 2))
    yield table
    yield Text(
        "pattern asym: ||P - P^T|| / ||P||; 0 mutual or even attention, 1.414 never mutual; sym: "
        "1 - asym^2 / 2",
        style="dim",
    )


def _control_dims(control: DataControl | None, kind: str) -> str:
    return "-" if control is None else _cells(getattr(control, kind))[-1]


def _shared_table(result: RankResult) -> Iterator[RenderableType]:
    shared = result.shared
    if shared is None:
        return
    yield Text(
        "\nHeads of each layer sharing projections of a width, or each cut to a rank that costs "
        f"as much\n(fidelity: mean cosine to the model's own output, {shared.text['lines']:,} "
        f"lines of {shared.text['name']})",
        style="bold",
    )
    table = make_table(
        ("width", "error", "gaussian", "fidelity", "95%", "| rank", "error", "fidelity", "saved")
    )
    for item in shared.widths:
        table.add_row(
            f"{item.width}{' knee' if item.width == shared.knee else ''}",
            *map(decimal, (item.score_error, item.control_score_error, item.fidelity)),
            interval_text(item.fidelity_interval),
            f"| {item.truncated_rank}",
            *map(decimal, (item.truncated_score_error, item.truncated_fidelity)),
            f"{item.share_saved:.0%}",
        )
    yield table
    yield Text(
        f"The knee of the error is at width {shared.knee}."
        if shared.knee
        else "No knee: the error falls evenly, or fewer than three widths were asked for."
    )
