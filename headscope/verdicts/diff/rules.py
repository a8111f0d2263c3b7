"""The rules of ``--fail-on``: what must not change, read strictly and decided on a comparison."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from headscope.core.errors import InputError, nearest
from headscope.core.safe_text import listed, visible
from headscope.results.diff import Change, DiffResult, FiredRule, SetChange
from headscope.verdicts.diff.allowed_drop import AllowedDrop

__all__ = ["RULES", "Rule", "check_rules", "parse_rules", "undecided", "with_fired"]

#: ``>`` was the sign once. A shell makes a file of what follows it, so ``=`` is written.
_WRITTEN = re.compile(r"\s*([A-Za-z_-]+)\s*(?:([>=])\s*(\S.*?)\s*)?")
#: From a comparison and the rule's limit: why the rule fires, or an empty string.
Reason = Callable[[DiffResult, AllowedDrop | None], str]


@dataclass(frozen=True)
class Rule:
    """One rule, as written: a name of :data:`RULES`, and what a change may be where it says so."""

    name: str
    limit: AllowedDrop | None = None

    def __str__(self) -> str:
        """As on the command line."""
        return self.name if self.limit is None else f"{self.name}={self.limit}"


@dataclass(frozen=True)
class _Kind:
    """What a rule looks at, why it fires, and whether it may have a limit.

    ``section`` is the result that it needs; it fires where the new side has lost that.
    """

    section: str | None
    reason: Reason
    limited: bool = False


def parse_rules(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Read rules as they are written: ``role-changed``, ``metric-drop=2%``; commas between some."""
    written = (part for text in texts for part in text.split(","))
    return tuple(dict.fromkeys(_parse(part) for part in written))


def _parse(text: str) -> Rule:
    match = _WRITTEN.fullmatch(text)
    name = match[1].replace("_", "-").lower() if match else text.strip()
    if match is None or name not in RULES:
        hint = nearest(re.split("[>=]", name)[0], RULES, "rules are")
        raise InputError(f"There is no rule {visible(text)!r}; {hint}")
    if match[2] is None:
        return Rule(name)
    if not RULES[name].limited:
        raise InputError(f"The rule {name} has no limit; write it without {match[2]}{match[3]}.")
    limit = AllowedDrop.parse(match[3])
    if limit is None:
        raise InputError(
            f"The limit of {visible(text)!r} is no number of 0 or more; write {name}=2% (of the "
            f"old value), {name}=0.5points or {name}=0.005 (in the metric's own unit)."
        )
    return Rule(name, limit)


def check_rules(rules: Iterable[Rule], metric: str) -> None:
    """Refuse a limit that makes no sense for the metric at hand."""
    for rule in rules:
        if rule.limit is not None and (why := rule.limit.nonsense(metric)):
            raise InputError(f"{rule} would guard nothing here: {why}.")


def with_fired(diff: DiffResult, rules: Iterable[Rule]) -> DiffResult:
    """Return the comparison with the rules that fire, each with its reason."""
    rules = tuple(rules)
    if diff.metric:
        check_rules(rules, diff.metric)
    reasons = ((rule, _reason(diff, rule)) for rule in rules)
    fired = (FiredRule(str(rule), reason) for rule, reason in reasons if reason)
    return dataclasses.replace(diff, fired=tuple(fired))


def _reason(diff: DiffResult, rule: Rule) -> str:
    kind = RULES[rule.name]
    if kind.section in diff.missing:
        return f"{visible(diff.new)} has no result of {kind.section}, {visible(diff.old)} has"
    return kind.reason(diff, rule.limit)


def undecided(diff: DiffResult, rules: Iterable[Rule]) -> tuple[str, ...]:
    """Name the rules that had nothing to look at, so that a limit that never fires is noticed."""
    return tuple(
        f"{rule} had nothing to compare: no result of {section} in {visible(diff.old)}"
        for rule in rules
        if (section := RULES[rule.name].section)
        and section not in diff.compared
        and section not in diff.missing
    )


def _named(words: str, rows: Callable[[DiffResult], Iterable[str]]) -> Reason:
    """Name the first three of the rows that a rule is about; ``{heads}`` counts all of them."""

    def reason(diff: DiffResult, limit: AllowedDrop | None) -> str:
        names = [visible(row) for row in rows(diff)]
        if not names:
            return ""
        heads = "1 head" if len(names) == 1 else f"{len(names)} heads"
        return f"{words.format(heads=heads, new=visible(diff.new))}: {listed(names)}"

    return reason


def _role(change: SetChange) -> str:
    signs = [f"-{name}" for name in change.lost] + [f"+{name}" for name in change.gained]
    return f"{change.where} ({', '.join(signs) or f'{change.old} -> {change.new}'})"


def _verdicts(diff: DiffResult, was: str = "") -> Iterator[str]:
    for row in diff.verdicts:
        if row.section == "insights" and was in ("", row.old):
            yield f"{row.where} {row.old} -> {row.new}"


def _moved(section: str = "") -> Reason:
    """Name the numbers of a section, or of all, that moved."""

    def rows(diff: DiffResult) -> Iterator[str]:
        metrics = (change for change in diff.metrics if change.beyond)
        for change in chain(diff.scores, (curve.worst for curve in diff.curves), metrics):
            if section in ("", change.section):
                yield _change(change)

    return _named("moved beyond interval or tolerance", rows)


def _change(change: Change) -> str:
    numbers = ("none" if v is None else f"{v:.4g}" for v in (change.old, change.new))
    return f"{change.where} {change.name} {' -> '.join(numbers)}"


def _metric_drop(diff: DiffResult, limit: AllowedDrop | None) -> str:
    if "prune" in diff.compared and not diff.metrics_compared:
        return "no value of pruning is in both: the metric, methods or fractions differ"
    return _named("worse", lambda diff: _drops(diff, limit))(diff, limit)


def _drops(diff: DiffResult, limit: AllowedDrop | None) -> Iterator[str]:
    """Without a limit: what is worse with its interval apart."""
    for change in sorted(diff.metrics, key=lambda row: -(row.worsening or 0.0)):
        drop = change.worsening or 0.0
        moved = drop > 0 and change.beyond
        if moved if limit is None else limit.exceeded(change, diff.metric):
            yield f"{_change(change)} (worse by {drop:.4g})"


def _identity(what: str) -> Reason:
    def rows(diff: DiffResult) -> Iterator[str]:
        for row in diff.identity:
            if row.what == what:
                yield f"{row.name} {row.old} -> {row.new}".strip()

    return _named(what, rows)


def _any(diff: DiffResult, limit: AllowedDrop | None) -> str:
    return "" if diff.equal else "the results are not equal"


_CHANGED = _named("{heads} changed role", lambda diff: map(_role, diff.roles))
_LOST = _named("{heads} lost a role", lambda diff: (_role(c) for c in diff.roles if c.lost))
_INSIGHT_LOST = _named("verdict changed", lambda diff: _verdicts(diff, was="holds"))

#: Every rule by name.
RULES: dict[str, _Kind] = {
    "role-changed": _Kind("classify", _CHANGED),
    "role-lost": _Kind("classify", _LOST),
    "metric-drop": _Kind("prune", _metric_drop, limited=True),
    "validation": _Kind(None, _named("{new} is not validated", lambda diff: diff.not_valid)),
    "insight-changed": _Kind("insights", _named("verdict changed", _verdicts)),
    "insight-lost": _Kind("insights", _INSIGHT_LOST),
    "score-moved": _Kind(None, _moved()),
    **{
        f"{name}-changed": _Kind(name, _moved(name))
        for name in ("rank", "spectrum", "depth", "flow", "transfer", "linear", "symmetric")
    },
    "missing": _Kind(None, _named("not in {new}", lambda diff: diff.missing)),
    **{
        f"{what}-changed": _Kind(None, _identity(what))
        for what in ("model", "data", "schema", "setting")
    },
    "any": _Kind(None, _any),
}
