"""The sentences that say what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headscope.analyses.classify.result import (
    ClassifyResult,
    Confirmation,
    ControlResult,
    HeadResult,
    Label,
    SyntacticScore,
)
from headscope.core.roles import NO_ROLE, role_in, role_name, role_of, roles_of
from headscope.show.cells import joined, plural

#: The relations that Voita et al. 2019 (arXiv:1905.09418) name heads for.
VOITA_RELATIONS = ("nsubj", "obj", "amod", "advmod")


_WIDEST = 77  # Characters of a line of the legend, the gap before its last entry left out.
STACK_NAMES = {"encoder": "Encoder", "decoder": "Decoder", "cross": "Cross-attention"}
#: What the columns of the table of cross-attention say.
ORDER_NOTE = (
    "align: rank correlation of the predicted token's place with the source token attended to "
    "most; swapped: with the source of another pair as long; diag.: share near the straight line, "
    "rand. for keys at random; conf.: largest weight, unif. if even; spec.: on special tokens."
)


def describe_offset(offset: int) -> str:
    """Say an offset in words: -1 is ``previous token``."""
    names = {-1: "previous token", 1: "next token"}
    return names.get(offset, f"{abs(offset)} tokens {'back' if offset < 0 else 'ahead'}")


def primary_label(head: HeadResult) -> Label | None:
    """Return the first label of a head's primary role."""
    return next((label for label in head.labels if label.role == head.primary), None)


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
    asked: dict[tuple[str, str], list[tuple[HeadResult, SyntacticScore, Confirmation]]] = {}
    for head in result.heads:
        for score in head.syntactic:
            if score.confirmed is not None:
                key = (score.relation, score.direction)
                asked.setdefault(key, []).append((head, score, score.confirmed))
    for found in asked.values():
        best = max(found, key=lambda row: (row[1].labelled, row[2].accuracy))
        yield RelationRow(*best, sum(score.labelled for _, score, _ in found))


def marks(width: int = 4, stacks: Sequence[str] = ("encoder",)) -> dict[str, str]:
    """Explain by role what a mark on the map means: ``syn syntactic``; marks cut to a width."""
    return {
        role.key: f"{role.mark[:width]:<2} {role.name.replace('-', ' ')}"
        for role in (*roles_of(*stacks), NO_ROLE)
        if role.mark
    }


def legend(part: ClassifyResult) -> str:
    """Explain the marks on the map of one stack, in lines of a terminal."""
    known = marks(stacks=part.stacks)
    shown = {
        "positional": ["-1 +1 ... position"],
        "special": ["[  first special token", "]  last special"],
    }
    lines = [""]
    for role in (*roles_of(*part.stacks), NO_ROLE):
        for text in shown.get(role.key) or [known[role.key]]:
            if len(lines[-1]) + len(text) > _WIDEST:
                lines.append("")
            lines[-1] += "   " * bool(lines[-1]) + text
    return "\n".join(lines)


def mark_of(head: HeadResult) -> str:
    """Write a head's primary role in at most four characters: its offset, its token, its mark."""
    label = primary_label(head)
    if head.primary == "positional" and label is not None:
        return label.detail
    if head.primary == "special" and label is not None:
        return "[" if label.detail == "first" else "]"
    return role_of(head.primary).mark


def found_sentence(result: ClassifyResult) -> str:
    """Say how many heads have which role, how many none, and what was not tested; by stack."""
    found = [
        " ".join(filter(None, (_found(part), untested_sentence(part)))) for part in parts_of(result)
    ]
    return " ".join(filter(None, (*found, result.corpus.note)))


def parts_of(result: ClassifyResult) -> list[ClassifyResult]:
    """Return what was found about each stack, in their order."""
    return [result.only(stack) for stack in result.stacks]


def first_part(result: ClassifyResult) -> ClassifyResult:
    """Return what was found about the first stack: the one that a page's map shows."""
    return parts_of(result)[0] if result.stacks else result


def _found(part: ClassifyResult) -> str:
    """Count the heads of one stack."""
    *roles, (_, _, without, _) = role_counts(part)
    own, parts = ("positional", "syntactic"), []
    if any(role == "positional" for role, *_ in roles):
        parts.append(_positional(part.heads))
    if _has_trees(part):
        parts.append(_syntactic(part))
    parts += [f"{n} {name}" for role, name, n, _ in roles if n and role not in own]
    if not parts:
        return f"None of {len(part.heads)} {heads_of(part)} has a role that this corpus shows."
    return (
        f"Of {len(part.heads)} {heads_of(part)}, {', '.join(parts)}; {without} have no role that "
        "this corpus shows (a head can have several)."
    )


def heads_of(part: ClassifyResult) -> str:
    """Say what the heads of one stack are called."""
    plain = "heads of the encoder" if part.corpus.pairs else "heads"
    names = {"decoder": "heads of the decoder", "cross": "cross-attention heads"}
    return names.get("".join(part.stacks), plain)


def _has_trees(part: ClassifyResult) -> bool:
    return part.corpus.trees and part.stacks == ("encoder",)


def untested_sentence(part: ClassifyResult) -> str:
    """Name the roles that this corpus cannot show; empty where there is none."""
    if not part.untestable:
        return ""
    named = [f"{_role_name(role)} ({why})" for role, why in part.untestable.items()]
    return f"Not testable on this corpus: {', '.join(named)}."


def _role_name(key: str) -> str:
    """Name a role without the stack that results put before it."""
    return role_name(key.rpartition(":")[2])


def roles_notes(result: ClassifyResult) -> list[str]:
    """Sentences that stand beside a table of roles: the relations, the controls, the caveats."""
    notes = [note for part in parts_of(result) for note in _notes(part, len(result.stacks) > 1)]
    return [*notes, *filter(None, [result.corpus.note])]


def _notes(part: ClassifyResult, several: bool) -> Iterator[str]:
    """Yield what stands beside the roles of one stack; of several it says which."""
    relations = f"Of the syntactic heads: {_syntactic(part)}." if _has_trees(part) else ""
    begin = f"{STACK_NAMES[part.stacks[0]]}. " if several else ""
    for text in (relations, control_sentence(part), untested_sentence(part)):
        if text:
            yield begin + text


def stack_title(part: ClassifyResult) -> str:
    """Say which stack of an encoder-decoder model this is, and what it has read."""
    (stack,) = part.stacks
    unit = "sources" if stack == "encoder" else "pairs"
    corpus = part.corpus
    return (
        f"{STACK_NAMES[stack]}: {corpus.sentences:,} {unit}, {corpus.skipped:,} skipped, "
        f"{corpus.queries:,} tokens"
    )


def range_text(interval: Sequence[float]) -> str:
    """Write an interval whose ends can be negative, or a dash where there is none."""
    return f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "-"


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


def role_counts(part: ClassifyResult) -> list[tuple[str, str, int, str]]:
    """Return (role, its name, heads, heads of the control) for every role that a head can have."""
    counts = Counter(role for head in part.heads for role in head.roles)
    control = part.control or ControlResult()
    roles = roles_of(*part.stacks)
    known = {r.key: getattr(control, r.key) for r in roles} if control.random_weights else {}
    rows = [(r.key, r.name, counts[r.key], str(known.get(r.key, "-"))) for r in roles]
    without = sum(not head.roles for head in part.heads)
    return [*rows, ("none", "no role on this corpus", without, "-")]


def role_rows(result: ClassifyResult, *, every: bool = True) -> list[tuple[str, str, str]]:
    """Return name, heads and heads of the control by role; only what was found unless ``every``.

    Where there are several stacks, each has rows of its own.
    """
    untested, several = result.untestable, len(result.stacks) > 1
    return [
        (
            f"{part.stacks[0]}: {name}" if several else name,
            "not testable" if role_in(role, part.stacks[0]) in untested else str(n),
            control,
        )
        for part in parts_of(result)
        for role, name, n, control in role_counts(part)
        if every or n or role_in(role, part.stacks[0]) in untested or role == "none"
    ]


def _syntactic(result: ClassifyResult) -> str:
    """Count syntactic heads: for the four relations of Voita et al. first, then for all."""
    relations = {
        head.name: {s.relation for s in head.syntactic if s.labelled} for head in result.heads
    }
    of_voita = sum(bool(found & set(VOITA_RELATIONS)) for found in relations.values())
    of_any = sum(bool(found) for found in relations.values())
    return (
        f"{of_voita} syntactic for {joined(VOITA_RELATIONS, 'or')} "
        f"({of_any} for any relation or direction)"
    )


def _positional(heads: Sequence[HeadResult]) -> str:
    found = [head for head in heads if "positional" in head.roles]
    if not found:
        return "none is positional"
    offsets = [(head.name, getattr(head.positional, "offset", None)) for head in found]
    named = [f"{name} {describe_offset(x)}" for name, x in offsets if x is not None]
    shown = ", ".join(named[:3]) + (", ..." if len(named) > 3 else "")
    return f"{len(found)} {'is' if len(found) == 1 else 'are'} positional ({shown})"


def control_sentence(part: ClassifyResult) -> str:
    """Say what the same rules label where there is nothing to find, in one stack."""
    control = part.control or ControlResult()
    parts = []
    if control.swapped is not None:
        labels, heads = control.swapped.labels, control.swapped.heads
        parts.append(
            f"against the trees of other sentences as long, {labels} {plural(labels, 'label')} on "
            f"{heads} {plural(heads, 'head')}"
        )
    if part.stacks == ("cross",):
        parts += _swapped_sources(part)
    if not control.random_weights:
        parts.append("random weights were not run (--control does)")
    else:
        counts = [f"{getattr(control, role.key)} {role.name}" for role in roles_of(*part.stacks)]
        parts.append(
            f"with random weights (seed {control.seed}), of {control.heads} heads "
            f"{', '.join(counts)}"
        )
    worth = "Syntactic and rare-word labels there are false positives."
    return f"Controls: {'; '.join(parts)}." + f" {worth}" * (part.stacks == ("encoder",))


def _swapped_sources(part: ClassifyResult) -> Iterator[str]:
    """Say how many heads keep their order when each target is given another pair's source."""
    ordered = [head for head in part.heads if {"monotonic", "anti_monotonic"} & set(head.roles)]
    intervals = [h.alignment.swapped_interval for h in ordered if h.alignment]
    if any(intervals):
        least = float(part.thresholds["monotonic"])
        left = sum(_beyond(interval, least) for interval in intervals)
        yield (
            f"with the sources of other pairs as long, {left} of the {len(ordered)} monotonic or "
            "anti-monotonic heads would have the role all the same: position explains them"
        )


def _beyond(interval: Sequence[float], least: float) -> bool:
    """Whether an interval of an alignment lies wholly beyond a threshold, in either direction."""
    return bool(interval) and max(interval[0], -interval[1]) >= least
