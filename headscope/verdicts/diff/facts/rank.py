"""The facts of ``headscope rank``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from headscope.results.rank import MATRICES, HeadRank, LayerRank, MatrixRank, RankResult
from headscope.results.shared_projections import SharedProjections
from headscope.verdicts.diff.facts.fact import Facts, Number


def collect(result: RankResult, facts: Facts) -> None:
    """Add the ranks of every head and layer, their asymmetry, and shared projections."""
    rows: list[tuple[str, HeadRank | LayerRank]] = [(head.name, head) for head in result.heads]
    rows += [(f"layer {layer.layer}", layer) for layer in result.layers]
    for where, row in rows:
        _ranks(where, row, facts)
    for head in result.heads:
        if head.pattern_asymmetry is not None:
            facts.number(head.name, "asymmetry of patterns", Number.of(head.pattern_asymmetry))
    for layer in result.layers:
        for name in ("query", "key", "query_key"):
            overlap = _overlap(getattr(layer.overlap, name), every=name == "query_key")
            facts.number(f"layer {layer.layer}", f"overlap {name.replace('_', ' ')}", overlap)
    if result.shared is not None:
        _shared(result.shared, facts)


def settings(result: RankResult) -> Mapping[str, object]:
    """Return how the matrices were read."""
    return result.settings


def _ranks(where: str, row: HeadRank | LayerRank, facts: Facts) -> None:
    for matrix in (*MATRICES, "qk_data"):
        found: MatrixRank | None = getattr(row, matrix)
        if found is not None:
            for name, value in _values(found).items():
                facts.number(where, f"{matrix} {name}", Number(value))
    facts.number(where, "asymmetry", Number(row.asymmetry))


def _values(found: MatrixRank) -> dict[str, float | None]:
    return {
        "numerical": found.numerical_rank.value,
        "stable": found.stable_rank,
        "effective": found.effective_rank,
        **{f"dims {share}": dims for share, dims in found.dims.items()},
    }


def _overlap(rows: Sequence[Sequence[float]], *, every: bool) -> Number:
    values = [v for i, row in enumerate(rows) for j, v in enumerate(row) if every or i != j]
    return Number(fmean(values) if values else None)


def _shared(shared: SharedProjections, facts: Facts) -> None:
    for item in shared.widths:
        where = f"shared width {item.width}"
        facts.number(where, "score error", Number(item.score_error))
        fidelity = Number.within(item.fidelity, item.fidelity_interval, sign=1)
        facts.number(where, "fidelity", fidelity)
    facts.text("shared projections", "knee", str(shared.knee or "none"))
