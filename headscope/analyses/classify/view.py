"""What is shown of ``classify``: the role of every head, the labels behind it, and its removal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from headscope.analyses.classify.result import (
    CauseTest,
    ClassifyResult,
    Confirmation,
    ControlResult,
    HeadResult,
    Label,
    Loss,
    SyntacticScore,
)
from headscope.analyses.classify.words import head_numbers, head_sentence
from headscope.core.roles import NO_ROLE, role_in, role_name, role_of, roles_of
from headscope.core.safe_text import visible
from headscope.show import blocks as b
from headscope.show.cells import (
    decimal,
    frame_csv,
    interval_text,
    joined,
    mean_of,
    model_line,
    model_name,
    p_text,
    plural,
    to_csv,
)
from headscope.show.folders import folder_files, names_of
from headscope.show.page.parts import Card, Place, Scale
from headscope.show.view import KeyNumber, View
from headscope.stats.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

#: The relations that Voita et al. 2019 (arXiv:1905.09418) name heads for.
VOITA_RELATIONS = ("nsubj", "obj", "amod", "advmod")
STACK_NAMES = {"encoder": "Encoder", "decoder": "Decoder", "cross": "Cross-attention"}
_MOST_ROWS = 14  # Rows of a table in the terminal; all of them are in the JSON and CSV.
_MOST_REMOVED = 8  # Removed heads that are listed.
_RULES = {
    "offset": "fixed offset",
    "first": "first word",
    "last": "last word",
    "uniform": "even",
    "kernel": "own distances",
}
#: Where the tokens of a repeated sequence can look.
PLACES = {
    "after": "after it (induction)",
    "same": "at the earlier copy",
    "before": "before it (mirrored)",
}
_VERDICTS = {
    "costs more": "Heads with a role cost more than heads without",
    "costs less": "Heads with a role cost less than heads without",
    "not told apart": "No difference in cost shows between heads with a role and heads without",
}


def _offset_text(head: HeadResult) -> str:
    offset = head.positional.offset if head.positional else None
    return "" if offset is None else describe_offset(offset)


_POSITIONAL: list[b.Column] = [
    ("positional", "name", str),
    ("looks at", _offset_text, str),
    ("score", "positional.score", 3),
    ("95% interval", "positional.interval", interval_text),
    ("chance", "positional.chance", 3),
    ("adj. p", "positional.p_adjusted", p_text),
]


def blocks(result: ClassifyResult) -> Iterator[b.Block]:
    """Show by stack what was found, the map and the labels; on the page, a table of roles."""
    several = len(result.stacks) > 1
    words = ""
    if "encoder" in result.stacks:
        words = f"word frequencies from {result.corpus.frequencies}"
    lines = [model_line(result, len(result.heads) if several else None).plain]
    lines += [f"Corpus  {corpus_text(result)}", *([f"Words   {words[5:]}"] if words else [])]
    yield b.Text("\n".join(lines), on=b.TERMINAL)
    for part in parts_of(result):
        if result.corpus.by_stack:
            corpus = part.corpus
            unit = "sources" if part.stacks == ("encoder",) else "pairs"
            counts = f"{corpus.sentences:,} {unit}, {corpus.skipped:,} skipped"
            title = f"{STACK_NAMES[part.stacks[0]]}: {counts}, {corpus.queries:,} tokens"
            yield b.Text(title, "lead", b.TERMINAL)
        yield b.Text(found_sentence(part), "lead", b.TERMINAL)
        last = max(head.layer for head in part.heads)
        n_layers = last + 1 if several else part.provenance["model"]["n_layers"]
        marks = {(f"L{layer}", 0): ("", "") for layer in range(n_layers)}  # some have no head left
        for head in part.heads:
            marks[f"L{head.layer}", head.head] = mark_of(head), role_of(head.primary).style
        yield b.HeadMarks(marks, f"{legend(part.stacks[0])}.")
        if part.stacks == ("cross",):
            yield from _cross_table(part)
        elif positional := [head for head in part.heads if "positional" in head.roles]:
            yield b.Table(_POSITIONAL, positional, on=b.TERMINAL)
        if part.stacks == ("encoder",):
            yield from _syntactic_table(part)
            yield from _rare_table(part)
        yield b.Text(control_sentence(part), "control", b.TERMINAL)
    yield b.Text(visible("; ".join(filter(None, (corpus_text(result), words))) + "."), on=b.PAGE)
    for part in parts_of(result):
        counted = f"Of the syntactic heads: {_syntactic(part)}." if _has_trees(part) else ""
        stack = f"{STACK_NAMES[part.stacks[0]]}. " if several else ""
        for note in (counted, control_sentence(part), untested_sentence(part)):
            yield b.Text(visible(stack + note) if note else "", on=b.PAGE)
    yield b.Text(visible(result.corpus.note), on=b.PAGE)
    titles = ("role", "heads", "heads of random weights")
    columns: list[b.Column] = [(title, i, str) for i, title in enumerate(titles)]
    yield b.Table(columns, role_rows(result), on=b.PAGE)
    yield b.Drawing("roles", partial(_draw, "role_map", result))
    if _has_trees(result.only("encoder")):
        yield b.Drawing("relations", partial(_draw, "relation_bars", result))
    orders = {(h.layer_name, h.head): h.alignment for h in result.heads if h.alignment}
    if "cross" in result.stacks:
        mean, swapped = (
            decimal(mean_of(getattr(order, name) for order in orders.values()), 2)
            for name in ("score", "swapped")
        )
        yield b.HeadMap(
            f"Alignment of the cross-attention heads of {model_name(result)}\n"
            f"mean {mean}; with the sources of other pairs {swapped}",
            "rank correlation of target and source",
            {place: order.score for place, order in orders.items()},
            digits=2,
            file="alignment",
            on=b.NOWHERE,
        )


def _draw(name: str, result: ClassifyResult) -> Figure:
    """Draw a figure of ``figures.py``, which loads matplotlib only now."""
    from headscope.analyses.classify import figures

    figure: Figure = getattr(figures, name)(result)
    return figure


def parts_of(result: ClassifyResult) -> list[ClassifyResult]:
    """Return the result of each stack, in their order."""
    return [result.only(stack) for stack in result.stacks]


def corpus_text(result: ClassifyResult) -> str:
    """Say what was read."""
    corpus = result.corpus
    unit = "sentences"
    if corpus.pairs:
        unit = "sources" if result.stacks == ("encoder",) else "pairs"
    return (
        f"{corpus.name}: {corpus.sentences:,} {unit}, {corpus.skipped:,} skipped, "
        f"{corpus.queries:,} tokens"
    )


def found_sentence(result: ClassifyResult) -> str:
    """Say how many heads have which role, how many none, and what was not tested; by stack."""
    sentences = []
    for part in parts_of(result):
        *roles, (_, _, without, _) = role_counts(part)
        plain = "heads of the encoder" if part.corpus.pairs else "heads"
        names = {"decoder": "heads of the decoder", "cross": "cross-attention heads"}
        heads, counts = names.get(part.stacks[0], plain), []
        for role, name, n, _ in roles:
            if role == "positional":
                counts.append(_positional(part))
            elif role == "syntactic":
                counts += [_syntactic(part)] if _has_trees(part) else []
            elif n:
                counts.append(f"{n} {name}")
        if counts:
            sentences.append(
                f"Of {len(part.heads)} {heads}, {', '.join(counts)}; {without} have no role that "
                "this corpus shows (a head can have several)."
            )
        else:
            sentences.append(
                f"None of {len(part.heads)} {heads} has a role that this corpus shows."
            )
        sentences.append(untested_sentence(part))
    return " ".join(filter(None, (*sentences, result.corpus.note)))


def _positional(part: ClassifyResult) -> str:
    heads = [head for head in part.heads if "positional" in head.roles]
    if not heads:
        return "none is positional"
    offsets = [(head.name, getattr(head.positional, "offset", None)) for head in heads]
    named = [f"{name} {describe_offset(x)}" for name, x in offsets if x is not None]
    shown = ", ".join(named[:3]) + (", ..." if len(named) > 3 else "")
    return f"{len(heads)} {'is' if len(heads) == 1 else 'are'} positional ({shown})"


def _syntactic(part: ClassifyResult) -> str:
    """Count syntactic heads: for the four relations of Voita et al. first, then for all."""
    labelled = [{s.relation for s in head.syntactic if s.labelled} for head in part.heads]
    of_voita = sum(bool(relations & set(VOITA_RELATIONS)) for relations in labelled)
    return (
        f"{of_voita} syntactic for {joined(VOITA_RELATIONS, 'or')} "
        f"({sum(map(bool, labelled))} for any relation or direction)"
    )


def _has_trees(part: ClassifyResult) -> bool:
    return part.corpus.trees and part.stacks == ("encoder",)


def untested_sentence(part: ClassifyResult) -> str:
    """Name the roles that this corpus cannot show; empty where there is none."""
    named = [f"{role_name(r.rpartition(':')[2])} ({why})" for r, why in part.untestable.items()]
    return f"Not testable on this corpus: {', '.join(named)}." if named else ""


def control_sentence(part: ClassifyResult) -> str:
    """Say what the same rules label in one stack where there is nothing to find."""
    control = part.control or ControlResult()
    parts = []
    if control.swapped is not None:
        labels, heads = control.swapped.labels, control.swapped.heads
        parts.append(
            f"with the trees of other sentences as long, {labels} {plural(labels, 'label')} on "
            f"{heads} {plural(heads, 'head')}"
        )
    ordered = [head for head in part.heads if {"monotonic", "anti_monotonic"} & set(head.roles)]
    swapped = [head.alignment.swapped_interval for head in ordered if head.alignment]
    if part.stacks == ("cross",) and any(swapped):
        least = float(part.thresholds["monotonic"])
        left = sum(bool(ends) and max(ends[0], -ends[1]) >= least for ends in swapped)
        parts.append(
            f"with the sources of other pairs as long, {left} of the {len(ordered)} monotonic or "
            "anti-monotonic heads would have the role all the same: position explains them"
        )
    if control.random_weights:
        counts = [f"{getattr(control, role.key)} {role.name}" for role in roles_of(*part.stacks)]
        parts.append(
            f"with random weights (seed {control.seed}), of {control.heads} heads "
            f"{', '.join(counts)}"
        )
    else:
        parts.append("random weights were not run (--control does)")
    worth = " Syntactic and rare-word labels there are false positives."
    return f"Controls: {'; '.join(parts)}." + worth * (part.stacks == ("encoder",))


def role_counts(part: ClassifyResult) -> list[tuple[str, str, int, str]]:
    """Return (role, its name, heads, heads of the control) for every role of one stack."""
    counts = Counter(role for head in part.heads for role in head.roles)
    control = part.control or ControlResult()
    rows = []
    for role in roles_of(*part.stacks):
        random = str(getattr(control, role.key)) if control.random_weights else "-"
        rows.append((role.key, role.name, counts[role.key], random))
    without = sum(not head.roles for head in part.heads)
    return [*rows, ("none", "no role on this corpus", without, "-")]


def role_rows(result: ClassifyResult) -> list[tuple[str, str, str]]:
    """Return name, heads and heads of the control by role, stack by stack."""
    rows = []
    for part in parts_of(result):
        stack = f"{part.stacks[0]}: " if len(result.stacks) > 1 else ""
        for role, name, n, control in role_counts(part):
            untested = role_in(role, part.stacks[0]) in result.untestable
            rows.append((stack + name, "not testable" if untested else str(n), control))
    return rows


def describe_offset(offset: int) -> str:
    """Say an offset in words: -1 is ``previous token``."""
    names = {-1: "previous token", 1: "next token"}
    return names.get(offset, f"{abs(offset)} tokens {'back' if offset < 0 else 'ahead'}")


def primary_label(head: HeadResult) -> Label | None:
    """Return the first label of a head's primary role."""
    return next((label for label in head.labels if label.role == head.primary), None)


def mark_of(head: HeadResult) -> str:
    """Write a head's primary role in at most five characters: its offset, its token, its mark."""
    label = primary_label(head)
    if head.primary == "positional" and label is not None:
        return label.detail
    if head.primary == "special" and label is not None:
        return "CLS" if label.detail == "first" else "SEP"
    return role_of(head.primary).mark


def legend(stack: str) -> str:
    """Explain the marks on the map of one stack."""
    special = {"positional": "-1, +1 ... position", "special": "CLS, SEP first, last special token"}
    marks = []
    for role in (*roles_of(stack), NO_ROLE):
        name = role.name.replace("-", " ")
        written = role.mark if name == role.mark else f"{role.mark} {name}"
        marks.append(special.get(role.key, written))
    return "; ".join(marks)


class RelationRow(NamedTuple):
    """The best head of a relation and direction by the held-out half; how many are labelled."""

    head: HeadResult
    score: SyntacticScore
    confirmed: Confirmation
    labelled: int


def best_heads(result: ClassifyResult) -> Iterator[RelationRow]:
    """Find the best head of each relation and direction that was selected for any head.

    A head that the held-out half confirms comes before all that it does not.
    """
    selected: dict[tuple[str, str], list[tuple[HeadResult, SyntacticScore, Confirmation]]] = {}
    for head in result.heads:
        for score in head.syntactic:
            if score.confirmed is not None:
                rows = selected.setdefault((score.relation, score.direction), [])
                rows.append((head, score, score.confirmed))
    for rows in selected.values():
        best = max(rows, key=lambda row: (row[1].labelled, row[2].accuracy))
        yield RelationRow(*best, sum(score.labelled for _, score, _ in rows))


def _syntactic_table(part: ClassifyResult) -> Iterator[b.Block]:
    if part.corpus.pairs:  # it is said above that sources have no trees
        return
    # The relations of Voita et al. stand first, then by the gain over the strongest baseline.
    best = [row for row in best_heads(part) if row.labelled]
    best.sort(key=lambda row: (row.score.relation not in VOITA_RELATIONS, -row.confirmed.gain))
    if not part.corpus.trees:
        text = "No syntactic roles: plain text has no gold trees (give --treebank)."
        yield b.Text(text, on=b.TERMINAL)
    elif not best:
        yield b.Text(
            "No head's relation was confirmed on the held-out half of the corpus: none beats every "
            "baseline twice.",
            on=b.TERMINAL,
        )
    else:
        columns: list[b.Column] = [
            ("relation", lambda row: f"{row.score.relation} {row.score.direction}", str),
            ("head", "head.name", str),
            ("accuracy", "confirmed.accuracy", 3),
            ("95%", "confirmed.interval", interval_text),
            ("best rule", lambda row: row.confirmed, _best_rule),
            ("adj. p", "confirmed.p_adjusted", p_text),
            ("heads", "labelled", str),
        ]
        title = "Syntactic roles: best head of each relation, on held-out sentences"
        yield b.Table(columns, best[:_MOST_ROWS], title, b.TERMINAL)
        yield from _more_rows(len(best))
        yield b.Text(
            "best rule: the strongest of five that know no words: always the same offset, the "
            "first word, the last word, even attention, and the distances at which the head "
            "usually looks. heads: with this relation.",
            "soft",
            b.TERMINAL,
        )


def _best_rule(confirmed: Confirmation) -> str:
    rate = confirmed.baselines[confirmed.strongest]
    return f"{rate:.2f} {_RULES.get(confirmed.strongest, confirmed.strongest)}"


def _more_rows(n: int) -> Iterator[b.Text]:
    if n > _MOST_ROWS:
        text = f"... and {n - _MOST_ROWS} more (all with --format json or -o DIR)"
        yield b.Text(text, "soft", b.TERMINAL)


def _rare_table(part: ClassifyResult) -> Iterator[b.Block]:
    heads = [head for head in part.heads if head.rare is not None]
    heads.sort(key=lambda head: -((head.rare and head.rare.rate) or 0.0))
    if not heads:
        return
    best, why = heads[0].rare, ""
    if best is None or best.rate is None:
        why = f"no sentence has a word outside the 500 most frequent of {part.corpus.frequencies}"
    elif "rare" in part.untestable:
        why = part.untestable["rare"]
    if why:
        yield b.Text(f"No rare-word score: {why}.", on=b.TERMINAL)
        return
    labelled = [head for head in heads if "rare" in head.roles]
    columns: list[b.Column] = [
        ("rare word", "name", str),
        ("rate", "rare.rate", 3),
        ("95% interval", "rare.interval", interval_text),
        ("two rarest", "rare.two_rarest", 3),
        ("chance", "rare.chance", 3),
        ("random word", "rare.null", 3),
        ("if even", "rare.uniform", 3),
        ("adj. p", "rare.p_adjusted", p_text),
    ]
    yield b.Table(columns, labelled or heads[:2], on=b.TERMINAL)
    if not labelled:
        yield b.Text(
            "No head earns the rare-word label: these come nearest, and evenly spread attention "
            "reaches the rate under 'if even' on long words alone.",
            "soft",
            b.TERMINAL,
        )


def _cross_table(part: ClassifyResult) -> Iterator[b.Block]:
    """Cross-attention heads with a role beside their controls, the clearest order first."""
    heads = [head for head in part.heads if head.alignment and head.sharpness]
    heads.sort(key=lambda head: -abs((head.alignment and head.alignment.score) or 0.0))
    labelled = [head for head in heads if head.roles]
    columns: list[b.Column] = [
        ("head", lambda head: head.name.removeprefix("cross:"), str),
        ("roles", lambda h: " ".join(role_of(r).mark or r for r in h.roles) or "-", str),
        ("alignment", "alignment.score", 2),
        ("95% interval", "alignment.interval", _signed_interval),
        ("swapped", "alignment.swapped", 2),
        ("confidence", "sharpness.confidence", 2),
        ("if even", "sharpness.uniform", 2),
        ("special", "special_mass", 2),
    ]
    yield b.Table(columns, (labelled or heads[:2])[:_MOST_ROWS], on=b.TERMINAL)
    yield from _more_rows(len(labelled))
    yield b.Text(
        "alignment: rank correlation of the predicted token's place with that of the source token "
        "attended to most; swapped: the same with the source of another pair as long; confidence: "
        "largest weight; special: weight on special tokens.",
        "soft",
        b.TERMINAL,
    )


def _signed_interval(ends: Sequence[float]) -> str:
    """Write an interval whose ends can be negative, or a dash where there is none."""
    return f"{ends[0]:.2f} to {ends[1]:.2f}" if ends else "-"


def more(result: ClassifyResult) -> Iterator[b.Details]:
    """Show what was measured beside the roles, where it was asked for."""
    if result.norms is not None:
        yield b.Details("Norm-weighted attention", list(_norms(result)))
    if result.prefix is not None:
        yield b.Details("Prefix matching", list(_prefix(result)))
    if result.causes is not None:
        yield b.Details("Heads removed one at a time", list(_removals(result)))


def _norms(result: ClassifyResult) -> Iterator[b.Block]:
    """Which labels are left when keys count by what they contribute."""
    roles = result.norms.roles if result.norms else ()
    several, survivors = len(result.stacks) > 1, []
    for stack in result.stacks:
        for role in (r for r in roles if r.stack == stack and r.heads):
            if role.role in ("special", "punctuation"):
                where = f" of the {stack}" if several else ""
                named = ", ".join(role.kept[:4]) + (", ..." if len(role.kept) > 4 else "")
                survivors.append(
                    f"{len(role.kept)} of {role.heads} {role_name(role.role)} heads{where} keep "
                    f"the label{f' ({named})' if named else ''}"
                )
    if survivors:
        yield b.Text(f"By the norm of what keys contribute: {'; '.join(survivors)}.", "lead")
    else:
        yield b.Text(
            "By the pattern no head looks at special tokens or punctuation, so none can lose it.",
            "lead",
        )
    columns: list[b.Column] = [
        ("role", lambda r: f"{r.stack}: " * several + role_name(r.role), str),
        ("heads", "heads", str),
        ("kept", lambda r: len(r.kept), str),
        ("95%", "interval", _ends),
        ("new", lambda r: len(r.gained), str),
        ("weight", "mass", 2),
        ("by norms", "norm_mass", 2),
        ("random", "control_heads", lambda n: "-" if n is None else str(n)),
        ("kept", "control_kept", lambda n: "-" if n is None else str(n)),
    ]
    yield b.Table(columns, roles)
    yield b.Text(
        "All other numbers of this run weigh each key by the norm of what it contributes, "
        "||P v W_O||, as a share of the row. heads: with the role by the pattern itself; kept: by "
        "norms too; new: by norms alone; weight: mean weight on such tokens over these heads, by "
        "the pattern and by norms; random: the same counts with random weights.",
        "soft",
    )


def _prefix(result: ClassifyResult) -> Iterator[b.Block]:
    """Where the tokens of repeated sequences look."""
    prefix = result.prefix
    if prefix is None:
        return
    scored = [(head, head.prefix) for head in result.heads if head.prefix is not None]
    rows = []
    for place, name in PLACES.items():
        ranked = sorted(scored, key=lambda row: -getattr(row[1], place).gain)
        for head, score in ranked[:2]:
            rows.append((name, head.name, getattr(score, place), prefix.random_weights.get(place)))
    columns: list[b.Column] = [
        ("looks", 0, str),
        ("head", 1, str),
        ("weight", lambda row: row[2].score, 3),
        ("control", lambda row: row[2].control, 3),
        ("gain", lambda row: row[2].gain, 3),
        ("95% interval", lambda row: " to ".join(map(decimal, row[2].interval)), str),
        ("random", 3, 3),
    ]
    yield b.Table(columns, rows)
    yield b.Text(
        f"{prefix.sequences} sequences of {prefix.copy} random tokens, twice; control: the same "
        f"second half after other tokens. Even attention puts a weight of {prefix.uniform:.3f} on "
        "each place. random: largest gain of any head with random weights.",
        "soft",
    )
    yield b.Drawing("prefix_matching", partial(_draw, "prefix_map", result))


def loss_text(loss: float) -> str:
    """Write a loss: most are far below 0.1."""
    return f"{loss:.4f}" if abs(loss) < 10 else f"{loss:.2f}"


def _loss_interval(effect: Loss) -> str:
    return " to ".join(map(loss_text, effect.interval or ())) or "no interval"


def _ends(interval: Sequence[float] | None) -> str:
    return "-".join(decimal(end, 2) for end in interval) if interval else "-"


def _removals(result: ClassifyResult) -> Iterator[b.Block]:
    """What removing heads costs, and whether roles say which ones cost most."""
    causes = result.causes
    rows = [(head, head.cause) for head in result.heads if head.cause is not None]
    rows.sort(key=lambda row: -row[1].zero.loss)
    if causes is None or not rows:
        return
    losses = [cause.zero.loss for _, cause in rows]
    above = sum(cause.zero.above for _, cause in rows)
    dearer = sum(cause.beyond_noise.above for _, cause in rows)
    cheaper = sum(cause.beyond_noise.below for _, cause in rows)
    yield b.Text(
        f"Each head alone, {causes.task} on {causes.examples:,} examples of "
        f"{visible(causes.data)}; means and gradients from {causes.calibration:,} others. The "
        f"whole model's {causes.metric} is {causes.value:.3f}; a loss is how much worse it gets."
    )
    yield b.Text(
        f"Removing one costs {loss_text(losses[-1])} to {loss_text(losses[0])}, half of them less "
        f"than {loss_text(median(losses))}; {above} of {len(rows)} losses lie above zero. Any "
        "change of a model changes its output: compared with noise of the head's own size (mean of "
        f"{causes.rotations} random rotations) {dearer} heads cost more, {cheaper} less, and for "
        f"{len(rows) - dearer - cheaper} no difference shows. These counts hold for all heads at "
        "once (95%)."
    )
    tests = {(test.role, test.removal): test for test in causes.tests}
    if ("any", "zero") in tests:
        yield b.Text(_any_role_sentence(tests["any", "zero"], tests.get(("any", "noise"))))
    how = "half the squared first-order change" if causes.estimate == "squared" else "first order"
    fits = [f"{fit.spearman:.2f} ({_ends(fit.interval)}) for {fit.removal}" for fit in causes.fits]
    yield b.Text(
        f"Losses estimated from gradients at the whole model ({how}) rank the heads like the "
        f"measured ones with Spearman's {', '.join(fits)}."
    )
    yield from map(b.Text, causes.notes)
    yield b.Drawing(
        "causes",
        partial(_draw, "cause_map", result),
        "Loss without each head, by layer and against noise of its size; the numbers are in "
        "heads.csv.",
        b.PAGE,
    )
    columns: list[b.Column] = [
        ("removed", lambda row: row[0].name, str),
        ("roles", lambda row: " ".join(map(role_name, row[0].roles)) or "-", str),
        ("zero", lambda row: row[1].zero.loss, loss_text),
        ("95% interval", lambda row: row[1].zero, _loss_interval),
        ("mean", lambda row: row[1].mean.loss, loss_text),
        ("noise", lambda row: row[1].noise.loss, loss_text),
        ("estimate", lambda row: row[1].zero_estimate, loss_text),
    ]
    yield b.Table(columns, rows[:_MOST_REMOVED], "The heads that cost most", b.TERMINAL)
    yield b.Text(
        "zero: nothing in its place; mean: its mean over other text; noise: the head stays, and as "
        "much is taken away in a random direction, mean over rotations; estimate: zero, from "
        "gradients.",
        "soft",
        b.TERMINAL,
    )
    if causes.tests:
        yield from _role_tests(tests, causes.tests_of("zero"))


def _role_tests(
    tests: Mapping[tuple[str, str], CauseTest], of_zero: Sequence[CauseTest]
) -> Iterator[b.Block]:
    """Whether heads with a role cost more than the others of their layer; the page has more."""

    def share(removal: str) -> Callable[[Any], float | None]:
        return lambda test: tests[test.role, removal].within

    columns: list[b.Column] = [
        ("role", lambda t: "any role" if t.role == "any" else role_name(t.role), str),
        ("heads", "heads", str),
        ("zero", "within", 2),
        ("by chance", "within_placebo", _ends),
        ("adj. p", "within_p_adjusted", p_text),
        ("heads with it", "verdict", str),
        ("mean", share("mean"), 2),
        ("noise", share("noise"), 2),
    ]
    everywhere: list[b.Column] = [("all layers", "superiority", 2), ("its p", "p_value", p_text)]
    yield b.Table(columns, of_zero, "Do heads with a role cost more than others?", b.TERMINAL)
    yield b.Table([*columns, *everywhere], of_zero, on=b.PAGE)
    yield b.Text(
        "zero, mean, noise: of the pairs of a head with the role and one without in the same "
        "layer, the share in which the first costs more; 0.5 is no difference. by chance: where "
        "95% of these shares lie (zero) when labels are dealt at random within layers, which "
        "decides (adj. p, over roles).",
        "soft",
    )
    text = "all layers, its p: the same over all layers, where layers differ too."
    yield b.Text(text, "soft", b.PAGE)


def _any_role_sentence(test: CauseTest, noise: CauseTest | None) -> str:
    """Say whether heads with any role cost more than heads of their layer without one."""
    everywhere = f"in {test.superiority:.0%} over all layers (p {p_text(test.p_value)})"
    if test.within is None or test.within_p_adjusted is None:
        return (
            "Whether heads with a role cost more than heads without is not measured: "
            f"no layer has both kinds. Of a pair the one with a role costs more {everywhere}."
        )
    by_noise = f"; with noise of their size in {noise.within:.0%}" if noise and noise.within else ""
    return (
        f"{_VERDICTS[test.verdict]}: of a pair in one layer the one with a role costs more in "
        f"{test.within:.0%} (random labels {_ends(test.within_placebo)}, p "
        f"{p_text(test.within_p_adjusted)} adjusted over roles){by_noise}; {everywhere}, where "
        "layers differ too."
    )


def _cards(result: ClassifyResult, places: Sequence[Place]) -> Iterator[Card]:
    """Roles, labels with their baselines, and scores of every head of the first stack."""
    for head in (head for part in parts_of(result)[:1] for head in part.heads):
        yield Card(
            head.layer,
            head.head,
            primary=head.primary,
            mark=mark_of(head),
            sentence=head_sentence(head),
            mean=head.mean_pattern,
            numbers=head_numbers(head),
            keys=list(head.roles),
            roles=[role_name(role) for role in head.roles],
            labels=[
                [
                    role_name(label.role),
                    (_offset_text(head) if label.role == "positional" else "") or label.detail,
                    decimal(label.score),
                    f"{decimal(label.baseline)} {label.against}".strip(),
                    interval_text(label.interval),
                    p_text(label.p_adjusted),
                ]
                for label in head.labels
            ],
            facts=list(_facts(head)),
            values={
                "positional": head.positional.score if head.positional else None,
                "confidence": head.confidence,
                "entropy": head.entropy,
                "special": head.special_mass,
                "removal": head.cause.zero.loss if head.cause else None,
                "induction": head.prefix.after.gain if head.prefix else None,
            },
        )


def _facts(head: HeadResult) -> Iterator[tuple[str, str]]:
    """The lines of a head's card."""
    if head.positional is not None:
        at = f" ({text})" if (text := _offset_text(head)) else ""
        yield "Best offset", f"{decimal(head.positional.score)}{at}"
    if head.syntactic and head.best_relation is None:
        yield "Best relation", "none was selected"
    elif head.best_relation is not None:
        best, confirmed = head.best_relation  # numbers of the held-out half, as in the labels
        yield (
            "Best relation",
            f"{best.relation} {best.direction} {decimal(confirmed.accuracy)} on held-out "
            f"sentences, strongest baseline {decimal(confirmed.baselines[confirmed.strongest])} "
            f"({confirmed.strongest})",
        )
    if head.alignment is not None:
        swapped = f", swapped sources {decimal(head.alignment.swapped)}"
        yield "Alignment", f"{decimal(head.alignment.score)}{swapped}"
    if head.rare is not None:
        yield "Rarest word", f"{decimal(head.rare.rate)}, chance {decimal(head.rare.chance)}"
    yield "Confidence", decimal(head.confidence)
    yield "Entropy", f"{decimal(head.entropy)} nats"
    yield "Mass on special tokens", decimal(head.special_mass)
    if head.punctuation_mass is not None:
        yield "Mass on punctuation", decimal(head.punctuation_mass)
    if head.cause is not None:
        zero, mean, noise = head.cause.zero, head.cause.mean, head.cause.noise
        yield (
            "Loss when removed",
            f"{loss_text(zero.loss)} ({_loss_interval(zero)}); mean left {loss_text(mean.loss)}, "
            f"noise of its size {loss_text(noise.loss)}",
        )
    if head.prefix is not None:
        gains = (f"{name} {getattr(head.prefix, name).gain:+.3f}" for name in PLACES)
        yield "Repeated tokens, gain", ", ".join(gains)


def _key_numbers(result: ClassifyResult) -> Iterator[KeyNumber]:
    """How often a head with a role costs more than one without in its layer."""
    for test in result.causes.tests_of("zero")[:1] if result.causes else ():
        yield KeyNumber(
            "pairs in one layer in which the head with a role costs more when removed",
            f"{decimal(test.within, 2)} ({test.verdict})",
            f"random labels {_ends(test.within_placebo)}",
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


def _human(result: ClassifyResult) -> Iterator[RenderableType]:
    from headscope.show.terminal import terminal

    return terminal([*blocks(result), *more(result)])


def _files(result: ClassifyResult) -> Mapping[str, bytes]:
    """Return heads.csv, relations.csv and the figures."""
    from headscope.show.figures import figures_of

    tables = {"heads": to_csv(result)}
    if _has_trees(result.only("encoder")):
        tables["relations"] = frame_csv(result.relations_frame())
    shown = [*blocks(result), *(block for part in more(result) for block in part.blocks)]
    return folder_files(tables, dict(figures_of(shown)))


VIEW = View(
    _human,
    _files,
    # Only a run with gold trees, one with cross-attention, or one that removed heads, writes these.
    stale=names_of("relations", "alignment", "causes", "prefix_matching"),
    facts=_cards,
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
    title="Roles",
    blocks=blocks,
    more=more,
)
