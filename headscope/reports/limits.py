"""``[limits]`` of a config file: what a report must show, and why it does not.

A limit asks something of the new results alone (``min_positional = 3``; ``limit_kinds`` decides
it). ``fail_on`` holds rules that compare them with the results of ``baseline`` (``rules`` decides
them); here a rule without anything to compare fails too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headscope.core.errors import CheckFailedError, InputError, nearest
from headscope.core.safe_text import visible
from headscope.reports.baseline import Measurements
from headscope.reports.changes import TOLERANCE, changes_between
from headscope.reports.claims.registry import claims
from headscope.reports.limit_kinds import (
    LIMIT_KINDS,
    LIMITS,
    OTHER_KEYS,
    SHARE,
    WHEN_PRUNED,
    Decision,
    ValueKind,
    claim_has_verdict,
)
from headscope.reports.result import VERDICTS, DiffResult, Outcome
from headscope.reports.rules import RULES, Rule, outcomes_of, parse_rules, undecided

# --- the table of a config file ---


@dataclass(frozen=True)
class Limit:
    """A limit as it was written."""

    text: str  # As it is listed: ``min_positional = 3``
    section: str  # The result that it needs
    decide: Callable[[Measurements], Decision]

    def outcome(self, new: Measurements) -> Outcome:
        """Decide it on new results."""
        if self.section and self.section not in new.conditions:
            missing = f"the report has no result of {self.section}"
            return Outcome(self.text, reason=missing, measured=missing)
        fails, words = self.decide(new)
        return Outcome(self.text, reason=words if fails else "", measured=words)


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
            if name not in OTHER_KEYS
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
            tolerance=_parse_number(f"{where} tolerance", SHARE, tolerance),
        )


def _parse_limit(where: str, name: str, value: Any) -> Limit:
    match = WHEN_PRUNED.fullmatch(name)
    kind = LIMIT_KINDS.get(f"metric_at_50_percent_{match[2]}" if match else name)
    if kind is None:
        hint = nearest(name, LIMITS, "there are")
        rule = name.replace("_", "-")
        if rule in RULES:
            hint = f'it is a rule for changes: write baseline and fail_on = ["{rule}"].'
        raise InputError(f"{where} has no limit {visible(name)!r}; {hint}")
    number = _parse_number(f"{where} {name}", kind.value, value)
    decide = partial(kind.decide, number)
    if match:
        decide = partial(decide, percent=int(match[1]))
    return Limit(f"{name} = {_shown(number)}", kind.section, decide)


def _parse_number(where: str, kind: ValueKind, value: Any) -> float:
    """Return a finite value of exactly one of the types of a kind, as a float if it may be one."""
    if type(value) not in kind.types or not math.isfinite(value) or value < kind.least:
        raise InputError(f"{where} must be {kind.words}, not {_shown(value)}.")
    return float(value) if float in kind.types else value


def _shown(value: object) -> str:
    """Write a value as a user would."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else visible(repr(value))


def _parse_insights(where: str, table: object) -> Iterator[Limit]:
    """Read the table of claims by number, each with its verdict or some verdicts."""
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
        yield Limit(text, "insights", partial(claim_has_verdict, verdicts, number=number))


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
