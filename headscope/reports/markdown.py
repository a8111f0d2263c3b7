"""``report.md``, readable as a comment on a pull request; and words that the page shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headscope.analyses.classify.result import ClassifyResult
from headscope.core.safe_text import markdown, visible
from headscope.core.serialise import warnings_of
from headscope.reports.claims.view import bar_of
from headscope.reports.conditions import size_of
from headscope.reports.diff_view import diff_markdown, ticked
from headscope.reports.result import DiffResult, Insight, Outcome, ReportResult
from headscope.show.blocks import PAGE, Block, HeadMarks, Table, Text, table_cells
from headscope.show.cells import folded, head_rows, table, tidy, tiny
from headscope.show.page.template import versions
from headscope.show.view import view_of

#: An invisible line where action.yml puts the link to the page, which it uploads.
LINK = "<!-- headscope: link to the page -->"


def model_title(report: ReportResult) -> str:
    """Return the model's name; the demo's real one."""
    name = str(report.provenance["model"]["id"])
    return "all-MiniLM-L6-v2 (demo)" if name == "demo" else visible(name)


def certificate_in(report: ReportResult) -> Any:
    """Return the certificate of a report, or what the first section says of it; None without."""
    checks = (getattr(result, "validation", None) for result in report.sections.values())
    return report.validate or next(filter(None, checks), None)


def certificate(report: ReportResult) -> str:
    """Say whether our attention equals the model's."""
    summary = certificate_in(report)
    if summary is None or summary.passed is None:
        return "Not validated: headscope's attention was not checked against the model."
    if not summary.passed:
        reasons = report.validate.reasons if report.validate else ["see headscope validate"]
        return f"Validation FAILED, so nothing is reported on this model: {'; '.join(reasons)}."
    return (
        "Validated: headscope's attention was checked against the model; the last hidden state "
        f"differs by at most {tiny(summary.max_abs_hidden)}."
    )


def key_numbers(report: ReportResult, *, claims: bool = True) -> list[tuple[str, str, str]]:
    """Return what the report leads with: what it is, this model's value, the controls'."""
    return [
        (tidy(number.what), tidy(number.text), tidy(number.control))
        for name, result in report.sections.items()
        if claims or name != "insights"
        for number in view_of(name).key_numbers(result)
    ]


def headline(report: ReportResult) -> str:
    """Say in one sentence how many heads have a role, and how many can go."""
    parts = []
    classified = report.classify
    prune = report.prune
    if classified is not None and classified.heads:
        some = sum(bool(head.roles) for head in classified.heads)
        article = "the " if classified.corpus.name.startswith("built-in") else ""
        on = f"{article}{classified.corpus.name}"
        parts.append(f"{some} of {len(classified.heads)} heads have a role on {on}")
    if prune is not None and prune.curves:
        points = [p for p in prune.curves[0].points if p.heads_removed]
        if points:
            point = min(points, key=lambda p: abs(len(p.heads_removed) / prune.n_heads - 0.5))
            share = f"{len(point.heads_removed)} of {prune.n_heads} heads"
            value = point.value.value
            full = prune.baseline.value.value
            if prune.metric == "cosine":
                text = f"embeddings stay at cosine {value:.2f} to the original"
            else:
                text = f"{prune.metric} is {value:.2f} in place of {full:.2f}"
            parts.append(f"with {share} removed, {text}")
    return f"{'; '.join(parts) or 'What the attention heads of this model do'}."


def settings_rows(report: ReportResult) -> list[tuple[str, str, str]]:
    """Return (section, setting, value) of everything that differs from the defaults."""
    tables = report.settings.items()
    return [(name, key, str(value)) for name, table in tables for key, value in table.items()]


def report_markdown(
    report: ReportResult, outcomes: Sequence[Outcome] = (), changes: DiffResult | None = None
) -> str:
    """Write the report in GitHub's Markdown: what changed, the limits, the answer; the rest folded.

    Tables have at most four columns, and every string of a model or corpus is inert. ``changes``
    are those since the baseline of the limits.
    """
    return "\n".join([*_lines(report, outcomes, changes), ""])


def _lines(
    report: ReportResult, outcomes: Sequence[Outcome], changes: DiffResult | None
) -> Iterator[str]:
    model = report.provenance["model"]
    yield f"## headscope: {markdown(model_title(report))}"
    if changes is not None:
        text = diff_markdown(changes)
        yield from ("", text or f"Nothing differs from {markdown(changes.old)}.")
    if outcomes:
        passed = sum(not outcome.reason for outcome in outcomes)
        yield from ("", f"### Limits: {passed} of {len(outcomes)} pass", *ticked(outcomes))
    yield from ("", LINK)
    for warning in warnings_of(report):
        yield from ("", f"**Warning:** {markdown(warning)}")
    yield from ("", f"**{markdown(headline(report))}**", "")
    yield f"{markdown(model['family'])}, {size_of(model)}. {markdown(certificate(report))}"
    if report.classify is not None:
        yield from folded("Map of the heads' roles", _map(report.classify))
    if report.insights is not None:
        yield from _claims(report.insights.insights)
    if numbers := key_numbers(report):
        yield from folded("Key numbers", table(("", "this model", "control"), numbers))
    if report.classify is not None:
        view = view_of("classify")
        blocks = view.blocks(report.classify) if view.blocks else ()
        yield from folded(view.title, _written(blocks))
    for name, result in report.sections.items():
        for part in view_of(name).more(result):
            yield from folded(part.title, _written(part.blocks))
    if report.left_out:
        left_out = table(("section", "why"), report.left_out.items())
        yield from folded("Left out", left_out)
    if settings := settings_rows(report):
        rows = table(("section", "setting", "value"), settings)
        yield from folded("Settings other than the defaults", rows)
    yield from ("", f"_{markdown(versions(report))}_")


def _map(result: ClassifyResult) -> Iterator[str]:
    """Draw the map of roles as text: a picture would need a web address."""
    view = view_of("classify")
    for block in view.blocks(result) if view.blocks else ():
        if isinstance(block, HeadMarks):
            rows = head_rows(block.marks)
            yield "```text"
            yield f"{'':>4}" + "".join(f"{head:>6}" for head in range(len(rows[0][1])))
            for layer, row in rows:
                line = f"{layer:>4}" + "".join(f"{mark[0] if mark else '':>6}" for mark in row)
                yield visible(line).replace("`", "'")
            yield from ("```", "", markdown(block.legend))


def _claims(claims: Sequence[Insight]) -> Iterator[str]:
    decided = [claim for claim in claims if claim.verdict != "not measured yet"]
    waiting = [str(claim.number) for claim in claims if claim.verdict == "not measured yet"]
    rows = [
        (str(claim.number), claim.claim, claim.verdict, tidy(bar.text) if bar else "")
        for claim in decided
        for bar in [bar_of(claim)]
    ]
    lines = list(table(("#", "claim", "verdict", "number"), rows, bold=2)) if rows else []
    if waiting:
        lines += ["", f"Not measured yet: claims {', '.join(waiting)}."]
    counts = Counter(claim.verdict for claim in decided)
    verdicts = ", ".join(f"{verdict} {count}" for verdict, count in counts.items())
    yield from folded(f"Claims from the literature: {verdicts or 'none measured yet'}", lines)


def _written(blocks: Iterable[Block]) -> Iterator[str]:
    """Write the sentences and tables that are for the page."""
    shown = [block for block in blocks if PAGE in block.on and block != Text("", on=block.on)]
    for i, block in enumerate(block for block in shown if isinstance(block, Text | Table)):
        yield from [""] if i else []
        if isinstance(block, Text):
            yield markdown(block.text)
        else:
            yield from table([name for name, *_ in block.columns], table_cells(block))
