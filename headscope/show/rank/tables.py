"""Terminal tables and CSV of ``rank``, drawn from its result; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.results import (
    ControlStatistics,
    HeadRank,
    LayerControl,
    LayerRank,
    MatrixRank,
    NumericalRank,
    RankResult,
)
from headscope.show.cells import csv_text, frame_csv, make_table, model_line, share_text, tiny
from headscope.show.rank.words import NAMES, rank_notes, rank_sentence

__all__ = ["rank_csv", "rank_report", "shared_csv"]

_PAIRS = (("qk", "ov"), ("w_q", "w_k"))


def rank_report(result: RankResult) -> Iterator[RenderableType]:
    """Show heads, then layers, each table with its controls; what it comes to stands last."""
    yield from _header(result)
    for pair in _PAIRS:
        yield Text(f"\nEach head: {NAMES[pair[0]]} (left), {NAMES[pair[1]]} (right)", style="bold")
        yield _pair_table(result, result.heads, pair)
    for pair in _PAIRS:
        names = f"{NAMES[pair[0]]} (left), {NAMES[pair[1]]} (right)"
        yield Text(f"\nHeads of a layer concatenated: {names}", style="bold")
        yield _pair_table(result, result.layers, pair)
    yield from _overlap_table(result)
    yield from _text_tables(result)
    yield from _shared_table(result)
    yield Text("\n" + rank_sentence(result), style="bold")
    for note in rank_notes(result):
        yield Text(note, style="yellow")


def _header(result: RankResult) -> Iterator[Text]:
    yield Text(model_line(result))
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
        f"dims: least k with 90/95/99% of {what}; asym: ||B - B^T|| / ||B||.\n"
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
    asymmetry = pair[0] == "qk"
    columns = ["num", "stable", "eff", "dims", *(["asym"] if asymmetry else [])]
    table = make_table("", *columns, "num", "stable", "eff", "dims")
    for name, control in _controls(result):
        statistics = control.heads if isinstance(rows[0], HeadRank) else control.layers
        mean = control.asymmetry if isinstance(rows[0], HeadRank) else control.layer_asymmetry
        extra = [_number(mean, 2)] if asymmetry else []
        left, right = (_cells(statistics[matrix]) for matrix in pair)
        table.add_row(name, *left, *extra, *right, style="dim")
    for row in rows:
        extra = [_number(row.asymmetry, 2)] if asymmetry else []
        left, right = (_cells(getattr(row, matrix)) for matrix in pair)
        table.add_row(_row_name(row), *left, *extra, *right)
    return table


def _row_name(row: HeadRank | LayerRank) -> str:
    return row.name if isinstance(row, HeadRank) else f"L{row.layer}"


def _controls(result: RankResult) -> Iterator[tuple[str, LayerControl]]:
    """Name and numbers of every control; one for each number of heads where layers differ."""
    for kind, control in result.controls.items():
        for geometry in control.geometries if control else ():
            many = control is not None and len(control.geometries) > 1
            yield (f"{kind}/{geometry.n_heads}" if many else kind), geometry


def _cells(found: MatrixRank | ControlStatistics) -> list[str]:
    numerical = found.numerical_rank
    value = numerical.value if isinstance(numerical, NumericalRank) else numerical
    dims = "/".join("-" if dim is None else f"{dim:.0f}" for dim in found.dims.values())
    return [
        _number(value, 0),
        _number(found.stable_rank, 1),
        _number(found.effective_rank, 1),
        dims,
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


# --- overlap, text, shared projections --------------------------------------------------------


def _overlap_table(result: RankResult) -> Iterator[RenderableType]:
    yield Text("\nOverlap of different heads' subspaces (mean cos^2 of principal angles)", "bold")
    table = make_table("", "query-query", "key-key", "query-key")
    for name, control in _controls(result):
        table.add_row(name, *(share_text(v) for v in control.overlap.values()), style="dim")
    for layer in result.layers:
        pairs = (layer.overlap.query, layer.overlap.key, layer.overlap.query_key)
        means = [_off_diagonal(pair, every=i == 2) for i, pair in enumerate(pairs)]
        table.add_row(f"L{layer.layer}", *map(share_text, means))
    yield table


def _off_diagonal(overlap: Sequence[Sequence[float]], *, every: bool) -> float | None:
    values = [
        value for i, row in enumerate(overlap) for j, value in enumerate(row) if every or i != j
    ]
    return fmean(values) if values else None


def _text_tables(result: RankResult) -> Iterator[RenderableType]:
    if result.text is None:
        return
    text = result.text
    yield Text(
        f"\nOn {text['name']} ({text['lines']:,} lines, {text['skipped']:,} skipped, "
        f"{text['tokens']:,} tokens): S^(1/2) W_Q W_K^T S^(1/2), S the inputs' covariance",
        style="bold",
    )
    table = make_table("", "num", "stable", "eff", "dims", "gaussian dims", "pattern asym", "sem")
    controls = {layer.layer: layer.qk_data_control for layer in result.layers}
    for layer in result.layers:
        if layer.qk_data:
            control = layer.qk_data_control.layer if layer.qk_data_control else None
            table.add_row(
                f"L{layer.layer}",
                *_cells(layer.qk_data),
                _control_dims(control),
                "",
                "",
                style="bold",
            )
    for head in result.heads:
        if head.qk_data:
            mine = controls[head.layer]
            pattern = head.pattern_asymmetry
            table.add_row(
                head.name,
                *_cells(head.qk_data),
                _control_dims(mine.heads if mine else None),
                share_text(pattern.mean if pattern else None),
                tiny(pattern.sem if pattern else None),
            )
    yield table
    yield Text(
        "pattern asym: ||P - P^T|| / ||P||; 0 mutual or even attention, 1.414 never mutual",
        style="dim",
    )


def _control_dims(control: ControlStatistics | None) -> str:
    return "-" if control is None else _cells(control)[3]


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
        "width", "error", "gaussian", "fidelity", "95%", "| rank", "error", "fidelity", "saved"
    )
    for item in shared.widths:
        interval = item.fidelity_interval
        table.add_row(
            f"{item.width}{' knee' if item.width == shared.knee else ''}",
            share_text(item.score_error),
            share_text(item.control_score_error),
            share_text(item.fidelity),
            f"{interval[0]:.3f}-{interval[1]:.3f}" if interval else "-",
            f"| {item.truncated_rank}",
            share_text(item.truncated_score_error),
            share_text(item.truncated_fidelity),
            f"{item.share_saved:.0%}",
        )
    yield table
    knee = (
        f"The knee of the error is at width {shared.knee}."
        if shared.knee
        else ("No knee: the error falls evenly, or fewer than three widths were asked for.")
    )
    yield Text(knee)


# --- CSV --------------------------------------------------------------------------------------


def rank_csv(result: RankResult) -> str:
    """One line per head and matrix, and per layer and matrix, with the controls."""
    return frame_csv(result.to_frame())


def shared_csv(result: RankResult) -> str:
    """One line per width of the shared projections."""
    names = (
        "width",
        "score_error",
        "control_score_error",
        "fidelity",
        "truncated_rank",
        "truncated_score_error",
        "truncated_fidelity",
        "parameters",
        "parameters_saved",
        "share_saved",
    )
    widths = result.shared.widths if result.shared else ()
    return csv_text(names, ([getattr(item, name) for name in names] for item in widths))
