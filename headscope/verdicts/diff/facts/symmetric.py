"""The facts of ``headscope symmetric``."""

from __future__ import annotations

from collections.abc import Mapping

from headscope.results.symmetric import SymmetricResult
from headscope.verdicts.diff.facts.fact import Facts
from headscope.verdicts.diff.facts.linear import effect, number


def collect(result: SymmetricResult, facts: Facts) -> None:
    """Add what symmetric scores do in every head, in some, and in all."""
    for head in result.heads:
        facts.number(head.name, "asymmetry of scores", number(head.asymmetry))
        for name in ("symmetric", "noise", "removed"):
            found = getattr(head, name)
            if found is not None:
                effect(head.name, f"{name} alone", found, facts)
    for name, drawn in result.whole.items():
        facts.number("all heads", f"{name} cosine", number(drawn.cosine, sign=1))
    facts.number("all heads", "change of the metric", number(result.whole_difference))
    for chosen in result.sets:
        for name in ("symmetric", "removed"):
            cosine = number(getattr(chosen, name).cosine, sign=1)
            facts.number(f"{chosen.heads} random heads", f"{name} cosine", cosine)
    facts.number("all heads", "as many heads removed", number(result.equivalent_heads))


def settings(result: SymmetricResult) -> Mapping[str, object]:
    """Return how much was read."""
    return {"lines": result.text.get("lines"), "tokens": result.text.get("tokens")}
