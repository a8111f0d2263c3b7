"""``report.html``: one page about a model, and the data of its script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from headscope.analyses.classify.cards import head_cards
from headscope.analyses.classify.stack_words import (
    STACK_NAMES,
    legend,
    results_by_stack,
    role_counts,
)
from headscope.core.heads import parse_head
from headscope.core.safe_text import visible
from headscope.core.serialise import warnings_of
from headscope.reports.claims.view import drawn_bars, paper_of
from headscope.reports.markdown import (
    certificate,
    certificate_in,
    headline,
    key_numbers,
    model_title,
    settings_rows,
)
from headscope.reports.result import ReportResult
from headscope.show.blocks import PAGE, Block, Custom, Text, text_table
from headscope.show.cells import head_rows, short, tidy
from headscope.show.page.parts import Card, Part
from headscope.show.page.script_data import page_json
from headscope.show.page.template import answered, body, proof, rendered, role_colours, versions
from headscope.show.view import view_of

SIDE = 16  # Rows and columns of a head's mean attention.
#: What the script reads of each head.
_CARD_FIELDS = (
    "name",
    "primary",
    "mark",
    "roles",
    "keys",
    "labels",
    "facts",
    "ranks",
    "values",
    "sentence",
    "numbers",
    "mean",
)


def report_html(report: ReportResult, *, live: Sequence[str] = ()) -> str:
    """Write the page; the same result gives the same text.

    A page with ``live`` heads asks its own server about sentences and about the model without some
    heads.

    Strings of models and corpora go into the page through the template's escaping or as JSON, and
    from there through textContent. The page's security policy lets only the one script run whose
    hash it states, and nothing be fetched.
    """
    cards = _live_cards(report, live) if live else _cards(report)
    every = [scale for name in report.sections for scale in view_of(name).scales]
    every.sort(key=lambda scale: not scale.of_pattern)
    scales = [scale for scale in every if any(scale.key in card.values for card in cards)]
    captions = {scale.key: scale.caption for scale in scales}
    parts = [] if live else list(_parts(report))
    model = report.provenance["model"]
    classified = report.classify
    claims = report.insights.insights if report.insights is not None else ()

    bars, axis = drawn_bars(claims)

    # The map: heads by their original numbers, None where one was removed.
    stack = next((head.stack for head in classified.heads), "") if classified else ""
    removed = model.get("removed_heads") or []
    maps = [
        (STACK_NAMES[of], "" if of == "encoder" else f"{of}:", _rows(group, removed, of))
        for of, group in groupby(cards, lambda card: card.stack if live else stack or "encoder")
    ]
    rows = maps[0][2] if maps else []

    size = f"{model['n_layers']} layers \u00d7 {model['n_heads']} heads"
    size += f", {len(removed)} removed" if removed else ""
    text = f"{model['family']}, {size}"
    text += f"; weights {model['weights_sha256'][:12]}." if model["weights_sha256"] else "."
    numbers = [
        (
            card,
            [
                (f"{value:.4g}", short(value))
                if (value := card.values.get(s.key)) is not None
                else ("", "\u2013")
                for s in scales
            ],
        )
        for card in cards
    ]
    classes = results_by_stack(classified)[: None if live else 1] if classified is not None else []
    counts = Counter[tuple[str, str]]()
    for part in classes:
        counts.update({role[:2]: role[2] for role in role_counts(part)})
    first = _clearest(cards)
    failed = report.validate is not None and not report.validate.passed
    return rendered(
        "page.html.j2",
        role_colours(),
        ("pictures.js", "charts.js", "page.js"),
        data=page_json({"live": bool(live), **_data(report, cards, captions, first)}),
        live=live,
        means=any(card.mean for card in cards),
        title=model_title(report),
        size=size,
        proof=proof(certificate_in(report)),
        model_line=visible(text),
        certificate=visible(certificate(report)),
        warnings=[visible(warning) for warning in warnings_of(report)],
        failed=failed,
        headline=visible(headline(report)),
        first=first,
        contents=[
            *([("heads", "Heads")] if rows else []),
            *([("sentence", "Sentence")] if report.samples else []),
            *([("claims", "Claims")] if claims else []),
            *((part.anchor, _SHORT[part.anchor]) for part in parts if part.anchor in _SHORT),
        ],
        claims=list(zip(claims, map(paper_of, claims), bars, strict=True)),
        axis=axis,
        roles=[(*role, n) for role, n in counts.items()],
        scales=captions,
        columns=range(len(rows[0][1]) if rows else 0),
        rows=rows,
        maps=maps,
        map_caption=_MAP_CAPTION if any(card.mean for card in cards) else "One cell a head",
        legend=(f"{legend(*classes)}; " if classes else "") + "dashed: removed from the model.",
        samples=[visible(sample.text) for sample in report.samples],
        parts=parts,
        table_header=[("head", False), ("roles", False), *((s.caption, True) for s in scales)],
        table_rows=numbers,
        versions=visible(f"{versions(report, '; ')}. Made by: {report.provenance['command']}"),
    )


_MAP_CAPTION = (
    "One picture a head, queries down, keys across: its mean attention (the first and the last row "
    "and column are the special tokens), or its attention on the sentence. The frame is its role"
)
#: Short names of sections in the navigation.
_SHORT = {"rank": "Ranks", "depth": "Depth", "prune": "Pruning", "numbers": "Numbers"}
_DEFAULTS = "Every setting is at its default."
_MEAN_CAPTION = "mean over the corpus: the first 15 tokens and the last"


def _clearest(cards: list[Card]) -> str:
    """Name the head that the page selects first: a syntactic or positional one if there is any."""
    order = ("syntactic", "positional", "rare", "monotonic", "duplicate", "special")
    named = {role: card.name for role in order for card in cards[::-1] if card.primary == role}
    return next(iter([*named.values(), *(card.name for card in cards)]), "")


def _cards(report: ReportResult) -> list[Card]:
    """Make a card of every head that samples or sections know, adding up what each section says."""
    cards = {
        head: Card(*head) for sample in report.samples for head in map(parse_head, sample.patterns)
    }
    for name, result in report.sections.items():
        for new in view_of(name).facts(result, sorted(cards)):
            head = new.layer, new.head
            old = cards.get(head, Card(*head))
            fields = ("roles", "keys", "labels", "facts", "ranks", "numbers")
            lists: dict[str, Any] = {f: getattr(old, f) + getattr(new, f) for f in fields}
            cards[head] = replace(
                old,
                primary=new.primary or old.primary,
                mark=new.mark or old.mark,
                sentence=new.sentence or old.sentence,
                mean=new.mean or old.mean,
                values={**old.values, **_rounded(new.values)},
                **lists,
            )
    return [cards[head] for head in sorted(cards)]


def _live_cards(report: ReportResult, heads: Sequence[str]) -> list[Card]:
    """Make a card of every head that can be switched off; some stacks may not be classified."""
    known = {card.name: card for card in head_cards(report.classify)} if report.classify else {}
    unknown = "Not classified: roles of decoders and cross-attention take pairs of texts."
    cards = [
        known.get(name)
        or Card(*parse_head(name), stack=name.rpartition(":")[0] or "encoder", sentence=unknown)
        for name in heads
    ]
    return [replace(card, values=_rounded(card.values)) for card in cards]


def _rows(
    cards: Iterable[Card], removed: Sequence[Sequence[Any]], stack: str
) -> list[tuple[int, list[Card | None]]]:
    """Arrange cards of a stack by layer and head, None where a head was removed."""
    gone = [(p[-2], p[-1]) for p in removed if len(p) == 2 or p[0] == stack]
    by_place = {(card.layer, card.head): card for card in cards}
    cells: dict[tuple[int, int], Card | None] = dict.fromkeys(gone)
    cells = {**cells, **by_place} if by_place else {}
    return head_rows(cells, range(max((layer for layer, _ in cells), default=-1) + 1))


def _rounded(values: Mapping[str, float | None]) -> dict[str, float]:
    return {k: round(float(v), 4) + 0.0 for k, v in values.items() if v is not None}


def _data(
    report: ReportResult, cards: list[Card], captions: Mapping[str, str], first: str
) -> dict[str, Any]:
    """Return what the page's script reads."""
    special = set(report.provenance["model"].get("special_tokens") or _SPECIAL)
    lines = list(dict.fromkeys(caption for card in cards for caption, _ in card.facts))
    heads = []
    for card in cards:  # with signs as print has them
        values = {field: getattr(card, field) for field in _CARD_FIELDS}
        for field in ("labels", "ranks", "numbers"):
            values[field] = [[tidy(cell) for cell in row] for row in values[field]]
        values["facts"] = [[lines.index(caption), tidy(text)] for caption, text in card.facts]
        values |= {"sentence": tidy(visible(card.sentence)), "numbers": values["numbers"][:3]}
        heads.append(values)
    return {
        "first": first,
        "side": SIDE,
        "meanCaption": _MEAN_CAPTION,
        "scales": captions,
        "classified": report.classify is not None,
        "controls": list(report.rank.controls) if report.rank is not None else [],
        "captions": lines,  # what the lines of the cards are called, each once
        "heads": heads,
        "samples": [
            {
                "text": visible(sample.text),
                "tokens": [visible(token) for token in sample.tokens],
                "special": [token in special for token in sample.tokens],
                "patterns": {
                    name: [round(100 * weight) for row in pattern for weight in row]
                    for name, pattern in sample.patterns.items()
                },
            }
            for sample in report.samples
        ],
    }


#: Tokens that are never words, as tokenizers of encoders spell them.
_SPECIAL = ("[CLS]", "[SEP]", "<s>", "</s>", "<pad>", "[PAD]")


def _parts(report: ReportResult) -> Iterator[Part]:
    """Yield what each section has to show, the key numbers, and how the report was made."""
    for name, result in report.sections.items():
        view = view_of(name)
        if view.blocks is not None and view.title:
            yield _folded(name, view.title, view.blocks(result))
        for more in view.more(result):
            yield _folded(more.title.lower().replace(" ", "-"), more.title, more.blocks)
    numbers = [
        (what, "not measured" if x == "-" else x, y)
        for what, x, y in key_numbers(report, claims=False)
    ]
    if numbers:
        key = text_table(("number", "this model", "control"), numbers, on=PAGE)
        yield Part("numbers", "Key numbers", body([key]), wide=True)
    if report.left_out:
        reasons = [f"{name}: {visible(why)}" for name, why in report.left_out.items()]
        yield Part("left-out", "Left out", body(Text(reason, on=PAGE) for reason in reasons))
    changed = [(section, name, visible(value)) for section, name, value in settings_rows(report)]
    text = f"{len(changed)} settings differ from the defaults." if changed else _DEFAULTS
    table = [text_table(("section", "setting", "value"), changed, on=PAGE)] if changed else []
    yield Part("settings", "Settings", body([Text(text, on=PAGE)]), body(table), "These settings")


def _folded(anchor: str, title: str, blocks: Iterable[Block]) -> Part:
    """Show the answer of a section and its evidence, and fold up the rest."""
    # The arrows of one sentence follow the selected head above: they are not drawn again.
    lead, figure, rest = answered(block for block in blocks if not isinstance(block, Custom))
    return Part(anchor, title, body([*lead, *figure]), body(rest))
