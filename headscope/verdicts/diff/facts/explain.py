"""The facts of ``headscope explain``."""

from __future__ import annotations

from headscope.results.explain import ExplainResult
from headscope.verdicts.diff.facts.fact import Facts, Number


def collect(result: ExplainResult, facts: Facts) -> None:
    """Add which head is explained, and the entropy and link of every head on the sentence."""
    facts.text("sentence", "head", result.name)
    facts.text("sentence", "steps", ", ".join(step.key for step in result.steps))
    for head in result.heads:
        facts.number(head.name, "entropy on the sentence", Number(head.entropy))
        facts.number(head.name, "link on the sentence", Number(head.link))
    mix = result.step("mix")
    if mix is not None:
        table = mix.matrix("heads")
        for name, (share, *_) in zip(table.rows, table.values, strict=True):
            facts.number(f"{name} of {result.name}", "share of the output", Number(share))


def settings(result: ExplainResult) -> dict[str, object]:
    """Return the sentence."""
    return {"sentence": result.sentence}
