"""What single limits look at: each check returns why it fails, or an empty string."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from headscope.results import PruneResult
from headscope.results.prune import Point
from headscope.results.roles import ROLES
from headscope.safe_text import visible
from headscope.verdicts.reading import Results

__all__ = ["CHECKS", "EXAMPLES", "absent", "check_of"]

Check = Callable[[Results, Any], str]

#: ``metric_at_50_percent_drop``: with that share of the heads removed.
_AT = re.compile(r"metric_at_(\d{1,3})_percent_(drop|min)")
#: The pattern's names as a user may have meant them.
EXAMPLES = ("metric_at_50_percent_drop", "metric_at_50_percent_min")


def check_of(name: str) -> tuple[type, Check] | None:
    """Return the type of a limit and its check; None for an unknown name."""
    match = _AT.fullmatch(name)
    if match and int(match[1]) <= 100:
        return float, _at(int(match[1]), match[2] == "drop")
    return CHECKS.get(name)


def _validation(new: Results, wanted: bool) -> str:
    if not wanted:
        return ""
    held = {name: getattr(r, "validation", r) for name, r in new.sections.items()}
    passed = {name: getattr(holder, "passed", None) for name, holder in held.items()}
    bad = [
        f"{name} {'is not validated' if value is None else 'failed'}"
        for name, value in passed.items()
        if value is not True
    ]
    return ", ".join(bad) or ("" if passed else "there is no result")


def _least_heads(role: str) -> Callable[[Results, int], str]:
    def check(new: Results, least: int) -> str:
        if new.classify is None:
            return absent("classify")
        count = sum(role in head.roles for head in new.classify.heads)
        return "" if count >= least else f"{_heads(count)} {role}"

    return check


def _heads(count: int) -> str:
    return "1 head is" if count == 1 else f"{count} heads are"


def _without_role(new: Results, most: int) -> str:
    if new.classify is None:
        return absent("classify")
    count = sum(not head.roles for head in new.classify.heads)
    return "" if count <= most else f"{count} heads have no role"


def _false_positives(new: Results, most: int) -> str:
    if new.classify is None:
        return absent("classify")
    if new.classify.control is None or not new.classify.control.random_weights:
        return "classify ran without its control; set control = true in [classify]"
    found = new.classify.control.false_positives
    return "" if len(found) <= most else f"{len(found)} with random weights ({_some(found)})"


def _metric_min(new: Results, limit: float) -> str:
    if new.prune is None:
        return absent("prune")
    value, sign = new.prune.baseline.value, _sign(new.prune)
    return "" if sign * value >= sign * limit else f"{new.prune.metric} is {value:.4g}"


def _at(percent: int, drop: bool) -> Callable[[Results, float], str]:
    def check(new: Results, limit: float) -> str:
        if new.prune is None:
            return absent("prune")
        best = _best(new.prune, percent / 100)
        if best is None:
            return f"no method was measured with {percent}% of the heads removed"
        method, point = best
        sign, whole = _sign(new.prune), new.prune.baseline.value
        loss = sign * (whole - point.value)
        bad = loss > limit if drop else sign * point.value < sign * limit
        said = f"{new.prune.metric} is {point.value:.4g} by {method}, {whole:.4g} unpruned"
        return said if bad else ""

    return check


def _best(result: PruneResult, fraction: float) -> tuple[str, Point] | None:
    """Return the method, random heads aside, that keeps most at a fraction (to half a head)."""
    near = 0.5 / max(result.n_heads, 1)
    points = [
        (curve.method if curve.repair == "none" else f"{curve.method} + {curve.repair}", point)
        for curve in result.curves
        for point in curve.points
        if curve.method != "random" and abs(point.fraction - fraction) <= near
    ]
    return max(points, key=lambda item: _sign(result) * item[1].value, default=None)


def _sign(result: PruneResult) -> int:
    return 1 if result.higher_is_better else -1


def absent(section: str) -> str:
    """Say that a limit has nothing to look at."""
    return f"the report has no result of {section}"


def _some(items: Iterable[str], most: int = 3) -> str:
    names = [visible(item) for item in items]
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


#: By name: the type of the limit, and the check.
CHECKS: dict[str, tuple[type, Check]] = {
    "validation": (bool, _validation),
    **{f"min_{role.key}": (int, _least_heads(role.key)) for role in ROLES},
    "max_without_role": (int, _without_role),
    "max_false_positives": (int, _false_positives),
    "metric_min": (float, _metric_min),
}
