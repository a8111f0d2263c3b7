"""``report.html``: one page about a model, and the data of its script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from headscope.analyses.classify.view import found_sentence, legend, parts_of, role_counts
from headscope.core.heads import parse_head
from headscope.core.safe_text import visible
from headscope.core.serialise import warnings_of
from headscope.reports.markdown import certificate, key_numbers, settings_rows
from headscope.reports.result import ReportResult
from headscope.show.page.body import body, svg_files
from headscope.show.page.parts import Card, Part
from headscope.show.page.template import page_json, rendered, role_colours, versions
from headscope.show.view import view_of

#: What the script reads of each head.
_CARD_FIELDS = ("name", "mark", "roles", "keys", "labels", "facts", "ranks", "values")


def report_html(
    report: ReportResult, files: Mapping[str, Mapping[str, bytes]] | None = None
) -> str:
    """Write the page; the same result gives the same text.

    ``files`` are those that sections have written already: the page shows their figures.

    Strings of models and corpora go into the page through the template's escaping or as JSON, and
    from there through textContent. The page's security policy lets only the one script run whose
    hash it states, and nothing be fetched.
    """
    cards = _cards(report)
    every = [scale for name in report.sections for scale in view_of(name).scales]
    every.sort(key=lambda scale: not scale.of_pattern)
    scales = [scale for scale in every if any(scale.key in card.values for card in cards)]
    parts = list(_parts(report, files or {}))
    model, classified = report.provenance["model"], report.classify
    claims = report.insights.insights if report.insights is not None else ()

    # The map: heads by their original numbers, None where one was removed.
    stack = next((head.stack for head in classified.heads), "") if classified else ""
    removed = model.get("removed_heads") or []
    gone = [place[-2:] for place in removed if len(place) == 2 or place[0] == stack]
    by_place = {(card.layer, card.head): card for card in cards}
    places = [*by_place, *gone] if by_place else []
    columns = list(range(max((head for _, head in places), default=-1) + 1))
    layers = range(max((layer for layer, _ in places), default=-1) + 1)
    rows = [(layer, [by_place.get((layer, head)) for head in columns]) for layer in layers]

    text = f"{model['family']}, {model['n_layers']} layers of {model['n_heads']} heads"
    text += f", {len(removed)} heads removed" if removed else ""
    text += f"; weights {model['weights_sha256'][:12]}." if model["weights_sha256"] else "."
    numbers = [
        (card, [f"{card.values[s.key]:.4g}" if s.key in card.values else "-" for s in scales])
        for card in cards
    ]
    classes = parts_of(classified)[:1] if classified is not None else []
    return rendered(
        "page.html.j2",
        role_colours(),
        ("page.js", "arrows.js"),
        data=page_json(_data(report, cards)),
        title=visible(model["id"]),
        model_line=visible(text),
        certificate=visible(certificate(report)),
        warnings=[visible(warning) for warning in warnings_of(report)],
        failed=report.validate is not None and not report.validate.passed,
        contents=[
            *([("claims", "Claims")] if claims else []),
            *([("map", "Map of heads")] if rows else []),
            *((part.anchor, part.title) for part in parts),
            *([("heads", "All heads")] if rows else []),
        ],
        claims=claims,
        waiting=[claim for claim in claims if claim.verdict == "not measured yet"],
        found=found_sentence(classified) if classified is not None else "",
        roles=role_counts(classes[0]) if classes else (),
        scales={scale.key: scale.caption for scale in scales},
        columns=columns,
        rows=rows,
        legend="".join(f"{legend(part.stacks[0])}; " for part in classes)
        + "dashed: removed from the model.",
        parts=parts,
        table_header=[("head", False), ("roles", False), *((s.caption, True) for s in scales)],
        table_rows=numbers,
        versions=visible(f"{versions(report, '; ')}. Made by: {report.provenance['command']}"),
    )


def _cards(report: ReportResult) -> list[Card]:
    """Make a card of every head that samples or sections know, adding up what each section says."""
    cards = {
        place: Card(*place)
        for sample in report.samples
        for place in map(parse_head, sample.patterns)
    }
    for name, result in report.sections.items():
        for new in view_of(name).facts(result, sorted(cards)):
            place = new.layer, new.head
            old = cards.get(place, Card(*place))
            values = {k: round(float(v), 4) + 0.0 for k, v in new.values.items() if v is not None}
            lists: dict[str, Any] = {
                field: [*getattr(old, field), *getattr(new, field)]
                for field in ("roles", "keys", "labels", "facts", "ranks")
            }
            cards[place] = replace(
                old,
                primary=new.primary or old.primary,
                mark=new.mark or old.mark,
                values={**old.values, **values},
                **lists,
            )
    return [cards[place] for place in sorted(cards)]


def _data(report: ReportResult, cards: list[Card]) -> dict[str, Any]:
    """Return what the page's script reads."""
    return {
        "classified": report.classify is not None,
        "controls": list(report.rank.controls) if report.rank is not None else [],
        "heads": [{field: getattr(card, field) for field in _CARD_FIELDS} for card in cards],
        "samples": [
            {
                "text": visible(sample.text),
                "tokens": [visible(token) for token in sample.tokens],
                "patterns": {
                    name: [round(100 * weight) for row in pattern for weight in row]
                    for name, pattern in sample.patterns.items()
                },
            }
            for sample in report.samples
        ],
    }


def _parts(report: ReportResult, files: Mapping[str, Mapping[str, bytes]]) -> Iterator[Part]:
    """Yield the key numbers, what each section has to show, and how the report was made."""
    if numbers := key_numbers(report):
        header = ("", "this model", "control")
        yield Part("numbers", "Key numbers", header=header, rows=numbers, numbers=3)
    for name, result in report.sections.items():
        view = view_of(name)
        if view.blocks is not None and view.title:
            blocks = list(view.blocks(result))
            yield Part(name, view.title, body=body(blocks, files.get(name) or svg_files(blocks)))
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
