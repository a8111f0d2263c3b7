"""The list of the steps, in their order, and the function that measures all of them."""

from __future__ import annotations

from headscope.analyses.explain.result import ExplainStep
from headscope.analyses.explain.steps.layer import FFN, LAYERNORM, SKIP
from headscope.analyses.explain.steps.output import MIX, Z
from headscope.analyses.explain.steps.pattern import MASK, SCORES, SOFTMAX
from headscope.analyses.explain.steps.projections import HEADS, INPUT, QKV, WEIGHTS
from headscope.analyses.explain.steps.step import Numbers, Step, Trace

_ATTENTION = (INPUT, WEIGHTS, QKV, HEADS, SCORES, MASK, SOFTMAX, Z, MIX)
_AFTER_ATTENTION = (SKIP, LAYERNORM, FFN)
#: By key, such as ``scores``.
STEPS: dict[str, Step] = {step.key: step for step in (*_ATTENTION, *_AFTER_ATTENTION)}


def measure_steps(trace: Trace) -> tuple[ExplainStep, ...]:
    """Measure nine steps of attention, and three of what follows it where that is known."""
    steps_to_measure = list(_ATTENTION)
    if trace.after is not None:
        steps_to_measure += _AFTER_ATTENTION
    steps = []
    for number, step in enumerate(steps_to_measure, start=1):
        measured = step.measure(trace)
        # Counts become floats, as a file that is read back has them.
        numbers: Numbers = {}
        for name, value in measured.numbers.items():
            numbers[name] = None if value is None else float(value)
        steps.append(
            ExplainStep(
                number=number,
                key=step.key,
                numbers=numbers,
                matrices=tuple(measured.matrices),
                checks=tuple(measured.checks),
            )
        )
    return tuple(steps)
