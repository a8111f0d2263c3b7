"""A report whose every string of a model or corpus tries to become markup or script."""

from __future__ import annotations

import dataclasses
from typing import Any

from headscope.results import ExplainResult, ReportResult

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
    spoilt = _spoil(report, bad)
    samples = tuple(
        dataclasses.replace(
            sample,
            text=bad,
            tokens=tuple(HOSTILE[i % len(HOSTILE)] for i in range(len(sample.tokens))),
        )
        for sample in report.samples
    )
    return dataclasses.replace(
        spoilt,
        samples=samples,
        settings={"classify": {"corpus": bad}},
        left_out={"prune": bad},
    )


def hostile_sentence(result: ExplainResult, made: dict[str, Any]) -> ExplainResult:
    """Put hostile strings into the sentence and each of its tokens."""
    tokens = tuple(HOSTILE[i % len(HOSTILE)] for i in range(len(result.tokens)))
    steps = tuple(
        dataclasses.replace(
            step,
            matrices=tuple(
                dataclasses.replace(
                    matrix,
                    rows=tokens if matrix.rows == result.tokens else matrix.rows,
                    columns=tokens if matrix.columns == result.tokens else matrix.columns,
                )
                for matrix in step.matrices
            ),
        )
        for step in result.steps
    )
    return dataclasses.replace(
        result,
        provenance=made,
        sentence=" ".join(HOSTILE),
        tokens=tokens,
        steps=steps,
        left_out=HOSTILE[:2],
    )


def _spoil(report: ReportResult, bad: str) -> ReportResult:
    made = dict(report.provenance)
    made |= {"model": {**made["model"], "id": bad, "family": bad}, "command": bad}
    fields: dict[str, Any] = {"provenance": made}
    if report.classify is not None:
        corpus = dataclasses.replace(report.classify.corpus, name=bad, frequencies=bad)
        heads = tuple(
            dataclasses.replace(
                head,
                labels=tuple(dataclasses.replace(label, detail=bad) for label in head.labels),
                syntactic=tuple(dataclasses.replace(s, relation=bad) for s in head.syntactic),
            )
            for head in report.classify.heads
        )
        fields["classify"] = dataclasses.replace(report.classify, corpus=corpus, heads=heads)
    if report.explain is not None:
        fields["explain"] = hostile_sentence(report.explain, made)
    if report.insights is not None:
        found = tuple(
            dataclasses.replace(insight, measured=bad, control=bad)
            for insight in report.insights.insights
        )
        fields["insights"] = dataclasses.replace(report.insights, insights=found)
    return dataclasses.replace(report, **fields)
