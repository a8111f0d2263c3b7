"""Estimates in words: a number with its interval, a comparison, and the effect of a change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headscope.show.cells import decimal, interval_text, model_line
from headscope.stats.effects import Effect
from headscope.stats.estimate import Estimate


def ranged(number: Estimate | None, form: int | Callable[[float], str] = 3) -> str:
    """Write a number with its interval: ``0.941 [0.910, 0.962]``; alone if that is unknown.

    ``form`` is the number of digits after the point, or the function that writes each number.
    """
    if number is None or number.value is None:
        return "-"
    text = decimal(number.value, form) if isinstance(form, int) else form(number.value)
    if number.interval is None:
        return text
    return f"{text} {interval_text(number.interval, form)}"


def compared(gap: Estimate | None, other: str) -> str:
    """Say whether a number lies above or below another.

    ``gap`` is their difference with its interval; ``other`` is what the other one is called.
    """
    if gap is None or gap.value is None or gap.interval is None:
        return f"no interval of the difference to {other}"
    low, high = gap.interval
    if low <= 0 <= high:
        return f"no different from {other}"
    direction = "above" if low > 0 else "below"
    size = gap if gap.value > 0 else Estimate(-gap.value, -high, -low)
    return f"{direction} {other} by {ranged(size)}"


def cosine_text(effect: Effect | None, digits: int = 4) -> str:
    """Write the mean cosine of an effect, or a dash."""
    return "-" if effect is None else decimal(effect.cosine.value, digits)


def run_lines(result: Any) -> str:
    """Say on which model, text and task a result was measured, in a line each.

    The result has a ``text`` (a dict with name, lines, tokens) and a ``task`` or None.
    """
    text = result.text
    lines = [
        model_line(result).plain,
        f"Text    {text['name']}: {text['lines']:,} lines, {text['tokens']:,} tokens",
    ]
    task = result.task
    dropped = text.get("dropped")
    if dropped:
        lines[-1] += f"; {dropped:,} lines that the task is measured on are left out"
    elif task is not None and task.data["sha256"] == text["sha256"]:
        lines[-1] += "; the task is measured on the same text"
    if task is not None:
        drawn = f" ({task.data['drawn']})" if task.data.get("drawn") else ""
        examples = f"{task.data['name']}: {task.examples:,} examples{drawn}"
        baseline = f"{task.metric} {ranged(task.baseline, 2)} unchanged"
        lines.append(f"Task    {task.name} on {examples}, {baseline}")
    return "\n".join(lines)
