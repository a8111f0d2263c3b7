"""The table [limits] of a config file: what a report must show for its run to pass.

Every limit is checked by a pure function of results; what a check needs and a report lacks is a
failure too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headscope.core.errors import CheckFailedError, InputError, nearest
from headscope.core.safe_text import visible
from headscope.results.insights import VERDICTS
from headscope.verdicts.diff.compare import TOLERANCE, compare
from headscope.verdicts.diff.rules import check_rules, parse_rules, undecided, with_fired
from headscope.verdicts.insights.scoreboard import CLAIMS
from headscope.verdicts.limits.checks import EXAMPLES, LIMITS, SHARE, Kind, absent, limit_of, shown
from headscope.verdicts.reading import Results

__all__ = [
    "LIMIT_NAMES",
    "Limits",
    "check_baseline",
    "described",
    "limit_failures",
    "require_limits",
]


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
