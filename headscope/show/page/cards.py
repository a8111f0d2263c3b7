"""What the report's page says about one head: short texts and numbers, drawn from all sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headscope.results import HeadRank, HeadResult, PruneResult, RankResult, ReportResult
from headscope.results.heads import head_name, parse_head
from headscope.results.prune import HeadEffect
from headscope.results.roles import NO_ROLE, role_name
from headscope.show.cells import interval_text, p_text, ratio_text, share_text
from headscope.show.classify.words import describe_offset, mark_of
from headscope.show.prune.words import number
from headscope.show.rank.words import NAMES

__all__ = ["Card", "cards", "head_names"]

Place = tuple[int, int]
#: The numbers that the map can be coloured by: caption, and whether they lie between 0 and 1.
SCALES = {
    "positional": "Positional score",
    "confidence": "Confidence",
    "entropy": "Entropy (nats)",
    "special": "Mass on special tokens",
    "share": "Share of the largest singular values",
    "dims90": "dims90 of W_Q W_K^T",
    "asymmetry": "Asymmetry of W_Q W_K^T",
    "importance": "Pruning rank (1 is kept longest)",
}


@dataclass
class Card:
    """One head as the page shows it; every text is plain, nothing is markup.

    Attributes
    ----------
    name : str
    layer, head : int
    primary : str
    mark : str
        At most three characters for the map.
    roles, keys : list of str
        Names of the roles, and what the results call them.
    labels : list of rows
        Role, detail, score, baseline, 95% interval, adjusted p.
    facts : list of (caption, text)
    ranks : list of rows
        Matrix, dims90 and the same of each control.
    values : dict of str to float
        By :data:`SCALES`.
    """

    name: str
    layer: int
    head: int
    primary: str = "unknown"
    mark: str = ""
    roles: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    labels: list[list[str]] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    ranks: list[list[str]] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)


def head_names(report: ReportResult) -> list[Place]:
    """Return the heads that any section knows, by their original numbers."""
    found: set[Place] = set()
    for section in (report.classify, report.rank, report.spectrum):
        if section is not None:
            found |= {(head.layer, head.head) for head in section.heads}
    for sample in report.samples:
        found |= set(map(parse_head, sample.patterns))
    return sorted(found)


def cards(report: ReportResult) -> list[Card]:
    """Gather what every section says of each head."""
    made = {place: Card(head_name(*place), *place) for place in head_names(report)}
    if report.classify is not None:
        for head in report.classify.heads:
            _add_roles(made[head.layer, head.head], head)
    if report.rank is not None:
        for row in report.rank.heads:
            _add_rank(made[row.layer, row.head], row, report.rank)
    _add_spectrum(made, report)
    if report.prune is not None:
        _add_pruning(made, report.prune)
    return list(made.values())


def _add_roles(card: Card, head: HeadResult) -> None:
    card.primary = head.primary
    card.mark = "·" if head.primary == NO_ROLE.key else mark_of(head)[:3]
    card.keys = list(head.roles)
    card.roles = [role_name(role) for role in head.roles]
    for label in head.labels:
        detail = label.detail
        if label.role == "positional" and head.positional.offset is not None:
            detail = describe_offset(head.positional.offset)
        card.labels.append(
            [
                role_name(label.role),
                detail,
                share_text(label.score),
                f"{share_text(label.baseline)} {label.against}".strip(),
                interval_text(label.interval),
                p_text(label.p_adjusted),
            ]
        )
    offset = head.positional.offset
    at = "" if offset is None else f" ({describe_offset(offset)})"
    near = _best_relation(head)
    card.facts += [
        ("Best offset", f"{share_text(head.positional.score)}{at}"),
        *([("Best relation", near)] if near else []),
        ("Rarest word", f"{share_text(head.rare.rate)}, chance {share_text(head.rare.chance)}"),
        ("Confidence", share_text(head.confidence)),
        ("Entropy", f"{share_text(head.entropy)} nats"),
        ("Mass on special tokens", share_text(head.special_mass)),
        ("Mass on punctuation", share_text(head.punctuation_mass)),
    ]
    _note(
        card,
        positional=head.positional.score,
        confidence=head.confidence,
        entropy=head.entropy,
        special=head.special_mass,
    )


def _best_relation(head: HeadResult) -> str:
    best = max(
        head.syntactic,
        key=lambda s: (s.labelled, s.accuracy - max(s.baselines.values())),
        default=None,
    )
    if best is None:
        return ""
    strongest = max(best.baselines, key=lambda name: best.baselines[name])
    return (
        f"{best.relation} {best.direction} {share_text(best.accuracy)}, strongest baseline "
        f"{share_text(best.baselines[strongest])} ({strongest})"
    )


def _add_rank(card: Card, row: HeadRank, result: RankResult) -> None:
    n_heads = result.heads_of(row.layer)
    for name, caption in NAMES.items():
        mine = getattr(row, name)
        cells = [caption, _whole(mine.dims["90"])]
        for control in result.controls.values():
            known = control.of(n_heads) if control else None
            cells.append(_decimal(known.heads[name].dims["90"] if known else None))
        card.ranks.append([*cells, _decimal(mine.effective_rank), _decimal(mine.stable_rank)])
    text = f"{_decimal(row.asymmetry, 2)} (0 symmetric, 1.41 random)"
    if row.pattern_asymmetry is not None:
        text += f"; of the pattern {_decimal(row.pattern_asymmetry.mean, 2)}"
    card.facts.append(("Asymmetry", text))
    _note(card, dims90=row.qk.dims["90"], asymmetry=row.asymmetry)


def _add_spectrum(made: Mapping[Place, Card], report: ReportResult) -> None:
    result = report.spectrum
    if result is None:
        return
    beside = [("random scores", result.controls["random-logits"].share_at_k)]
    beside.append(("identity", result.controls["identity"].share_at_k))
    if result.random_weights is not None:
        beside.append(("random weights", result.random_weights.share_at_k.mean))
    controls = ", ".join(f"{name} {share:.3f}" for name, share in beside)
    for head in result.heads:
        half = "" if head.half_width is None else f" +-{head.half_width:.3f}"
        card = made[head.layer, head.head]
        card.facts.append(
            (
                "Spectrum",
                f"{head.share_at_k.mean:.3f}{half} of the sum in the {result.k} largest "
                f"of {result.length} singular values ({controls})",
            )
        )
        _note(card, share=head.share_at_k.mean)


def _add_pruning(made: Mapping[Place, Card], result: PruneResult) -> None:
    if result.scores:
        scores = dict(_by_name(made, result.scores[0].values))
        order = sorted(scores, key=lambda place: -scores[place])
        for i, place in enumerate(order, start=1):
            text = f"{i} of {len(order)} by {result.scores[0].method} (1 is kept longest)"
            made[place].facts.append(("Pruning rank", text))
            _note(made[place], importance=i)
    first = _first_removed(result)
    alone = {(row.layer, row.head): row for row in result.ablation}
    for place, card in made.items():
        if place in first:
            fraction, method = first[place]
            text = f"at {fraction:.0%} of heads ({method})" if fraction else "never"
            card.facts.append(("First removed", text))
        if place in alone:
            card.facts.append(("Removed alone", _ablated(alone[place], result.metric)))


def _by_name(
    made: Mapping[Place, Card], rows: tuple[tuple[float | None, ...], ...]
) -> Iterator[tuple[Place, float]]:
    """Give scores to heads; a row counts the heads that a layer still has, from the left."""
    for layer, row in enumerate(rows):
        heads = [place for place in made if place[0] == layer]
        yield from zip(heads, [value for value in row if value is not None], strict=False)


def _first_removed(result: PruneResult) -> dict[Place, tuple[float, str]]:
    """For each head, the smallest fraction at which the first method removes it."""
    curve = next((curve for curve in result.curves if curve.method != "random"), None)
    if curve is None:
        return {}
    first: dict[Place, tuple[float, str]] = {}
    for point in sorted(curve.points, key=lambda p: p.fraction):
        for layer, head in point.heads_removed:
            first.setdefault((layer, head), (point.fraction, curve.method))
    return first


def _ablated(row: HeadEffect, metric: str) -> str:
    low, high = row.difference_ci
    return (
        f"{number(row.difference, metric, signed=True)} {metric} "
        f"({number(low, metric, signed=True)} to {number(high, metric, signed=True)}, adj. p "
        f"{p_text(row.p_adjusted)})"
    )


def _note(card: Card, **values: Any) -> None:
    card.values |= {key: round(float(v), 4) for key, v in values.items() if v is not None}


def _whole(value: int | None) -> str:
    return "-" if value is None else str(value)


def _decimal(value: float | None, digits: int = 1) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if value >= 0.1 else ratio_text(value)
