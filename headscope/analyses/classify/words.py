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
from headscope.core.roles import role_of
from headscope.show.cells import decimal

#: Relations of Universal Dependencies in words; others keep their label.
RELATIONS = {
    **{"nsubj": "subject", "obj": "object", "iobj": "indirect object", "obl": "oblique argument"},
    **{"csubj": "clausal subject", "ccomp": "clausal object", "xcomp": "open complement"},
    **{"advcl": "adverbial clause", "acl": "clause that modifies it", "advmod": "adverb"},
    **{"amod": "adjective", "nmod": "noun that modifies it", "nummod": "number"},
    **{"det": "determiner", "case": "preposition", "aux": "auxiliary verb", "cop": "copula"},
    **{"mark": "conjunction that opens the clause", "cc": "coordinating conjunction"},
    **{"conj": "conjunct", "appos": "apposition", "flat": "further part of the name"},
    **{"compound": "other part of the compound", "fixed": "rest of the fixed expression"},
    **{"parataxis": "parataxis", "punct": "punctuation mark", "discourse": "discourse element"},
}
#: What each baseline of a syntactic label is, in words.
RULES = {
    "offset": "always the same distance",
    "first": "always the first word",
    "last": "always the last word",
    "uniform": "evenly spread attention",
    "kernel": "the head's own habit of distances",
}


def primary_label(head: HeadResult) -> Label | None:
    """Return the first label of a head's primary role."""
    return next((label for label in head.labels if label.role == head.primary), None)


def head_sentence(head: HeadResult) -> str:
    """Say in plain words what a head does on the corpus, with its rate and what it must beat."""
    label = primary_label(head)
    if label is None:
        return _without_role(head)
    text = _WORDS.get(label.role, _by_role)(head, label)
    others = [role_of(role).name for role in head.roles if role != head.primary]
    return f"{text} Also: {', '.join(others)}." if others else text


def _positional(head: HeadResult, label: Label) -> str:
    where = {"-1": "the token before", "+1": "the token after"}.get(label.detail)
    if where is None:
        side = "back" if label.detail.startswith("-") else "ahead"
        where = f"the token {label.detail.lstrip('+-')} places {side}"
    return (
        f"{label.score:.0%} of tokens look most at {where}; a random choice would in "
        f"{label.baseline:.0%}."
    )


def _syntactic(head: HeadResult, label: Label) -> str:
    relation, _, direction = label.detail.partition(" ")
    name = RELATIONS.get(relation.partition(":")[0], relation)
    what = (
        f"Looks from the {name} to the word that it belongs to ({relation})"
        if direction == "dep->head"
        else f"Looks from a word to its {name} ({relation})"
    )
    rule = RULES.get(label.against, label.against)
    return (
        f"{what}: right {label.score:.0%} of the time on sentences that had no say in choosing it. "
        f"Best rule of thumb: {label.baseline:.0%} ({rule})."
    )


def _rare(head: HeadResult, label: Label) -> str:
    return (
        f"{label.score:.0%} of words look most at the rarest word of the sentence; at a random "
        f"word: {label.baseline:.0%}."
    )


def _special(head: HeadResult, label: Label) -> str:
    token = {"first": "the first special token (CLS)", "last": "the last one (SEP)"}.get(
        label.detail, "special tokens"
    )
    return (
        f"Puts {decimal(head.special_mass, 2)} of its attention on special tokens, most of it on "
        f"{token}; evenly spread attention puts {label.baseline:.2f} there."
    )


def _broad(head: HeadResult, label: Label) -> str:
    return (
        f"Spreads its attention: its entropy is {label.score:.0%} of the most that is possible. "
        "Heads with random weights do so too."
    )


def _by_role(head: HeadResult, label: Label) -> str:
    words = role_of(label.role).words
    return (
        f"{words[:1].upper()}{words[1:]}: {label.score:.2f}, and {label.baseline:.2f} would be "
        "expected without it."
    )


_WORDS = {
    "positional": _positional,
    "syntactic": _syntactic,
    "rare": _rare,
    "special": _special,
    "broad": _broad,
}


def _without_role(head: HeadResult) -> str:
    parts = ["Earned no role on this corpus."]
    if head.best_relation is not None:
        best, confirmed = head.best_relation
        parts.append(
            f"Its best relation is {best.relation} ({best.direction}), right "
            f"{confirmed.accuracy:.0%} of the time on held-out sentences; the best rule of thumb "
            f"is right in {confirmed.baselines[confirmed.strongest]:.0%}."
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
            (role_of(label.role).name, decimal(label.score, 2), f"baseline {label.baseline:.2f}")
        )
    elif head.positional is not None and head.positional.score is not None:
        chance = f"chance {decimal(head.positional.chance, 2)}"
        numbers.append(("best fixed distance", decimal(head.positional.score, 2), chance))
    if head.relative_entropy is not None:
        spread = decimal(head.relative_entropy, 2)
        numbers.append(("spread of attention", spread, "1 is evenly spread"))
    if head.cause is not None:
        loss, noise = head.cause.zero.loss, head.cause.noise.loss
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
        best = max(rows, key=lambda row: (row[1].labelled, row[2].accuracy))
        yield RelationRow(*best, sum(score.labelled for _, score, _ in rows))
