"""The words of ``[limits]``: what each limit asks of a report, decided on the rows of its results.

``LIMITS`` at the end names them all. A limit that guards nothing fails: what it needs is not in the
report, or its bound is in a unit that nothing could fall short of.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from headscope.analyses.classify.roles import ROLES
from headscope.core.safe_text import listed, visible
from headscope.reports.baseline import Measurements
from headscope.reports.bounds import AllowedDrop, drop_guards_nothing, minimum_guards_nothing
from headscope.reports.rows import Row

# --- the decision of each kind of limit ---


class Decision(NamedTuple):
    """Whether a limit fails, and in words what was measured, or why nothing was."""

    fails: bool
    words: str


def _validation(required: float, new: Measurements) -> Decision:
    """Decide whether every result carries a certificate that passed."""
    if not required:
        return Decision(False, "not asked for")
    if not new.conditions:
        return Decision(True, "there is no result")
    certificates = {row.section: row.words for row in new.rows if row.name == "certificate"}
    reasons = []
    for section in new.conditions:
        words = certificates.get(section)
        if words == "FAILED":
            reasons.append(f"{section} failed")
        elif words != "passed":
            reasons.append(f"{section} is not validated")
    if reasons:
        return Decision(True, ", ".join(reasons))
    if len(new.conditions) == 1:
        return Decision(False, "the only result passed")
    return Decision(False, f"all {len(new.conditions)} results passed")


def _heads_with_role(least: float, new: Measurements, role: str) -> Decision:
    """Decide whether enough heads have a role, whatever its detail (``positional -1``)."""
    count = 0
    for row in _rows(new, "classify", "roles"):
        roles = [label.partition(" ")[0] for label in row.labels or ()]
        if role in roles:
            count += 1
    heads = "1 head is" if count == 1 else f"{count} heads are"
    return Decision(count < least, f"{heads} {role}")


def _heads_without_role(most: float, new: Measurements) -> Decision:
    count = len([row for row in _rows(new, "classify", "roles") if not row.labels])
    return Decision(count > most, f"{count} heads have no role")


def _false_positives(most: float, new: Measurements) -> Decision:
    """Decide whether few enough heads of random weights earn a label."""
    rows = _rows(new, "classify", "false positives")
    if not rows:
        return Decision(True, "classify ran without its control; set control = true in [classify]")
    labels = [visible(label) for label in rows[0].labels or ()]
    names = f" ({listed(labels)})" if labels else ""
    return Decision(len(labels) > most, f"{len(labels)} with random weights{names}")


def _unpruned_metric(least: float, new: Measurements) -> Decision:
    """Decide whether the unpruned model's metric is good enough."""
    return _least_metric(least, _unpruned(new), new)


def _pruned_metric(
    bound: float,
    new: Measurements,
    percent: int,
    judge: Callable[[float, Row, Measurements], Decision],
) -> Decision:
    """Judge the metric with a share of the heads removed; fail where none was measured."""
    best = _best_pruned(new, percent)
    if best is None:
        return Decision(True, f"no method was measured with {percent}% of the heads removed")
    return judge(bound, best, new)


def _least_metric(least: float, row: Row, new: Measurements) -> Decision:
    """Decide whether a row of the metric is at least this; of a loss, at most."""
    why = minimum_guards_nothing(least, new.metric)
    if why:
        return Decision(True, f"{least:g} would guard nothing here: {why}")
    return Decision(row.better * (_value(row) - least) < 0, _metric_words(row, new))


def _largest_drop(most: float, row: Row, new: Measurements) -> Decision:
    """Decide whether a row of the metric is worse than unpruned by at most this."""
    allowed = AllowedDrop(most)
    why = drop_guards_nothing(allowed, new.metric, with_units=False)
    if why:
        return Decision(True, f"{most:g} would guard nothing here: {why}")
    unpruned = _value(_unpruned(new))
    worsening = row.better * (unpruned - _value(row))
    fails = allowed.is_exceeded(new.metric, worsening, unpruned)
    return Decision(fails, _metric_words(row, new))


def claim_has_verdict(verdicts: Sequence[str], new: Measurements, number: int) -> Decision:
    """Decide whether a claim has one of some verdicts."""
    rows = [row for row in _rows(new, "insights", "verdict") if row.where == f"insight {number}"]
    verdict = rows[0].words if rows else "not in the report"
    return Decision(verdict not in verdicts, f"it is {visible(verdict)}")


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


def _metric_words(row: Row, new: Measurements) -> str:
    """Say what the metric is; of a pruned model also by which method, and what it is unpruned."""
    text = f"{visible(new.metric)} is {_value(row):.4g}"
    if row.removed_share is None:
        return text
    method = row.where.rpartition(", ")[0]
    return f"{text} by {method}, {_value(_unpruned(new)):.4g} unpruned"


# --- the vocabulary ---


class ValueKind(NamedTuple):
    """What the value of a limit may be: in words, of exactly which types, and the smallest."""

    words: str
    types: tuple[type, ...]
    least: float


class LimitKind(NamedTuple):
    """A kind of limit."""

    value: ValueKind
    section: str  # The result that it needs; it fails without
    words: str  # When it passes
    decide: Callable[..., Decision]  # Takes the value and the new results


_FLAG = ValueKind("true or false", (bool,), -math.inf)
_COUNT = ValueKind("a whole number of 0 or more", (int,), 0)
_NUMBER = ValueKind("a number", (int, float), -math.inf)
SHARE = ValueKind("a number of 0 or more", (int, float), 0)

_PRUNED = "with that share of the heads removed (any whole number for 50) the metric is "
_FALSE = "at most so many heads with random weights earn a syntactic or rare-word label"
_LEAST = "at least this; of a loss: at most"
#: Every limit with one value, by its key in the table.
LIMIT_KINDS = {
    "validation": LimitKind(_FLAG, "", "every result was validated and passed", _validation),
    **{
        f"min_{role.key}": LimitKind(
            value=_COUNT,
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
        _NUMBER, "prune", f"the unpruned model's metric is {_LEAST}", _unpruned_metric
    ),
    "metric_at_50_percent_drop": LimitKind(
        value=SHARE,
        section="prune",
        words=f"{_PRUNED}worse by at most this",
        decide=partial(_pruned_metric, judge=_largest_drop),
    ),
    "metric_at_50_percent_min": LimitKind(
        value=_NUMBER,
        section="prune",
        words=f"{_PRUNED}{_LEAST}",
        decide=partial(_pruned_metric, judge=_least_metric),
    ),
}
#: The two limits for 50 percent exist for any whole number.
WHEN_PRUNED = re.compile(r"metric_at_(\d\d?|100)_percent_(drop|min)")
#: Keys of [limits] that hold no number: what the value is, and what it asks for.
OTHER_KEYS = {
    "insights": ("a table", "these claims have these verdicts"),
    "baseline": ("a path", "the report that fail_on compares with"),
    "fail_on": ("a list", "none of these rules of 'headscope diff' fires"),
    "tolerance": (SHARE.words, "that of 'headscope diff', for fail_on"),
}
#: Every key of [limits]: what its value may be, and when it passes.
LIMITS = {name: (kind.value.words, kind.words) for name, kind in LIMIT_KINDS.items()} | OTHER_KEYS
