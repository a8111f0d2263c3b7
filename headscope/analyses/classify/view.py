"""What is shown of ``classify``: the role of every head, the labels behind it, and its removal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from headscope.analyses.classify.cards import head_cards, mark_of, offset_text
from headscope.analyses.classify.optional_parts import ends, more, patch_sentences
from headscope.analyses.classify.result import (
    ClassifyResult,
    Confirmation,
    ControlResult,
    HeadResult,
    Label,
    SyntacticScore,
)
from headscope.core.roles import NO_ROLE, PAIR, role_class, role_in, role_name, role_of
from headscope.core.safe_text import visible
from headscope.show import blocks as b
from headscope.show.cells import (
    decimal,
    joined,
    mean_of,
    model_line,
    model_name,
    p_text,
    plural,
)
from headscope.show.folders import names_of
from headscope.show.page.parts import Scale
from headscope.show.view import KeyNumber, next_step, view
from headscope.stats.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The relations that Voita et al. 2019 (arXiv:1905.09418) name heads for.
VOITA_RELATIONS = ("nsubj", "obj", "amod", "advmod")
STACK_NAMES = {"encoder": "Encoder", "decoder": "Decoder", "cross": "Cross-attention"}
_MOST_NAMES = 6  # Heads that are named of a role; the map has all of them.
_MOST_BARS = 24  # Relations in the bar chart, by gain over the baseline.
_MOST_ROWS = 8  # Labels of a role in the terminal; all of them are in the JSON.


def blocks(result: ClassifyResult) -> Iterator[b.Block]:
    """Show by stack what was found, the map and the labels; on the page, a table of roles."""
    several = len(result.stacks) > 1
    rows = []
    words = ""
    if "encoder" in result.stacks:
        words = f"word frequencies from {result.corpus.frequencies}"
    for part in parts_of(result):
        (stack,) = part.stacks
        corpus = part.corpus
        if corpus.by_stack:
            unit = "sources" if stack == "encoder" else "pairs"
            counts = f"{corpus.sentences:,} {unit}, {corpus.skipped:,} skipped"
            title = f"{STACK_NAMES[stack]}: {counts}, {corpus.queries:,} tokens"
            yield b.Text(title, "lead", b.TERMINAL)
        yield b.Text(found_sentence(part), "lead")
        yield b.Text(found_heads(part), on=b.TERMINAL)
        last = max(head.layer for head in part.heads)
        layers = range(last + 1) if several else part.layers
        marks = {(f"L{layer}", 0): ("", "") for layer in layers}  # some have no head left
        for head in part.heads:
            marks[f"L{head.layer}", head.head] = mark_of(head), role_of(head.primary).style
        yield b.HeadMarks(marks, f"{legend(part)}.")
        yield from _labels_table(part)
        counted = f"Of the syntactic heads: {_syntactic(part)}." if _has_trees(part) else ""
        yield b.Text(counted, on=b.PAGE)
        named = f"{STACK_NAMES[stack]}. " if several else ""
        caveats = f"{untested_sentence(part)} {control_sentence(part)}".strip()
        yield b.Text(visible(named + caveats))
        for key, name, n, random in role_counts(part):
            untested = role_in(key, stack) in result.untestable
            control = "not measured" if random == "-" and key != "none" else random
            role = f"{stack}: " * several + name
            rows.append((role, "not testable" if untested else str(n), control))
    yield from (b.Text(sentence, on=b.TERMINAL) for sentence in patch_sentences(result))
    lines = [model_line(result, len(result.heads) if several else None).plain]
    lines += [f"Corpus  {corpus_text(result)}", *([f"Words   {words[5:]}"] if words else [])]
    yield b.Text("\n".join([*lines, *filter(None, [result.corpus.note])]), on=b.TERMINAL)
    command = "classify {} --verbose"
    why = "the numbers behind the roles"
    if result.stacks == ("encoder",) and not result.corpus.pairs:
        command = "explain {} 'The old cat sat .'"
        why = "how one head reads a sentence"
    yield next_step(result, f"{why}:", command)
    read = visible("; ".join(filter(None, (corpus_text(result), words))))
    yield b.Text(f"Read: {read}.", "soft", b.PAGE)
    yield b.Text(visible(result.corpus.note), on=b.PAGE)
    yield b.text_table(("role", "heads", "heads of random weights"), rows, on=b.PAGE)
    yield b.Drawing("roles", partial(_role_map, result))
    yield from _best_relations(result)
    if "cross" in result.stacks:
        orders = {(h.layer_name, h.head): h.alignment for h in result.heads if h.alignment}
        mean, swapped = (
            decimal(mean_of(getattr(order, name).value for order in orders.values()), 2)
            for name in ("score", "swapped")
        )
        yield b.HeadMap(
            f"Alignment of the cross-attention heads of {model_name(result)}\n"
            f"mean {mean}; with the sources of other pairs {swapped}",
            "rank correlation of target and source",
            {head: order.score.value for head, order in orders.items()},
            digits=2,
            file="alignment",
            on=b.NOWHERE,
        )


def _role_map(result: ClassifyResult) -> Figure:
    from headscope.analyses.classify.figures import role_map  # loads matplotlib

    return role_map(result)


def _best_relations(result: ClassifyResult) -> Iterator[b.Chart]:
    """Draw the best head of each relation that was selected for any head, on the held-out half.

    With interval and baselines; a head that this half confirms comes before all that it does not.
    """
    by_relation: dict[str, list[tuple[HeadResult, SyntacticScore, Confirmation]]] = {}
    for head in result.heads:
        for score in head.syntactic:
            if (held_out := score.confirmed) is not None:
                name = f"{score.relation} {score.direction}"
                by_relation.setdefault(name, []).append((head, score, held_out))
    best = [
        (name, *max(rows, key=lambda row: (row[1].labelled, float(row[2].accuracy))))
        for name, rows in by_relation.items()
    ]
    best.sort(key=lambda row: (not row[2].labelled, -row[3].gain))
    shown = best[:_MOST_BARS]
    left_out = len(best[_MOST_BARS:])
    if not shown:
        return
    names = [f"{name}  {head.name}" for name, head, *_ in shown]
    colours = [role_of("syntactic" if row[2].labelled else "none").colour for row in shown]
    baselines = [row[3].baselines for row in shown]
    offset = [rates["offset"] for rates in baselines]
    other = [max(rate for name, rate in rates.items() if name != "offset") for rates in baselines]
    places = range(len(shown))
    strongest = "strongest other: first, last, uniform, kernel"
    yield b.Chart(
        f"Best head per relation, {model_name(result)}",
        "accuracy on the held-out half of the sentences, 95% interval; grey: not confirmed"
        + (f"; {left_out} more in relations.csv" if left_out else ""),
        "",
        [
            b.Series("accuracy", names, [row[3].accuracy for row in shown], "bars", colours),
            b.Series("best fixed offset", offset, places, "points", b.BLACK, "d"),
            b.Series(strongest, other, places, "points", b.VERMILION, "d"),
        ],
        file="relations",
        size=(7.0, 1.4 + 0.27 * len(shown)),
        on=b.NOWHERE,
    )


def parts_of(result: ClassifyResult) -> list[ClassifyResult]:
    """Return the result of each stack, in their order."""
    return [result.only(stack) for stack in result.stacks]


def corpus_text(result: ClassifyResult) -> str:
    """Say what was read."""
    corpus = result.corpus
    unit = "sentences"
    if corpus.pairs:
        unit = "sources" if result.stacks == ("encoder",) else "pairs"
    counts = f"{corpus.sentences:,} {unit}, {corpus.skipped:,} skipped, {corpus.queries:,} tokens"
    if corpus.words_left_out:
        counts += f", {corpus.words_left_out:,} words without a piece left out"
    return f"{corpus.name}: {counts}"


def found_sentence(part: ClassifyResult) -> str:
    """Say how many heads of one stack have a role."""
    plain = "heads of the encoder" if part.corpus.pairs else "heads"
    names = {"decoder": "heads of the decoder", "cross": "cross-attention heads"}
    n = sum(bool(head.roles) for head in part.heads)
    kind = names.get(part.stacks[0], plain)
    having = "has" if n == 1 else "have"
    rest = len(part.heads) - n
    return (
        f"{n} of {len(part.heads)} {kind} {having} a role on this corpus (a head can have several)"
        f"; {rest} {'has' if rest == 1 else 'have'} none."
    )


def found_heads(part: ClassifyResult) -> str:
    """List the heads of each role by name, a line for each role."""
    lines = []
    for role in part.possible_roles:
        heads = [head for head in part.heads if role.key in head.roles]
        named = [f"{head.name}{_detail(head, role.key)}" for head in heads]
        left = len(named) - _MOST_NAMES
        shown = ", ".join(named[:_MOST_NAMES]) + (f" and {left} more" if left > 0 else "")
        if heads and role.key == "syntactic" and _has_trees(part):
            lines.append(f"{_syntactic(part)}: {shown}")
        elif heads:
            lines.append(f"{len(heads)} {role.name}: {shown}")
    return "\n".join(lines)


def _detail(head: HeadResult, role: str) -> str:
    """Say where a positional head looks, and which relation or direction another follows."""
    text = offset_text(head) if role == "positional" else ""
    details = [label.detail for label in head.labels if label.role == role]
    if role == "syntactic":
        text = next(iter(details), "").partition(" ")[0]
    elif role_class(role) == "syntactic" and head.stack == "encoder":
        text = ", ".join(detail.rpartition(" ")[2] for detail in details)
    return f" ({text})" if text else ""


def _syntactic(part: ClassifyResult) -> str:
    """Count syntactic heads: for the four relations of Voita et al. first, then for all."""
    labelled = [{s.relation for s in head.syntactic if s.labelled} for head in part.heads]
    of_voita = sum(bool(relations & set(VOITA_RELATIONS)) for relations in labelled)
    return (
        f"{sum(map(bool, labelled))} syntactic "
        f"({of_voita} for subject, object, adjective or adverb)"
    )


def _has_trees(part: ClassifyResult) -> bool:
    return part.corpus.trees and part.stacks == ("encoder",)


def untested_sentence(part: ClassifyResult) -> str:
    """Name the roles that this corpus cannot show; empty where there is none."""
    prefix = role_in("", part.stacks[0])
    by_reason: dict[str, list[str]] = {}
    for role, why in part.untestable.items():
        by_reason.setdefault(why, []).append(role_name(role.removeprefix(prefix)))
    named = [f"{joined(names)} ({why})" for why, names in by_reason.items()]
    return f"Not testable on this corpus: {', '.join(named)}." if named else ""


def control_sentence(part: ClassifyResult) -> str:
    """Say what the same rules label in one stack where there is nothing to find."""
    control = part.control or ControlResult()
    parts = []
    if control.swapped is not None:
        labels = control.swapped.labels
        heads = control.swapped.heads
        other = "trees of other sentences"
        called = "be called syntactic"
        if part.labels:
            other = "pairs of other texts"
            called = "follow pairs"
        parts.append(
            f"with the {other} of the same length, {heads} {plural(heads, 'head')} would {called} "
            f"({labels} {plural(labels, 'label')})"
        )
    ordered = [head for head in part.heads if {"monotonic", "anti_monotonic"} & set(head.roles)]
    swapped = [head.alignment.swapped.interval for head in ordered if head.alignment]
    if part.stacks == ("cross",) and any(swapped):
        least = float(part.thresholds["monotonic"])
        left = sum(ends is not None and max(ends[0], -ends[1]) >= least for ends in swapped)
        parts.append(
            f"with other pairs' sources of the same length, {left} of the {len(ordered)} monotonic "
            "or anti-monotonic heads would have the role all the same: position explains them"
        )
    if control.random_weights:
        roles = part.possible_roles
        counts = [f"{control.roles.get(role.key, 0)} {role.name}" for role in roles]
        parts.append(
            f"with random weights (seed {control.seed}), of {control.heads} heads "
            f"{', '.join(counts)}"
        )
    else:
        parts.append("random weights were not measured (--control measures them)")
    worth = ""
    if part.stacks == ("encoder",) and (control.swapped or control.random_weights):
        swapped_heads = control.swapped.heads if control.swapped else 0
        false = swapped_heads + sum(
            n for key, n in control.roles.items() if role_class(key) in ("syntactic", "rare")
        )
        none = "" if false else "; there is none"
        kind = "label of pairs" if part.labels else "syntactic"
        worth = f" A {kind} or rare-word label there is a false positive{none}."
    return f"Control: {'; '.join(parts)}.{worth}"


def role_counts(part: ClassifyResult) -> list[tuple[str, str, int, str]]:
    """Return (role, its name, heads, heads of the control) for every role of one stack."""
    counts = Counter(role for head in part.heads for role in head.roles)
    control = part.control or ControlResult()
    rows = []
    for role in part.possible_roles:
        random = str(control.roles.get(role.key, 0)) if control.random_weights else "-"
        rows.append((role.key, role.name, counts[role.key], random))
    without = sum(not head.roles for head in part.heads)
    return [*rows, ("none", "no role on this corpus", without, "-")]


def legend(*parts: ClassifyResult) -> str:
    """Explain the marks on the map of some stacks: those that it shows."""
    marks = []
    shown = {head.primary for part in parts for head in part.heads}
    possible = dict.fromkeys(role for part in parts for role in part.possible_roles)
    for role in (role for role in (*possible, NO_ROLE) if role.key in shown):
        name = role.name.replace("-", " ")
        written = role.mark if name == role.mark else f"{role.mark} = {name}"
        marks.append(role.legend or written)
    return "; ".join(marks)


def no_relation_sentence(part: ClassifyResult) -> str:
    """Say that no head follows a relation or the user's pairs, or that none could be tested."""
    kinds = [PAIR + label for label in part.labels] or ["syntactic"]
    reasons = [part.untestable[kind] for kind in kinds if kind in part.untestable]
    what = "the pairs" if part.labels else "a relation"
    if len(reasons) == len(kinds):
        return f"Whether a head follows {what} could not be tested: {reasons[0]}."
    if part.labels:
        return "No head follows the pairs better than every baseline on both halves of the corpus."
    return (
        "No head is syntactic: none follows a relation better than every baseline on both halves "
        "of the corpus."
    )


def _labels_table(part: ClassifyResult) -> Iterator[b.Block]:
    """Show the clearest labels of each role, with what they had to beat."""
    labels = [(head, label) for head in part.heads for label in head.labels]
    if part.labels or (part.stacks == ("encoder",) and not part.corpus.pairs):
        if not part.corpus.trees and not part.labels:  # sources have no trees
            text = "No syntactic roles: plain text has no gold trees (give --treebank)."
            yield b.Text(text, on=b.TERMINAL)
        elif not any(role_class(label.role) == "syntactic" for _, label in labels):
            yield b.Text(visible(no_relation_sentence(part)), on=b.TERMINAL)
    labels.sort(key=lambda row: row[1].baseline - abs(float(row[1].score)))
    rows = []
    for role in part.possible_roles:
        of_role = [row for row in labels if row[1].role == role.key]
        # The relations of Voita et al. stand first.
        of_role.sort(key=lambda row: row[1].detail.partition(" ")[0] not in VOITA_RELATIONS)
        rows += of_role[:_MOST_ROWS]
    columns: list[b.Column] = [
        ("label", lambda row: _label_name(row[1]), str),
        ("head", lambda row: row[0].name.rpartition(":")[2], str),
        ("score", lambda row: row[1].score.value, 3),
        ("95% interval", lambda r: " to ".join(map(decimal, r[1].score.interval or [None])), str),
        ("baseline", lambda row: f"{row[1].baseline:.2f} {row[1].against}", str),
        ("adjusted p", lambda row: row[1].p_adjusted, p_text),
    ]
    if rows:
        left = f" ({len(rows)} of {len(labels)})" if len(rows) < len(labels) else ""
        yield b.Table(columns, rows, f"Labels and what they had to beat{left}", b.VERBOSE)


def _label_name(label: Label) -> str:
    role = role_of(label.role)
    return label.detail if role.family else f"{role.mark or role.name} {label.detail}"


def _key_numbers(result: ClassifyResult) -> Iterator[KeyNumber]:
    """Yield how often a head with a role costs more than one of its layer without."""
    for test in result.causes.tests_of("zero")[:1] if result.causes else ():
        yield KeyNumber(
            "pairs in one layer in which the head with a role costs more when removed",
            f"{decimal(test.within, 2)} ({test.verdict})",
            f"random labels {ends(test.within_placebo)}",
            Estimate(test.within),
        )


def _compared(result: ClassifyResult) -> Iterator[KeyNumber]:
    """Count the heads of each role, for comparison with other models."""
    for part in parts_of(result):
        stack = "" if part.stacks == ("encoder",) else f"{part.stacks[0]}: "
        for role, name, n, random in role_counts(part):
            control = random if random == "-" else f"random weights {random}"
            what = f"{stack}heads with {name}" if role == "none" else f"{stack}{name} heads"
            if role_in(role, part.stacks[0]) in result.untestable:
                yield KeyNumber(what, "not testable", control)
            else:
                text = f"{n} of {len(part.heads)} ({n / max(len(part.heads), 1):.0%})"
                yield KeyNumber(what, text, control, Estimate(n))


def brief(result: ClassifyResult) -> ClassifyResult:
    """Leave out relations without a label, rates by offset and mean patterns: 95% of the JSON."""
    heads = []
    for head in result.heads:
        positional = head.positional and replace(head.positional, rates={}, mass={})
        labelled = tuple(score for score in head.syntactic if score.labelled)
        heads.append(replace(head, positional=positional, syntactic=labelled, mean_pattern=""))
    return replace(result, heads=tuple(heads), brief=True)


VIEW = view(
    "Roles",
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
    facts=lambda result, places: head_cards(result.only(result.stacks[0])),
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
)
