"""The rules of ``--fail-on``: what must not change, read strictly and decided on a comparison.

A rule such as ``role-lost`` fires if the comparison has evidence of what it names, and where the
new results lack the section that it needs. ``RULES`` names them all; ``parse_rules`` reads them,
``outcomes_of`` decides them. What new results must show by themselves are the limits of
``limit_kinds``; a bound that guards nothing is refused by ``bounds``, here and there.

A comparison (:class:`DiffResult`) lists changes, each with its ``section``, ``where`` (a head or a
curve), ``name``, and what was ``old`` and is ``new``. Of a number ``beyond`` says whether it moved
by more than its intervals (or the tolerance), ``worsening`` how much worse it became.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

from headscope.core.errors import InputError, nearest
from headscope.core.safe_text import listed, visible
from headscope.reports.bounds import AllowedDrop, drop_guards_nothing
from headscope.reports.limit_kinds import LIMITS
from headscope.reports.result import Change, DiffResult, Outcome


@dataclass(frozen=True)
class Rule:
    """One rule as written: a name of :data:`RULES`, and for ``metric-drop`` what may be lost."""

    name: str
    bound: AllowedDrop | None = None

    def __str__(self) -> str:
        """As on the command line."""
        return self.name if self.bound is None else f"{self.name}={self.bound}"


# --- evidence: the changes that make a rule fire, each in a few words ---


def _changed_roles(diff: DiffResult, *, only_lost: bool = False) -> Iterator[str]:
    """Name the heads whose roles changed, or only those that lost one."""
    for change in diff.roles:
        if change.lost or not only_lost:
            # "-syntactic, +positional"; without these another of its roles became the primary one
            words = ", ".join(change.signed) or f"{change.old} -> {change.new}"
            yield f"{change.where} ({words})"


def _drops(diff: DiffResult, bound: AllowedDrop | None = None) -> Iterator[str]:
    """Name the metrics that dropped by more than the bound; without one, beyond their intervals.

    The largest drop comes first.
    """
    for change in sorted(diff.metrics, key=lambda change: -(change.worsening or 0.0)):
        drop = change.worsening or 0.0
        if bound is None:
            fires = drop > 0 and change.beyond
        else:
            fires = bound.is_exceeded(diff.metric, drop, change.old)
        if fires:
            yield f"{_number_words(change)} (worse by {drop:.4g})"


def _number_words(change: Change) -> str:
    """Say what a number was and is: ``L3H5 entropy 1.2 -> 1.5``."""
    old = "none" if change.old is None else f"{change.old:.4g}"
    new = "none" if change.new is None else f"{change.new:.4g}"
    return f"{change.where} {change.name} {old} -> {new}"


def _changed_claims(diff: DiffResult, *, only_held: bool = False) -> Iterator[str]:
    """Name the claims whose verdict changed, or only those that held before."""
    for change in diff.verdicts:
        if change.section == "insights" and (change.old == "holds" or not only_held):
            yield f"{change.where} {change.old} -> {change.new}"


def _moved_numbers(diff: DiffResult, section: str = "") -> Iterator[str]:
    """Name the numbers of a section, or of all, that moved beyond interval or tolerance."""
    points = (curve.worst for curve in diff.curves)
    metrics = (change for change in diff.metrics if change.beyond)
    for change in chain(diff.scores, points, metrics):
        if section in ("", change.section):
            yield _number_words(change)


def _unequal_runs(diff: DiffResult, kind: str) -> Iterator[str]:
    """Name what differs of the model, the data, the schema or the settings (``kind``)."""
    for difference in diff.identity:
        if difference.what == kind:
            yield f"{difference.name} {difference.old} -> {difference.new}".strip()


def _anything(diff: DiffResult) -> Iterable[str]:
    """Return one piece of evidence without words where anything differs: the reason says enough."""
    return () if diff.equal else ("",)


# --- the vocabulary ---


class RuleKind(NamedTuple):
    """What a rule needs and names."""

    #: The result that it needs, or empty; it fires where only the old side has that
    section: str
    #: What its reason begins with. ``{heads}`` stands for how many heads there is evidence of,
    #: ``{new}`` for the name of the new results.
    reason: str
    #: The changes that it is about, in words; it fires if there are any, and three are named.
    evidence: Callable[[DiffResult], Iterable[str]]


_BEYOND = "moved beyond interval or tolerance"  # A reason
_DROP = "metric-drop"  # The rule that may have a bound
#: Every rule by name.
RULES: dict[str, RuleKind] = {
    "role-changed": RuleKind("classify", "{heads} changed role", _changed_roles),
    "role-lost": RuleKind(
        "classify", "{heads} lost a role", partial(_changed_roles, only_lost=True)
    ),
    _DROP: RuleKind("prune", "worse", _drops),
    "validation": RuleKind("", "{new} is not validated", lambda diff: diff.not_valid),
    "insight-changed": RuleKind("insights", "verdict changed", _changed_claims),
    "insight-lost": RuleKind(
        "insights", "verdict changed", partial(_changed_claims, only_held=True)
    ),
    "score-moved": RuleKind("", _BEYOND, _moved_numbers),
    **{
        f"{section}-changed": RuleKind(section, _BEYOND, partial(_moved_numbers, section=section))
        for section in ("rank", "spectrum", "depth", "flow", "transfer", "linear", "symmetric")
    },
    "missing": RuleKind("", "not in {new}", lambda diff: diff.missing),
    **{
        f"{kind}-changed": RuleKind("", kind, partial(_unequal_runs, kind=kind))
        for kind in ("model", "data", "schema", "setting")
    },
    "any": RuleKind("", "the results are not equal", _anything),
}

_WRITTEN = re.compile(r"\s*([A-Za-z_-]+)\s*(?:=\s*(\S.*?)\s*)?")


def parse_rules(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Read rules as they are written: ``role-changed``, ``metric-drop=2%``; commas between some."""
    words = chain.from_iterable(text.split(",") for text in texts)
    return tuple(dict.fromkeys(_parse_rule(word) for word in words))


def _parse_rule(text: str) -> Rule:
    """Read one rule; a sentence says which name or bound was probably meant."""
    match = _WRITTEN.fullmatch(text)
    name = match[1].replace("_", "-").lower() if match else text.strip()
    if match is None or name not in RULES:
        hint = nearest(name.partition("=")[0], RULES, "rules are")
        if name.replace("-", "_") in LIMITS:
            hint = "it is a limit on one report: write it in [limits] of a config file."
        raise InputError(f"There is no rule {visible(text)!r}; {hint}")
    if match[2] is None:
        return Rule(name)
    if name != _DROP:
        raise InputError(f"The rule {name} has no limit; write it without ={match[2]}.")
    bound = AllowedDrop.parse(match[2])
    if bound is None:
        raise InputError(
            f"The limit of {visible(text)!r} is no number of 0 or more; write {name}=2% (of the "
            f"old value), {name}=0.5points or {name}=0.005 (in the metric's own unit)."
        )
    return Rule(name, bound)


# --- what guards nothing ---


def check_rules(rules: Iterable[Rule], metric: str) -> None:
    """Refuse a bound that guards nothing of the metric at hand, where there is one."""
    if not metric:
        return
    for rule in rules:
        why = "" if rule.bound is None else drop_guards_nothing(rule.bound, metric)
        if why:
            raise InputError(f"{rule} would guard nothing here: {why}.")


def undecided(diff: DiffResult, rules: Iterable[Rule]) -> dict[str, str]:
    """Name the rules that had nothing to check, so that a rule that never fires is noticed."""
    reasons = {}
    for rule in rules:
        section = RULES[rule.name].section
        if section and section not in diff.compared and section not in diff.missing:
            why = f"had nothing to compare: no result of {section} in {visible(diff.old)}"
            reasons[str(rule)] = why
    return reasons


# --- the decision ---


def outcomes_of(diff: DiffResult, rules: Iterable[Rule]) -> tuple[Outcome, ...]:
    """Say of every rule why it fires (an empty reason where it does not), and what was measured."""
    rules = tuple(rules)
    check_rules(rules, diff.metric)
    return tuple(
        Outcome(rule=str(rule), reason=_reason(diff, rule), measured=_measured(diff, rule))
        for rule in rules
    )


def with_fired(diff: DiffResult, rules: Iterable[Rule]) -> DiffResult:
    """Return the comparison with the rules that fire, each with its reason."""
    fired = [outcome for outcome in outcomes_of(diff, rules) if outcome.reason]
    return dataclasses.replace(diff, fired=tuple(fired))


def _reason(diff: DiffResult, rule: Rule) -> str:
    """Say why a rule fires; nothing where it does not."""
    kind = RULES[rule.name]
    if kind.section in diff.missing:
        return f"{visible(diff.new)} has no result of {kind.section}, {visible(diff.old)} has"
    if rule.name == _DROP and "prune" in diff.compared and not diff.metrics_compared:
        return "no value of pruning is in both: the metric, methods or fractions differ"
    evidence = kind.evidence(diff) if rule.bound is None else _drops(diff, rule.bound)
    changes = [visible(text) for text in evidence]
    if not changes:
        return ""
    # Of a rule about heads each piece of evidence is one head.
    heads = "1 head" if len(changes) == 1 else f"{len(changes)} heads"
    reason = kind.reason.format(heads=heads, new=visible(diff.new))
    has_words = any(changes)  # all but that of :func:`_anything` have
    return f"{reason}: {listed(changes)}" if has_words else reason


def _measured(diff: DiffResult, rule: Rule) -> str:
    """Name the largest loss of any metric, to stand beside its bound; or why nothing was measured.

    Of rules other than ``metric-drop`` only the latter.
    """
    if rule.name == _DROP and diff.metrics_compared:
        largest_first = _drops(diff, AllowedDrop(0.0))
        return next(largest_first, "no metric is worse")
    return undecided(diff, [rule]).get(str(rule), "")
