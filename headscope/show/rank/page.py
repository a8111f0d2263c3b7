"""What ``rank`` puts on the report's page: dims90 beside its controls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headscope.results.estimated import Estimated
from headscope.results.rank import HeadRank, LayerRank, RankResult
from headscope.show.cells import decimal, mean_of, ratio_text
from headscope.show.page.parts import Card, Part, Place, Scale
from headscope.show.page.svg import Chart, Line, chart, highest
from headscope.show.rank.words import NAMES, control_means, dims90, rank_notes, rank_sentence
from headscope.show.view import KeyNumber

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
        yield KeyNumber(what, decimal(mean, 1), beside, Estimated(mean))
