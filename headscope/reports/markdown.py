"""``report.md``, readable as a comment on a pull request; and the sentences that the page shares.

First the shared sentences (:func:`certificate`, :func:`key_numbers`, :func:`headline`, ...), then
:func:`report_markdown`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headscope.analyses.classify.result import ClassifyResult
from headscope.core.safe_text import markdown, visible
from headscope.core.serialise import warnings_of
from headscope.pruning.sentences import short_verdict
from headscope.reports.claims.rule import NOT_YET
from headscope.reports.claims.view import bar_of
from headscope.reports.conditions import size_of
from headscope.reports.diff_view import diff_markdown, ticked
from headscope.reports.result import DiffResult, Insight, Outcome, ReportResult
from headscope.show.blocks import PAGE, Block, HeadMarks, Table, Text, table_cells
from headscope.show.cells import folded, head_rows, model_name, table, tidy, tiny
from headscope.show.page.template import versions
from headscope.show.view import KeyNumber, view_of

#: An invisible line where action.yml puts the link to the page, which it uploads.
LINK = "<!-- headscope: link to the page -->"


def model_title(report: ReportResult) -> str:
    """Return the model's name; of a folder its last part, of the demo what it is."""
    name = str(report.provenance["model"]["id"])
    if name == "demo":
        return "all-MiniLM-L6-v2 (demo)"
    is_folder = name.startswith((".", "/", "~"))
    return visible(model_name(report) if is_folder else name)


def certificate_in(report: ReportResult) -> Any:
    """Return the certificate of a report, or the first that a section carries; None if none is."""
    if report.validate:
        return report.validate
    checks = [getattr(result, "validation", None) for result in report.sections.values()]
    return next((check for check in checks if check), None)


def certificate(report: ReportResult) -> str:
    """Say whether our attention equals the model's."""
    summary = certificate_in(report)
    if summary is None or summary.passed is None:
        return "Not validated: headscope's attention was not checked against the model."
    if not summary.passed:
        reasons = report.validate.reasons if report.validate else ["see headscope validate"]
        return f"Validation FAILED, so nothing is reported on this model: {'; '.join(reasons)}."
    return (
        "Same numbers as the model: re-run by headscope's own attention, its last hidden state "
        f"differs by at most {tiny(summary.max_abs_hidden)}."
    )


def key_numbers(report: ReportResult, *, claims: bool = True) -> list[tuple[str, str, str]]:
    """Return the numbers that the report leads with, with or without those of the claims.

    Each is (what it is, the model's value, the control's).
    """
    numbers: list[KeyNumber] = []
    for name, result in report.sections.items():
        if claims or name != "insights":
            numbers += view_of(name).key_numbers(result)
    return [(tidy(number.what), tidy(number.text), tidy(number.control)) for number in numbers]


def headline(report: ReportResult) -> str:
    """Say how many heads can go, by which method and beside random heads, and how many have a role.

    The numbers are those of the sections, digit for digit.
    """
    findings = []
    if report.prune is not None:
        findings.append(short_verdict(report.prune))
    classified = report.classify
    if classified is not None and classified.heads:
        with_role = sum(bool(head.roles) for head in classified.heads)
        corpus = classified.corpus.name
        if corpus.startswith("built-in"):
            corpus = f"the {corpus}"
        heads = f"{len(classified.heads)} heads"
        if "stacks" in report.provenance["model"] and classified.stacks == ("encoder",):
            heads = f"the encoder\u2019s {heads}"
        findings.append(f"{with_role} of {heads} have a role on {corpus}")
    sentences = [f"{finding}." for finding in findings if finding]
    return " ".join(sentences) or "What the attention heads of this model do."


def settings_rows(report: ReportResult) -> list[tuple[str, str, str]]:
    """Return (section, setting, value) of everything that differs from the defaults."""
    rows = []
    for section, settings in report.settings.items():
        rows += [(section, name, str(value)) for name, value in settings.items()]
    return rows


def report_markdown(
    report: ReportResult, outcomes: Sequence[Outcome] = (), changes: DiffResult | None = None
) -> str:
    """Write the report in GitHub's Markdown: what changed, the limits, the answer; the rest folded.

    Tables have at most four columns, and every string of a model or corpus is escaped. ``changes``
    are those since the baseline of the limits.
    """
    return "\n".join([*_lines(report, outcomes, changes), ""])


def _lines(
    report: ReportResult, outcomes: Sequence[Outcome], changes: DiffResult | None
) -> Iterator[str]:
    """Yield the lines of report.md."""
    # What changed, the limits, and warnings.
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

    # The answer.
    yield from ("", f"**{markdown(headline(report))}**", "")
    yield f"{markdown(model['family'])}, {size_of(model)}. {markdown(certificate(report))}"

    # The rest, folded.
    if report.classify is not None:
        yield from folded("Map of the heads' roles", _map(report.classify))
    if report.insights is not None:
        yield from _claims(report.insights.insights)
    numbers = key_numbers(report)
    if numbers:
        yield from folded("Key numbers", table(("", "this model", "control"), numbers))
    if report.classify is not None:
        view = view_of("classify")
        blocks = view.blocks(report.classify) if view.blocks else ()
        yield from folded(f"{view.title} ({view.term})", _block_lines(blocks))
    for name, result in report.sections.items():
        for details in view_of(name).more(result):
            yield from folded(f"{details.title} ({details.term})", _block_lines(details.blocks))
    if report.left_out:
        left_out = table(("section", "why"), report.left_out.items())
        yield from folded("Left out", left_out)
    settings = settings_rows(report)
    if settings:
        rows = table(("section", "setting", "value"), settings)
        yield from folded("Settings other than the defaults", rows)
    yield from ("", f"_{markdown(versions(report))}_")


def _map(result: ClassifyResult) -> Iterator[str]:
    """Draw the map of roles as text, since a picture would need a web address."""
    blocks = view_of("classify").blocks
    if blocks is None:
        return
    for block in blocks(result):
        if isinstance(block, HeadMarks):
            rows = head_rows(block.marks)
            heads = range(len(rows[0][1]))
            yield "```text"
            yield f"{'':>4}" + "".join(f"{head:>6}" for head in heads)
            for layer, row in rows:
                marks = [mark[0] if mark else "" for mark in row]
                line = f"{layer:>4}" + "".join(f"{mark:>6}" for mark in marks)
                yield visible(line).replace("`", "'")
            yield from ("```", "", markdown(block.legend))


def _claims(claims: Sequence[Insight]) -> Iterator[str]:
    """Write a line for each claim that has a verdict, and name those that have none yet."""
    decided = [claim for claim in claims if claim.verdict != NOT_YET]
    not_yet = [str(claim.number) for claim in claims if claim.verdict == NOT_YET]
    rows = []
    for claim in decided:
        bar = bar_of(claim)
        number = "" if bar is None else tidy(bar.text)
        rows.append((str(claim.number), claim.claim, claim.verdict, number))
    lines = list(table(("#", "claim", "verdict", "number"), rows, bold=2)) if rows else []
    if not_yet:
        lines += ["", f"Not measured yet: claims {', '.join(not_yet)}."]
    counts = Counter(claim.verdict for claim in decided)
    verdicts = ", ".join(f"{verdict} {count}" for verdict, count in counts.items())
    yield from folded(f"Claims from the literature: {verdicts or 'none measured yet'}", lines)


def _block_lines(blocks: Iterable[Block]) -> Iterator[str]:
    """Write the sentences and tables that are for the page, with an empty line between them."""
    is_first = True
    for block in blocks:
        if PAGE not in block.on or not isinstance(block, Text | Table):
            continue
        if isinstance(block, Text) and not block.text:
            continue
        if not is_first:
            yield ""
        is_first = False
        if isinstance(block, Text):
            yield markdown(block.text)
        else:
            yield from table([name for name, *_ in block.columns], table_cells(block))
