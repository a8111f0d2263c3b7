"""Terminal tables and CSV of ``classify``, drawn from its result; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.results import ClassifyResult, Confirmation, HeadResult, SyntacticScore
from headscope.results.roles import role_of
from headscope.show.cells import (
    frame_csv,
    interval_text,
    make_table,
    model_line,
    p_text,
    share_text,
)
from headscope.show.classify.words import (
    VOITA_RELATIONS,
    control_sentence,
    describe_offset,
    found_sentence,
    mark_of,
)

__all__ = ["classify_report", "heads_csv", "relations_csv"]

#: Rows of the syntactic table in the terminal; all of them are in the JSON and CSV.
_MOST_RELATIONS = 14
#: Heads beside each other in one block of the map.
_HEADS_ACROSS = 16


def classify_report(result: ClassifyResult) -> Iterator[RenderableType]:
    """Show what was run, what was found, the map, and the labels with their baselines."""
    yield from _header(result)
    yield Text("\n" + found_sentence(result) + "\n", style="bold")
    yield from _role_map(result)
    yield from _positional_table(result)
    yield from _syntactic_table(result)
    yield from _rare_table(result)
    yield Text("\n" + control_sentence(result))


def _header(result: ClassifyResult) -> Iterator[Text]:
    corpus = result.corpus
    yield Text(model_line(result))
    yield Text(
        f"Corpus  {corpus.name}: {corpus.sentences:,} sentences, {corpus.skipped:,} skipped, "
        f"{corpus.queries:,} tokens"
    )
    yield Text(f"Words   frequencies from {corpus.frequencies}")


def _role_map(result: ClassifyResult) -> Iterator[RenderableType]:
    layers = range(result.provenance["model"]["n_layers"])
    n_heads = max(head.head for head in result.heads) + 1
    by_place = {(head.layer, head.head): head for head in result.heads}
    for start in range(0, n_heads, _HEADS_ACROSS):
        columns = range(start, min(start + _HEADS_ACROSS, n_heads))
        grid = Table(box=None, padding=(0, 0), pad_edge=False, show_edge=False)
        grid.add_column("", width=5, no_wrap=True)
        for head in columns:
            grid.add_column(f"H{head}", width=4, justify="right", no_wrap=True)
        for layer in layers:
            cells = [_cell(by_place.get((layer, head))) for head in columns]
            grid.add_row(f"L{layer}", *cells)
        yield grid
    yield Text(
        "-1 +1 ... position   syn syntactic   rare rare word   [  first special token\n"
        "]  last special   punc punctuation   brd broad   .  no role",
        style="dim",
    )


def _cell(head: HeadResult | None) -> Text:
    if head is None:
        return Text("")
    return Text(mark_of(head), style=role_of(head.primary).style)


def _positional_table(result: ClassifyResult) -> Iterator[RenderableType]:
    rows = [head for head in result.heads if "positional" in head.roles]
    if not rows:
        return
    table = make_table("positional", "looks at", "score", "95% interval", "chance", "adj. p")
    for head in rows:
        found = head.positional
        table.add_row(
            head.name,
            describe_offset(found.offset or 0),
            share_text(found.score),
            interval_text(found.interval),
            share_text(found.chance),
            p_text(found.p_adjusted),
        )
    yield Text("")
    yield table


def _syntactic_table(result: ClassifyResult) -> Iterator[RenderableType]:
    yield Text("")
    if not result.corpus.trees:
        yield Text("No syntactic roles: plain text has no gold trees (give --treebank).")
        return
    best = sorted(_best_heads(result), key=_voita_first)
    if not best:
        yield Text(
            "No head's relation was confirmed on the held-out half of the corpus: none beats every "
            "baseline twice."
        )
        return
    table = make_table(
        "syntactic",
        "head",
        "acc.",
        "95% int.",
        "off.",
        "first",
        "last",
        "unif.",
        "kern.",
        "adj. p",
        "heads",
    )
    for head, score, confirmed, n_heads in best[:_MOST_RELATIONS]:
        table.add_row(
            f"{score.relation} {score.direction}",
            head.name,
            share_text(confirmed.accuracy),
            interval_text(confirmed.interval),
            *(f"{value:.2f}" for value in confirmed.baselines.values()),
            p_text(confirmed.p_adjusted),
            str(n_heads),
        )
    yield table
    if len(best) > _MOST_RELATIONS:
        more = len(best) - _MOST_RELATIONS
        yield Text(f"... and {more} more (all with --format json or -o DIR)", style="dim")
    yield Text(
        "Best head of each relation, measured on the half of the sentences that heads were not "
        "selected on. Baselines: best offset, first word, last word, uniform attention, the "
        "head's own distance kernel.",
        style="dim",
    )


#: A labelled relation: its best head, that head's score, what the held-out half says, all heads.
_Row = tuple[HeadResult, SyntacticScore, Confirmation, int]


def _best_heads(result: ClassifyResult) -> Iterator[_Row]:
    """For each labelled relation and direction: its best head, and how many heads have it."""
    labelled: dict[tuple[str, str], list[tuple[HeadResult, SyntacticScore, Confirmation]]] = {}
    for head in result.heads:
        for score in head.syntactic:
            if score.labelled and score.confirmed is not None:
                key = (score.relation, score.direction)
                labelled.setdefault(key, []).append((head, score, score.confirmed))
    for found in labelled.values():
        yield *max(found, key=lambda row: row[2].accuracy), len(found)


def _voita_first(row: _Row) -> tuple[bool, float]:
    """Sort the relations of Voita et al. first, then by the gain over the strongest baseline."""
    _, score, confirmed, _ = row
    gain = confirmed.accuracy - confirmed.baselines[confirmed.strongest]
    return score.relation not in VOITA_RELATIONS, -gain


def _rare_table(result: ClassifyResult) -> Iterator[RenderableType]:
    ranked = sorted(result.heads, key=lambda head: -(head.rare.rate or 0.0))
    yield Text("")
    if ranked[0].rare.rate is None:
        yield Text(
            "No rare-word score: no sentence has a word outside the 500 most frequent of "
            f"{result.corpus.frequencies}."
        )
        return
    labelled = [head for head in ranked if "rare" in head.roles]
    table = make_table(
        "rare word", "rate", "95% interval", "two rarest", "chance", "random", "unif.", "adj. p"
    )
    for head in labelled or ranked[:2]:
        rare = head.rare
        table.add_row(
            head.name,
            share_text(rare.rate),
            interval_text(rare.interval),
            share_text(rare.two_rarest),
            share_text(rare.chance),
            share_text(rare.null),
            share_text(rare.uniform),
            p_text(rare.p_adjusted),
        )
    yield table
    if not labelled:
        yield Text(
            "No head earns the rare-word label: these come nearest, and evenly spread attention "
            "reaches the rate under 'unif.' on long words alone.",
            style="dim",
        )


def heads_csv(result: ClassifyResult) -> str:
    """One line per head: the flat numbers of :meth:`ClassifyResult.to_frame`."""
    return frame_csv(result.to_frame())


def relations_csv(result: ClassifyResult) -> str:
    """One line per head, relation and direction."""
    return frame_csv(result.relations_frame())
