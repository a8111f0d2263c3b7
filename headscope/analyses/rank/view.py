"""What is shown of ``rank``: how many dimensions heads and layers use, beside random weights.

:func:`blocks` lists everything a person sees, as plain values that the terminal, the page and the
figure files draw (``b`` is :mod:`headscope.show.blocks`). A *control* is the same measurement on
random weights. ``dims["90"]``, or dims90, is how many dimensions hold 90% of a matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headscope.analyses.rank.curves import cumulative_curves, shared_blocks, summed
from headscope.analyses.rank.distances import (
    FARTHEST,
    at_zero,
    dims90_text,
    distances_sentence,
    distances_tables,
    mean_control_range,
    mean_range,
    range_text,
)
from headscope.analyses.rank.result import (
    HeadRank,
    LayerRank,
    RankResult,
)
from headscope.analyses.rank.tables import (
    NAMES,
    control_means,
    layers_table,
    means_of_heads,
    overlaps_table,
)
from headscope.show import blocks as b
from headscope.show.cells import (
    decimal,
    last_part,
    mean_of,
    model_line,
    model_name,
    ratio_text,
)
from headscope.show.folders import names_of
from headscope.show.page.parts import Card, Place, Scale
from headscope.show.view import KeyNumber, next_step, view
from headscope.stats.estimate import Estimate

#: Beyond this tolerance (relative to the largest singular value) the numerical rank says more about
#: the stored dtype than about the matrix.
_COARSE = 0.1
#: What the controls are called in a sentence.
_LONG = {"gaussian": "Gaussian", "fresh": "freshly initialised"}


def blocks(result: RankResult) -> Iterator[b.Block]:
    """Show the answer, means of heads, every layer, maps of heads, overlaps, and what was asked."""
    answer = [rank_sentence(result), distances_sentence(result)]
    yield b.Text("\n".join(sentence for sentence in answer if sentence), "lead")
    for warning in _warnings(result):
        yield b.Text(warning, "warning")
    for note in rank_notes(result):
        yield b.Text(note)
    settings = result.settings
    folded = ", LayerNorm gain folded in" if settings["fold_layernorm"] else ""
    model_and_settings = b.Text(
        f"{model_line(result).plain}\nWeights stored as {settings['stored_dtype']}, analysed in "
        f"float64; biases {settings['biases']}d{folded}",
        on=b.TERMINAL,
    )
    if not result.heads:
        yield model_and_settings
        return
    gaussian = result.controls["gaussian"]
    assert gaussian is not None  # it is always drawn
    yield b.Text(_definitions(result, len(gaussian.seeds)), "soft", b.VERBOSE | b.PAGE)
    yield means_of_heads(result)
    yield layers_table(result, "qk")
    yield layers_table(result, "ov")
    yield from distances_tables(result)
    gaussian_head = gaussian.geometries[0].heads["qk"]  # of a layer with the most heads
    yield b.HeadMap(
        f"How many dimensions the scores of a head use, {model_name(result)}; a Gaussian head "
        f"{gaussian_head.effective_rank:.1f}",
        "effective rank of W_QW_Kᵀ, dimensions",
        {(head.layer_name, head.head): head.qk.effective_rank for head in result.heads},
        digits=1,
        file="effective_rank",
    )
    yield model_and_settings
    yield overlaps_table(result)
    yield from _on_text(result)
    yield from _copying(result)
    if result.shared is not None:
        yield from shared_blocks(result.shared, model_name(result))
    yield cumulative_curves(result, "qk", b.PAGE)
    yield cumulative_curves(result, "ov", b.NOWHERE)
    yield next_step(result, "is what they attend to low in rank, too?", "spectrum {}")


# --- sentences ------------------------------------------------------------------------------------


def rank_sentence(result: RankResult) -> str:
    """Say how many dimensions layers and heads need, and how many their controls need."""
    layer_mean = mean_of(layer.qk.dims["90"] for layer in result.layers)
    head_mean = mean_of(head.qk.dims["90"] for head in result.heads)
    if layer_mean is None or head_mean is None:
        if not result.layers or not result.heads:
            return "No heads to measure."
        return "Some W_QW_Kᵀ are zero: see the table."

    random_layers = control_means(result, result.layers)
    random_heads = control_means(result, result.heads)
    layer_width = max(len(layer.qk.singular_values) for layer in result.layers)
    head_width = max(len(head.qk.singular_values) for head in result.heads)
    below_each_control = all(layer_mean < 0.9 * mean for mean in random_layers.values())
    answer = ""
    if random_layers and below_each_control:
        answer = "The heads of a layer share dimensions: "
    return (
        f"{answer}{layer_mean:.1f} of {layer_width} dimensions carry 90% of a layer's W_QW_Kᵀ"
        f"{at_zero(result)} (sum of {summed(result)}){_random_need(random_layers)}. One head needs "
        f"{head_mean:.1f} of {head_width} dimensions{_random_need(random_heads)}. Only the "
        "distance from random weights is evidence."
        f"{_shared_keys(result)}"
    )


def _shared_keys(result: RankResult) -> str:
    """Say how many keys the heads of a layer share, which bounds the rank of a layer."""
    shares = [layer for layer in result.layers if layer.shared_keys is not None]
    if not shares:
        return ""
    layer = max(shares, key=lambda layer: len(layer.heads))
    keys = "one set" if layer.shared_keys == 1 else f"{layer.shared_keys} sets"
    return (
        f" The {len(layer.heads)} heads of a layer read {keys} of keys, so a layer has no more "
        f"than {len(layer.qk.singular_values)} dimensions; the random ones share keys, too."
    )


def _random_need(control_means: Mapping[str, float]) -> str:
    """Say how many dimensions each control needs; nothing where there is no control.

    {"gaussian": 30.1} -> "; random weights need 30.1 (Gaussian)".
    """
    if not control_means:
        return ""
    needs = " and ".join(f"{mean:.1f} ({_LONG[name]})" for name, mean in control_means.items())
    return f"; random weights need {needs}"


def _warnings(result: RankResult) -> Iterator[str]:
    """Warn of what makes the numbers doubtful."""
    if result.not_covered:
        yield (
            f"W_QW_Kᵀ is NOT the whole score of this model: it leaves out "
            f"{', '.join(result.not_covered)}."
        )
    rtols = [head.qk.numerical_rank.rtol for head in result.heads]
    if rtols and max(rtols) > _COARSE:
        yield (
            f"Numerical ranks count sigma above {max(rtols):.2g} sigma_max, max(shape) * eps of "
            f"{result.settings['stored_dtype']}: too coarse to tell much; --rtol sets another."
        )


def rank_notes(result: RankResult) -> Iterator[str]:
    """Say what was measured otherwise than usual."""
    if result.turns_values:
        yield "Positions rotate this model's values too: W_VW_O is that of the first position."
    unfolded = [layer.name for layer in result.layers if not layer.folded]
    if result.settings["fold_layernorm"] and unfolded:
        yield f"No LayerNorm hands its output to {', '.join(unfolded)}: nothing folded there."
    if any(layer.qk_gains for layer in result.layers):
        yield (
            "The gains of this model's norms of queries and keys are folded into W_Q and W_K; that "
            "these norms also divide each query and key by its size changes no rank."
        )
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
        f"exp(entropy of the singular values); 90, 95, 99%: dimensions that hold that share of "
        f"{summed(result)}; asymmetry: ||B - B^T|| / ||B||; symmetry: 1 - asymmetry^2 / 2 (1 "
        "symmetric, 0 random, -1 antisymmetric). gaussian: independent Gaussian factors, mean of "
        f"{n_seeds} seeds; fresh: the architecture newly initialised."
    )


# --- what was asked for ---------------------------------------------------------------------------


def _on_text(result: RankResult) -> Iterator[b.Block]:
    """Show how asymmetric the patterns of each layer are on a text."""
    text = result.text
    if text is None:
        return
    rows = []
    for layer in result.layers:
        asymmetries: list[float | None] = []
        for head in result.heads:
            same_layer = (head.stack, head.layer) == (layer.stack, layer.layer)
            if same_layer and head.pattern_asymmetry is not None:
                asymmetries.append(head.pattern_asymmetry.value)
        rows.append([layer.name, decimal(mean_of(asymmetries))])
    yield b.text_table(
        ("", "pattern asymmetry"),
        rows,
        f"On {last_part(text['name'])} ({text['lines']:,} lines, {text['skipped']:,} skipped, "
        f"{text['tokens']:,} tokens): 0 where any two tokens attend to each other equally; means "
        "of heads",
        on=b.ASKED | b.PAGE,
    )
    if any(layer.stack == "decoder" for layer in result.layers):
        yield b.Text(
            "A causal mask lets no token attend to a later one, which makes every pattern of a "
            "decoder asymmetric: these say nothing of its weights.",
            "warning",
        )


def _copying(result: RankResult) -> Iterator[b.Block]:
    """Say how many heads write the tokens that they look at, and how many random heads."""
    copying = result.copying
    if copying is None:
        return
    span = f"{copying.random_low:.2f} to {copying.random_high:.2f}"
    by_chance = copying.heads / 40  # 2.5% beyond either end of an interval of 95%
    yield b.Text(
        f"{copying.above} of {copying.heads} heads write the tokens that they look at more than "
        f"random heads do, {copying.below} less: 95% of {copying.draws} heads with Gaussian W_V "
        f"and W_O have a copying score from {span}, so {by_chance:.1f} are expected on "
        "either side by chance. Of the weights alone: LayerNorms, other layers and what stands "
        "between the last layer and the unembedding are left out."
    )
    if not copying.own_unembedding:
        yield b.Text(
            "No language-model head was loaded with this model: its embedding stands for W_U, as "
            "its configuration ties them.",
            "warning",
        )
    scored_heads = [head for head in result.heads if head.stack == copying.stack]
    yield b.HeadMap(
        f"Do heads write the tokens that they look at? Copying score; random heads {span}",
        "1: writes what it looks at, -1: suppresses it",
        {(head.layer_name, head.head): head.copying for head in scored_heads},
        digits=2,
        file="copying",
        bold_from=copying.random_high,
        on=b.BOTH,
    )


# --- the report's page ----------------------------------------------------------------------------


def _cards(result: RankResult, places: Sequence[Place]) -> Iterator[Card]:
    """Yield a card for each head: its ranks, the controls' means, and its asymmetry."""
    for head in result.heads:
        facts = [("Asymmetry", _asymmetry_text(head))]
        if head.over_distances is not None:
            facts.append((f"Distances 1 to {FARTHEST}", range_text(head.over_distances)))
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
    """Write a matrix of a head: dims90, each control's dims90, effective and stable rank."""
    ranks = getattr(head, matrix)
    cells = [NAMES[matrix], decimal(ranks.dims["90"], 0)]
    for kind in result.controls:
        control = result.control_of(head, kind, matrix)
        cells.append(_short(control.dims["90"] if control is not None else None))
    return [*cells, _short(ranks.effective_rank), _short(ranks.stable_rank)]


def _short(value: float | None, digits: int = 1) -> str:
    """Write a number with few digits, and a small one so that it does not look like zero.

    12.34 -> "12.3"; below 0.1, where this would be "0.0", with as many digits as it takes.
    """
    if value is None or value >= 0.1:
        return decimal(value, digits)
    return ratio_text(value)


def _key_numbers(result: RankResult) -> Iterator[KeyNumber]:
    """Yield dims90 of W_Q W_K^T: the mean of the heads, and the mean of the layers."""
    kinds: dict[str, Sequence[HeadRank | LayerRank]] = {
        "one head": result.heads,
        "all heads of a layer": result.layers,
    }
    for kind, rows in kinds.items():
        mean = mean_of(row.qk.dims["90"] for row in rows)
        random = control_means(result, rows)
        controls = [f"{_LONG[name]} {control_mean:.1f}" for name, control_mean in random.items()]
        title = f"dimensions that hold 90% of W_QW_Kᵀ, {kind}"
        yield KeyNumber(title, decimal(mean, 1), ", ".join(controls) or "-", Estimate(mean))
        if result.rotates:
            spread = dims90_text(mean_range(rows))
            controls = []
            for kind_of_random in random:
                random_spread = mean_control_range(result, rows, kind_of_random)
                controls.append(f"{_LONG[kind_of_random]} {dims90_text(random_spread)}")
            title = f"{title}, distances 1 to {FARTHEST}"
            yield KeyNumber(title, spread, ", ".join(controls) or "-", Estimate(None))


VIEW = view(
    "How many dimensions do heads need?",
    blocks,
    {"rank": RankResult.to_frame, "shared_projections": RankResult.shared_frame},
    stale=names_of("shared_projections", "copying"),
    cards=_cards,
    scales=(
        Scale("dims90", "Dimensions that hold 90% of W_QW_Kᵀ"),
        Scale("asymmetry", "Asymmetry of W_QW_Kᵀ"),
    ),
    key_numbers=_key_numbers,
    term="rank of W_QW_Kᵀ",
)
