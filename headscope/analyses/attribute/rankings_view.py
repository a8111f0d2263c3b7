"""What is shown of how well rankings of heads name those that matter."""

from __future__ import annotations

from collections.abc import Iterator

from headscope.analyses.attribute.result import AttributeResult
from headscope.show import blocks as b
from headscope.show.cells import decimal, joined, mean_of, model_name, plural
from headscope.show.estimates import ranged

#: What rankings are called, and their colours.
_RANKINGS = {
    "direct": ("direct part", b.ORANGE),
    "first_order": ("lengths counted", b.GREEN),
    "removed": ("removed", b.BLUE),
    "removed_mean": ("mean left", b.VERMILION),
    "resampled": ("resampled", b.PURPLE),
}


def faithfulness(result: AttributeResult) -> Iterator[b.Block]:
    """Show what the first heads of each ranking do alone, beside random rankings."""
    found = result.faithfulness
    if found is None:
        return
    random, n = len(found.random), found.kept[-1]
    tenth = next(i for i, k in enumerate(found.kept) if 10 * k >= n)
    few = found.kept[tenth]
    curves = {curve.ranking: curve for curve in found.rankings}
    by_mean = curves["removed_mean"].signed[tenth]
    chance = [of.signed[tenth] for of in found.random]
    by_chance = f"{mean_of(chance):.0%} ({min(chance):.0%} to {max(chance):.0%})"
    examples = f"{found.judged} {plural(found.judged, 'example')}"
    by = "they are ranked on it too" if found.same else f"ranked on {found.ranked} others"
    yield b.Text(
        f"Do rankings name the heads that matter? The {few} of {n} heads with the largest effects "
        f"of removal (mean left), alone with all others at their mean, bring back "
        f"{by_mean:.0%} of the output's change from {decimal(found.ablated)} (no head) to "
        f"{decimal(found.output)} (all). Random ones bring back {by_chance}; {examples}, {by}."
    )
    if any(curve.roc is not None for curve in found.rankings):
        roc = [f"{_RANKINGS[of.ranking][0]} {decimal(of.roc, 2)}" for of in found.rankings]
        yield b.Text(f"Area under the ROC curve of the circuit, by |effect|: {joined(roc)}.")
    for name, area, meaning in (
        ("CPR", "cpr", "under the share that comes back, largest effects first; more is better"),
        ("CMD", "cmd", "between that share and 1, largest sizes first; 0 is the whole model"),
    ):
        each = [
            f"{_RANKINGS[curve.ranking][0]} {ranged(getattr(curve, area), 2)}"
            for curve in found.rankings
        ]
        areas = [float(getattr(curve, area)) for curve in found.random]
        yield b.Text(
            f"{name} (area {meaning}): {joined(each)}; {random} random rankings "
            f"{decimal(min(areas), 2)} to {decimal(max(areas), 2)}.",
            "control",
        )
    shares = [k / n for k in found.kept]
    panels = []
    for title, order in (
        ("CPR: largest effects first", "signed"),
        ("CMD: largest sizes first", "absolute"),
    ):
        beside = list(zip(*(getattr(curve, order) for curve in found.random), strict=True))
        band = [(min(at), max(at)) for at in beside]
        means = [mean_of(at) for at in beside]
        name = f"{random} random rankings, mean and range"
        series = [b.Series(name, shares, means, colour=b.GREY, marker="", dash="--", band=band)]
        for curve in found.rankings:
            name, colour = _RANKINGS[curve.ranking]
            series.append(b.Series(name, shares, getattr(curve, order), colour=colour, marker="."))
        panels.append(
            b.Chart(
                title,
                "heads that stay",
                "share of the change that comes back",
                series,
                x_scale="percent",
                levels={"the whole model": 1.0},
            )
        )
    yield b.Panels(
        f"What the first heads of each ranking do alone, {model_name(result)}",
        panels,
        "attribute_curves",
        across=2,
        size=(9.0, 4.6),
        alt="The share of the output's change that the first heads of each ranking bring back, "
        "beside random rankings; the numbers are in attribute_curves.csv.",
        on=b.PAGE,
    )
