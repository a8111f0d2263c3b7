"""What is shown of ``rank``: how many dimensions heads and layers need, and random weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from headscope.analyses.rank.result import (
    MATRICES,
    HeadRank,
    LayerRank,
    RankResult,
    SharedProjections,
    SharedWidth,
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
    yield b.Text(_definitions(result, len(gaussian.seeds)), "soft", b.VERBOSE | b.PAGE)
    yield _means_of_heads(result)
    yield _layers_table(result, "qk")
    yield _layers_table(result, "ov")
    gaussian_head = gaussian.geometries[0].heads["qk"]
    yield b.HeadMap(
        f"Effective rank of W_Q W_K^T, {model_name(result)}; a Gaussian head has "
        f"{gaussian_head.effective_rank:.1f}",
        "exp(entropy of sigma)",
        {(head.layer_name, head.head): head.qk.effective_rank for head in result.heads},
        digits=1,
        file="effective_rank",
    )
    yield how
    yield _overlaps(result)
    yield from _on_text(result)
    yield from _copying(result)
    if result.shared is not None:
        yield from _shared(result.shared, model_name(result))
    yield _cumulative(result, "qk", b.PAGE)
    yield _cumulative(result, "ov", b.NOWHERE)
    yield next_step(result, "is what they attend to low in rank, too?", "spectrum {}")


# --- sentences ------------------------------------------------------------------------------------


def rank_sentence(result: RankResult) -> str:
    """Say how many dimensions layers and heads need, and how many their controls need."""
    layer_mean = mean_of(layer.qk.dims["90"] for layer in result.layers)
    head_mean = mean_of(head.qk.dims["90"] for head in result.heads)
    if layer_mean is None or head_mean is None:
        if not result.layers or not result.heads:
            return "No heads to measure."
        return "Some W_Q W_K^T are zero: see the table."

    random_layers = _control_means(result, result.layers)
    random_heads = _control_means(result, result.heads)
    layer_width = max(len(layer.qk.singular_values) for layer in result.layers)
    head_width = max(len(head.qk.singular_values) for head in result.heads)
    shares = random_layers and all(layer_mean < 0.9 * mean for mean in random_layers.values())
    answer = "The heads of a layer share dimensions: " if shares else ""
    return (
        f"{answer}{layer_mean:.1f} of {layer_width} dimensions carry 90% of a layer's W_Q W_K^T "
        f"(sum of {_summed(result)}){_need_of(random_layers)}. One head needs {head_mean:.1f} of "
        f"{head_width} dimensions{_need_of(random_heads)}. Only the distance from random weights "
        "is evidence."
    )


def _need_of(random: Mapping[str, float]) -> str:
    """Say how many dimensions each control needs; nothing where there is no control."""
    if not random:
        return ""
    needs = " and ".join(f"{mean:.1f} ({_LONG[name]})" for name, mean in random.items())
    return f"; random weights need {needs}"


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


def _definitions(result: RankResult, n_seeds: int) -> str:
    """Say what the columns of the tables are."""
    rtols = [layer.qk.numerical_rank.rtol for layer in result.layers]
    rtol = f"{min(rtols):.1e}"
    if max(rtols) != min(rtols):
        rtol += f" to {max(rtols):.1e}"
    return (
        f"numerical rank: sigma > {rtol} sigma_1; stable: ||B||_F^2 / sigma_1^2; effective: "
        f"exp(entropy of sigma); 90, 95, 99%: dimensions that hold that share of "
        f"{_summed(result)}; asymmetry: ||B - B^T|| / ||B||; symmetry: 1 - asymmetry^2 / 2 (1 "
        "symmetric, 0 random, -1 antisymmetric). gaussian: independent Gaussian factors, mean of "
        f"{n_seeds} seeds; fresh: the architecture newly initialised."
    )


def _summed(result: RankResult) -> str:
    """Name what is summed: the squares of the singular values, or they themselves."""
    return "sigma^2" if result.settings["share"] == "sigma2" else "sigma"


# --- tables ---------------------------------------------------------------------------------------


def _means_of_heads(result: RankResult) -> b.Table:
    """Show the mean head of each matrix, with its controls below."""
    rows: list[list[str]] = []
    for matrix in MATRICES:
        heads = [_numbers(matrix, getattr(head, matrix), head.asymmetry) for head in result.heads]
        means = [mean_of(column) for column in zip(*heads, strict=True)]
        rows.append(_row(NAMES[matrix], means))
        for name, control in _controls(result):
            numbers = _numbers(matrix, control.heads[matrix], control.asymmetry)
            rows.append(_row(f"  {name}", numbers))
    return b.text_table(("mean of heads", *_COLUMNS), rows, on=b.VERBOSE | b.PAGE)


def _layers_table(result: RankResult, matrix: str) -> b.Table:
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
    """Return the numbers of a row; only W_Q W_K^T has an asymmetry."""
    asymmetry = asymmetry if matrix == "qk" else None
    return [*statistics(ranks).values(), asymmetry, symmetry_of(asymmetry)]


def _row(name: str, numbers: Sequence[float | None]) -> list[str]:
    """Write one row; means of counts have one decimal."""
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
    return decimal(value, 1).removesuffix(".0")


def _overlaps(result: RankResult) -> b.Table:
    """Show how far the subspaces of a layer's heads overlap, and those of random heads."""
    rows = []
    for layer in result.layers:
        overlap = layer.overlap
        query_key = mean_of(value for row in overlap.query_key for value in row)
        means = [_between_heads(overlap.query), _between_heads(overlap.key), query_key]
        rows.append([layer.name, *map(decimal, means)])
    for name, control in _controls(result):
        rows.append([name, *map(decimal, control.overlap.values())])
    return b.text_table(
        ("", "query-query", "key-key", "query-key"),
        rows,
        "Overlap of different heads' subspaces (mean cos^2 of principal angles)",
    )


def _between_heads(overlap: Sequence[Sequence[float]]) -> float | None:
    """Return the mean over pairs of different heads."""
    values: list[float] = []
    for i, row in enumerate(overlap):
        values += [value for j, value in enumerate(row) if i != j]
    return mean_of(values)


def _controls(result: RankResult) -> Iterator[tuple[str, LayerControl]]:
    """Name and numbers of every control; one for each number of heads where layers differ."""
    for kind, control in result.controls.items():
        if control is None:
            continue
        for geometry in control.geometries:
            several = len(control.geometries) > 1
            yield (f"{kind}/{geometry.n_heads}" if several else kind), geometry


def _control_means(result: RankResult, rows: Sequence[HeadRank | LayerRank]) -> Mapping[str, float]:
    """Return each control's mean dims90, for layers with as many heads as the measured ones."""
    means = {}
    for name in result.controls:
        controls = [result.control_of(row, name, "qk") for row in rows]
        mean = mean_of(control.dims["90"] if control else None for control in controls)
        if mean is not None:
            means[name] = mean
    return means


# --- what was asked for ---------------------------------------------------------------------------


def _on_text(result: RankResult) -> Iterator[b.Block]:
    """Show how asymmetric the patterns of each layer are on a text."""
    text = result.text
    if text is None:
        return
    rows = []
    for layer in result.layers:
        place = (layer.stack, layer.layer)
        heads = [head for head in result.heads if (head.stack, head.layer) == place]
        patterns = [head.pattern_asymmetry for head in heads if head.pattern_asymmetry]
        rows.append([layer.name, decimal(mean_of(pattern.value for pattern in patterns))])
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


# --- curves ---------------------------------------------------------------------------------------


def _cumulative(result: RankResult, matrix: str, on: b.Place) -> b.Panels:
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
                f"share of {_summed(result)} in the k largest",
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


# --- the report's page ----------------------------------------------------------------------------


def _cards(result: RankResult, places: Sequence[Place]) -> Iterator[Card]:
    """Yield a card for each head: its ranks, the controls' means, and its asymmetry."""
    for head in result.heads:
        facts = [("Asymmetry", _asymmetry_text(head))]
        if head.copying is not None and result.copying is not None:
            random = f"{result.copying.random_low:.2f} to {result.copying.random_high:.2f}"
            facts.append(("Copying score", f"{head.copying:.2f} (random heads {random})"))
        yield Card(
            head.layer,
            head.head,
            facts=facts,
            ranks=[_card_ranks(result, head, matrix) for matrix in NAMES],
            values={"dims90": head.qk.dims["90"], "asymmetry": head.asymmetry},
        )


def _asymmetry_text(head: HeadRank) -> str:
    """Say how asymmetric a head's W_Q W_K^T and its pattern are."""
    text = f"{_short(head.asymmetry, 2)} (0 symmetric, 1.41 random)"
    if head.symmetry is not None:
        text += f", symmetry score {head.symmetry:.2f} (1 symmetric, 0 random)"
    if head.pattern_asymmetry is not None:
        text += f"; of the pattern {_short(head.pattern_asymmetry.value, 2)}"
    return text


def _card_ranks(result: RankResult, head: HeadRank, matrix: str) -> list[str]:
    """Write a matrix of a head: dims90, the same of each control, effective and stable rank."""
    ranks = getattr(head, matrix)
    cells = [NAMES[matrix], decimal(ranks.dims["90"], 0)]
    for kind in result.controls:
        control = result.control_of(head, kind, matrix)
        cells.append(_short(control.dims["90"] if control is not None else None))
    return [*cells, _short(ranks.effective_rank), _short(ranks.stable_rank)]


def _short(value: float | None, digits: int = 1) -> str:
    """Write a number with few digits, and a small one so that it does not look like zero."""
    return decimal(value, digits) if value is None or value >= 0.1 else ratio_text(value)


def _key_numbers(result: RankResult) -> Iterator[KeyNumber]:
    """Yield dims90 of W_Q W_K^T: the mean of the heads, and the mean of the layers."""
    kinds: dict[str, Sequence[HeadRank | LayerRank]] = {
        "one head": result.heads,
        "all heads of a layer": result.layers,
    }
    for kind, rows in kinds.items():
        mean = mean_of(row.qk.dims["90"] for row in rows)
        random = _control_means(result, rows)
        controls = [f"{name} {control_mean:.1f}" for name, control_mean in random.items()]
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
