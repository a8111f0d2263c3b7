"""The facts of ``headscope spectrum``."""

from __future__ import annotations

from itertools import zip_longest

from headscope.results.spectrum import SpectrumHead, SpectrumResult
from headscope.verdicts.diff.facts.fact import Facts, Number, Z


def collect(result: SpectrumResult, facts: Facts) -> None:
    """Add every head's shares, curve and verdict, and the cheap forms."""
    verdicts = dict.fromkeys(result.verdict.low_rank, "low rank")
    verdicts |= dict.fromkeys(result.verdict.not_low_rank, "not low rank")
    for head in result.heads:
        share = Number.around(head.share_at_k.mean, head.half_width)
        facts.text(head.name, "verdict", verdicts.get(head.name, "between"))
        facts.number(head.name, "share at k", share)
        facts.number(head.name, "share of squares at k", Number.of(head.share_sq_at_k))
        facts.curve(head.name, "cumulative share", _cumulative(head))
    for point in result.efficient.points if result.efficient else ():
        where = f"{point.form} of size {point.size}"
        facts.number(where, "fidelity", Number.of(point.fidelity))
        facts.number(where, "error", Number(point.error))


def settings(result: SpectrumResult) -> dict[str, object]:
    """Return the windows, and what low rank means."""
    return {
        "length": result.length,
        "k": result.k,
        "sequences": result.sequences,
        "low rank above": result.verdict.threshold,
    }


def _cumulative(head: SpectrumHead) -> dict[str, Number]:
    pairs = zip_longest(head.curve, head.curve_sem or ())
    return {
        f"{i} largest": Number.around(value, None if sem is None else Z * sem)
        for i, (value, sem) in enumerate(pairs, start=1)
        if value is not None
    }
