"""What is shown of ``classify``: the roles of heads by stack, the labels behind them, the controls.

:func:`blocks` is everything in order; :data:`VIEW`, at the end, also names the tables, the cards
and the numbers that reports take. Optional parts are shown by ``optional/view.py``.

A *block* (``headscope.show.blocks``) is a text, a table or a figure; ``on`` says where it is shown
(terminal, page, with ``--verbose`` only), NOWHERE being a figure that is only written to a file. A
*stack* is ``encoder``, ``decoder`` or ``cross``; its result has the heads of that stack alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from headscope.analyses.classify.cards import head_cards, mark_of
from headscope.analyses.classify.optional.view import (
    cause_sentences,
    interval_words,
    more,
    patch_sentences,
    prefix_sentences,
)
from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.classify.roles import role_class, role_in, role_of
from headscope.analyses.classify.scores import Confirmation, HeadResult, Label
from headscope.analyses.classify.stack_words import (
    STACK_NAMES,
    VOITA_RELATIONS,
    asked_sentence,
    control_sentence,
    corpus_text,
    count_syntactic,
    found_heads,
    found_sentence,
    has_trees,
    legend,
    no_relation_sentence,
    pairs_sentence,
    results_by_stack,
    role_counts,
    short_control,
    untested_sentence,
)
from headscope.core.safe_text import visible
from headscope.show import blocks as b
from headscope.show.cells import decimal, interval_text, mean_of, model_line, model_name, p_text
from headscope.show.folders import names_of
from headscope.show.page.parts import Scale
from headscope.show.view import NOT_TESTABLE, KeyNumber, next_step, view
from headscope.stats.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_BARS = 24  # Relations in the bar chart, by gain over the baseline.
_MOST_ROWS = 8  # Labels of a role in the terminal; all of them are in the JSON.


def blocks(result: ClassifyResult) -> Iterator[b.Block]:
    """Show by stack what was found, the map and the labels; on the page, a table of roles."""
    for stack_result in results_by_stack(result):
        yield from _stack_blocks(stack_result, result)
    for sentence in chain(patch_sentences(result), cause_sentences(result)):
        yield b.Text(sentence, on=b.TERMINAL)
    frequencies = ""
    if "encoder" in result.stacks:
        frequencies = f"word frequencies from {result.corpus.frequencies}"
    yield from _what_was_read(result, frequencies)
    yield b.text_table(
        ("role", "heads", "heads of random weights"), _table_of_roles(result), on=b.PAGE
    )
    yield b.Drawing("roles", partial(_role_map, result))
    yield from _best_relations(result)
    if "cross" in result.stacks:
        yield _alignment_map(result)


def _stack_blocks(stack_result: ClassifyResult, result: ClassifyResult) -> Iterator[b.Block]:
    """Show what was found in one stack: sentences, the map of marks, the labels, the caveats."""
    (stack,) = stack_result.stacks
    several = len(result.stacks) > 1
    corpus = stack_result.corpus
    if stack_result.labels:  # what was asked is which heads follow the pairs
        yield b.Text(visible(pairs_sentence(stack_result)), "lead")
    found = f"{found_sentence(stack_result)}{short_control(stack_result)}"
    yield b.Text(found, "" if stack_result.labels else "lead")
    if corpus.by_stack:
        unit = "sources" if stack == "encoder" else "pairs"
        counts = f"{corpus.sentences:,} {unit}, {corpus.skipped:,} skipped"
        yield b.Text(f"Read: {counts}, {corpus.queries:,} tokens.", on=b.TERMINAL)
    yield b.Text(found_heads(stack_result), on=b.TERMINAL)
    last_layer = max(head.layer for head in stack_result.heads)
    layers: Sequence[int] = range(last_layer + 1) if several else stack_result.layers
    marks = {(f"L{layer}", 0): ("", "") for layer in layers}  # some have no head left
    for head in stack_result.heads:
        marks[f"L{head.layer}", head.head] = (mark_of(head), role_of(head.primary).style)
    yield b.HeadMarks(marks, f"{legend(stack_result)}.")
    yield from _labels_table(stack_result)
    for sentence in prefix_sentences(stack_result):
        yield b.Text(sentence)
    if has_trees(stack_result):
        yield b.Text(f"Of the syntactic heads: {count_syntactic(stack_result)}.", on=b.PAGE)
    sentences = [
        asked_sentence(stack_result),
        untested_sentence(stack_result),
        control_sentence(stack_result),
    ]
    caveats = " ".join(filter(None, sentences))
    if several and caveats:
        caveats = f"{STACK_NAMES[stack]}. {caveats}"
    yield b.Text(visible(caveats))


def _what_was_read(result: ClassifyResult, frequencies: str) -> Iterator[b.Block]:
    """Name the model, the corpus and the source of words' frequencies, and what to run next."""
    several = len(result.stacks) > 1
    lines = [model_line(result, len(result.heads) if several else None).plain]
    lines.append(f"Corpus  {corpus_text(result)}")
    if frequencies:
        lines.append(f"Words   {frequencies.removeprefix('word ')}")
    if result.corpus.note:
        lines.append(result.corpus.note)
    yield b.Text("\n".join(lines), on=b.TERMINAL)
    if result.stacks == ("encoder",) and not result.corpus.pairs:
        yield next_step(result, "how one head reads a sentence:", "explain {} 'The old cat sat .'")
    else:
        yield next_step(result, "the numbers behind the roles:", "classify {} --verbose")
    read = "; ".join(filter(None, (corpus_text(result), frequencies)))
    yield b.Text(f"Read: {visible(read)}.", "soft", b.PAGE)
    yield b.Text(visible(result.corpus.note), on=b.PAGE)


def _table_of_roles(result: ClassifyResult) -> list[tuple[str, str, str]]:
    """Return a row for every role of every stack: its name, its heads, those of the control."""
    several = len(result.stacks) > 1
    rows = []
    for stack_result in results_by_stack(result):
        (stack,) = stack_result.stacks
        for key, name, n_heads, random in role_counts(stack_result):
            untestable = role_in(key, stack) in result.untestable
            rows.append(
                (
                    f"{stack}: {name}" if several else name,
                    "not testable" if untestable else str(n_heads),
                    "not measured" if random == "-" and key != "none" else random,
                )
            )
    return rows


def _role_map(result: ClassifyResult) -> Figure:
    from headscope.analyses.classify.figures import role_map  # loads matplotlib

    return role_map(result)


def _alignment_map(result: ClassifyResult) -> b.HeadMap:
    """Draw how cross-attention heads follow the order of the source."""
    orders = {(h.layer_name, h.head): h.alignment for h in result.heads if h.alignment}
    mean = mean_of(order.score.value for order in orders.values())
    mean_of_swapped = mean_of(order.swapped.value for order in orders.values())
    return b.HeadMap(
        f"Alignment of the cross-attention heads of {model_name(result)}\n"
        f"mean {decimal(mean, 2)}; with the sources of other pairs {decimal(mean_of_swapped, 2)}",
        "rank correlation of target and source",
        {head: order.score.value for head, order in orders.items()},
        digits=2,
        file="alignment",
        on=b.NOWHERE,
    )


class _SelectedHead(NamedTuple):
    """A head that was selected for a relation, and what the held-out half says of it."""

    relation: str
    head: HeadResult
    labelled: bool
    held_out: Confirmation


def _best_relations(result: ClassifyResult) -> Iterator[b.Chart]:
    """Draw the best head of each relation that was selected for any head, on the held-out half.

    With interval and baselines; heads that this half confirms come before the others.
    """
    # The best head of each relation.
    by_relation: dict[str, list[_SelectedHead]] = {}
    for head in result.heads:
        for score in head.syntactic:
            if score.confirmed is not None:
                relation = f"{score.relation} {score.direction}"
                selected_head = _SelectedHead(relation, head, score.labelled, score.confirmed)
                by_relation.setdefault(relation, []).append(selected_head)
    best = [
        max(heads, key=lambda head: (head.labelled, float(head.held_out.accuracy)))
        for heads in by_relation.values()
    ]
    best.sort(key=lambda head: (not head.labelled, -head.held_out.gain))
    shown = best[:_MOST_BARS]
    if not shown:
        return

    # Bars, with two points each for the baselines.
    names = [f"{selected.relation}  {selected.head.name}" for selected in shown]
    accuracies = [selected.held_out.accuracy for selected in shown]
    roles = ["syntactic" if selected.labelled else "none" for selected in shown]
    colours = [role_of(role).colour for role in roles]
    offset = []
    strongest_other = []
    for selected in shown:
        baselines = dict(selected.held_out.baselines)
        offset.append(baselines.pop("offset"))
        strongest_other.append(max(baselines.values()))
    caption = "accuracy on the held-out half of the sentences, 95% interval; grey: not confirmed"
    if len(best) > _MOST_BARS:
        caption += f"; {len(best) - _MOST_BARS} more in relations.csv"
    bars = range(len(shown))
    yield b.Chart(
        f"How often the best head finds each relation, {model_name(result)}",
        caption,
        "",
        [
            b.Series("accuracy", names, accuracies, "bars", colours),
            b.Series("best fixed offset", offset, bars, "points", b.BLACK, "d"),
            b.Series(
                "strongest other: first, last, uniform, kernel",
                strongest_other,
                bars,
                "points",
                b.VERMILION,
                "d",
            ),
        ],
        file="relations",
        size=(7.0, 1.4 + 0.27 * len(shown)),
        on=b.NOWHERE,
    )


def _labels_table(stack_result: ClassifyResult) -> Iterator[b.Block]:
    """Show the clearest labels of each role, with what they had to beat."""
    labels: list[tuple[HeadResult, Label]] = []
    for head in stack_result.heads:
        labels += [(head, label) for label in head.labels]

    # Say why there is no syntactic label, where there could be one.
    read_sentences = stack_result.stacks != ("cross",) and not stack_result.corpus.pairs
    if read_sentences and not stack_result.labels:
        if not stack_result.corpus.trees:  # sources have no trees
            text = "No syntactic roles: plain text has no gold trees (give --treebank)."
            yield b.Text(text, on=b.TERMINAL)
        elif not any(role_class(label.role) == "syntactic" for _, label in labels):
            yield b.Text(visible(no_relation_sentence(stack_result)), on=b.TERMINAL)

    # By role: first the relations of Voita et al., then by how far the score exceeds its baseline.
    rows: list[tuple[HeadResult, Label]] = []
    for role in stack_result.possible_roles:
        role_rows = [(head, label) for head, label in labels if label.role == role.key]
        rows += sorted(role_rows, key=_clearest_first)[:_MOST_ROWS]
    columns: list[b.Column] = [
        ("label", lambda row: _label_name(row[1]), str),
        ("head", lambda row: row[0].name, str),
        ("score", lambda row: row[1].score.value, 3),
        ("95% interval", lambda row: _label_interval(row[1]), str),
        ("baseline", lambda row: f"{row[1].baseline:.2f} {row[1].against}", str),
        ("adjusted p", lambda row: row[1].p_adjusted, p_text),
    ]
    if rows:
        title = "Labels and what they had to beat"
        if len(rows) < len(labels):
            title += f" ({len(rows)} of {len(labels)})"
        yield b.Table(columns, rows, title, b.VERBOSE)


def _clearest_first(row: tuple[HeadResult, Label]) -> tuple[bool, float]:
    _, label = row
    relation, _, _ = label.detail.partition(" ")  # of ``obj dep->head``
    return relation not in VOITA_RELATIONS, label.baseline - abs(float(label.score))


def _label_name(label: Label) -> str:
    """Write a role with the label's detail, as ``syn obj dep->head``; a user's label by itself."""
    role = role_of(label.role)
    if role.family:  # the label of a user's pairs, which is in the detail
        return label.detail
    return f"{role.mark or role.name} {label.detail}"


def _label_interval(label: Label) -> str:
    return interval_text(label.score.interval)


def _key_numbers(result: ClassifyResult) -> Iterator[KeyNumber]:
    """Yield how often a head with a role costs more than one of its layer without."""
    if result.causes is None:
        return
    for test in result.causes.tests_of("zero")[:1]:
        yield KeyNumber(
            "pairs in one layer in which the head with a role costs more when removed",
            f"{decimal(test.within, 2)} ({test.verdict})",
            f"random labels {interval_words(test.within_placebo)}",
            Estimate(test.within),
        )


def _compared(result: ClassifyResult) -> Iterator[KeyNumber]:
    """Count the heads of each role, for comparison with other models."""
    for stack_result in results_by_stack(result):
        (stack,) = stack_result.stacks
        prefix = "" if stack == "encoder" else f"{stack}: "
        n_all = len(stack_result.heads)
        for role, name, n_heads, random in role_counts(stack_result):
            control = random if random == "-" else f"random weights {random}"  # -: not measured
            counted = f"{prefix}heads with {name}" if role == "none" else f"{prefix}{name} heads"
            if role_in(role, stack) in result.untestable:
                yield KeyNumber(counted, NOT_TESTABLE, control)
            else:
                text = f"{n_heads} of {n_all} ({n_heads / max(n_all, 1):.0%})"
                yield KeyNumber(
                    counted, text, control, Estimate(n_heads), role=role_in(role, stack)
                )


def brief(result: ClassifyResult) -> ClassifyResult:
    """Leave out relations without a label, rates by offset and mean patterns: 95% of the JSON."""
    heads = []
    for head in result.heads:
        positional = head.positional
        if positional is not None:
            positional = replace(positional, rates={}, mass={})
        labelled = tuple(score for score in head.syntactic if score.labelled)
        heads.append(replace(head, positional=positional, syntactic=labelled, mean_pattern=""))
    return replace(result, heads=tuple(heads), brief=True)


VIEW = view(
    "What do heads look at?",
    blocks,
    {
        "heads": ClassifyResult.to_frame,
        "relations": ClassifyResult.relations_frame,
        "patched": ClassifyResult.patched_frame,
    },
    more=more,
    # Only a run with gold trees, with cross-attention, or with an optional part, has these.
    stale=names_of(
        "relations",
        "alignment",
        "causes",
        "prefix_after",
        "prefix_same",
        "prefix_before",
        "patched",
    ),
    cards=lambda result, places: head_cards(result.only(result.stacks[0])),
    scales=(
        Scale("positional", "Positional score", of_pattern=True),
        Scale("confidence", "Confidence", of_pattern=True),
        Scale("entropy", "Entropy (nats)", of_pattern=True),
        Scale("special", "Mass on special tokens", of_pattern=True),
        Scale("removal", "Loss when removed"),
        Scale("induction", "Prefix matching, gain", of_pattern=True),
    ),
    key_numbers=_key_numbers,
    compared=_compared,
    brief=brief,
    term="roles",
)
