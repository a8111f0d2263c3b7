"""The facts of ``headscope flow``."""

from __future__ import annotations

from headscope.results.estimated import Estimated
from headscope.results.flow import FlowResult
from headscope.verdicts.diff.facts.fact import Facts, Number


def collect(result: FlowResult, facts: Facts) -> None:
    """Add what every head passes on, its hub and its trees, and the same of the model."""
    for head in result.heads:
        facts.number(head.name, "effective rank of W_V", Number(head.w_v.effective_rank))
        facts.number(head.name, "effective rank of W_V W_O", Number(head.ov.effective_rank))
        for name, found in vars(head.recovery).items():
            facts.number(head.name, f"R^2 {name}", _number(found))
        facts.number(head.name, "share of the largest hubs", _number(head.graph.top_share))
        facts.text(head.name, "hub", head.graph.hub)
        if head.trees is not None:
            for direction, uas in head.trees.uas.items():
                facts.number(head.name, f"UAS {direction}", _number(uas))
    for name, found in vars(result.recovery).items():
        facts.number("mean of heads", f"R^2 {name}", _number(found))
    for hub in result.graph.hubs:
        facts.number(f"hub {hub.name}", "beside even attention", _number(hub.ratio))
    if result.trees is not None:
        facts.number("best head", "UAS", _number(result.trees.best.uas))
        facts.number("heads added up", "UAS", _number(result.trees.combination.uas))
        chosen = (name for name, _ in result.trees.combination.heads)
        facts.label("heads added up", "heads", chosen)


def settings(result: FlowResult) -> dict[str, object]:
    """Return how much was read."""
    read = result.sentences
    return {"chosen on": read.chosen_on, "measured on": read.measured_on}


def _number(found: Estimated) -> Number:
    return Number.around(found.value, found.half_width)
