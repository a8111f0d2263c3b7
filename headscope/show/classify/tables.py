"""Terminal tables of ``classify``, drawn from its result; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from headscope.results import ClassifyResult, Confirmation, HeadResult, SyntacticScore
from headscope.results.roles import role_of
from headscope.show.cells import decimal, head_map, interval_text, make_table, model_line, p_text
from headscope.show.classify import words

#: Rows of the syntactic table in the terminal; all of them are in the JSON and CSV.
_MOST_RELATIONS = 14
#: Columns of the baselines, in the order of their results.
_BASELINES = ("off.", "first", "last", "unif.", "kern.")
#: Heads beside each other in one block of the map.
_HEADS_ACROSS = 16


def classify_report(result: ClassifyResult) -> Iterator[RenderableType]:
    """Show what was run, what was found, the map, and the labels with their baselines."""
    yield from _header(result)
    yield Text("\n" + words.found_sentence(result) + "\n", style="bold")
    yield from _role_map(result)
    yield from _positional_table(result)
    yield from _syntactic_table(result)
    yield from _rare_table(result)
    yield Text("\n" + words.control_sentence(result))


def _header(result: ClassifyResult) -> Iterator[Text]:
    yield model_line(result)
    yield Text(f"Corpus  {words.corpus_text(result)}")
    yield Text(f"Words   frequencies from {result.corpus.frequencies}")


def _role_map(result: ClassifyResult) -> Iterator[RenderableType]:
    layers = range(result.provenance["model"]["n_layers"])
    cells = {
        (head.layer, head.head): Text(words.mark_of(head), style=role_of(head.primary).style)
        for head in result.heads
    }
    yield from head_map(cells, layers, across=_HEADS_ACROSS, width=4)
    marks = words.marks()
    yield Text(
        f"-1 +1 ... position   {marks['syntactic']}   {marks['rare']}   [  first special token\n"
        f"]  last special   {marks['punctuation']}   {marks['broad']}   {marks['none']}",
        style="dim",
    )


def _positional_table(result: ClassifyResult) -> Iterator[RenderableType]:
    found = [head for head in result.heads if "positional" in head.roles]
    if not found:
        return
    table = make_table(("positional", "looks at", "score", "95% interval", "chance", "adj. p"))
    for name, p in ((head.name, head.positional) for head in found if head.positional):
        rate, chance = decimal(p.score), decimal(p.chance)
        offset, interval = words.describe_offset(p.offset or 0), interval_text(p.interval)
        table.add_row(name, offset, rate, interval, chance, p_text(p.p_adjusted))
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
    table = make_table(("syntactic", "head", "acc.", "95% int.", *_BASELINES, "adj. p", "heads"))
    for head, score, confirmed, n_heads in best[:_MOST_RELATIONS]:
        table.add_row(
            f"{score.relation} {score.direction}",
            head.name,
            decimal(confirmed.accuracy),
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
    return score.relation not in words.VOITA_RELATIONS, -gain


def _rare_table(result: ClassifyResult) -> Iterator[RenderableType]:
    scored = [(head, head.rare) for head in result.heads if head.rare is not None]
    ranked = sorted(scored, key=lambda row: -(row[1].rate or 0.0))
    if not ranked:
        return
    yield Text("")
    if ranked[0][1].rate is None:
        yield Text(
            "No rare-word score: no sentence has a word outside the 500 most frequent of "
            f"{result.corpus.frequencies}."
        )
        return
    labelled = [row for row in ranked if "rare" in row[0].roles]
    table = make_table(
        ("rare word", "rate", "95% interval", "two rarest", "chance", "random", "unif.", "adj. p")
    )
    for head, r in labelled or ranked[:2]:
        rates = map(decimal, (r.two_rarest, r.chance, r.null, r.uniform))
        interval = interval_text(r.interval)
        table.add_row(head.name, decimal(r.rate), interval, *rates, p_text(r.p_adjusted))
    yield table
    if not labelled:
        yield Text(
            "No head earns the rare-word label: these come nearest, and evenly spread attention "
            "reaches the rate under 'unif.' on long words alone.",
            style="dim",
        )
