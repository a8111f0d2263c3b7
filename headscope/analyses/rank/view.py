"""The sentences that say what ``rank`` found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.analyses.rank.result import DataControl, HeadRank, LayerRank, RankResult, symmetry_of
from headscope.show.cells import (
    decimal,
    fields_csv,
    interval_text,
    make_table,
    mean_of,
    model_line,
    ratio_text,
    tiny,
    to_csv,
)
from headscope.show.folders import folder_files, names_of
from headscope.show.page.parts import Card, Part, Place, Scale
from headscope.show.page.svg import Chart, Line, chart, highest
from headscope.show.view import KeyNumber, View
from headscope.stats.estimate import Estimate
from headscope.stats.ranks import ControlStatistics, LayerControl, MatrixRank, NumericalRank

__all__ = ["VIEW"]


#: How the matrices are written.
NAMES = {"qk": "W_Q W_K^T", "ov": "W_V W_O", "w_q": "W_Q", "w_k": "W_K"}
#: Beyond this rtol the numerical rank says more about the stored type than about the matrix.
_COARSE = 0.1


def rank_sentence(result: RankResult) -> str:
    """Say how many dimensions heads and layers need, each beside its controls."""
    heads = mean_of(head.qk.dims["90"] for head in result.heads)
    layers = mean_of(layer.qk.dims["90"] for layer in result.layers)
    if heads is None or layers is None:
        return "Some W_Q W_K^T are zero: see the table."
    d_head = max(len(head.qk.singular_values) for head in result.heads)
    width = max(len(layer.qk.singular_values) for layer in result.layers)
    what = "sigma^2" if result.settings["share"] == "sigma2" else "sigma"
    return (
        f"For 90% of {what}, W_Q W_K^T of one head needs {heads:.1f} of {d_head} dimensions "
        f"({_controls(result, result.heads)}); all heads of a layer together {layers:.1f} of "
        f"{width} ({_controls(result, result.layers)}). Only the distance from a control is "
        "evidence."
    )


def _controls(result: RankResult, rows: Sequence[HeadRank | LayerRank]) -> str:
    means = control_means(result, rows)
    return ", ".join(f"{name} control {mean:.1f}" for name, mean in means.items())


def control_means(result: RankResult, rows: Sequence[HeadRank | LayerRank]) -> dict[str, float]:
    """Mean dims90 of each control over what was measured: pruned layers meet their own geometry."""
    means = {name: mean_of(dims90(result, name, row) for row in rows) for name in result.controls}
    return {name: mean for name, mean in means.items() if mean is not None}


def dims90(
    result: RankResult, control: str, row: HeadRank | LayerRank, matrix: str = "qk"
) -> float | None:
    """Return a control's dims90 for what ``row`` is: a head, or a layer's heads together."""
    known = result.controls[control]
    geometry = known.of(result.heads_of(row)) if known else None
    if geometry is None:
        return None
    table = geometry.heads if isinstance(row, HeadRank) else geometry.layers
    return table[matrix].dims["90"]


def rank_notes(result: RankResult) -> Iterator[str]:
    """Say what a reader has to know before trusting the numbers."""
    if result.not_covered:
        yield (
            f"NOT the whole score: this model also adds {', '.join(result.not_covered)}, which "
            "W_Q W_K^T does not cover."
        )
    coarse = [head.qk.numerical_rank.rtol for head in result.heads]
    if coarse and max(coarse) > _COARSE:
        yield (
            f"Numerical ranks count sigma above {max(coarse):.2g} sigma_max, max(shape) * eps of "
            f"{result.settings['stored_dtype']}: too coarse to tell much; --rtol sets another."
        )
    if result.settings["fold_layernorm"]:
        unfolded = [layer.name for layer in result.layers if not layer.folded]
        if unfolded:
            yield f"No LayerNorm hands its output to {', '.join(unfolded)}: nothing folded there."
    if result.controls.get("fresh") is None:
        yield "No control by fresh initialisation (not asked for, or not possible here)."


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
    for name, control in _controls_tables(result):
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


def _controls_tables(result: RankResult) -> Iterator[tuple[str, LayerControl]]:
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
    for name, control in _controls_tables(result):
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


SCALES = (Scale("dims90", "dims90 of W_Q W_K^T"), Scale("asymmetry", "Asymmetry of W_Q W_K^T"))


def section(result: RankResult) -> Part | None:
    """What heads and layers need; nothing for a model without heads."""
    if not result.heads:
        return None
    return Part("rank", "Ranks", [rank_sentence(result), *rank_notes(result)], _chart(result))


def _chart(result: RankResult) -> Chart:
    """dims90 of each layer's concatenated product beside its controls."""
    lines = [Line("this model", [(i, x.qk.dims["90"]) for i, x in enumerate(result.layers)], 0)]
    for i, name in enumerate(result.controls, start=1):
        if result.controls[name] is not None:
            values = [(j, dims90(result, name, x)) for j, x in enumerate(result.layers)]
            lines.append(Line(f"{name} control", values, i, dashed=True))
    return chart(
        lines,
        label="dims90 of W_Q W_K^T with all heads of a layer together, by layer, beside its "
        "controls; the numbers are in rank.csv.",
        x_title="layer",
        y_title="dims90",
        y_limits=(0, highest(lines)),
        x_names=[layer.name for layer in result.layers],
    )


def facts(result: RankResult, places: Sequence[Place]) -> Iterator[Card]:
    """The ranks of every head beside the controls' means, and its asymmetry."""
    for head in result.heads:
        asymmetry = f"{_number(head.asymmetry, 2)} (0 symmetric, 1.41 random)"
        if head.symmetry is not None:
            asymmetry += f", symmetry score {head.symmetry:.2f} (1 symmetric, 0 random)"
        if head.pattern_asymmetry is not None:
            asymmetry += f"; of the pattern {_number(head.pattern_asymmetry.mean, 2)}"
        yield Card(
            head.layer,
            head.head,
            facts=[("Asymmetry", asymmetry)],
            ranks=[_row(result, head, matrix) for matrix in NAMES],
            values={"dims90": head.qk.dims["90"], "asymmetry": head.asymmetry},
        )


def _row(result: RankResult, head: HeadRank, matrix: str) -> list[str]:
    mine = getattr(head, matrix)
    return [
        NAMES[matrix],
        decimal(mine.dims["90"], 0),
        *(_number(dims90(result, name, head, matrix)) for name in result.controls),
        _number(mine.effective_rank),
        _number(mine.stable_rank),
    ]


def _number(value: float | None, digits: int = 1) -> str:
    return decimal(value, digits) if value is None or value >= 0.1 else ratio_text(value)


def key_numbers(result: RankResult) -> Iterator[KeyNumber]:
    """dims90 of W_Q W_K^T: mean of the heads, mean of the layers."""
    kinds: dict[str, Sequence[HeadRank | LayerRank]] = {
        "one head": result.heads,
        "all heads of a layer": result.layers,
    }
    for kind, rows in kinds.items():
        mean = mean_of(row.qk.dims["90"] for row in rows)
        controls = [f"{name} {other:.1f}" for name, other in control_means(result, rows).items()]
        what, beside = f"dims90 of W_Q W_K^T, {kind}", ", ".join(controls) or "-"
        yield KeyNumber(what, decimal(mean, 1), beside, Estimate(mean))


_SHARED = ("width", "score_error", "control_score_error", "fidelity")
_CUT = ("truncated_rank", "truncated_score_error", "truncated_fidelity")
_SAVED = ("parameters", "parameters_saved", "share_saved")


def rank_files(result: RankResult) -> dict[str, bytes]:
    """Return rank.csv, the figures and, if asked for, shared_projections.csv."""
    from headscope.analyses.rank.figures import rank_figures

    csv = {"rank": to_csv(result)}
    if result.shared is not None:
        csv["shared_projections"] = fields_csv((*_SHARED, *_CUT, *_SAVED), result.shared.widths)
    return folder_files(csv, rank_figures(result))


VIEW = View(
    rank_report,
    rank_files,
    stale=names_of("shared_projections"),
    facts=facts,
    scales=SCALES,
    section=section,
    key_numbers=key_numbers,
)
