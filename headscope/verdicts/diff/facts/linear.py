"""The facts of ``headscope linear``."""

from __future__ import annotations

from collections.abc import Mapping

from headscope.results.effects import Effect
from headscope.results.estimated import Estimated
from headscope.results.linear import HeadLinear, LinearForm, LinearResult
from headscope.verdicts.diff.facts.fact import Facts, Number


def collect(result: LinearResult, facts: Facts) -> None:
    """Add errors and coherence of every head, every form in all heads, and the correlations."""
    for head in result.heads:
        _head(head, facts)
    for form in result.forms:
        _form(form, facts)
    for row in result.correlations:
        given = f" given {row.given}" if row.given else ""
        where = f"{row.number} and {row.form} {row.fit}{given}"
        facts.number(where, "spearman", number(row.spearman))
    facts.number("own keys", "linear minus softmax", number(result.stored.difference))
    for point in result.memory:
        if point.kind == "own":
            where = f"{point.keys} own keys, {point.readout}"
            facts.number(where, "error of reading back", number(point.error))


def settings(result: LinearResult) -> Mapping[str, object]:
    """Return how much was read."""
    return {"lines": result.text.get("lines"), "tokens": result.text.get("tokens")}


def _head(head: HeadLinear, facts: Facts) -> None:
    facts.number(head.name, "key coherence", number(head.coherence))
    facts.number(head.name, "key coherence without mean", number(head.coherence_centred))
    for error in head.errors:
        facts.number(head.name, f"{error.form} scaled error", number(error.scaled))
    if head.alone is not None:
        effect(head.name, "linear alone", head.alone, facts)


def _form(form: LinearForm, facts: Facts) -> None:
    where = f"all heads {form.mean.form}"
    facts.number(where, "scaled error", number(form.mean.scaled))
    effect(where, "as it is", form.whole, facts)
    effect(where, "scaled", form.whole_scaled, facts)


def effect(where: str, name: str, found: Effect, facts: Facts) -> None:
    """Add what a change does to the output."""
    facts.number(where, f"{name} cosine", number(found.cosine, sign=1))
    if found.metric is not None:
        facts.number(where, f"{name} change of the metric", number(found.difference))


def number(found: Estimated | None, sign: int = 0) -> Number:
    """Turn a number with its interval into a fact."""
    if found is None:
        return Number(None, None, sign)
    return Number.within(found.value, found.interval, sign)
