"""Terminal tables of ``classify``, drawn from its result; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from headscope.analyses.classify import figures as causes
from headscope.analyses.classify import show_prefix_matching as prefix_matching
from headscope.analyses.classify import show_value_norms as value_norms
from headscope.analyses.classify import words
from headscope.analyses.classify.result import ClassifyResult
from headscope.core.roles import role_of
from headscope.show.cells import decimal, head_map, interval_text, make_table, model_line, p_text

_MOST_ROWS = 14  # Rows of a table in the terminal; all of them are in the JSON and CSV.
#: Columns of the baselines, in the order of their results.
_BASELINES = ("off.", "first", "last", "unif.", "kern.")
_HEADS_ACROSS = 16  # Heads beside each other in one block of the map.


def classify_report(result: ClassifyResult) -> Iterator[RenderableType]:
    """Show what was run, then by stack what was found, the map, and the labels with baselines."""
    yield from _header(result)
    for part in words.parts_of(result):
        if result.corpus.by_stack:
            yield Text(f"\n{words.stack_title(part)}", style="bold underline")
        yield Text("\n" + words.found_sentence(part) + "\n", style="bold")
        yield from _role_map(part, several=len(result.stacks) > 1)
        yield from _labels(part)
        yield Text("\n" + words.control_sentence(part))
    for asked in (value_norms, prefix_matching, causes):
        yield from asked.terminal(result)


def _header(result: ClassifyResult) -> Iterator[Text]:
    yield model_line(result, len(result.heads) if len(result.stacks) > 1 else None)
    yield Text(f"Corpus  {words.corpus_text(result)}")
    if "encoder" in result.stacks:
        yield Text(f"Words   frequencies from {result.corpus.frequencies}")


def _labels(part: ClassifyResult) -> Iterator[RenderableType]:
    """Show the labels of one stack: of cross-attention only what applies to it."""
    if part.stacks == ("cross",):
        yield from _order_table(part)
        return
    yield from _positional_table(part)
    if part.stacks == ("encoder",):
        yield from _syntactic_table(part)
        yield from _rare_table(part)


def _role_map(part: ClassifyResult, *, several: bool) -> Iterator[RenderableType]:
    """Draw the map of one stack; the provenance of several counts the layers of all."""
    last = max(head.layer for head in part.heads)
    layers = range(last + 1 if several else part.provenance["model"]["n_layers"])
    cells = {
        (head.layer, head.head): Text(words.mark_of(head), style=role_of(head.primary).style)
        for head in part.heads
    }
    yield from head_map(cells, layers, across=_HEADS_ACROSS, width=4 + (part.stacks == ("cross",)))
    yield Text(words.legend(part), style="dim")


def _order_table(part: ClassifyResult) -> Iterator[RenderableType]:
    """Show cross-attention heads with a role beside their controls, the clearest order first."""
    scored = [(h, h.alignment, h.sharpness) for h in part.heads if h.alignment and h.sharpness]
    ranked = sorted(scored, key=lambda row: -abs(row[1].score or 0.0))
    labelled = [row for row in ranked if row[0].roles]
    columns = ("align", "95% interval", "swapped", "diag.", "rand.", "conf.", "unif.", "spec.")
    table = make_table(("order", "roles", *columns))
    for head, order, sharp in (labelled or ranked[:2])[:_MOST_ROWS]:
        table.add_row(
            head.name.removeprefix("cross:"),
            " ".join(role_of(role).mark or role for role in head.roles) or "-",
            decimal(order.score, 2),
            words.range_text(order.interval),
            decimal(order.swapped, 2),
            *(decimal(x, 2) for x in (order.diagonal, order.diagonal_uniform)),
            *(decimal(x, 2) for x in (sharp.confidence, sharp.uniform, head.special_mass)),
        )
    yield Text("")
    yield table
    if len(labelled) > _MOST_ROWS:
        more = len(labelled) - _MOST_ROWS
        yield Text(f"... and {more} more (all with --format json or -o DIR)", style="dim")
    yield Text(words.ORDER_NOTE, style="dim")


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
    if result.corpus.pairs:  # it is said above that sources have no trees
        return
    yield Text("")
    if not result.corpus.trees:
        yield Text("No syntactic roles: plain text has no gold trees (give --treebank).")
        return
    best = sorted((row for row in words.best_heads(result) if row.labelled), key=_voita_first)
    if not best:
        yield Text(
            "No head's relation was confirmed on the held-out half of the corpus: none beats every "
            "baseline twice."
        )
        return
    table = make_table(("syntactic", "head", "acc.", "95% int.", *_BASELINES, "adj. p", "heads"))
    for row in best[:_MOST_ROWS]:
        confirmed = row.confirmed
        table.add_row(
            f"{row.score.relation} {row.score.direction}",
            row.head.name,
            decimal(confirmed.accuracy),
            interval_text(confirmed.interval),
            *(f"{value:.2f}" for value in confirmed.baselines.values()),
            p_text(confirmed.p_adjusted),
            str(row.labelled),
        )
    yield table
    if len(best) > _MOST_ROWS:
        more = len(best) - _MOST_ROWS
        yield Text(f"... and {more} more (all with --format json or -o DIR)", style="dim")
    yield Text(
        "Best head of each relation, measured on the half of the sentences that heads were not "
        "selected on. Baselines: best offset, first word, last word, uniform attention, the "
        "head's own distance kernel.",
        style="dim",
    )


def _voita_first(row: words.RelationRow) -> tuple[bool, float]:
    """Sort the relations of Voita et al. first, then by the gain over the strongest baseline."""
    return row.score.relation not in words.VOITA_RELATIONS, -row.confirmed.gain


def _rare_table(result: ClassifyResult) -> Iterator[RenderableType]:
    scored = [(head, head.rare) for head in result.heads if head.rare is not None]
    ranked = sorted(scored, key=lambda row: -(row[1].rate or 0.0))
    if not ranked:
        return
    yield Text("")
    if "rare" in result.untestable and ranked[0][1].rate is not None:
        yield Text(f"No rare-word score: {result.untestable['rare']}.")
        return
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
