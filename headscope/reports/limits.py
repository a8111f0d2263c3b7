"""[limits] of a config file: what a report must show, and why it does not."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headscope.analyses.classify.roles import ROLES
from headscope.core.errors import CheckFailedError, InputError, nearest
from headscope.core.safe_text import listed, visible
from headscope.removal.metric_words import scale_of
from headscope.reports.baseline import Side
from headscope.reports.claims.rule import claims
from headscope.reports.compare import TOLERANCE, changes_between
from headscope.reports.reading import Results
from headscope.reports.result import VERDICTS, DiffResult, Outcome
from headscope.reports.rules import (
    Rule,
    bare_limit,
    outcomes_of,
    parse_rules,
    undecided,
)

#: What the value of a limit may be: in words, of exactly which types, and the smallest.
_Kind = tuple[str, tuple[type, ...], float]
_FLAG: _Kind = ("true or false", (bool,), -math.inf)
_COUNT: _Kind = ("a whole number of 0 or more", (int,), 0)
_NUMBER: _Kind = ("a number", (int, float), -math.inf)
_SHARE: _Kind = ("a number of 0 or more", (int, float), 0)


#: Whether a limit fails, and in words the measured value, or why there is none.
_Found = tuple[bool, str]


class Limit(NamedTuple):
    """What the value of a limit may be, when it passes, and how it is checked."""

    kind: _Kind
    words: str
    check: Callable[[str, float, Results], _Found]  # Of the limit's name, its value and results


def _validation(name: str, limit: float, new: Results) -> _Found:
    """Check that every result carries a certificate that passed."""
    if not limit or not new.sections:
        return bool(limit), "there is no result" if limit else "not asked for"
    passed = {section: certificate.passed for section, certificate in new.certificates.items()}
    words = {None: "is not validated", False: "failed"}
    bad = ((name, passed.get(name)) for name in new.sections)
    reasons = [f"{name} {words[passes]}" for name, passes in bad if not passes]
    number = f"all {len(new.sections)} results" if len(new.sections) > 1 else "the only result"
    return bool(reasons), ", ".join(reasons) or f"{number} passed"


def _labels(name: str, limit: float, new: Results) -> _Found:
    """Check how many heads have a role, have none, or would have one with random weights."""
    if new.classify is None:
        return True, "the report has no result of classify"
    heads = new.classify.heads
    control = new.classify.control
    if name == "max_false_positives":
        if control is None or not control.random_weights:
            return True, "classify ran without its control; set control = true in [classify]"
        labels = [visible(label) for label in control.false_positives]
        names = f" ({listed(labels)})" if labels else ""
        return len(labels) > limit, f"{len(labels)} with random weights{names}"
    if name == "max_without_role":
        count = sum(not head.roles for head in heads)
        return count > limit, f"{count} heads have no role"
    role = name.removeprefix("min_")
    count = sum(role in head.roles for head in heads)
    return count < limit, f"{'1 head is' if count == 1 else f'{count} heads are'} {role}"


def _metric(name: str, limit: float, new: Results) -> _Found:
    """Check that the metric is at least (a loss: at most) the limit, or drops by no more.

    Where a share of the heads is removed, by the method, random heads aside, that keeps most.
    """
    prune = new.prune
    if prune is None:
        return True, "the report has no result of prune"
    metric = visible(prune.metric)
    unpruned = prune.baseline.value.value or 0.0
    value = unpruned
    text = f"{metric} is {unpruned:.4g}"
    if match := _AT.fullmatch(name):
        near = 0.5 / max(prune.n_heads, 1)  # half a head
        points = [
            (curve.name, point.value.value or 0.0)
            for curve in prune.curves
            for point in curve.points
            if curve.method != "random" and abs(point.fraction - int(match[1]) / 100) <= near
        ]
        if not points:
            return True, f"no method was measured with {match[1]}% of the heads removed"
        method, value = max(points, key=lambda item: prune.sign * item[1])
        text = f"{prune.metric} is {value:.4g} by {method}, {unpruned:.4g} unpruned"
    if match and match[2] == "drop":
        if limit >= (most := bare_limit(prune.metric)):
            return True, f"so much of {metric} guards nothing; give less than {most:g}"
        return prune.sign * (unpruned - value) > limit, text
    bad = prune.sign * (value - limit) < 0
    if not bad and 0 < limit < 1 and scale_of(prune.metric) == 100:  # meant as a share of 1
        return True, f"{metric} goes up to 100, so {limit:g} guards nothing; give {100 * limit:g}"
    return bad, text


_AT = re.compile(r"metric_at_(\d\d?|100)_percent_(drop|min)")
_SO_MANY = "with that share of the heads removed (any whole number for 50) the metric is "
_FALSE = "at most so many heads with random weights earn a syntactic or rare-word label"
_LEAST = "at least this; of a loss: at most"
#: By name; the two for 50 percent exist for any whole number.
_LIMITS = {
    "validation": Limit(_FLAG, "every result was validated and passed", _validation),
    **{
        f"min_{role.key}": Limit(_COUNT, f"at least so many heads are {role.name}", _labels)
        for role in ROLES
    },
    "max_without_role": Limit(_COUNT, "at most so many heads have no role", _labels),
    "max_false_positives": Limit(_COUNT, _FALSE, _labels),
    "metric_min": Limit(_NUMBER, f"the unpruned model's metric is {_LEAST}", _metric),
    "metric_at_50_percent_drop": Limit(_SHARE, f"{_SO_MANY}worse by at most this", _metric),
    "metric_at_50_percent_min": Limit(_NUMBER, _SO_MANY + _LEAST, _metric),
}
#: Keys of [limits] that hold no number: what the value is, and what it asks for.
_OTHERS = {
    "insights": ("a table", "these claims have these verdicts"),
    "baseline": ("a path", "the report that fail_on compares with"),
    "fail_on": ("a list", "none of these rules of 'headscope diff' fires"),
    "tolerance": (_SHARE[0], "that of 'headscope diff', for fail_on"),
}
#: Every key of [limits]: what its value may be, and when it passes.
LIMITS = {name: (limit.kind[0], limit.words) for name, limit in _LIMITS.items()} | _OTHERS


@dataclass(frozen=True)
class Limits:
    """What a report must show, and which rules must not fire against ``baseline``."""

    #: Each limit as it is listed, and the check of a report.
    constants: tuple[tuple[str, Callable[[Results], _Found]], ...] = ()
    baseline: str | None = None
    fail_on: tuple[Rule, ...] = ()
    tolerance: float = TOLERANCE

    @classmethod
    def parse(cls, table: Mapping[str, Any], where: str = "[limits]") -> Limits:
        """Read the table; ``-`` in a name counts as ``_``, and errors begin with ``where``."""
        values = {key.replace("-", "_"): value for key, value in table.items()}
        constants: list[tuple[str, Callable[[Results], _Found]]] = []
        others: dict[str, Any] = {}
        for name in (name for name in values if name not in _OTHERS):
            match = _AT.fullmatch(name)
            limit = _LIMITS.get(f"metric_at_50_percent_{match[2]}" if match else name)
            if limit is None:
                hint = nearest(name, LIMITS, "there are")
                raise InputError(f"{where} has no limit {visible(name)!r}; {hint}")
            value = _number(f"{where} {name}", limit.kind, values[name])
            check = functools.partial(limit.check, name, value)
            constants.append((f"{name} = {_shown(value)}", check))
        if ("baseline" in values) != ("fail_on" in values):
            raise InputError(f"{where} needs both baseline and fail_on, or neither.")
        if "insights" in values:
            constants += _insights(f"{where} insights", values["insights"])
        if "baseline" in values:
            path = others["baseline"] = values["baseline"]
            if not isinstance(path, str) or not path or "\0" in path:
                raise InputError(f"{where} baseline must be a string, the path of a report.")
            texts = _several(values["fail_on"])
            if not texts or not all(isinstance(text, str) for text in texts):
                raise InputError(f'{where} fail_on must be a list of rules: ["role-changed"].')
            try:
                others["fail_on"] = parse_rules(texts)
            except InputError as error:
                raise InputError(f"{where} fail_on: {error}") from None
        if "tolerance" in values:
            others["tolerance"] = _number(f"{where} tolerance", _SHARE, values["tolerance"])
        return cls(tuple(constants), **others)


def _number(where: str, kind: _Kind, value: Any) -> float:
    """Return a value of exactly one of the types of a kind, as a float if it may be one."""
    words, types, least = kind
    if type(value) not in types or not least <= value < math.inf or value == -math.inf:
        raise InputError(f"{where} must be {words}, not {_shown(value)}.")
    return float(value) if float in types else value


def _shown(value: object) -> str:
    """Write a value as a user would."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else visible(repr(value))


def _several(value: object) -> list[Any]:
    """Return a list as it is, a text as a list of one, else an empty list."""
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _insights(where: str, table: object) -> Iterator[tuple[str, Callable[[Results], _Found]]]:
    if not isinstance(table, dict):
        raise InputError(f'{where} must be a table, such as {{"7" = "holds"}}.')
    numbers = [claim.number for claim in claims().values()]
    allowed = ", ".join(VERDICTS)
    for key, value in table.items():
        if not (key.isascii() and key.isdigit() and int(key) in numbers):
            span = f"{numbers[0]} to {numbers[-1]}"
            raise InputError(f"{where}: there is no insight {visible(key)}; they are {span}.")
        verdicts = _several(value)
        if not verdicts:
            raise InputError(f"{where} {key} must be a verdict, or a list of verdicts.")
        for verdict in verdicts:
            if verdict not in VERDICTS:
                raise InputError(f"{where} {key} must be one of {allowed}, not {verdict!r}.")
        check = functools.partial(_verdict, int(key), verdicts)
        yield f"insight {int(key)} must be {' or '.join(verdicts)}", check


def _verdict(number: int, wanted: Sequence[str], new: Results) -> _Found:
    insights = new.insights.insights if new.insights is not None else ()
    absent = "not in the report" if insights else "not in the report, which has no insights"
    verdict = {claim.number: claim.verdict for claim in insights}.get(number, absent)
    return verdict not in wanted, f"it is {visible(verdict)}"


def judged(
    new: Results, limits: Limits, baseline: Results | Side | None = None
) -> tuple[tuple[Outcome, ...], DiffResult | None]:
    """Check the results against every limit; also return what changed since the baseline.

    ``baseline`` is what ``limits.baseline`` names, read before it was overwritten.
    """
    outcomes: list[Outcome] = []
    diff = None
    for text, check in limits.constants:
        fails, measured = check(new)
        outcomes.append(Outcome(text, measured if fails else "", measured))
    if limits.fail_on and baseline is None:
        outcomes.append(Outcome(f"the baseline {visible(limits.baseline)}", "it was not read"))
    elif limits.fail_on and baseline is not None:
        diff = changes_between(baseline, new, tolerance=limits.tolerance)
        # A limit on nothing guards nothing.
        nothing = undecided(diff, limits.fail_on)
        against = f"against {visible(baseline.name)}"
        outcomes += [
            dataclasses.replace(
                outcome,
                rule=f"{outcome.rule} {against}",
                reason=nothing.get(outcome.rule, outcome.reason),
            )
            for outcome in outcomes_of(diff, limits.fail_on)
        ]
    return tuple(outcomes), diff


def require(outcomes: Sequence[Outcome]) -> None:
    """Raise where a limit fails."""
    failures = [outcome for outcome in outcomes if outcome.reason]
    if failures:
        count = "1 limit failed" if len(failures) == 1 else f"{len(failures)} limits failed"
        raise CheckFailedError(f"{count}: {'; '.join(map(str, failures))}.")
