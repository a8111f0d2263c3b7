"""The table [limits] of a config file: what a report must show for its run to pass.

Every limit is checked by a pure function of results; what a check needs and a report lacks is a
failure too.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headscope.errors import InputError, LimitError
from headscope.results.insights import VERDICTS
from headscope.safe_text import visible
from headscope.verdicts.diff.compare import TOLERANCE, compare
from headscope.verdicts.diff.rules import parse_rules, undecided, with_fired
from headscope.verdicts.limits.checks import CHECKS, EXAMPLES, absent, check_of
from headscope.verdicts.reading import Results

__all__ = ["LIMIT_NAMES", "Limits", "limit_failures", "require_limits"]

_INSIGHTS = range(11)
#: Every key of [limits], with examples of those that hold a number.
LIMIT_NAMES = (*CHECKS, *EXAMPLES, "insights", "baseline", "fail_on", "tolerance")


@dataclass(frozen=True)
class Limits:
    """What a report must show.

    Attributes
    ----------
    numbers : dict
        The limits of :data:`headscope.verdicts.limits.checks.CHECKS`, by name, and those of the
        metric after pruning.
    validation : bool
        Every result carries a certificate that passed.
    min_ROLE : int
        At least so many heads have this role, for every role of ``classify``.
    max_without_role : int
        At most so many heads have no role.
    max_false_positives : int
        At most so many heads of the random-weights control earn a syntactic or rare-word label.
    metric_min : float
        Least (of a loss: largest) value of the unpruned model.
    metric_at_N_percent_drop, metric_at_N_percent_min : float
        With N% of the heads removed by the best method: how much worse than the unpruned model the
        metric may be, in its own unit; how good it must be at least.
    insights : dict of number to verdict, or to list of verdicts
    baseline : str
        Results to compare with; ``fail_on`` are the rules of ``headscope diff``, ``tolerance`` is
        its option.
    """

    numbers: dict[str, Any] = field(default_factory=dict)
    insights: dict[int, tuple[str, ...]] = field(default_factory=dict)
    baseline: str | None = None
    fail_on: tuple[str, ...] = ()
    tolerance: float = TOLERANCE

    @classmethod
    def parse(cls, table: Mapping[str, Any], where: str = "[limits]") -> Limits:
        """Read the table.

        Raises
        ------
        InputError
            For an unknown limit, with the nearest known one, or a value of the wrong type; the text
            begins with ``where``.
        """
        values = {key.replace("-", "_"): value for key, value in table.items()}
        for name in values:
            if name not in LIMIT_NAMES and check_of(name) is None:
                near = difflib.get_close_matches(name, LIMIT_NAMES, n=1)
                known = ", ".join(LIMIT_NAMES)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {known}."
                raise InputError(f"{where} has no limit {visible(name)!r}; {hint}")
        baseline, fail_on = values.pop("baseline", None), values.pop("fail_on", None)
        if (baseline is None) != (fail_on is None):
            raise InputError(f"{where} needs both baseline and fail_on, or neither.")
        tolerance = values.pop("tolerance", TOLERANCE)
        insights = values.pop("insights", {})
        return cls(
            numbers={name: _limit(f"{where} {name}", name, v) for name, v in values.items()},
            insights=_wanted(f"{where} insights", insights),
            baseline=None if baseline is None else _string(f"{where} baseline", baseline),
            fail_on=() if fail_on is None else _rules(f"{where} fail_on", fail_on),
            tolerance=_share(f"{where} tolerance", tolerance),
        )


def limit_failures(
    new: Results, limits: Limits, baseline: Results | None = None
) -> tuple[str, ...]:
    """Return why the results do not pass, one reason for each limit; nothing where they do.

    Parameters
    ----------
    new : Results
        Of a report, say.
    limits : Limits
    baseline : Results, optional
        What ``limits.baseline`` names, read before it was overwritten.
    """
    failures = []
    for name, limit in limits.numbers.items():
        found = check_of(name)
        reason = found[1](new, limit) if found else "there is no such limit"
        if reason:
            failures.append(f"{name} = {_shown(limit)}: {reason}")
    failures += _insight_failures(new, limits.insights)
    if limits.fail_on:
        failures += _baseline_failures(new, limits, baseline)
    return tuple(failures)


def require_limits(new: Results, limits: Limits, baseline: Results | None = None) -> None:
    """Raise where a limit fails.

    Raises
    ------
    LimitError
        With every reason.
    """
    failures = limit_failures(new, limits, baseline)
    if failures:
        count = "1 limit failed" if len(failures) == 1 else f"{len(failures)} limits failed"
        raise LimitError(f"{count}: {'; '.join(failures)}.")


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


# --- reading the table ----------------------------------------------------------------------------


def _limit(where: str, name: str, value: Any) -> Any:
    found = check_of(name)
    kind = found[0] if found else None
    if kind is bool and type(value) is bool:
        return value
    if kind is int and type(value) is int and value >= 0:
        return value
    if kind is float and _finite(value) and (value >= 0 or name.endswith("min")):
        return float(value)
    words = {bool: "true or false", int: "a whole number of 0 or more", float: "a number"}
    raise InputError(f"{where} must be {words[kind or float]}, not {_shown(value)}.")


def _share(where: str, value: Any) -> float:
    if _finite(value) and value >= 0:
        return float(value)
    raise InputError(f"{where} must be a number of 0 or more, not {_shown(value)}.")


def _finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _string(where: str, value: Any) -> str:
    if type(value) is str and value and "\0" not in value:
        return value
    raise InputError(f"{where} must be a string, the path of a file or folder.")


def _rules(where: str, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise InputError(f'{where} must be a list of rules, such as ["role-changed"].')
    try:
        return tuple(map(str, parse_rules(texts)))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _wanted(where: str, table: Any) -> dict[int, tuple[str, ...]]:
    if not isinstance(table, dict):
        raise InputError(f'{where} must be a table, such as {{"7" = "holds"}}.')
    return {_number(where, key): _verdicts(f"{where} {key}", v) for key, v in table.items()}


def _number(where: str, key: str) -> int:
    if key.isascii() and key.isdigit() and int(key) in _INSIGHTS:
        return int(key)
    raise InputError(f"{where}: there is no insight {visible(key)}; they have numbers 0 to 10.")


def _verdicts(where: str, value: Any) -> tuple[str, ...]:
    verdicts = [value] if isinstance(value, str) else value
    if not isinstance(verdicts, list) or not verdicts:
        raise InputError(f"{where} must be a verdict, or a list of verdicts.")
    for verdict in verdicts:
        if verdict not in VERDICTS:
            raise InputError(f"{where} must be one of {', '.join(VERDICTS)}, not {verdict!r}.")
    return tuple(verdicts)


def _shown(value: Any) -> str:
    if type(value) is bool:
        return str(value).lower()
    return f"{value:g}" if type(value) is float else visible(repr(value))
