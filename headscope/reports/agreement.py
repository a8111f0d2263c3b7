"""How far two classifications agree: which labels they share, and whether counts of roles differ.

Two reports of one model on two treebanks, or of two seeds, have the same heads. Of such two, labels
are compared head by head: a *label* is a relation with its direction, or another role. Only what
both could find counts: a relation that both tested, a role that is testable in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.classify.roles import role_class, role_in, role_name
from headscope.analyses.classify.scores import HeadResult
from headscope.reports.reading import Results
from headscope.reports.result import Agreement, SharedLabels
from headscope.show.cells import joined
from headscope.show.estimates import ranged
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.statistics import FEWEST_UNITS, adjust, mcnemar_p, t_half_width


@dataclass(frozen=True)
class _Counts:
    """Labels of one head, or of several, of those that both classifications could give."""

    possible: int = 0
    first: int = 0
    other: int = 0
    shared: int = 0

    def __add__(self, more: _Counts) -> _Counts:
        return _Counts(
            possible=self.possible + more.possible,
            first=self.first + more.first,
            other=self.other + more.other,
            shared=self.shared + more.shared,
        )

    def __sub__(self, fewer: _Counts) -> _Counts:
        return _Counts(
            possible=self.possible - fewer.possible,
            first=self.first - fewer.first,
            other=self.other - fewer.other,
            shared=self.shared - fewer.shared,
        )

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa; None where both give every label, or none, whatever chance would say."""
        if not self.possible:
            return None
        agreed = self.possible - self.first - self.other + 2 * self.shared
        first_share = self.first / self.possible
        other_share = self.other / self.possible
        by_chance = first_share * other_share + (1 - first_share) * (1 - other_share)
        if by_chance == 1:
            return None
        return (agreed / self.possible - by_chance) / (1 - by_chance)


Labels = dict[str, set[str]]  # By the name of a group (a relation or role): its labels


def agreements(reports: Sequence[Results], letters: Sequence[str]) -> tuple[Agreement, ...]:
    """Compare the labels of the first report with those of each other one of the same heads."""
    pairs: list[Agreement] = []
    first = reports[0].sections.get("classify")
    for letter, report in zip(letters[1:], reports[1:], strict=True):
        other = report.sections.get("classify")
        if isinstance(first, ClassifyResult) and isinstance(other, ClassifyResult):
            compared = _agreement(first, other, letters[0], letter)
            if compared is not None:
                pairs.append(compared)
    return tuple(pairs)


def _agreement(
    first: ClassifyResult, other: ClassifyResult, first_letter: str, other_letter: str
) -> Agreement | None:
    """Compare two classifications; None unless they are of the same heads."""
    heads = _heads_of_both(first, other)
    if not heads:
        return None
    roles = {stack: _roles_of_both(first, other, stack) for stack in first.stacks}
    complete = _has_all_scores(first) and _has_all_scores(other)
    by_group: dict[str, list[_Counts]] = {}
    for head, same_head in heads:
        for group, counts in _counts_of_head(head, same_head, roles[head.stack]).items():
            by_group.setdefault(group, []).append(counts)
    by_head = [
        sum(_counts_of_head(head, same_head, roles[head.stack]).values(), _Counts())
        for head, same_head in heads
    ]
    role_names = {name for names in roles.values() for name in names.values()}
    total = sum(by_head, _Counts())
    rows = []
    for group, counts_of_heads in by_group.items():
        of_group = sum(counts_of_heads, _Counts())
        if of_group.first or of_group.other:
            is_known = complete or group in role_names
            rows.append(_shared(group, counts_of_heads, of_group, is_known=is_known))
    return Agreement(
        first=first_letter,
        other=other_letter,
        heads=len(heads),
        labels=_shared("all labels", by_head, total, is_known=complete),
        groups=tuple(rows),
    )


def _heads_of_both(
    first: ClassifyResult, other: ClassifyResult
) -> list[tuple[HeadResult, HeadResult]]:
    """Return the heads of both; none unless both have the same ones."""
    by_name = {head.name: head for head in other.heads}
    if {head.name for head in first.heads} != set(by_name):
        return []
    return [(head, by_name[head.name]) for head in first.heads]


def _roles_of_both(first: ClassifyResult, other: ClassifyResult, stack: str) -> dict[str, str]:
    """Return the names of the roles that both could give in a stack, by key as heads have it.

    Roles of relations are left out: their labels are compared relation by relation.
    """
    possible = {role.key for role in other.only(stack).possible_roles}
    names: dict[str, str] = {}
    for role in first.only(stack).possible_roles:
        full = role_in(role.key, stack)
        is_testable = full not in first.untestable and full not in other.untestable
        if role.key in possible and is_testable and role_class(role.key) != "syntactic":
            names[role.key] = role_name(role.key)
    return names


def _has_all_scores(result: ClassifyResult) -> bool:
    """Whether relations without a label are there too; short JSON lacks them."""
    scores = [score for head in result.heads for score in head.syntactic]
    return not scores or not all(score.labelled for score in scores)


def _counts_of_head(
    head: HeadResult, same_head: HeadResult, roles: Mapping[str, str]
) -> dict[str, _Counts]:
    """Count by relation and role what two classifications say of one head."""
    possible: Labels = {name: {key} for key, name in roles.items()}
    relations = _relations(head, labelled=False) & _relations(same_head, labelled=False)
    for relation in sorted(relations):
        possible.setdefault(relation.partition(" ")[0], set()).add(relation)
    first = {*head.roles, *_relations(head, labelled=True)}
    other = {*same_head.roles, *_relations(same_head, labelled=True)}
    return {
        group: _Counts(
            possible=len(labels),
            first=len(labels & first),
            other=len(labels & other),
            shared=len(labels & first & other),
        )
        for group, labels in possible.items()
    }


def _relations(head: HeadResult, *, labelled: bool) -> set[str]:
    """Return the relations of a head with their directions, all or those that are labels."""
    return {
        f"{score.relation} {score.direction}"
        for score in head.syntactic
        if score.labelled or not labelled
    }


def _shared(
    group: str, counts_of_heads: Sequence[_Counts], total: _Counts, *, is_known: bool
) -> SharedLabels:
    """Describe how many labels are shared; without all scores kappa is unknown."""
    kappa = _kappa(counts_of_heads, total) if is_known else UNKNOWN
    return SharedLabels(
        what=group, first=total.first, other=total.other, shared=total.shared, kappa=kappa
    )


def _kappa(counts_of_heads: Sequence[_Counts], total: _Counts) -> Estimate:
    """Return Cohen's kappa with the interval of the jackknife over heads.

    The labels of one head depend on each other, so that the head is left out. The interval is
    unknown for few heads, and where leaving one out changes nothing.
    """
    without_each = [(total - counts).kappa for counts in counts_of_heads]
    known = [kappa for kappa in without_each if kappa is not None]
    n = len(known)
    if n < len(without_each) or n < FEWEST_UNITS:
        return Estimate(total.kappa)
    error = sqrt((n - 1) / n * float(np.square(np.array(known) - np.mean(known)).sum()))
    if error == 0:
        return Estimate(total.kappa)
    estimate = Estimate.around(total.kappa, float(t_half_width(error, n)))
    if estimate.low is None or estimate.high is None:
        return estimate
    return Estimate(estimate.value, max(estimate.low, -1.0), min(estimate.high, 1.0))


def agreement_sentence(agreement: Agreement) -> str:
    """Say how many labels two reports share, of how many each has."""
    labels = agreement.labels
    kappa = "unknown: a report lacks relations without a label"
    if labels.kappa.value is not None:
        kappa = ranged(labels.kappa, 2)
    return (
        f"{agreement.first} and {agreement.other} share {labels.shared} labels of "
        f"{labels.first} and {labels.other} (Cohen's kappa {kappa}; {agreement.heads} heads)."
    )


def group_words(agreement: Agreement) -> str:
    """List the shared labels by relation and role: ``obj 3 of 4 and 3``; empty without any."""
    words = [f"{row.what} {row.shared} of {row.first} and {row.other}" for row in agreement.groups]
    return f"By relation and role: {joined(words)}." if words else ""


# --- counts of roles ---


def role_p_values(reports: Sequence[Results]) -> dict[str, float]:
    """Return p for each role that all could find: do as many heads have it, by report?

    The exact test of McNemar over heads, the first report against each other one, adjusted over
    roles and reports (Benjamini-Hochberg); of several reports the smallest p. Empty unless all
    reports are of the same heads. Keys are those of roles, with their stack: ``cross:sharp``.
    """
    classified = [report.sections.get("classify") for report in reports]
    results = [result for result in classified if isinstance(result, ClassifyResult)]
    if len(results) < len(reports):
        return {}
    names: list[str] = []
    p_values: list[float] = []
    first = results[0]
    for other in results[1:]:
        heads = _heads_of_both(first, other)
        if not heads:
            return {}
        for stack in first.stacks:
            for role in first.only(stack).possible_roles:
                full = role_in(role.key, stack)
                if full in first.untestable or full in other.untestable:
                    continue
                of_stack = [pair for pair in heads if pair[0].stack == stack]
                names.append(full)
                p_values.append(_mcnemar(of_stack, role.key))
    adjusted = adjust(np.array(p_values))
    smallest: dict[str, float] = {}
    for name, p in zip(names, adjusted, strict=True):
        smallest[name] = min(float(p), smallest.get(name, 1.0))
    return smallest


def _mcnemar(heads: Iterable[tuple[HeadResult, HeadResult]], role: str) -> float:
    """Return p of the test that as many heads gain a role as lose it."""
    gained = 0
    lost = 0
    for head, same_head in heads:
        has_now = role in same_head.roles
        had = role in head.roles
        gained += has_now and not had
        lost += had and not has_now
    return float(mcnemar_p(gained, lost))
