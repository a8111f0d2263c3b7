"""Data for the page's script, as JSON inside the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headscope.analyses.classify.view import found_sentence, legend, parts_of, role_counts
from headscope.core.heads import parse_head
from headscope.core.safe_text import visible
from headscope.core.serialise import warnings_of
from headscope.reports.result import ReportResult
from headscope.reports.words import certificate, key_numbers, settings_rows
from headscope.show.page.body import body, svg_files
from headscope.show.page.parts import Card, Part, Scale
from headscope.show.page.template import page_json, rendered, role_colours, versions
from headscope.show.view import view_of

__all__ = ["page_json"]


#: What would end the JSON's script element, or start markup in it, written so that it cannot.
def cards(report: ReportResult) -> list[Card]:
    """Make a card of every head that samples or sections know, by their original numbers."""
    made = {
        place: Card(*place)
        for sample in report.samples
        for place in map(parse_head, sample.patterns)
    }
    for name, result in report.sections.items():
        for said in view_of(name).facts(result, sorted(made)):
            place = said.layer, said.head
            made[place] = _with(made.get(place, Card(*place)), said)
    return [made[place] for place in sorted(made)]


def scales(report: ReportResult, made: list[Card]) -> list[Scale]:
    """Return the scales that any card has a value of: those of patterns first."""
    every = [scale for name in report.sections for scale in view_of(name).scales]
    every.sort(key=lambda scale: not scale.of_pattern)
    return [scale for scale in every if any(scale.key in card.values for card in made)]


def _with(card: Card, said: Card) -> Card:
    """Add what one section says of a head."""
    lists: dict[str, Any] = {
        field: [*getattr(card, field), *getattr(said, field)]
        for field in ("roles", "keys", "labels", "facts", "ranks")
    }
    known = {key: round(float(v), 4) + 0.0 for key, v in said.values.items() if v is not None}
    return replace(
        card,
        primary=said.primary or card.primary,
        mark=said.mark or card.mark,
        values={**card.values, **known},
        **lists,
    )


#: What the script reads of each head.
_CARD_FIELDS = ("name", "mark", "roles", "keys", "labels", "facts", "ranks", "values")


def report_html(
    report: ReportResult, files: Mapping[str, Mapping[str, bytes]] | None = None
) -> str:
    """Write the page; the same result gives the same text.

    ``files`` are those that sections have written already: the page shows their figures.

    Notes
    -----
    Strings of models and corpora go into the page through the template's escaping or as JSON, and
    from there through textContent. The page's security policy lets only the one script run whose
    hash it states, and nothing be fetched.
    """
    made = cards(report)
    shown = scales(report, made)
    parts = list(_parts(report, files or {}))
    claims = report.insights.insights if report.insights is not None else ()
    classified = report.classify
    classes = parts_of(classified)[:1] if classified is not None else []
    columns, rows = _grid(report, made)
    return rendered(
        "page.html.j2",
        role_colours(),
        ("page.js", "arrows.js"),
        data=page_json(_data(report, made)),
        title=visible(report.provenance["model"]["id"]),
        model_line=_model_line(report),
        certificate=visible(certificate(report)),
        warnings=[visible(warning) for warning in warnings_of(report)],
        failed=report.validate is not None and not report.validate.passed,
        contents=_contents(bool(claims), bool(rows), parts),
        claims=claims,
        waiting=[claim for claim in claims if claim.verdict == "not measured yet"],
        found=found_sentence(classified) if classified is not None else "",
        roles=role_counts(classes[0]) if classes else (),
        scales={scale.key: scale.caption for scale in shown},
        columns=columns,
        rows=rows,
        legend="".join(f"{legend(part.stacks[0])}; " for part in classes)
        + "dashed: removed from the model.",
        parts=parts,
        table_header=[("head", False), ("roles", False), *((s.caption, True) for s in shown)],
        table_rows=[(card, [_cell(card, scale.key) for scale in shown]) for card in made],
        versions=visible(f"{versions(report, '; ')}. Made by: {report.provenance['command']}"),
    )


def _data(report: ReportResult, made: Sequence[Card]) -> dict[str, Any]:
    samples = [
        {
            "text": visible(sample.text),
            "tokens": [visible(token) for token in sample.tokens],
            "patterns": {
                name: [round(100 * weight) for row in pattern for weight in row]
                for name, pattern in sample.patterns.items()
            },
        }
        for sample in report.samples
    ]
    return {
        "classified": report.classify is not None,
        "controls": list(report.rank.controls) if report.rank is not None else [],
        "heads": [{field: getattr(card, field) for field in _CARD_FIELDS} for card in made],
        "samples": samples,
    }


def _grid(
    report: ReportResult, made: Sequence[Card]
) -> tuple[list[int], list[tuple[int, list[Card | None]]]]:
    """Lay the heads out by their original numbers; None where one was removed."""
    shown = next((head.stack for head in report.classify.heads), "") if report.classify else ""
    gone = report.provenance["model"].get("removed_heads", ())
    removed = [tuple(place[-2:]) for place in gone if len(place) == 2 or place[0] == shown]
    places = {(card.layer, card.head): card for card in made}
    if not places:
        return [], []
    known = [*places, *removed]
    columns = list(range(max(head for _, head in known) + 1))
    layers = range(max(layer for layer, _ in known) + 1)
    return columns, [(n, [places.get((n, head)) for head in columns]) for n in layers]


def _cell(card: Card, key: str) -> str:
    return f"{card.values[key]:.4g}" if key in card.values else "-"


def _contents(claims: bool, grid: bool, parts: Sequence[Part]) -> list[tuple[str, str]]:
    """Return anchor and text of each line of the contents."""
    first = [("claims", "Claims")] if claims else []
    middle = [("map", "Map of heads")] if grid else []
    last = [("heads", "All heads")] if grid else []
    return [*first, *middle, *((part.anchor, part.title) for part in parts), *last]


def _parts(report: ReportResult, files: Mapping[str, Mapping[str, bytes]]) -> Iterator[Part]:
    """Yield the key numbers, what each section has to show, and how the report was made."""
    numbers = list(key_numbers(report))
    if numbers:
        header = ("", "this model", "control")
        yield Part("numbers", "Key numbers", header=header, rows=numbers, numbers=3)
    for name, result in report.sections.items():
        view = view_of(name)
        if view.blocks is not None and view.title:
            shown = list(view.blocks(result))
            drawn = files.get(name) or svg_files(shown)
            yield Part(name, view.title, body=body(shown, drawn))
        elif (part := view.section(result)) is not None:
            yield part
        for more in view.more(result):
            anchor = more.title.lower().replace(" ", "-")
            drawn = files.get(name) or svg_files(more.blocks)
            yield Part(anchor, more.title, body=body(more.blocks, drawn))
    if report.left_out:
        rows = [(name, visible(why)) for name, why in report.left_out.items()]
        yield Part("left-out", "Left out", header=("section", "why"), rows=rows, numbers=2)
    changed = [(section, name, visible(value)) for section, name, value in settings_rows(report)]
    text = [] if changed else ["Every setting is at its default."]
    header = ("section", "setting", "value")
    yield Part("settings", "Settings", text, header=header, rows=changed, numbers=3)


def _model_line(report: ReportResult) -> str:
    model = report.provenance["model"]
    removed = model.get("removed_heads") or []
    text = f"{model['family']}, {model['n_layers']} layers of {model['n_heads']} heads"
    if removed:
        text += f", {len(removed)} heads removed"
    sha = model["weights_sha256"]
    return visible(f"{text}; weights {sha[:12]}." if sha else f"{text}.")
