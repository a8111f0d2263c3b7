"""Syntactic heads: they look from a word to its neighbour in the tree, by one relation.

Relations are scored as by Voita et al. 2019; a label has to be confirmed on a second half of the
corpus (``two_halves.py``). Pairs of words that a user has labelled are judged by the same rule:
each of their labels is a role of its own (:func:`pair_role`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from headscope.analyses.classify.scores import Label, SyntacticScore
from headscope.core.roles import PAIR, SELF_ATTENTION, VOITA, Role

if TYPE_CHECKING:
    from headscope.analyses.classify.evidence import Evidence, Judged

#: Relations of Universal Dependencies in words; others keep their label.
_RELATIONS = {
    "acl": "clause that modifies it",
    "advcl": "adverbial clause",
    "advmod": "adverb",
    "amod": "adjective",
    "appos": "apposition",
    "aux": "auxiliary verb",
    "case": "preposition",
    "cc": "coordinating conjunction",
    "ccomp": "clausal object",
    "compound": "other part of the compound",
    "conj": "conjunct",
    "cop": "copula",
    "csubj": "clausal subject",
    "det": "determiner",
    "discourse": "discourse element",
    "fixed": "rest of the fixed expression",
    "flat": "further part of the name",
    "iobj": "indirect object",
    "mark": "conjunction that opens the clause",
    "nmod": "noun that modifies it",
    "nsubj": "subject",
    "nummod": "number",
    "obj": "object",
    "obl": "oblique argument",
    "parataxis": "parataxis",
    "punct": "punctuation mark",
    "xcomp": "open complement",
}


def judge(evidence: Evidence) -> Iterator[Judged]:
    """Gather the relations of every head; its labels come with the largest gain first."""
    from headscope.analyses.classify.evidence import Judged
    from headscope.analyses.classify.two_halves import judge_relations

    if evidence.edges is None or evidence.kernel_hits is None:
        return
    tests = judge_relations(
        evidence.edges, evidence.kernel_hits, evidence.exists, evidence.thresholds
    )
    for head in evidence.heads:
        scores = tuple(test.score(head) for test in tests)
        yield Judged(head, "syntactic", scores, _labels(scores, of_pairs=bool(evidence.labels)))


def _labels(scores: tuple[SyntacticScore, ...], *, of_pairs: bool) -> list[Label]:
    """Make a label of every confirmed relation, the largest gain first.

    Relations make one role, the labels of a user's pairs one each (``of_pairs``).
    """
    import numpy as np

    from headscope.core.rounding import tied

    labels = []
    gains = []
    for score in scores:
        confirmed = score.confirmed
        if not score.labelled or confirmed is None:
            continue
        gains.append(confirmed.gain)
        labels.append(
            Label(
                role=PAIR + score.relation if of_pairs else "syntactic",
                detail=f"{score.relation} {score.direction}",
                score=confirmed.accuracy,
                baseline=confirmed.baselines[confirmed.strongest],
                p_adjusted=confirmed.p_adjusted,
                against=confirmed.strongest,
            )
        )
    largest_first = np.argsort(-tied(gains), kind="stable").tolist()
    return [labels[i] for i in largest_first]


def untestable(evidence: Evidence) -> str:
    """Say why no head could have earned the role."""
    if evidence.edges is None:
        return "plain text has no gold trees (give a treebank)"
    least = evidence.thresholds.min_trials
    if any(min(trials) >= least for trials in evidence.trials_by_half.values()):
        return ""
    return f"no relation has {least} trials in each half of the corpus"


def _relation_words(relation: str) -> str:
    """``obj dep->head``: looks from the object to the word that it belongs to (obj)."""
    relation, _, direction = relation.partition(" ")
    universal, _, _ = relation.partition(":")  # ``nsubj:pass`` is a kind of ``nsubj``
    name = _RELATIONS.get(universal, relation)
    if direction == "dep->head":
        return f"Looks from the {name} to the word that it belongs to ({relation})"
    return f"Looks from a word to its {name} ({relation})"


@functools.cache  # so that the same label is the same role
def pair_role(label: str) -> Role:
    """Return the role of heads that follow a user's own pairs with this label."""

    def untestable_pairs(evidence: Evidence) -> str:
        """Say why neither direction of the label could be earned: the reason of the first."""
        from headscope.analyses.classify.two_halves import why_untested

        if evidence.edges is None:
            return ""
        # Both directions, as (label, direction).
        names = [name for name in evidence.trials_by_half if name[0] == label]
        if not names:  # no trial in any direction
            names = [(label, "")]
        reasons = [why_untested(evidence.edges, name, evidence.thresholds) for name in names]
        return reasons[0] if all(reasons) else ""

    return replace(
        SYNTACTIC,
        key=PAIR + label,
        name=label,
        mark=label[:5],
        stacks=("encoder", "cross"),
        words=f"looks along the pairs labelled {label}",
        source="",
        detail=_pair_words,
        family=SYNTACTIC.key,
        untestable=untestable_pairs,
        of_pairs=None,
    )


def _pair_words(detail: str) -> str:
    """``contact to->from``: looks from the second to the first of a pair labelled contact."""
    label, _, direction = detail.rpartition(" ")
    ways = {"from->to": "the first to the second", "to->from": "the second to the first"}
    way = ways.get(direction, "the target to the source")
    return f"Looks from {way} of a pair labelled {label}"


SYNTACTIC = Role(
    rank=20,
    key="syntactic",
    name="syntactic",
    mark="syn",
    colour="#009E73",
    style="bold green",
    light="#bfe5c5",
    dark="#1f5c33",
    stacks=SELF_ATTENTION,
    words="looks from a word to its syntactic head, or to a dependent of one relation",
    source=VOITA,
    sentence="{detail}: right {score:.0%} of the time on sentences that had no say in choosing "
    "it. Best rule of thumb: {baseline:.0%} ({against}).",
    detail=_relation_words,
    judge=judge,
    untestable=untestable,
    of_pairs=pair_role,
)
ROLES = (SYNTACTIC,)
