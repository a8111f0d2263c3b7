"""``report.html``: one page about a model, and the data of its script.

:func:`report_html` gathers all that the template ``page.html.j2`` is filled in with; below it, in
the order of the page, is how each piece is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.classify.stack_words import (
    legend,
    results_by_stack,
    role_counts,
)
from headscope.core.roles import role_of
from headscope.core.safe_text import visible
from headscope.core.serialise import warnings_of
from headscope.reports.claims.view import drawn_bars, heading, paper_of
from headscope.reports.markdown import (
    certificate,
    certificate_in,
    headline,
    key_numbers,
    model_title,
    settings_rows,
)
from headscope.reports.page_heads import (
    clearest,
    live_cards,
    maps_of,
    numbers_of,
    scales_of,
    section_cards,
)
from headscope.reports.result import ReportResult, SamplePatterns
from headscope.show.blocks import PAGE, Block, Custom, Details, Text, text_table
from headscope.show.cells import model_size, tidy
from headscope.show.page.html_blocks import answered, body
from headscope.show.page.parts import Card, Part
from headscope.show.page.script_data import page_json
from headscope.show.page.template import proof, rendered, role_colours, versions
from headscope.show.view import View, view_of

#: Scripts of this page: an idea each; the last puts them together.
_SCRIPTS = (
    "pictures.js",
    "charts.js",
    "tables.js",
    "patterns.js",
    "map.js",
    "panel.js",
    "sentence.js",
    "plane.js",
    "columns.js",
    "answers.js",
    "asking.js",
    "live.js",
    "page.js",
)
SIDE = 16  # Rows and columns of a head's mean attention
#: The fields of a card that the script reads.
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


class LiveField(NamedTuple):
    """A field of a live page."""

    label: str
    text: str = ""  # What it begins with


class LivePage(NamedTuple):
    """What makes a page that of ``headscope serve``."""

    heads: Sequence[str]  # Those that can be switched off
    first: LiveField
    second: LiveField


def report_html(report: ReportResult, *, live: LivePage | None = None) -> str:
    """Write the page; the same result gives the same text.

    A ``live`` one is the page of ``headscope serve``: it asks its own server about sentences and
    about the model without some of its heads.

    Strings of models and corpora go into the page through the template's escaping, or as JSON whose
    texts the script shows by textContent. The page's security policy lets only the one script run
    whose hash it states, and nothing be fetched.
    """
    # Heads: a card each, and the numbers that their map can be coloured by.
    cards = live_cards(report, live.heads) if live else section_cards(report)
    scales = scales_of(report, cards)
    captions = {scale.key: scale.caption for scale in scales}
    first_head = clearest(cards)
    maps = maps_of(report, cards)
    rows = maps[0].rows if maps else []
    have_means = any(card.mean for card in cards)

    # Claims, and a part for every section.
    claims = report.insights.insights if report.insights is not None else ()
    bars, axis = drawn_bars(claims)
    papers = [paper_of(claim) for claim in claims]
    parts = [] if live else list(_parts(report))

    # The model and its certificate.
    size = _size(report)
    failed = report.validate is not None and not report.validate.passed
    return rendered(
        "page.html.j2",
        role_colours(),
        _SCRIPTS,
        data=page_json({"live": bool(live), **_data(report, cards, captions, first_head)}),
        live=live,
        means=have_means,
        title=model_title(report),
        size=size,
        proof=proof(certificate_in(report)),
        model_line=visible(_model_line(report, size)),
        certificate=visible(certificate(report)),
        warnings=[visible(warning) for warning in warnings_of(report)],
        failed=failed,
        headline=tidy(visible(headline(report))),
        first=first_head,
        contents=_contents(report, parts, have_heads=bool(rows), have_claims=bool(claims)),
        claims=list(zip(claims, papers, bars, strict=True)),
        claims_heading=heading(claims),
        axis=axis,
        roles=_role_counts(report, live=bool(live)),
        scales=captions,
        columns=range(len(rows[0][1]) if rows else 0),
        rows=rows,
        maps=maps,
        map_caption=_map_caption(report) if have_means else "One cell a head",
        legend=_legend(report, live=bool(live)),
        removed=bool(report.provenance["model"].get("removed_heads")),
        samples=[visible(sample.text) for sample in report.samples],
        parts=parts,
        table_header=[("head", False), ("roles", False), *((s.caption, True) for s in scales)],
        table_rows=[(card, numbers_of(card, scales)) for card in cards],
        versions=visible(f"{versions(report, '; ')}. Made by: {report.provenance['command']}"),
    )


#: Short names of sections in the navigation.
_SHORT = {"rank": "Ranks", "depth": "Depth", "prune": "Pruning", "numbers": "Numbers"}
_MEAN_CAPTION = "mean over the corpus: the first 15 tokens and the last"
#: Special tokens, for a model whose provenance does not list them.
_SPECIAL = ("[CLS]", "[SEP]", "<s>", "</s>", "<pad>", "[PAD]")


# --- the model ------------------------------------------------------------------------------------


def _size(report: ReportResult) -> str:
    """Say how many layers and heads the model has, and how many heads were removed."""
    model = report.provenance["model"]
    size = model_size(model, times="\u00d7")
    removed = model.get("removed_heads")
    return f"{size}, {len(removed)} removed" if removed else size


def _model_line(report: ReportResult, size: str) -> str:
    """Say which family the model is of, how large it is, and which weights it has."""
    model = report.provenance["model"]
    weights = f"; weights {model['weights_sha256'][:12]}" if model["weights_sha256"] else ""
    return f"{model['family']}, {size}{weights}."


def _contents(
    report: ReportResult, parts: Sequence[Part], *, have_heads: bool, have_claims: bool
) -> list[tuple[str, str]]:
    """Return (anchor, short name) of all that the navigation leads to."""
    contents = []
    if have_heads:
        contents.append(("heads", "Heads"))
    if report.samples:
        contents.append(("sentence", "Sentence"))
    if have_claims:
        contents.append(("claims", "Claims"))
    contents += [(part.anchor, _SHORT[part.anchor]) for part in parts if part.anchor in _SHORT]
    return contents


# --- roles ----------------------------------------------------------------------------------------


def _classified_stacks(report: ReportResult, *, live: bool) -> list[ClassifyResult]:
    """Return the classification of each stack on the page: all if it is live, else the first."""
    if report.classify is None:
        return []
    stacks = results_by_stack(report.classify)
    return stacks if live else stacks[:1]


def _role_counts(report: ReportResult, *, live: bool) -> list[tuple[str, str, int, str]]:
    """Return (key, name, number of heads that have it, what they do) of every role."""
    counts = Counter[tuple[str, str]]()
    for classified in _classified_stacks(report, live=live):
        for key, name, n_heads, *_ in role_counts(classified):
            counts[key, name] += n_heads
    return [
        (key, name, n_heads, visible(role_of(key).words)) for (key, name), n_heads in counts.items()
    ]


def _legend(report: ReportResult, *, live: bool) -> str:
    """Say what the marks of the map mean."""
    stacks = _classified_stacks(report, live=live)
    if not stacks:
        return "not classified."
    text = f"{legend(*stacks)}."
    if report.classify is not None and len(stacks) < len(report.classify.stacks):
        (shown,) = stacks[0].stacks
        text += (
            f" Only the {shown}'s heads are shown; the roles of all stacks are counted below, and "
            "heads.csv names their heads."
        )
    return text


def _special_tokens(report: ReportResult) -> set[str]:
    """Return the names of the model's special tokens."""
    return set(report.provenance["model"].get("special_tokens") or _SPECIAL)


def _map_caption(report: ReportResult) -> str:
    """Say what the pictures of the map are; many models put no special tokens round a text."""
    special = _special_tokens(report)
    is_framed = [
        sample.tokens[0] in special and sample.tokens[-1] in special for sample in report.samples
    ]
    framed = ""
    if is_framed and all(is_framed):
        framed = " (the first and the last row and column are the special tokens)"
    return (
        f"One picture a head, queries down, keys across: its mean attention{framed}, or its "
        "attention on the sentence. The frame is its role"
    )


# --- what the script reads ------------------------------------------------------------------------


def _data(
    report: ReportResult, cards: list[Card], captions: Mapping[str, str], first: str
) -> dict[str, Any]:
    """Return what the page's script reads; ``first`` is the head that it selects first."""
    captions_of_facts: dict[str, None] = {}  # each once, in their order
    for card in cards:
        captions_of_facts |= dict.fromkeys(caption for caption, _ in card.facts)
    fact_captions = list(captions_of_facts)
    special = _special_tokens(report)
    return {
        "first": first,
        "side": SIDE,
        "meanCaption": _MEAN_CAPTION,
        "scales": captions,
        "classified": report.classify is not None,
        "controls": list(report.rank.controls) if report.rank is not None else [],
        "captions": fact_captions,
        "heads": [_head_data(card, fact_captions) for card in cards],
        "samples": [_sample_data(sample, special) for sample in report.samples],
    }


def _head_data(card: Card, captions: Sequence[str]) -> dict[str, Any]:
    """Return what the script reads of a head, with signs as print has them.

    In place of a fact's caption stands its number in ``captions``.
    """
    data = {field: getattr(card, field) for field in _CARD_FIELDS}
    data["labels"] = [[tidy(cell) for cell in row] for row in card.labels]
    data["ranks"] = [[tidy(cell) for cell in row] for row in card.ranks]
    data["numbers"] = [[tidy(cell) for cell in row] for row in card.numbers[:3]]
    data["facts"] = [[captions.index(caption), tidy(text)] for caption, text in card.facts]
    data["sentence"] = tidy(visible(card.sentence))
    return data


def _sample_data(sample: SamplePatterns, special: Collection[str]) -> dict[str, Any]:
    """Return what the script reads of a sentence: every head's weights in percent, row by row."""
    patterns = {}
    for name, pattern in sample.patterns.items():
        percent: list[int] = []
        for row in pattern:
            percent += [round(100 * weight) for weight in row]
        patterns[name] = percent
    return {
        "text": visible(sample.text),
        "tokens": [visible(token) for token in sample.tokens],
        "special": [token in special for token in sample.tokens],
        "patterns": patterns,
    }


# --- parts of the page ----------------------------------------------------------------------------


def _parts(report: ReportResult) -> Iterator[Part]:
    """Yield what each section has to show, the key numbers, and how the report was made."""
    # The sections.
    for name, result in report.sections.items():
        view = view_of(name)
        if view.blocks is not None and view.title:
            yield _folded(name, view, view.blocks(result))
        for details in view.more(result):
            anchor = (details.term or details.title).lower().replace(" ", "-")
            yield _folded(anchor, details, details.blocks)

    # The key numbers.
    numbers = []
    for caption, value, control in key_numbers(report, claims=False):
        numbers.append((caption, "not measured" if value == "-" else value, control))
    if numbers:
        table = text_table(("number", "this model", "control"), numbers, on=PAGE)
        yield Part(
            "numbers",
            "Which numbers to cite?",
            body([table, Text("In brackets: 95% intervals.", "soft", PAGE)]),
            wide=True,
            term="key numbers",
        )

    # How the report was made.
    if report.left_out:
        reasons = [f"{name}: {visible(why)}" for name, why in report.left_out.items()]
        yield Part(
            "left-out",
            "What is left out, and why?",
            body(Text(reason, on=PAGE) for reason in reasons),
        )
    changed = [(section, name, visible(value)) for section, name, value in settings_rows(report)]
    if changed:
        text = f"{len(changed)} settings differ from the defaults."
        table = text_table(("section", "setting", "value"), changed, on=PAGE)
        more = body([table])
    else:
        text = "Every setting is at its default."
        more = body([])
    yield Part(
        "settings",
        "How was this measured?",
        body([Text(text, on=PAGE)]),
        more,
        "These settings",
        term="settings",
    )


def _folded(anchor: str, titled: View[Any] | Details, blocks: Iterable[Block]) -> Part:
    """Show the answer of a section and its evidence, and fold up the rest."""
    # The arrows of one sentence follow the selected head above: they are not drawn again.
    lead, figure, rest = answered(block for block in blocks if not isinstance(block, Custom))
    return Part(anchor, titled.title, body([*lead, *figure]), body(rest), term=titled.term)
