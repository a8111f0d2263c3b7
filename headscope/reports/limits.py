"""``[limits]`` of a config file: what a report must show, decided on the rows of its results.

A limit asks something of the new results alone (``min_positional = 3``). ``fail_on`` holds rules of
``rules`` that compare them with the results of ``baseline``. Whatever guards nothing fails: a limit
whose result the report lacks, a bound in the wrong unit, a rule without anything to compare.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from headscope.core.errors import CheckFailedError, InputError, nearest
from headscope.core.roles import ROLES
from headscope.core.safe_text import listed, visible
from headscope.reports.baseline import Measurements
from headscope.reports.bounds import AllowedDrop, drop_guards_nothing, minimum_guards_nothing
from headscope.reports.changes import TOLERANCE, changes_between
from headscope.reports.claims.rule import claims
from headscope.reports.result import VERDICTS, DiffResult, Outcome
from headscope.reports.rows import Row
from headscope.reports.rules import Rule, outcomes_of, parse_rules, undecided

# --- the decision of each kind of limit ---

#: Whether a limit fails, and in words what was measured, or why nothing was.
_Decision = tuple[bool, str]


def _validation(required: float, new: Measurements) -> _Decision:
    """Decide whether every result carries a certificate that passed."""
    if not required:
        return False, "not asked for"
    if not new.conditions:
        return True, "there is no result"
    certificates = {row.section: row.words for row in new.rows if row.name == "certificate"}
    reasons = []
    for section in new.conditions:
        words = certificates.get(section)
        if words != "passed":
            reasons.append(f"{section} {'failed' if words == 'FAILED' else 'is not validated'}")
    if reasons:
        return True, ", ".join(reasons)
    n_results = len(new.conditions)
    return False, f"all {n_results} results passed" if n_results > 1 else "the only result passed"


def _heads_with_role(least: float, new: Measurements, role: str) -> _Decision:
    """Decide whether enough heads have a role, whatever its detail (``positional -1``)."""
    count = 0
    for row in _rows(new, "classify", "roles"):
        count += role in [label.partition(" ")[0] for label in row.labels or ()]
    heads = "1 head is" if count == 1 else f"{count} heads are"
    return count < least, f"{heads} {role}"


def _heads_without_role(most: float, new: Measurements) -> _Decision:
    count = len([row for row in _rows(new, "classify", "roles") if not row.labels])
    return count > most, f"{count} heads have no role"


def _false_positives(most: float, new: Measurements) -> _Decision:
    """Decide whether few enough heads of random weights earn a label."""
    rows = _rows(new, "classify", "false positives")
    if not rows:
        return True, "classify ran without its control; set control = true in [classify]"
    labels = [visible(label) for label in rows[0].labels or ()]
    names = f" ({listed(labels)})" if labels else ""
    return len(labels) > most, f"{len(labels)} with random weights{names}"


def _metric_of_model(least: float, new: Measurements) -> _Decision:
    """Decide whether the unpruned model's metric is good enough."""
    unpruned = _unpruned(new)
    return _judged_minimum(least, unpruned, new, f"{visible(new.metric)} is {_value(unpruned):.4g}")


def _metric_when_pruned(least: float, new: Measurements, percent: int) -> _Decision:
    """Decide whether the metric is good enough with a share of the heads removed."""
    best = _best_pruned(new, percent)
    if best is None:
        return True, f"no method was measured with {percent}% of the heads removed"
    return _judged_minimum(least, best, new, _pruned_words(best, new))


def _drop_when_pruned(most: float, new: Measurements, percent: int) -> _Decision:
    """Decide whether the metric drops little enough with a share of the heads removed."""
    best = _best_pruned(new, percent)
    if best is None:
        return True, f"no method was measured with {percent}% of the heads removed"
    allowed = AllowedDrop(most)
    why = drop_guards_nothing(allowed, new.metric, with_units=False)
    if why:
        return True, f"{most:g} would guard nothing here: {why}"
    before = _value(_unpruned(new))
    worsening = best.better * (before - _value(best))
    fails = allowed.is_exceeded(new.metric, worsening, before)
    return fails, _pruned_words(best, new)


def _judged_minimum(least: float, row: Row, new: Measurements, words: str) -> _Decision:
    why = minimum_guards_nothing(least, new.metric)
    if why:
        return True, f"{least:g} would guard nothing here: {why}"
    return row.better * (_value(row) - least) < 0, words


def _verdict(verdicts: Sequence[str], new: Measurements, number: int) -> _Decision:
    """Decide whether a claim has one of some verdicts."""
    rows = [row for row in _rows(new, "insights", "verdict") if row.where == f"insight {number}"]
    verdict = rows[0].words if rows else "not in the report"
    return verdict not in verdicts, f"it is {visible(verdict)}"


# --- rows that limits read ---


def _rows(new: Measurements, section: str, name: str) -> list[Row]:
    return [row for row in new.rows if row.section == section and row.name == name]


def _unpruned(new: Measurements) -> Row:
    rows = _rows(new, "prune", new.metric)
    return next(row for row in rows if row.where == "unpruned model")


def _best_pruned(new: Measurements, percent: int) -> Row | None:
    """Return the best method's metric with a share of the heads removed, within half a head.

    Random heads are no method: of their metric neither more nor less is better.
    """
    n_heads = _rows(new, "prune", "heads")[0].value or 0.0
    half_a_head = 0.5 / max(n_heads, 1.0)
    rows = [
        row
        for row in _rows(new, "prune", new.metric)
        if row.removed_share is not None
        and row.better
        and abs(row.removed_share - percent / 100) <= half_a_head
    ]
    return max(rows, key=lambda row: row.better * _value(row), default=None)


def _value(row: Row) -> float:
    return row.value or 0.0


def _pruned_words(row: Row, new: Measurements) -> str:
    method = row.where.rpartition(", ")[0]
    unpruned = _value(_unpruned(new))
    return f"{visible(new.metric)} is {_value(row):.4g} by {method}, {unpruned:.4g} unpruned"


# --- the vocabulary ---


class _Bound(NamedTuple):
    """What the value of a limit may be."""

    words: str
    types: tuple[type, ...]  # Exactly these
    least: float


class LimitKind(NamedTuple):
    """What the value of a limit may be, and when it passes."""

    bound: _Bound
    section: str  # The result that it needs; it fails without
    words: str
    decide: Callable[..., _Decision]  # Of the value and the new results


_FLAG = _Bound("true or false", (bool,), -math.inf)
_COUNT = _Bound("a whole number of 0 or more", (int,), 0)
_NUMBER = _Bound("a number", (int, float), -math.inf)
_SHARE = _Bound("a number of 0 or more", (int, float), 0)

_PRUNED = "with that share of the heads removed (any whole number for 50) the metric is "
_FALSE = "at most so many heads with random weights earn a syntactic or rare-word label"
_LEAST = "at least this; of a loss: at most"
_LIMITS = {
    "validation": LimitKind(_FLAG, "", "every result was validated and passed", _validation),
    **{
        f"min_{role.key}": LimitKind(
            bound=_COUNT,
            section="classify",
            words=f"at least so many heads are {role.name}",
            decide=partial(_heads_with_role, role=role.key),
        )
        for role in ROLES
    },
    "max_without_role": LimitKind(
        _COUNT, "classify", "at most so many heads have no role", _heads_without_role
    ),
    "max_false_positives": LimitKind(_COUNT, "classify", _FALSE, _false_positives),
    "metric_min": LimitKind(
        _NUMBER, "prune", f"the unpruned model's metric is {_LEAST}", _metric_of_model
    ),
    "metric_at_50_percent_drop": LimitKind(
        _SHARE, "prune", f"{_PRUNED}worse by at most this", _drop_when_pruned
    ),
    "metric_at_50_percent_min": LimitKind(_NUMBER, "prune", _PRUNED + _LEAST, _metric_when_pruned),
}
#: The two limits for 50 percent exist for any whole number.
_WHEN_PRUNED = re.compile(r"metric_at_(\d\d?|100)_percent_(drop|min)")
#: Keys of [limits] that hold no number: what the value is, and what it asks for.
_OTHER_KEYS = {
    "insights": ("a table", "these claims have these verdicts"),
    "baseline": ("a path", "the report that fail_on compares with"),
    "fail_on": ("a list", "none of these rules of 'headscope diff' fires"),
    "tolerance": (_SHARE.words, "that of 'headscope diff', for fail_on"),
}
#: Every key of [limits]: what its value may be, and when it passes.
LIMITS = {name: (kind.bound.words, kind.words) for name, kind in _LIMITS.items()} | _OTHER_KEYS


# --- the table of a config file ---


@dataclass(frozen=True)
class Limit:
    """A limit as it was written."""

    text: str  # As it is listed: ``min_positional = 3``
    section: str  # The result that it needs
    decide: Callable[[Measurements], _Decision]

    def outcome(self, new: Measurements) -> Outcome:
        """Decide it on new results."""
        if self.section and self.section not in new.conditions:
            fails, words = True, f"the report has no result of {self.section}"
        else:
            fails, words = self.decide(new)
        return Outcome(self.text, words if fails else "", words)


@dataclass(frozen=True)
class Limits:
    """What a report must show, and which rules must not fire against ``baseline``."""

    limits: tuple[Limit, ...] = ()
    baseline: str | None = None
    fail_on: tuple[Rule, ...] = ()
    tolerance: float = TOLERANCE

    @classmethod
    def parse(cls, table: Mapping[str, Any], where: str = "[limits]") -> Limits:
        """Read the table; ``-`` in a name counts as ``_``, and errors begin with ``where``."""
        values = {key.replace("-", "_"): value for key, value in table.items()}
        limits = [
            _parse_limit(where, name, value)
            for name, value in values.items()
            if name not in _OTHER_KEYS
        ]
        if "insights" in values:
            limits += _parse_insights(f"{where} insights", values["insights"])
        if ("baseline" in values) != ("fail_on" in values):
            raise InputError(f"{where} needs both baseline and fail_on, or neither.")
        tolerance = values.get("tolerance", TOLERANCE)
        return cls(
            limits=tuple(limits),
            baseline=_parse_baseline(where, values["baseline"]) if "baseline" in values else None,
            fail_on=_parse_fail_on(where, values["fail_on"]) if "fail_on" in values else (),
            tolerance=_parse_number(f"{where} tolerance", _SHARE, tolerance),
        )


def _parse_limit(where: str, name: str, value: Any) -> Limit:
    match = _WHEN_PRUNED.fullmatch(name)
    kind = _LIMITS.get(f"metric_at_50_percent_{match[2]}" if match else name)
    if kind is None:
        hint = nearest(name, LIMITS, "there are")
        raise InputError(f"{where} has no limit {visible(name)!r}; {hint}")
    number = _parse_number(f"{where} {name}", kind.bound, value)
    decide = partial(kind.decide, number)
    if match:
        decide = partial(decide, percent=int(match[1]))
    return Limit(f"{name} = {_shown(number)}", kind.section, decide)


def _parse_number(where: str, bound: _Bound, value: Any) -> float:
    """Return a value of exactly one of the types of a bound, as a float if it may be one."""
    if type(value) not in bound.types or not bound.least <= value < math.inf or value == -math.inf:
        raise InputError(f"{where} must be {bound.words}, not {_shown(value)}.")
    return float(value) if float in bound.types else value


def _shown(value: object) -> str:
    """Write a value as a user would."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else visible(repr(value))


def _parse_insights(where: str, table: object) -> Iterator[Limit]:
    if not isinstance(table, dict):
        raise InputError(f'{where} must be a table, such as {{"7" = "holds"}}.')
    numbers = [claim.number for claim in claims().values()]
    allowed = ", ".join(VERDICTS)
    for key, value in table.items():
        if not (key.isascii() and key.isdigit() and int(key) in numbers):
            span = f"{numbers[0]} to {numbers[-1]}"
            raise InputError(f"{where}: there is no insight {visible(key)}; they are {span}.")
        verdicts = _as_list(value)
        if not verdicts:
            raise InputError(f"{where} {key} must be a verdict, or a list of verdicts.")
        for verdict in verdicts:
            if verdict not in VERDICTS:
                raise InputError(f"{where} {key} must be one of {allowed}, not {verdict!r}.")
        number = int(key)
        text = f"insight {number} must be {' or '.join(verdicts)}"
        yield Limit(text, "insights", partial(_verdict, verdicts, number=number))


def _parse_baseline(where: str, path: object) -> str:
    if not isinstance(path, str) or not path or "\0" in path:
        raise InputError(f"{where} baseline must be a string, the path of a report.")
    return path


def _parse_fail_on(where: str, value: object) -> tuple[Rule, ...]:
    texts = _as_list(value)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InputError(f'{where} fail_on must be a list of rules: ["role-changed"].')
    try:
        return parse_rules(texts)
    except InputError as error:
        raise InputError(f"{where} fail_on: {error}") from None


def _as_list(value: object) -> list[Any]:
    """Return a list as it is, a text as a list of one, else an empty list."""
    if isinstance(value, str):
        return [value]
    return value if isinstance(value, list) else []


# --- the decision on a report ---


def judged(
    new: Measurements, limits: Limits, baseline: Measurements | None = None
) -> tuple[tuple[Outcome, ...], DiffResult | None]:
    """Check the results against every limit; also return what changed since the baseline.

    ``baseline`` is what ``limits.baseline`` names, read before it was overwritten.
    """
    outcomes = [limit.outcome(new) for limit in limits.limits]
    if not limits.fail_on:
        return tuple(outcomes), None
    if baseline is None:
        outcomes.append(Outcome(f"the baseline {visible(limits.baseline)}", "it was not read"))
        return tuple(outcomes), None
    diff = changes_between(baseline, new, tolerance=limits.tolerance)
    nothing_to_check = undecided(diff, limits.fail_on)
    for outcome in outcomes_of(diff, limits.fail_on):
        rule = f"{outcome.rule} against {visible(baseline.name)}"
        reason = nothing_to_check.get(outcome.rule, outcome.reason)
        outcomes.append(dataclasses.replace(outcome, rule=rule, reason=reason))
    return tuple(outcomes), diff


def require(outcomes: Sequence[Outcome]) -> None:
    """Raise where a limit fails."""
    failures = [outcome for outcome in outcomes if outcome.reason]
    if failures:
        count = "1 limit failed" if len(failures) == 1 else f"{len(failures)} limits failed"
        raise CheckFailedError(f"{count}: {'; '.join(map(str, failures))}.")
