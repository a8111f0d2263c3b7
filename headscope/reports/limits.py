"""The limits that hold a number or a truth value: THE table, with what each looks at."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headscope.analyses.classify.result import ClassifyResult
from headscope.core.errors import CheckFailedError, InputError, nearest
from headscope.core.roles import ROLES
from headscope.core.safe_text import visible
from headscope.models.validation import certificate_of
from headscope.pruning.metric_words import scale_of
from headscope.pruning.result import Point, PruneResult
from headscope.reports.claims.scoreboard import CLAIMS
from headscope.reports.diff import TOLERANCE, compare
from headscope.reports.diff_rules import bare_limit, check_rules, parse_rules, undecided, with_fired
from headscope.reports.reading import Results
from headscope.reports.result import VERDICTS

__all__ = [
    "EXAMPLES",
    "LIMITS",
    "SHARE",
    "Kind",
    "Limit",
    "absent",
    "limit_of",
    "shown",
    "LIMIT_NAMES",
    "Limits",
    "check_baseline",
    "described",
    "limit_failures",
    "require_limits",
]


#: From results and the value of a limit: why it fails, or an empty string.
Check = Callable[[Results, float], str]


@dataclass(frozen=True)
class Kind:
    """What the value of a limit may be: exactly of one of the types, and how a reader is told."""

    words: str
    types: tuple[type, ...]
    least: float = -math.inf

    def read(self, where: str, value: object) -> float:
        """Return the value if it is of this kind, as a float if it may be one."""
        if (
            isinstance(value, bool | int | float)
            and type(value) in self.types
            and self.least <= value
            and abs(value) < math.inf
        ):
            return float(value) if float in self.types else value
        raise InputError(f"{where} must be {self.words}, not {shown(value)}.")


@dataclass(frozen=True)
class Limit:
    """One limit: what its value may be, what looks at results with it, and when it passes."""

    kind: Kind
    check: Check
    words: str


FLAG = Kind("true or false", (bool,))
COUNT = Kind("a whole number of 0 or more", (int,), least=0)
NUMBER = Kind("a number", (int, float))
DROP = Kind("a number", (int, float), least=0)
SHARE = Kind("a number of 0 or more", (int, float), least=0)

#: ``metric_at_50_percent_drop``: with that share of the heads removed.
_AT = re.compile(r"metric_at_(\d{1,3})_percent_(drop|min)")
#: The pattern's names as a user may have meant them.
EXAMPLES = ("metric_at_50_percent_drop", "metric_at_50_percent_min")
_AT_WORDS = {
    "drop": "with that share of the heads removed (any whole number for 50) the metric is worse by "
    "at most this",
    "min": "with that share of the heads removed (any whole number for 50) the metric is at least "
    "this; of a loss: at most",
}


def limit_of(name: str) -> Limit | None:
    """Return the limit of that name; None if there is none."""
    match = _AT.fullmatch(name)
    if match and int(match[1]) <= 100:
        drop = match[2] == "drop"
        return Limit(DROP if drop else NUMBER, _at(int(match[1]), drop), _AT_WORDS[match[2]])
    return LIMITS.get(name)


def shown(value: object) -> str:
    """Write a value as a user would."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else visible(repr(value))


def absent(section: str) -> str:
    """Say that a limit has nothing to look at."""
    return f"the report has no result of {section}"


def _of_classify(check: Callable[[ClassifyResult, float], str]) -> Check:
    return lambda new, limit: check(new.classify, limit) if new.classify else absent("classify")


def _of_prune(check: Callable[[PruneResult, float], str]) -> Check:
    return lambda new, limit: check(new.prune, limit) if new.prune else absent("prune")


def _validation(new: Results, wanted: float) -> str:
    """Every result carries a certificate that passed."""
    if not wanted:
        return ""
    found = {name: certificate_of(result) for name, result in new.sections.items()}
    passed = {name: certificate and certificate.passed for name, certificate in found.items()}
    bad = [
        f"{name} {'is not validated' if value is None else 'failed'}"
        for name, value in passed.items()
        if value is not True
    ]
    return ", ".join(bad) or ("" if passed else "there is no result")


def _least_heads(role: str) -> Check:
    """At least so many heads have this role."""

    @_of_classify
    def check(found: ClassifyResult, least: float) -> str:
        count = sum(role in head.roles for head in found.heads)
        heads = "1 head is" if count == 1 else f"{count} heads are"
        return "" if count >= least else f"{heads} {role}"

    return check


@_of_classify
def _without_role(found: ClassifyResult, most: float) -> str:
    """At most so many heads have no role."""
    count = sum(not head.roles for head in found.heads)
    return "" if count <= most else f"{count} heads have no role"


@_of_classify
def _false_positives(found: ClassifyResult, most: float) -> str:
    """At most so many heads with random weights earn a syntactic or rare-word label."""
    if found.control is None or not found.control.random_weights:
        return "classify ran without its control; set control = true in [classify]"
    labels = found.control.false_positives
    return "" if len(labels) <= most else f"{len(labels)} with random weights ({_some(labels)})"


def _some(items: Iterable[str], most: int = 3) -> str:
    names = [visible(item) for item in items]
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


@_of_prune
def _metric_min(found: PruneResult, limit: float) -> str:
    """The unpruned model's metric is at least this; of a loss: at most."""
    value = found.baseline.value
    bad = found.sign * (value - limit) < 0
    return f"{visible(found.metric)} is {value:.4g}" if bad else _too_low(found.metric, limit)


def _too_low(metric: str, least: float) -> str:
    """Say that what was meant as a share of 1 guards nothing of a metric that goes up to 100."""
    if not (0 < least < 1 and scale_of(metric) == 100):
        return ""
    return f"{visible(metric)} goes up to 100, so {least:g} guards nothing; give {100 * least:g}"


def _at(percent: int, drop: bool) -> Check:
    """With so many heads removed by the best method, the metric is not worse than this.

    ``drop``: than the unpruned model's by more than this, in the metric's own unit.
    """

    @_of_prune
    def check(found: PruneResult, limit: float) -> str:
        best = _best(found, percent / 100)
        if best is None:
            return f"no method was measured with {percent}% of the heads removed"
        if drop and limit >= (most := bare_limit(found.metric)):
            return f"so much of {visible(found.metric)} guards nothing; give less than {most:g}"
        method, point = best
        whole, value = found.baseline.value, point.value
        bad = found.sign * (whole - value) > limit if drop else found.sign * (value - limit) < 0
        said = f"{found.metric} is {value:.4g} by {method}, {whole:.4g} unpruned"
        return said if bad else "" if drop else _too_low(found.metric, limit)

    return check


def _best(result: PruneResult, fraction: float) -> tuple[str, Point] | None:
    """Return the method, random heads aside, that keeps most at a fraction (to half a head)."""
    near = 0.5 / max(result.n_heads, 1)
    points = [
        (curve.name, point)
        for curve in result.curves
        for point in curve.points
        if curve.method != "random" and abs(point.fraction - fraction) <= near
    ]
    return max(points, key=lambda item: result.sign * item[1].value, default=None)


#: By name. :func:`limit_of` knows those of the metric after pruning too.
LIMITS: dict[str, Limit] = {
    "validation": Limit(FLAG, _validation, "every result was validated and passed"),
    **{
        f"min_{role.key}": Limit(
            COUNT, _least_heads(role.key), f"at least so many heads are {role.name}"
        )
        for role in ROLES
    },
    "max_without_role": Limit(COUNT, _without_role, "at most so many heads have no role"),
    "max_false_positives": Limit(
        COUNT,
        _false_positives,
        "at most so many heads with random weights earn a syntactic or rare-word label",
    ),
    "metric_min": Limit(
        NUMBER, _metric_min, "the unpruned model's metric is at least this; of a loss: at most"
    ),
}


@dataclass(frozen=True)
class Limits:
    """What a report must show: limits by name, and by number of a claim the verdicts it may have.

    Rules of ``headscope diff`` in ``fail_on`` must not fire against the results at ``baseline``.
    """

    numbers: dict[str, float] = field(default_factory=dict)
    insights: dict[int, tuple[str, ...]] = field(default_factory=dict)
    baseline: str | None = None
    fail_on: tuple[str, ...] = ()
    tolerance: float = TOLERANCE

    @classmethod
    def parse(cls, table: Mapping[str, Any], where: str = "[limits]") -> Limits:
        """Read the table; ``-`` in a name counts as ``_``, and errors begin with ``where``."""
        values = {key.replace("-", "_"): value for key, value in table.items()}
        kinds = {name: _kind(where, name) for name in values if name not in _READERS}
        if ("baseline" in values) != ("fail_on" in values):
            raise InputError(f"{where} needs both baseline and fail_on, or neither.")
        numbers = {n: kind.read(f"{where} {n}", values[n]) for n, kind in kinds.items()}
        others = (name for name in _READERS if name in values)
        return cls(numbers, **{n: _READERS[n].read(f"{where} {n}", values[n]) for n in others})


def check_baseline(limits: Limits, baseline: Results) -> None:
    """Refuse, before anything is measured, a rule that makes no sense for the baseline's metric."""
    if baseline.prune is not None:
        check_rules(parse_rules(limits.fail_on), baseline.prune.metric)


def limit_failures(
    new: Results, limits: Limits, baseline: Results | None = None
) -> tuple[str, ...]:
    """Return why the results do not pass, one reason for each limit; nothing where they do.

    ``baseline`` is what ``limits.baseline`` names, read before it was overwritten.
    """
    failures = []
    for name, limit in limits.numbers.items():
        found = limit_of(name)
        reason = found.check(new, limit) if found else "there is no such limit"
        if reason:
            failures.append(f"{name} = {shown(limit)}: {reason}")
    failures += _insight_failures(new, limits.insights)
    if limits.fail_on:
        failures += _baseline_failures(new, limits, baseline)
    return tuple(failures)


def require_limits(new: Results, limits: Limits, baseline: Results | None = None) -> None:
    """Raise where a limit fails."""
    failures = limit_failures(new, limits, baseline)
    if failures:
        count = "1 limit failed" if len(failures) == 1 else f"{len(failures)} limits failed"
        raise CheckFailedError(f"{count}: {'; '.join(failures)}.")


def _insight_failures(new: Results, wanted: Mapping[int, tuple[str, ...]]) -> Iterable[str]:
    if wanted and new.insights is None:
        return [f"insights: {absent('insights')}"]
    found = {i.number: i.verdict for i in new.insights.insights} if new.insights else {}
    return [
        f"insight {number} must be {' or '.join(verdicts)}: it is "
        f"{visible(found.get(number, 'not in the report'))}"
        for number, verdicts in wanted.items()
        if found.get(number) not in verdicts
    ]


def _baseline_failures(new: Results, limits: Limits, baseline: Results | None) -> list[str]:
    """Rules that fire, and rules that cannot: a limit on nothing guards nothing."""
    if baseline is None:
        return [f"the baseline {visible(limits.baseline)} was not read"]
    rules = parse_rules(limits.fail_on)
    found = with_fired(compare(baseline, new, tolerance=limits.tolerance), rules)
    against = f"against {visible(baseline.name)}"
    failures = [f"{fired.rule} {against}: {fired.reason}" for fired in found.fired]
    return failures + list(undecided(found, rules))


def _kind(where: str, name: str) -> Kind:
    found = limit_of(name)
    if found is None:
        hint = nearest(name, LIMIT_NAMES, "there are")
        raise InputError(f"{where} has no limit {visible(name)!r}; {hint}")
    return found.kind


def _path(where: str, value: object) -> str:
    if isinstance(value, str) and value and "\0" not in value:
        return value
    raise InputError(f"{where} must be a string, the path of a file or folder.")


def _rules(where: str, value: object) -> tuple[str, ...]:
    texts = _several(value)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InputError(f'{where} must be a list of rules, such as ["role-changed"].')
    try:
        return tuple(map(str, parse_rules(texts)))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _insights(where: str, table: object) -> dict[int, tuple[str, ...]]:
    if not isinstance(table, dict):
        raise InputError(f'{where} must be a table, such as {{"7" = "holds"}}.')
    return {_number(where, key): _verdicts(f"{where} {key}", v) for key, v in table.items()}


def _number(where: str, key: str) -> int:
    numbers = [claim.number for claim in CLAIMS]
    if key.isascii() and key.isdigit() and int(key) in numbers:
        return int(key)
    known = f"{numbers[0]} to {numbers[-1]}"
    raise InputError(f"{where}: there is no insight {visible(key)}; they have numbers {known}.")


def _verdicts(where: str, value: object) -> tuple[str, ...]:
    verdicts = _several(value)
    if not verdicts:
        raise InputError(f"{where} must be a verdict, or a list of verdicts.")
    for verdict in verdicts:
        if verdict not in VERDICTS:
            raise InputError(f"{where} must be one of {', '.join(VERDICTS)}, not {verdict!r}.")
    return tuple(verdicts)


def _several(value: object) -> list[Any]:
    """Return a list as it is, a text as a list of one, and nothing of anything else."""
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


@dataclass(frozen=True)
class _Reader:
    """A key of [limits] that holds no number.

    ``read`` makes of where it stands and its value what :class:`Limits` holds; ``kind`` says what
    the value may be, ``words`` what it asks for.
    """

    read: Callable[[str, Any], Any]
    kind: str
    words: str


_READERS = {
    "insights": _Reader(_insights, "a table", "these claims have these verdicts"),
    "baseline": _Reader(_path, "a path", "the report that fail_on compares with"),
    "fail_on": _Reader(_rules, "a list", "none of these rules of 'headscope diff' fires"),
    "tolerance": _Reader(SHARE.read, SHARE.words, "that of 'headscope diff', for fail_on"),
}
#: Every key of [limits], with examples of those that hold a number.
LIMIT_NAMES = (*LIMITS, *EXAMPLES, *_READERS)


def described() -> Iterator[tuple[str, str, str]]:
    """Yield every key of [limits]: its name, what its value may be, and when it passes."""
    for name in LIMIT_NAMES:
        if name in _READERS:
            yield name, _READERS[name].kind, _READERS[name].words
        elif (found := limit_of(name)) is not None:
            yield name, found.kind.words, found.words
