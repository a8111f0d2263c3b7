"""What is shown of judged rankings: what the first heads of each do alone.

A ranking has two curves: ``signed``, with the largest effects first, whose area is CPR; and
``absolute``, with the largest sizes of effects first, whose area is CMD.
"""

from __future__ import annotations

from collections.abc import Iterator

from headscope.analyses.attribute.result import AttributeResult, Faithfulness, RankingCurve
from headscope.show import blocks as b
from headscope.show.cells import decimal, joined, mean_of, model_name, plural
from headscope.show.estimates import ranged
from headscope.stats.estimate import Estimate

#: What rankings are called (by ``RankingCurve.ranking``), and their colours.
_RANKINGS = {
    "direct": ("direct part", b.ORANGE),
    "first_order": ("lengths counted", b.GREEN),
    "removed": ("removed", b.BLUE),
    "removed_mean": ("mean left", b.VERMILION),
}


def ranking_blocks(result: AttributeResult) -> Iterator[b.Block]:
    """Show what the first heads of each ranking do alone, and those of random rankings."""
    faithfulness = result.faithfulness
    if faithfulness is None:
        return
    yield b.Text(_first_heads_sentence(faithfulness))
    if any(curve.roc is not None for curve in faithfulness.rankings):
        areas = [f"{_name(curve)} {decimal(curve.roc, 2)}" for curve in faithfulness.rankings]
        yield b.Text(f"Area under the ROC curve of the circuit, by |effect|: {joined(areas)}.")
    yield b.Text(
        _area_sentence(
            faithfulness,
            "CPR (area under the share that comes back, largest effects first; more is better)",
            "cpr",
        ),
        "control",
    )
    yield b.Text(
        _area_sentence(
            faithfulness,
            "CMD (area between that share and 1, largest sizes first; 0 is the whole model)",
            "cmd",
        ),
        "control",
    )
    yield b.Panels(
        f"What the first heads of each ranking do alone, {model_name(result)}",
        [
            _curves(faithfulness, "CPR: largest effects first", "signed"),
            _curves(faithfulness, "CMD: largest sizes first", "absolute"),
        ],
        "attribute_curves",
        across=2,
        size=(9.0, 4.6),
        alt="The share of the output's change that the first heads of each ranking bring back, "
        "beside random rankings; the numbers are in attribute_curves.csv.",
        on=b.PAGE,
    )


def _name(curve: RankingCurve) -> str:
    """Return what a ranking is called."""
    return _RANKINGS[curve.ranking][0]


def _first_heads_sentence(faithfulness: Faithfulness) -> str:
    """Say what the first tenth of the heads brings back, by removal with the mean left."""
    n_heads = faithfulness.kept[-1]
    tenth = next(i for i, n_kept in enumerate(faithfulness.kept) if 10 * n_kept >= n_heads)
    by_mean = next(curve for curve in faithfulness.rankings if curve.ranking == "removed_mean")
    by_chance = [curve.signed[tenth] for curve in faithfulness.random]
    ranked = f"ranked on {faithfulness.ranked} {plural(faithfulness.ranked, 'other')}"
    if faithfulness.same:
        ranked = "they are ranked on it too"
    return (
        f"Do rankings name the heads that matter? The {faithfulness.kept[tenth]} of {n_heads} "
        "heads with the largest effects of removal (mean left), alone with all others at their "
        f"mean, bring back {by_mean.signed[tenth]:.0%} of the output's change from "
        f"{decimal(faithfulness.ablated)} (no head) to {decimal(faithfulness.output)} (all). "
        f"Random ones bring back {mean_of(by_chance):.0%} ({min(by_chance):.0%} to "
        f"{max(by_chance):.0%}); {faithfulness.judged} {plural(faithfulness.judged, 'example')}, "
        f"{ranked}."
    )


def _area_sentence(faithfulness: Faithfulness, title: str, area: str) -> str:
    """Say the area of each ranking, ``cpr`` or ``cmd``, and the range of the random ones."""
    by_ranking: dict[str, Estimate] = {
        _name(curve): getattr(curve, area) for curve in faithfulness.rankings
    }
    random = [float(getattr(curve, area)) for curve in faithfulness.random]
    areas = joined([f"{name} {ranged(estimate, 2)}" for name, estimate in by_ranking.items()])
    text = (
        f"{title}: {areas}; {len(random)} random rankings {decimal(min(random), 2)} to "
        f"{decimal(max(random), 2)}."
    )
    if any(estimate.interval for estimate in by_ranking.values()):
        text += " Intervals are over examples, with each ranking held fixed."
    return text


def _curves(faithfulness: Faithfulness, title: str, order: str) -> b.Chart:
    """Draw the share that comes back by the heads kept, in one ``order``, with random rankings."""
    n_heads = faithfulness.kept[-1]
    shares = [n_kept / n_heads for n_kept in faithfulness.kept]
    random_curves = [getattr(curve, order) for curve in faithfulness.random]
    by_share = list(zip(*random_curves, strict=True))  # all random values at each share
    random = b.Series(
        f"{len(random_curves)} random rankings, mean and range",
        shares,
        [mean_of(values) for values in by_share],
        colour=b.GREY,
        marker="",
        dash="--",
        band=[(min(values), max(values)) for values in by_share],
    )
    series = [random]
    for curve in faithfulness.rankings:
        name, colour = _RANKINGS[curve.ranking]
        series.append(b.Series(name, shares, getattr(curve, order), colour=colour, marker="."))
    return b.Chart(
        title,
        "heads that stay",
        "share of the change that comes back",
        series,
        x_scale="percent",
        levels={"the whole model": 1.0},
    )
