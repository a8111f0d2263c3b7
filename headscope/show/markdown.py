"""``report.md``: short enough for a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headscope.results import Insight, InsightsResult, ReportResult
from headscope.safe_text import markdown
from headscope.show.classify.words import roles_notes
from headscope.show.key_numbers import certificate, key_numbers, role_counts, settings_rows

__all__ = ["report_markdown", "scoreboard_markdown"]


def report_markdown(report: ReportResult) -> str:
    """Write the report in GitHub's Markdown; every string of a model or corpus is inert."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: ReportResult) -> Iterator[str]:
    model = report.provenance["model"]
    yield f"# headscope: {markdown(model['id'])}"
    yield ""
    yield (
        f"{markdown(model['family'])}, {model['n_layers']} layers x {model['n_heads']} heads"
        f"{_removed(model)}. {markdown(certificate(report))}"
    )
    if report.insights is not None:
        yield from _part("Claims", scoreboard_markdown(report.insights))
    roles = _roles(report)
    if report.classify is not None:
        control = report.classify.control
        ran = control is not None and control.random_weights
        title = "random weights" if ran else "random weights (not run)"
        yield from _part("Roles", _table(("role", "heads", title), roles))
        corpus = report.classify.corpus
        yield ""
        yield (
            f"On {markdown(corpus.name)}: {corpus.sentences:,} sentences, {corpus.skipped:,} "
            "skipped. A head can have several roles."
        )
        for text in roles_notes(report.classify):
            yield ""
            yield markdown(text)
    rows = list(key_numbers(report))
    if rows:
        yield from _part("Key numbers", _table(("", "this model", "control"), rows))
    if report.left_out:
        yield from _part("Left out", _table(("section", "why"), list(report.left_out.items())))
    changed = settings_rows(report)
    if changed:
        table = _table(("section", "setting", "value"), changed)
        yield from _part("Settings other than the defaults", table)
    yield ""
    yield f"_{_versions(report)}_"


def _roles(report: ReportResult) -> list[tuple[str, str, str]]:
    """Role, heads, heads with random weights; roles without any head only if they were untested."""
    untested = report.classify.untestable if report.classify is not None else {}
    return [
        (name, "not testable" if role in untested else str(n), control)
        for role, name, n, control in role_counts(report)
        if n or role in untested or role == "none"
    ]


def scoreboard_markdown(result: InsightsResult) -> Iterator[str]:
    """Write the claims that have a verdict as a table, and list the others."""
    decided = [found for found in result.insights if found.verdict != "not measured yet"]
    if decided:
        yield from _table(
            ("#", "claim", "verdict", "measured", "parts", "control"),
            [
                (str(i.number), i.claim, i.verdict, i.measured, _in_parts(i), i.control)
                for i in decided
            ],
            bold=2,
        )
    waiting = [str(i.number) for i in result.insights if i.verdict == "not measured yet"]
    if waiting:
        yield ""
        yield f"Not measured yet: claims {', '.join(waiting)}."


def _in_parts(found: Insight) -> str:
    """Write each part with its verdict and numbers, where there are several."""
    if len(found.parts) < 2:
        return ""
    return "; ".join(f"{part.name}: {part.verdict} ({part.measured})" for part in found.parts)


def _part(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield from ("", f"## {title}", "")
    yield from lines


def _table(
    header: Sequence[str], rows: Iterable[Sequence[str]], bold: int | None = None
) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        cells = [markdown(cell) for cell in row]
        if bold is not None:
            cells[bold] = f"**{cells[bold]}**"
        yield f"| {' | '.join(cells)} |"


def _removed(model: dict[str, object]) -> str:
    removed = model.get("removed_heads")
    return f", {len(removed)} of them removed" if isinstance(removed, list) and removed else ""


def _versions(report: ReportResult) -> str:
    made = report.provenance
    return markdown(
        f"headscope {made['headscope']}, torch {made['torch']}, transformers "
        f"{made['transformers']}, {made['dtype']} on {made['device']}, seed {made['seed']}"
    )
