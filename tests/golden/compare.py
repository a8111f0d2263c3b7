"""What changed between two records of the same cases: where, what it was, what it is."""

import difflib
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

#: Numbers of fields, rows, figures and tensors agree to this share of the larger, or this much.
RELATIVE = 1e-3
ABSOLUTE = 1e-5
#: Numbers inside texts agree as those do, or to this many units of their last printed digit. Whole
#: numbers in texts are counts, which have to be equal, unless a percent sign follows.
UNITS = 1.01
#: A probability is a tail, which moves far more than what it is computed from.
P_VALUE = re.compile(r"(.*_)?(p|p_value|p_adjusted|q)")
P_RELATIVE = 0.02
#: A correlation may be near zero; its size is that of 1.
CORRELATION = re.compile(r"pearson|spearman")
#: Whole hundredths of attention that a page draws: the next one is the same, too.
COARSE = "patterns"

_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\d)%?"
)
_LONGEST = 300


class Change(NamedTuple):
    """One difference. ``where`` names step, file and field, list places as ``[2]``."""

    where: str
    old: str
    new: str


def changes(old: Any, new: Any, where: str = "") -> Iterator[Change]:
    """Yield every difference between two records, in their order."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            below = f"{where} > {key}" if where else str(key)
            if key in old and key in new:
                yield from changes(old[key], new[key], below)
            elif key in old:
                yield Change(below, _short(old[key]), "(gone)")
            else:
                yield Change(below, "(nothing)", _short(new[key]))
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield Change(where, f"{len(old)} items", f"{len(new)} items")
        for i, (a, b) in enumerate(zip(old, new, strict=False)):
            item_changes = [*changes(a, b, f"{where}[{i}]")]
            yield from item_changes
            if item_changes and len(old) != len(new):  # what comes after is shifted
                return
    elif _is_number(old) and _is_number(new):
        if old != new and not _near_at(where, old, new):
            yield Change(where, _short(old), _short(new))
    elif isinstance(old, str) and isinstance(new, str):
        yield from _text_changes(old, new, where)
    elif old != new or type(old) is not type(new):
        yield Change(where, _short(old), _short(new))


def _near_at(where: str, old: float, new: float) -> bool:
    """Whether two numbers that differ are near enough for what they are."""
    name = re.sub(r"(\[\d+\])+$", "", where).rpartition(" > ")[2]
    if isinstance(old, int) and isinstance(new, int):
        return COARSE in where and abs(old - new) == 1
    if CORRELATION.search(where):
        return abs(old - new) <= RELATIVE
    return near(old, new, P_RELATIVE if P_VALUE.fullmatch(name) else RELATIVE)


def near(a: float, b: float, relative: float = RELATIVE) -> bool:
    """Whether two numbers are the same on another processor."""
    return math.isclose(a, b, rel_tol=relative, abs_tol=ABSOLUTE)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text_changes(old: str, new: str, where: str) -> Iterator[Change]:
    """Compare line by line; lines may be wrapped elsewhere where a number has another width."""
    if old == new or _rounded_otherwise(old, new):
        return
    a = old.split("\n")
    b = new.split("\n")
    if len(a) == len(b):
        blocks = [("replace", i, i + 1, i, i + 1) for i in range(len(a))]
    else:
        keys = [[_NUMBER.sub("#", line).split() for line in lines] for lines in (a, b)]
        matcher = difflib.SequenceMatcher(
            None, *([" ".join(k) for k in key] for key in keys), False
        )
        blocks = []
        for kind, i, j, k, m in matcher.get_opcodes():
            if kind == "equal":
                blocks += [("replace", i + n, i + n + 1, k + n, k + n + 1) for n in range(j - i)]
            else:
                blocks.append((kind, i, j, k, m))
    for _, i, j, k, m in blocks:
        before = "\n".join(a[i:j])
        after = "\n".join(b[k:m])
        if before != after and not _rounded_otherwise(before, after):
            yield Change(where, _short(before) or "(nothing)", _short(after) or "(gone)")


def _rounded_otherwise(old: str, new: str) -> bool:
    """Whether two texts differ in the rounding of numbers, and at most in white space beside."""
    numbers = _NUMBER.findall(old), _NUMBER.findall(new)
    words = [_NUMBER.sub(" # ", text).split() for text in (old, new)]
    same = words[0] == words[1] and all(map(_same_number, *numbers))
    return same and numbers[0] != numbers[1]


def _same_number(old: str, new: str) -> bool:
    if old == new:
        return True
    if old.endswith("%") != new.endswith("%"):
        return False
    a = float(old.rstrip("%").replace(",", ""))
    b = float(new.rstrip("%").replace(",", ""))
    if re.fullmatch(r"[-+]?[\d,]+", old) and re.fullmatch(r"[-+]?[\d,]+", new):
        return a == b
    return near(a, b) or abs(a - b) <= UNITS * max(_unit(old), _unit(new))


def _unit(text: str) -> float:
    """Return one in the last digit of a number as it is printed."""
    digits, _, exponent = text.rstrip("%").replace(",", "").partition("e")
    places = len(digits.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - places)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return (
        text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} [...] {text[-_LONGEST // 2 :]}"
    )


def report(changes_of_cases: dict[str, list[Change]], most: int = 6) -> Iterator[str]:
    """Yield lines on the changes of every case: the same change in several cases is said once."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for case, all_changes in changes_of_cases.items():
        for change in all_changes:
            key = (re.sub(r"\[\d+\]", "[]", change.where), change.old, change.new)
            cases = groups.setdefault(key, [])
            if case not in cases:
                cases.append(case)
    common = {key: cases for key, cases in groups.items() if len(cases) > 2}
    for (where, old, new), cases in sorted(common.items(), key=lambda item: -len(item[1])):
        more = f" and {len(cases) - 4} more" if len(cases) > 4 else ""
        yield f"\n{len(cases)} cases: {', '.join(cases[:4])}{more}"
        yield from _lines(where, old, new)
    for case, all_changes in changes_of_cases.items():
        changes_of_case: dict[str, list[Change]] = {}
        for change in all_changes:
            where = re.sub(r"\[\d+\]", "[]", change.where)
            if (where, change.old, change.new) not in common:
                changes_of_case.setdefault(where, []).append(change)
        if changes_of_case:
            yield f"\n{case}"
        for alike in changes_of_case.values():
            for change in alike[:most]:
                yield from _lines(*change)
            if len(alike) > most:
                yield f"    and {len(alike) - most} more there"


def _lines(where: str, old: str, new: str) -> Iterator[str]:
    yield f"  {where}"
    for sign, text in (("-", old), ("+", new)):
        yield from (f"    {sign} {line}" for line in text.split("\n"))
