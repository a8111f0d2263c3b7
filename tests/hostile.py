"""A report whose every string of a model or corpus tries to become markup or script."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headscope.analyses.explain.result import ExplainResult
from headscope.reports.result import ReportResult

HOSTILE = (
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "</script><script>window.hacked = 1</script>",
    '"><svg onload=window.hacked=1>',
    "' onmouseover='window.hacked = 1",
    "<!--<script>",
    "{{ 7 * 7 }}",
    "\u202eright to left\u2066\u2028\u2029",
    "javascript:window.hacked=1",
    "a|b\n# c @octocat ![x](http://example.org/x.png)",
)


def hostile(report: ReportResult) -> ReportResult:
    """Put hostile strings wherever a model, a corpus or a user could."""
    bad = " ".join(HOSTILE)
    provenance = {**report.provenance, "command": bad}
    provenance["model"] = {**provenance["model"], "id": bad, "family": bad}
    fields: dict[str, Any] = {"provenance": provenance, "left_out": {"prune": bad}}
    fields["settings"] = {"classify": {"corpus": bad}}
    fields["samples"] = tuple(
        replace(sample, text=bad, tokens=_instead_of(sample.tokens)) for sample in report.samples
    )
    if report.classify is not None:
        corpus = replace(report.classify.corpus, name=bad, frequencies=bad)
        heads = tuple(
            replace(
                head,
                labels=tuple(replace(label, detail=bad) for label in head.labels),
                syntactic=tuple(replace(score, relation=bad) for score in head.syntactic),
            )
            for head in report.classify.heads
        )
        fields["classify"] = replace(report.classify, corpus=corpus, heads=heads)
    if report.explain is not None:
        fields["explain"] = hostile_sentence(report.explain, provenance)
    if report.insights is not None:
        claims = report.insights.insights
        claims = tuple(replace(claim, measured=bad, control=bad) for claim in claims)
        fields["insights"] = replace(report.insights, insights=claims)
    return replace(report, **fields)


def _instead_of(tokens: Sequence[str]) -> tuple[str, ...]:
    return tuple(HOSTILE[i % len(HOSTILE)] for i in range(len(tokens)))


def hostile_sentence(result: ExplainResult, provenance: dict[str, Any]) -> ExplainResult:
    """Put hostile strings into the sentence and each of its tokens."""
    tokens = _instead_of(result.tokens)
    names = {result.tokens: tokens}
    steps = tuple(
        replace(
            step,
            matrices=tuple(
                replace(m, rows=names.get(m.rows, m.rows), columns=names.get(m.columns, m.columns))
                for m in step.matrices
            ),
        )
        for step in result.steps
    )
    text = {"sentence": " ".join(HOSTILE), "tokens": tokens, "left_out": HOSTILE[:2]}
    return replace(result, provenance=provenance, steps=steps, **text)
