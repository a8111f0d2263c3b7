"""The rules of ``--fail-on``: what must not change, read strictly and decided on a comparison."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from headscope.core.errors import InputError, nearest
from headscope.core.safe_text import listed, visible
from headscope.removal.metric_words import scale_of
from headscope.reports.result import Change, DiffResult, Outcome, SetChange

_SLACK = 1e-9  # A drop of exactly what is allowed is allowed, whatever its last digit.
_WRITTEN_ALLOWED_DROP = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(%|points?|)", re.IGNORECASE
)
#: A bare number of this share of a metric's scale, or more, was meant in another unit.
_TOO_MUCH = 0.25
_TOO_MUCH_OF_A_LOSS = 1.0  # Nats: the right answer becomes 2.7 times less likely.


@dataclass(frozen=True)
class AllowedDrop:
    """What a metric may lose: ``2%`` of its old value, ``0.5points``, or ``0.005`` in its unit.

    A point is a hundredth of the metric's scale, so that it is the same of an accuracy (0 to 100)
    and of a cosine (0 to 1).
    """

    amount: float
    unit: str = ""

    def __str__(self) -> str:
        """As on the command line."""
        return f"{self.amount:g}{self.unit}"

    @classmethod
    def parse(cls, text: str) -> AllowedDrop | None:
        """Read it as it is written; None if it is no number of 0 or more with a known unit."""
        match = _WRITTEN_ALLOWED_DROP.fullmatch(text)
        if match is None or not 0 <= (amount := float(match[1])) < math.inf:
            return None
        return cls(amount, "points" if match[2].lower().startswith("p") else match[2])

    def exceeded(self, change: Change, metric: str) -> bool:
        """Whether a metric got worse by more than is allowed."""
        unit = {
            "%": abs(change.old or 0.0) / 100,
            "points": (scale_of(metric) or math.nan) / 100,
        }
        return (change.worsening or 0.0) > self.amount * unit.get(self.unit, 1.0) + _SLACK

    def nonsense(self, metric: str) -> str:
        """Say why this limit would never stop a bad change; empty if it would."""
        scale = scale_of(metric)
        name = visible(metric)
        instead = "nats, such as 0.05"
        if scale is not None:
            instead = f"points, such as 0.5points, or a number below {bare_limit(metric):g}"
        if scale is None and self.unit == "points":
            return f"a {name} has no points; give a share of it, such as 2%, or {instead}"
        most = 100 if self.unit else bare_limit(metric)
        if self.amount < most or (scale is None and self.unit):
            return ""
        goes = "has no end" if scale is None else f"goes up to {scale:g}"
        return f"{name} {goes}; give a share of its old value, such as 2%, or {instead}"


def bare_limit(metric: str) -> float:
    """Return the bare number from which on another unit must have been meant."""
    scale = scale_of(metric)
    return _TOO_MUCH_OF_A_LOSS if scale is None else _TOO_MUCH * scale


_WRITTEN = re.compile(r"\s*([A-Za-z_-]+)\s*(?:=\s*(\S.*?)\s*)?")
_LIMITED = "metric-drop"  # The rule that may have a limit
#: From a comparison and the rule's limit: the rows that the rule is about. It fires if there are
#: any, and the first three are named.
_Rows = Callable[[DiffResult, AllowedDrop | None], Iterable[str]]


@dataclass(frozen=True)
class Rule:
    """One rule, as written: a name of :data:`RULES`, and what a change may be where it says so."""

    name: str
    limit: AllowedDrop | None = None

    def __str__(self) -> str:
        """As on the command line."""
        return self.name if self.limit is None else f"{self.name}={self.limit}"


def parse_rules(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Read rules as they are written: ``role-changed``, ``metric-drop=2%``; commas between some."""
    rules = []
    for text in (part for several in texts for part in several.split(",")):
        match = _WRITTEN.fullmatch(text)
        name = match[1].replace("_", "-").lower() if match else text.strip()
        if match is None or name not in RULES:
            hint = nearest(name.partition("=")[0], RULES, "rules are")
            raise InputError(f"There is no rule {visible(text)!r}; {hint}")
        limit = None
        if match[2] is not None:
            if name != _LIMITED:
                raise InputError(f"The rule {name} has no limit; write it without ={match[2]}.")
            limit = AllowedDrop.parse(match[2])
            if limit is None:
                raise InputError(
                    f"The limit of {visible(text)!r} is no number of 0 or more; write {name}=2% "
                    f"(of the old value), {name}=0.5points or {name}=0.005 (in the metric's own "
                    "unit)."
                )
        rules.append(Rule(name, limit))
    return tuple(dict.fromkeys(rules))


def check_rules(rules: Iterable[Rule], metric: str) -> None:
    """Refuse a limit that makes no sense for the metric at hand, where there is one."""
    for rule in rules if metric else ():
        if rule.limit is not None and (why := rule.limit.nonsense(metric)):
            raise InputError(f"{rule} would guard nothing here: {why}.")


def outcomes_of(diff: DiffResult, rules: Iterable[Rule]) -> tuple[Outcome, ...]:
    """Say of every rule why it fires (an empty reason where it does not), and what was measured."""
    rules = tuple(rules)
    check_rules(rules, diff.metric)
    return tuple(Outcome(str(rule), _reason(diff, rule), _measured(diff, rule)) for rule in rules)


def with_fired(diff: DiffResult, rules: Iterable[Rule]) -> DiffResult:
    """Return the comparison with the rules that fire, each with its reason."""
    fired = (outcome for outcome in outcomes_of(diff, rules) if outcome.reason)
    return dataclasses.replace(diff, fired=tuple(fired))


def _reason(diff: DiffResult, rule: Rule) -> str:
    section, words, rows = RULES[rule.name]
    names = [visible(row) for row in rows(diff, rule.limit)]
    heads = "1 head" if len(names) == 1 else f"{len(names)} heads"
    if section in diff.missing:
        return f"{visible(diff.new)} has no result of {section}, {visible(diff.old)} has"
    if rule.name == _LIMITED and "prune" in diff.compared and not diff.metrics_compared:
        return "no value of pruning is in both: the metric, methods or fractions differ"
    if not names:
        return ""
    reason = words.format(heads=heads, new=visible(diff.new))
    return f"{reason}: {listed(names)}" if any(names) else reason


def _measured(diff: DiffResult, rule: Rule) -> str:
    """Name the largest loss of any metric and its limit, or say that there is none."""
    if rule.name != _LIMITED or not diff.metrics_compared:
        return undecided(diff, (rule,)).get(str(rule), "")
    return next(iter(_drops(diff, AllowedDrop(0.0))), "no metric is worse")


def undecided(diff: DiffResult, rules: Iterable[Rule]) -> dict[str, str]:
    """Name the rules that had nothing to check, so that a limit that never fires is noticed."""
    return {
        str(rule): f"had nothing to compare: no result of {section} in {visible(diff.old)}"
        for rule in rules
        if (section := RULES[rule.name][0])
        and section not in diff.compared
        and section not in diff.missing
    }


def _roles(diff: DiffResult) -> Iterator[tuple[SetChange, str]]:
    for change in diff.roles:
        words = ", ".join(change.signed) or f"{change.old} -> {change.new}"
        yield change, f"{change.where} ({words})"


def _verdicts(diff: DiffResult, was: str = "") -> Iterator[str]:
    for row in diff.verdicts:
        if row.section == "insights" and was in ("", row.old):
            yield f"{row.where} {row.old} -> {row.new}"


def _moved(section: str = "") -> _Rows:
    """Name the numbers of a section, or of all, that moved."""

    def rows(diff: DiffResult, limit: AllowedDrop | None) -> Iterator[str]:
        metrics = (change for change in diff.metrics if change.beyond)
        for change in chain(diff.scores, (curve.worst for curve in diff.curves), metrics):
            if section in ("", change.section):
                yield _change(change)

    return rows


def _change(change: Change) -> str:
    numbers = ("none" if v is None else f"{v:.4g}" for v in (change.old, change.new))
    return f"{change.where} {change.name} {' -> '.join(numbers)}"


def _drops(diff: DiffResult, limit: AllowedDrop | None) -> Iterator[str]:
    """Name the metrics that dropped by more than the limit; without one, beyond their intervals."""
    for change in sorted(diff.metrics, key=lambda row: -(row.worsening or 0.0)):
        drop = change.worsening or 0.0
        moved = drop > 0 and change.beyond
        if moved if limit is None else limit.exceeded(change, diff.metric):
            yield f"{_change(change)} (worse by {drop:.4g})"


def _identity(what: str) -> _Rows:
    return lambda diff, _: (
        f"{row.name} {row.old} -> {row.new}".strip() for row in diff.identity if row.what == what
    )


_BEYOND = "moved beyond interval or tolerance"
#: Every rule by name: the result that it needs (it fires where the new side has lost that), what
#: its reason begins with, and its rows.
RULES: dict[str, tuple[str, str, _Rows]] = {
    "role-changed": ("classify", "{heads} changed role", lambda d, _: (s for _, s in _roles(d))),
    "role-lost": (
        "classify",
        "{heads} lost a role",
        lambda d, _: (text for change, text in _roles(d) if change.lost),
    ),
    _LIMITED: ("prune", "worse", _drops),
    "validation": ("", "{new} is not validated", lambda d, _: d.not_valid),
    "insight-changed": ("insights", "verdict changed", lambda d, _: _verdicts(d)),
    "insight-lost": ("insights", "verdict changed", lambda d, _: _verdicts(d, was="holds")),
    "score-moved": ("", _BEYOND, _moved()),
    **{
        f"{name}-changed": (name, _BEYOND, _moved(name))
        for name in ("rank", "spectrum", "depth", "flow", "transfer", "linear", "symmetric")
    },
    "missing": ("", "not in {new}", lambda d, _: d.missing),
    **{
        f"{what}-changed": ("", what, _identity(what))
        for what in ("model", "data", "schema", "setting")
    },
    "any": ("", "the results are not equal", lambda d, _: () if d.equal else [""]),
}
