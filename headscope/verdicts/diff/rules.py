"""The rules of ``--fail-on``: what must not change, read strictly and decided on a comparison."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from headscope.errors import InputError
from headscope.results.diff import Change, DiffResult, FiredRule, SetChange
from headscope.safe_text import visible

__all__ = ["RULES", "Rule", "parse_rules", "undecided", "with_fired"]

#: A drop of exactly the limit does not fire, whatever its last digit.
_SLACK = 1e-9
_WRITTEN = re.compile(r"\s*([A-Za-z_-]+)\s*(?:([>=])\s*(\S+?)\s*)?")
#: From a comparison and the rule's limit: why the rule fires, or an empty string.
Reason = Callable[[DiffResult, float | None], str]


@dataclass(frozen=True)
class Rule:
    """One rule, as written.

    Attributes
    ----------
    name : str
        One of :data:`RULES`.
    limit : float or None
        What a change may be; None where none was written.
    """

    name: str
    limit: float | None = None

    def __str__(self) -> str:
        """As on the command line."""
        return self.name if self.limit is None else f"{self.name}>{self.limit:g}"


@dataclass(frozen=True)
class _Kind:
    """What a rule looks at.

    Attributes
    ----------
    section : str or None
        The result that it needs; it fires where the new side has lost it.
    reason : function of (diff, limit)
        Why it fires, or an empty string.
    limited : bool
        Whether it may have a limit.
    """

    section: str | None
    reason: Reason
    limited: bool = False


def parse_rules(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Read rules as they are written: ``role-changed``, ``metric-drop>0.5``; commas between some.

    Raises
    ------
    InputError
        For an unknown rule (with the nearest known one) or a limit that is none.
    """
    written = (part for text in texts for part in text.split(","))
    return tuple(dict.fromkeys(_parse(part) for part in written))


def _parse(text: str) -> Rule:
    match = _WRITTEN.fullmatch(text)
    name = match[1].replace("_", "-").lower() if match else text.strip()
    if match is None or name not in RULES:
        near = difflib.get_close_matches(name.partition(">")[0], RULES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"rules are {', '.join(RULES)}."
        raise InputError(f"There is no rule {visible(text)!r}; {hint}")
    if match[2] is None:
        return Rule(name)
    if not RULES[name].limited:
        raise InputError(f"The rule {name} has no limit; write it without {match[2]}{match[3]}.")
    try:
        limit = float(match[3])
    except ValueError:
        limit = math.nan
    if not 0 <= limit < math.inf:
        raise InputError(f"The limit of {visible(text)!r} is no number of 0 or more.")
    return Rule(name, limit)


def with_fired(diff: DiffResult, rules: Iterable[Rule]) -> DiffResult:
    """Return the comparison with the rules that fire, each with its reason."""
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


# --- reasons ------------------------------------------------------------------------------------


def _some(items: Iterable[str], what: str) -> str:
    """Count, and name the first three."""
    names = [visible(item) for item in items]
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what}: {', '.join(names[:3])}{more}"


def _identity(what: str) -> Reason:
    def reason(diff: DiffResult, limit: float | None) -> str:
        rows = [row for row in diff.identity if row.what == what]
        return _some((f"{row.name} {row.old} -> {row.new}".strip() for row in rows), what)

    return reason


def _moved(*sections: str) -> Reason:
    def reason(diff: DiffResult, limit: float | None) -> str:
        changes = [*diff.scores, *(curve.worst for curve in diff.curves)]
        changes += [change for change in diff.metrics if change.beyond]
        rows = [change for change in changes if not sections or change.section in sections]
        return _some(map(_change, rows), "moved beyond interval or tolerance")

    return reason


def _change(change: Change) -> str:
    numbers = ("none" if v is None else f"{v:.4g}" for v in (change.old, change.new))
    return f"{change.where} {change.name} {' -> '.join(numbers)}"


def _roles(words: str, *, lost: bool = False) -> Reason:
    def reason(diff: DiffResult, limit: float | None) -> str:
        rows = [change for change in diff.roles if change.lost or not lost]
        heads = "1 head" if len(rows) == 1 else f"{len(rows)} heads"
        return _some(map(_role, rows), f"{heads} {words}")

    return reason


def _role(change: SetChange) -> str:
    signs = [f"-{name}" for name in change.lost] + [f"+{name}" for name in change.gained]
    return f"{change.where} ({', '.join(signs) or f'{change.old} -> {change.new}'})"


def _metric_drop(diff: DiffResult, limit: float | None) -> str:
    if "prune" in diff.compared and not diff.metrics_compared:
        return "no value of pruning is in both: the metric, methods or fractions differ"
    return _some(map(_drop, _drops(diff, limit)), "worse")


def _drops(diff: DiffResult, limit: float | None) -> Iterator[Change]:
    """Without a limit: what is worse with its interval apart."""
    for change in sorted(diff.metrics, key=lambda row: -(row.worsening or 0.0)):
        drop = change.worsening or 0.0
        if (drop > limit + _SLACK) if limit is not None else (drop > 0 and change.beyond):
            yield change


def _drop(change: Change) -> str:
    return f"{_change(change)} (worse by {change.worsening:.4g})"


def _insights(was: str = "") -> Reason:
    def reason(diff: DiffResult, limit: float | None) -> str:
        rows = (row for row in diff.verdicts if row.section == "insights")
        changed = (f"{row.where} {row.old} -> {row.new}" for row in rows if was in ("", row.old))
        return _some(changed, "verdict changed")

    return reason


def _validation(diff: DiffResult, limit: float | None) -> str:
    return _some(diff.not_valid, f"{visible(diff.new)} is not validated")


def _missing(diff: DiffResult, limit: float | None) -> str:
    return _some(diff.missing, f"not in {visible(diff.new)}")


def _any(diff: DiffResult, limit: float | None) -> str:
    return "" if diff.equal else "the results are not equal"


#: Every rule by name.
RULES: dict[str, _Kind] = {
    "role-changed": _Kind("classify", _roles("changed role")),
    "role-lost": _Kind("classify", _roles("lost a role", lost=True)),
    "metric-drop": _Kind("prune", _metric_drop, limited=True),
    "validation": _Kind(None, _validation),
    "insight-changed": _Kind("insights", _insights()),
    "insight-lost": _Kind("insights", _insights(was="holds")),
    "score-moved": _Kind(None, _moved()),
    "rank-changed": _Kind("rank", _moved("rank")),
    "spectrum-changed": _Kind("spectrum", _moved("spectrum")),
    "depth-changed": _Kind("depth", _moved("depth")),
    "missing": _Kind(None, _missing),
    "model-changed": _Kind(None, _identity("model")),
    "data-changed": _Kind(None, _identity("data")),
    "schema-changed": _Kind(None, _identity("schema")),
    "setting-changed": _Kind(None, _identity("setting")),
    "any": _Kind(None, _any),
}
