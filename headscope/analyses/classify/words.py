"""What one head does, in a sentence and three numbers; and the best head of each relation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headscope.analyses.classify.result import (
    ClassifyResult,
    Confirmation,
    HeadResult,
    Label,
    SyntacticScore,
)
from headscope.core.roles import role_name, role_of
from headscope.show.cells import decimal

#: What each baseline of a syntactic label is, in words.
RULES = {
    "offset": "always the same distance",
    "first": "always the first word",
    "last": "always the last word",
    "uniform": "evenly spread attention",
    "kernel": "the head's own habit of distances",
}
#: The sentence of a role whose row has none.
_ANY_ROLE = "{words}: {score:.2f}, and {baseline:.2f} would be expected without it."


def primary_label(head: HeadResult) -> Label | None:
    """Return the first label of a head's primary role."""
    return next((label for label in head.labels if label.role == head.primary), None)


def head_sentence(head: HeadResult) -> str:
    """Say in plain words what a head does on the corpus, with its rate and what it must beat."""
    label = primary_label(head)
    if label is None:
        return _without_role(head)
    role = role_of(label.role)
    text = (role.sentence or _ANY_ROLE).format(
        words=role.words[:1].upper() + role.words[1:],
        score=float(label.score),
        baseline=label.baseline,
        detail=role.detail(label.detail),
        against=RULES.get(label.against, label.against),
    )
    others = [role_name(key) for key in head.roles if key != head.primary]
    return f"{text} Also: {', '.join(others)}." if others else text


def _without_role(head: HeadResult) -> str:
    parts = ["Earned no role on this corpus."]
    if head.best_relation is not None:
        best, confirmed = head.best_relation
        parts.append(
            f"Its best relation is {best.relation} ({best.direction}), right "
            f"{float(confirmed.accuracy):.0%} of the time on held-out sentences; the best rule of "
            f"thumb is right in {confirmed.baselines[confirmed.strongest]:.0%}."
        )
    elif head.special_mass is not None:
        parts.append(f"It puts {head.special_mass:.0%} of its attention on special tokens.")
    return " ".join(parts)


def head_numbers(head: HeadResult) -> list[tuple[str, str, str]]:
    """Return three numbers with their baselines: what it is, its value, what to compare it with."""
    numbers = []
    label = primary_label(head)
    if label is not None:
        numbers.append(
            (role_name(label.role), f"{float(label.score):.2f}", f"baseline {label.baseline:.2f}")
        )
    elif head.positional is not None and head.positional.score.value is not None:
        chance = f"chance {decimal(head.positional.chance, 2)}"
        numbers.append(("best fixed distance", decimal(head.positional.score.value, 2), chance))
    if head.relative_entropy is not None:
        spread = decimal(head.relative_entropy, 2)
        numbers.append(("spread of attention", spread, "1 is evenly spread"))
    if head.cause is not None:
        loss, noise = float(head.cause.zero), float(head.cause.noise)
        numbers.append(("loss when removed", f"{loss:.2g}", f"noise of its size {noise:.2g}"))
    elif head.special_mass is not None:
        share = decimal(head.special_mass, 2)
        numbers.append(("on special tokens", share, "share of its attention"))
    return numbers


class RelationRow(NamedTuple):
    """The best head of a relation and direction by the held-out half; how many are labelled."""

    head: HeadResult
    score: SyntacticScore
    confirmed: Confirmation
    labelled: int


def best_heads(result: ClassifyResult) -> Iterator[RelationRow]:
    """Find the best head of each relation and direction that was selected for any head.

    A head that the held-out half confirms comes before all that it does not.
    """
    selected: dict[tuple[str, str], list[tuple[HeadResult, SyntacticScore, Confirmation]]] = {}
    for head in result.heads:
        for score in head.syntactic:
            if score.confirmed is not None:
                rows = selected.setdefault((score.relation, score.direction), [])
                rows.append((head, score, score.confirmed))
    for rows in selected.values():
        best = max(rows, key=lambda row: (row[1].labelled, float(row[2].accuracy)))
        yield RelationRow(*best, sum(score.labelled for _, score, _ in rows))
