"""What is shown of ``rank``: how many dimensions heads and layers need, and random weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from headscope.analyses.rank.result import (
    MATRICES,
    HeadRank,
    LayerRank,
    RankResult,
    SharedProjections,
    symmetry_of,
)
from headscope.show import blocks as b
from headscope.show.cells import (
    decimal,
    interval_text,
    mean_of,
    model_line,
    model_name,
    ratio_text,
)
from headscope.show.folders import names_of
from headscope.show.page.parts import Card, Place, Scale
from headscope.show.view import KeyNumber, next_step, view
from headscope.stats.estimate import Estimate
from headscope.stats.ranks import ControlStatistics, LayerControl, MatrixRank, statistics

#: How the matrices are written.
NAMES = {"qk": "W_Q W_K^T", "ov": "W_V W_O", "w_q": "W_Q", "w_k": "W_K"}
#: Beyond this rtol the numerical rank says more about the stored type than about the matrix.
_COARSE = 0.1
_COLUMNS = ("numerical", "stable", "effective", "90%", "95%", "99%", "asymmetry", "symmetry")
#: What the controls are called in a sentence.
_LONG = {"gaussian": "Gaussian", "fresh": "freshly initialised"}
_COLOURS: dict[str, tuple[str, Any]] = {"gaussian": (b.VERMILION, "--"), "fresh": (b.GREEN, ":")}


def blocks(result: RankResult) -> Iterator[b.Block]:
    """Show the answer, means of heads, every layer, maps of heads, overlaps, and what was asked."""
    yield b.Text(rank_sentence(result), "lead")
    for note in rank_notes(result):
        yield b.Text(note, "warning")
    settings = result.settings
    folded = ", LayerNorm gain folded in" if settings["fold_layernorm"] else ""
    how = b.Text(
        f"{model_line(result).plain}\nWeights stored as {settings['stored_dtype']}, analysed in "
        f"float64; biases {settings['biases']}d{folded}",
        on=b.TERMINAL,
    )
    if not result.heads:
        yield how
        return
    gaussian = result.controls["gaussian"]
    assert gaussian is not None  # it is always drawn
    rtols = sorted({layer.qk.numerical_rank.rtol for layer in result.layers})
    rtol = " to ".join(f"{value:.1e}" for value in {rtols[0]: 0, rtols[-1]: 0})
    yield b.Text(
        f"numerical rank: sigma > {rtol} sigma_1; stable: ||B||_F^2 / sigma_1^2; effective: "
        f"exp(entropy of sigma); 90, 95, 99%: dimensions that hold that share of "
        f"{_summed(result)}; asymmetry: ||B - B^T|| / ||B||; symmetry: 1 - asymmetry^2 / 2 (1 "
        "symmetric, 0 random, -1 antisymmetric). gaussian: independent Gaussian factors, mean of "
        f"{len(gaussian.seeds)} seeds; fresh: the architecture newly initialised.",
        "soft",
        b.VERBOSE | b.PAGE,
    )
    rows: list[Sequence[str]] = []
    for matrix in MATRICES:
        cells = [_numbers(matrix, getattr(x, matrix), x.asymmetry) for x in result.heads]
        rows.append(_row(NAMES[matrix], [mean_of(column) for column in zip(*cells, strict=True)]))
        for name, control in _controls(result):
            numbers = _numbers(matrix, control.heads[matrix], control.asymmetry)
            rows.append(_row(f"  {name}", numbers))
    yield b.text_table(("mean of heads", *_COLUMNS), rows, on=b.VERBOSE | b.PAGE)
    for matrix in ("qk", "ov"):
        of_layers = [(x.name, getattr(x, matrix), x.asymmetry) for x in result.layers]
        of_layers += [(n, c.layers[matrix], c.layer_asymmetry) for n, c in _controls(result)]
        rows = [_row(name, _numbers(matrix, *numbers)) for name, *numbers in of_layers]
        title = f"{NAMES[matrix]} of all heads of a layer together"
        yield b.text_table(("", *_COLUMNS), rows, title, b.VERBOSE | b.PAGE)
    random = gaussian.geometries[0]
    yield b.HeadMap(
        f"Effective rank of W_Q W_K^T, {model_name(result)}; a Gaussian head has "
        f"{random.heads['qk'].effective_rank:.1f}",
        "exp(entropy of sigma)",
        {(head.layer_name, head.head): head.qk.effective_rank for head in result.heads},
        digits=1,
        file="effective_rank",
    )
    yield how
    rows = []
    for layer in result.layers:
        overlap = layer.overlap
        means = (_between(overlap.query), _between(overlap.key))
        every = mean_of(value for row in overlap.query_key for value in row)
        rows.append([layer.name, *map(decimal, (*means, every))])
    for name, control in _controls(result):
        rows.append([name, *map(decimal, control.overlap.values())])
    yield b.text_table(
        ("", "query-query", "key-key", "query-key"),
        rows,
        "Overlap of different heads' subspaces (mean cos^2 of principal angles)",
    )
    yield from _on_text(result)
    yield from _copying(result)
    if result.shared is not None:
        yield from _shared(result.shared, model_name(result))
    yield _cumulative(result, "qk", b.PAGE)
    yield _cumulative(result, "ov", b.NOWHERE)
    yield next_step(result, "is what they attend to low in rank, too?", "spectrum {}")


def rank_sentence(result: RankResult) -> str:
    """Say how many dimensions layers and heads need, and how many their controls need."""
    means: list[float] = []
    texts: list[str] = []
    for rows in (result.layers, result.heads):
        mean = mean_of(row.qk.dims["90"] for row in rows)
        if mean is None:
            return "No heads to measure." if not rows else "Some W_Q W_K^T are zero: see the table."
        named = _control_means(result, rows).items()
        controls = " and ".join(f"{value:.1f} ({_LONG[name]})" for name, value in named)
        random = f"; random weights need {controls}" if controls else ""
        width = max(len(row.qk.singular_values) for row in rows)
        of = "" if texts else f" carry 90% of a layer's W_Q W_K^T (sum of {_summed(result)})"
        texts.append(f"{mean:.1f} of {width} dimensions{of}{random}")
        means.append(mean)
    random_layers = _control_means(result, result.layers).values()
    shares = random_layers and all(means[0] < 0.9 * control for control in random_layers)
    answer = "The heads of a layer share dimensions: " if shares else ""
    return (
        f"{answer}{texts[0]}. One head needs {texts[1]}. Only the distance from random weights is "
        "evidence."
    )


def rank_notes(result: RankResult) -> Iterator[str]:
    """Say what a reader has to know before trusting the numbers."""
    if result.not_covered:
        yield (
            f"NOT the whole score: this model also adds {', '.join(result.not_covered)}, which "
            "W_Q W_K^T does not cover."
        )
    rtols = [head.qk.numerical_rank.rtol for head in result.heads]
    if rtols and max(rtols) > _COARSE:
        yield (
            f"Numerical ranks count sigma above {max(rtols):.2g} sigma_max, max(shape) * eps of "
            f"{result.settings['stored_dtype']}: too coarse to tell much; --rtol sets another."
        )
    unfolded = [layer.name for layer in result.layers if not layer.folded]
    if result.settings["fold_layernorm"] and unfolded:
        yield f"No LayerNorm hands its output to {', '.join(unfolded)}: nothing folded there."
    if result.controls.get("fresh") is None:
        yield "No control by fresh initialisation (not asked for, or not possible here)."


def _on_text(result: RankResult) -> Iterator[b.Block]:
    """Show how asymmetric the patterns of each layer are on a text."""
    text = result.text
    if text is None:
        return
    rows = []
    for layer in result.layers:
        heads = [h for h in result.heads if (h.stack, h.layer) == (layer.stack, layer.layer)]
        pattern = mean_of(h.pattern_asymmetry.value for h in heads if h.pattern_asymmetry)
        rows.append([layer.name, decimal(pattern)])
    yield b.text_table(
        ("", "pattern asymmetry"),
        rows,
        f"On {text['name']} ({text['lines']:,} lines, {text['skipped']:,} skipped, "
        f"{text['tokens']:,} tokens): 0 where any two tokens attend to each other equally; means "
        "of heads",
    )


def _copying(result: RankResult) -> Iterator[b.Block]:
    """Say how many heads write the tokens that they look at, and how many random heads."""
    copying = result.copying
    if copying is None:
        return
    span = f"{copying.random_low:.2f} to {copying.random_high:.2f}"
    yield b.Text(
        f"{copying.above} of {copying.heads} heads write the tokens that they look at more than "
        f"random heads do, {copying.below} less: 95% of {copying.draws} heads with Gaussian W_V "
        f"and W_O have a copying score from {span}, so {copying.heads / 40:.1f} are expected on "
        "either side by chance. Of the weights alone: LayerNorms, other layers and what stands "
        "between the last layer and the unembedding are left out."
    )
    if not copying.own_unembedding:
        yield b.Text(
            "No language-model head was loaded with this model: its embedding stands for W_U, as "
            "its configuration ties them.",
            "warning",
        )
    yield b.HeadMap(
        f"Copying score: eigenvalues of W_E W_V W_O W_U, sum / sum of sizes; random heads {span}",
        "1 copies, -1 suppresses",
        {(h.layer_name, h.head): h.copying for h in result.heads if h.stack == copying.stack},
        digits=2,
        file="copying",
        bold_from=copying.random_high,
        on=b.BOTH,
    )


def _shared(shared: SharedProjections, model: str) -> Iterator[b.Block]:
    """Compare shared projections of each width with heads cut to a rank of the same cost."""
    rows = [
        [
            f"{item.width}{' knee' if item.width == shared.knee else ''}",
            *map(decimal, (item.score_error, item.control_score_error, item.fidelity.value)),
            interval_text(item.fidelity.interval),
            f"| {item.truncated_rank}",
            *map(decimal, (item.truncated_score_error, item.truncated_fidelity.value)),
            f"{item.share_saved:.0%}",
        ]
        for item in shared.widths
    ]
    yield b.text_table(
        ("width", "error", "gaussian", "fidelity", "95%", "| rank", "error", "fidelity", "saved"),
        rows,
        "Heads of each layer sharing projections of a width, or each cut to a rank that costs as "
        f"much\n(fidelity: mean cosine to the model's own output, {shared.text['lines']:,} lines "
        f"of {shared.text['name']})",
    )
    knee = "No knee: the error falls evenly, or fewer than three widths were asked for."
    yield b.Text(f"The knee of the error is at width {shared.knee}." if shared.knee else knee)
    x = [item.width for item in shared.widths]
    errors = []
    fidelities = []
    for name, kind, colour, marker, dash in (
        ("shared projections", "", b.BLUE, "o", "-"),
        ("each head cut, equal parameters", "truncated_", b.PURPLE, "s", "-"),
        ("shared, Gaussian control", "control_", b.VERMILION, "", "--"),
    ):
        style: Any = ("line", colour, marker, dash)
        y = [getattr(item, f"{kind}score_error") for item in shared.widths]
        errors.append(b.Series(name, x, y, *style))
        if kind != "control_":
            near = [getattr(item, f"{kind}fidelity") for item in shared.widths]
            fidelities.append(b.Series(name, x, near, *style))
    knees = {} if shared.knee is None else {"knee": float(shared.knee)}
    width = "width r of the shared W_Q and W_K"
    yield b.Panels(
        f"Heads of {model} made to share projections",
        [
            b.Chart("", width, "relative error of the scores' matrices", errors, x_levels=knees),
            b.Chart("", width, "cosine to the model's own output", fidelities, x_levels=knees),
        ],
        "shared_projections",
        across=2,
        size=(10.0, 3.6),
        alt="Error of the scores and fidelity of the model by the width of shared projections; the "
        "numbers are in shared_projections.csv.",
        on=b.PAGE,
    )


def _cumulative(result: RankResult, matrix: str, on: b.Place) -> b.Panels:
    """Draw the share of the k largest singular values: heads on the left, layers on the right."""
    kinds = (
        ("heads", "each head", result.heads),
        ("layers", "all heads of a layer together", result.layers),
    )

    def shares(sigmas: Sequence[float]) -> list[float]:
        power = 2 if result.settings["share"] == "sigma2" else 1
        parts = [(sigma / max(sigmas)) ** power for sigma in sigmas]
        return [0.0, *(part / sum(parts) for part in accumulate(parts))]

    panels: list[b.Chart] = []
    for kind, title, rows in kinds:
        sigmas = [getattr(row, matrix).singular_values for row in rows]
        curves = [shares(values) for values in sigmas if any(values)]
        series = [
            b.Series("", range(len(y)), y, colour=b.SKY, marker="", width=0.6) for y in curves
        ]
        if curves:
            longest = max(map(len, curves))
            padded = [y + [1.0] * (longest - len(y)) for y in curves]
            mean = [sum(column) / len(padded) for column in zip(*padded, strict=True)]
            series.append(b.Series("mean", range(longest), mean, marker="", width=2.2))
        for name, control in result.controls.items():
            for geometry in control.geometries[:1] if control else ():
                y = shares(getattr(geometry, kind)[matrix].singular_values)
                colour, dash = _COLOURS[name]
                what = f"{name} control"
                series.append(b.Series(what, range(len(y)), y, "line", colour, "", dash))
        caption = "" if panels else f"share of {_summed(result)} in the k largest"
        panels.append(b.Chart(title, "k", caption, series, levels={"90%": 0.9}))
    return b.Panels(
        f"{NAMES[matrix]} of {model_name(result)}",
        panels,
        f"cumulative_{matrix}",
        across=2,
        size=(10.0, 3.8),
        alt=f"Share of the k largest singular values of {NAMES[matrix]}, of each head and of each "
        "layer, beside controls; the numbers are in rank.json.",
        on=on,
    )


def _summed(result: RankResult) -> str:
    return "sigma^2" if result.settings["share"] == "sigma2" else "sigma"


def _between(overlap: Sequence[Sequence[float]]) -> float | None:
    """Return the mean over pairs of different heads."""
    return mean_of(v for i, row in enumerate(overlap) for j, v in enumerate(row) if i != j)


def _controls(result: RankResult) -> Iterator[tuple[str, LayerControl]]:
    """Name and numbers of every control; one for each number of heads where layers differ."""
    for kind, control in result.controls.items():
        for geometry in control.geometries if control else ():
            many = control is not None and len(control.geometries) > 1
            yield (f"{kind}/{geometry.n_heads}" if many else kind), geometry


def _numbers(
    matrix: str, ranks: MatrixRank | ControlStatistics, asymmetry: float | None
) -> list[float | None]:
    """Return the numbers of a row; only W_Q W_K^T has an asymmetry."""
    asymmetry = asymmetry if matrix == "qk" else None
    return [*statistics(ranks).values(), asymmetry, symmetry_of(asymmetry)]


def _row(name: str, numbers: Sequence[float | None]) -> list[str]:
    """Write one row; means of counts have one decimal."""
    numerical, stable, effective, *dims = numbers[:-2]
    counts = ("-" if v is None else f"{v:.1f}".removesuffix(".0") for v in (numerical, *dims))
    sizes = [next(counts), decimal(stable, 1), decimal(effective, 1), *counts]
    return [name, *sizes, *(decimal(value, 2) for value in numbers[-2:])]


def _control_means(result: RankResult, rows: Sequence[HeadRank | LayerRank]) -> Mapping[str, float]:
    """Return each control's mean dims90, for layers with as many heads as the measured ones."""
    means = {}
    for name in result.controls:
        controls = (result.control_of(row, name, "qk") for row in rows)
        means[name] = mean_of(control.dims["90"] if control else None for control in controls)
    return {name: mean for name, mean in means.items() if mean is not None}


def _cards(result: RankResult, places: Sequence[Place]) -> Iterator[Card]:
    """Yield a card for each head: its ranks, the controls' means, and its asymmetry."""

    def text(value: float | None, digits: int = 1) -> str:
        return decimal(value, digits) if value is None or value >= 0.1 else ratio_text(value)

    for head in result.heads:
        asymmetry = f"{text(head.asymmetry, 2)} (0 symmetric, 1.41 random)"
        if head.symmetry is not None:
            asymmetry += f", symmetry score {head.symmetry:.2f} (1 symmetric, 0 random)"
        if head.pattern_asymmetry is not None:
            asymmetry += f"; of the pattern {text(head.pattern_asymmetry.value, 2)}"
        ranks = []
        for matrix, name in NAMES.items():
            mine = getattr(head, matrix)
            controls = (result.control_of(head, kind, matrix) for kind in result.controls)
            dims = (text(control.dims["90"] if control else None) for control in controls)
            others = text(mine.effective_rank), text(mine.stable_rank)
            ranks.append([name, decimal(mine.dims["90"], 0), *dims, *others])
        values = {"dims90": head.qk.dims["90"], "asymmetry": head.asymmetry}
        facts = [("Asymmetry", asymmetry)]
        if head.copying is not None and result.copying is not None:
            random = f"{result.copying.random_low:.2f} to {result.copying.random_high:.2f}"
            facts.append(("Copying score", f"{head.copying:.2f} (random heads {random})"))
        yield Card(head.layer, head.head, facts=facts, ranks=ranks, values=values)


def _key_numbers(result: RankResult) -> Iterator[KeyNumber]:
    """Yield dims90 of W_Q W_K^T: the mean of the heads, and the mean of the layers."""
    kinds: dict[str, Sequence[HeadRank | LayerRank]] = {
        "one head": result.heads,
        "all heads of a layer": result.layers,
    }
    for kind, rows in kinds.items():
        mean = mean_of(row.qk.dims["90"] for row in rows)
        controls = [f"{name} {other:.1f}" for name, other in _control_means(result, rows).items()]
        what = f"dims90 of W_Q W_K^T, {kind}"
        yield KeyNumber(what, decimal(mean, 1), ", ".join(controls) or "-", Estimate(mean))


VIEW = view(
    "Ranks",
    blocks,
    {"rank": RankResult.to_frame, "shared_projections": RankResult.shared_frame},
    stale=names_of("shared_projections", "copying"),
    facts=_cards,
    scales=(Scale("dims90", "dims90 of W_Q W_K^T"), Scale("asymmetry", "Asymmetry of W_Q W_K^T")),
    key_numbers=_key_numbers,
)
