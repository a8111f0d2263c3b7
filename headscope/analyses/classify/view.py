"""What ``classify`` puts on the report's page: the roles, and most of a head's card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headscope.analyses.classify import figures as causes
from headscope.analyses.classify import show_prefix_matching as prefix_matching
from headscope.analyses.classify import show_value_norms as value_norms
from headscope.analyses.classify import tables, words
from headscope.analyses.classify.result import ClassifyResult, HeadResult, Label
from headscope.core.roles import NO_ROLE, role_in, role_name
from headscope.core.safe_text import visible
from headscope.show.cells import decimal, frame_csv, interval_text, p_text, to_csv
from headscope.show.folders import folder_files, names_of
from headscope.show.page.parts import Card, Part, Place, Scale
from headscope.show.view import KeyNumber, View
from headscope.stats.estimate import Estimate

__all__ = ["VIEW"]


SCALES = (
    Scale("positional", "Positional score", of_pattern=True),
    Scale("confidence", "Confidence", of_pattern=True),
    Scale("entropy", "Entropy (nats)", of_pattern=True),
    Scale("special", "Mass on special tokens", of_pattern=True),
    Scale("removal", "Loss when removed"),
    Scale("induction", "Prefix matching, gain", of_pattern=True),
)


def section(result: ClassifyResult) -> Part:
    """How many heads have each role."""
    words_from = f"; word frequencies from {result.corpus.frequencies}"
    read = f"{words.corpus_text(result)}{words_from * ('encoder' in result.stacks)}."
    return Part(
        "roles",
        "Roles",
        [visible(text) for text in (read, *words.roles_notes(result))],
        header=("role", "heads", "heads of random weights"),
        rows=words.role_rows(result),
    )


def compared(result: ClassifyResult) -> Iterator[KeyNumber]:
    """Count the heads of each role, to stand beside other models'."""
    for part in words.parts_of(result):
        stack = "" if part.stacks == ("encoder",) else f"{part.stacks[0]}: "
        for role, name, n, control in words.role_counts(part):
            beside = control if control == "-" else f"random weights {control}"
            what = f"{stack}heads with {name}" if role == "none" else f"{stack}{name} heads"
            if role_in(role, part.stacks[0]) in result.untestable:
                yield KeyNumber(what, "not testable", beside)
            else:
                text = f"{n} of {len(part.heads)} ({n / max(len(part.heads), 1):.0%})"
                yield KeyNumber(what, text, beside, Estimate(n))


def more(result: ClassifyResult) -> Iterator[Part]:
    """What was measured beside the roles, where it was asked for."""
    for asked in (value_norms, prefix_matching, causes):
        part = asked.part(result)
        if part is not None:
            yield part


def facts(result: ClassifyResult, places: Sequence[Place]) -> Iterator[Card]:
    """Roles, labels with their baselines, and scores of every head.

    The page has one map: of several stacks it shows the first.
    """
    for head in words.first_part(result).heads:
        yield Card(
            head.layer,
            head.head,
            primary=head.primary,
            mark="·" if head.primary == NO_ROLE.key else words.mark_of(head)[:3],
            keys=list(head.roles),
            roles=[role_name(role) for role in head.roles],
            labels=[_label(head, label) for label in head.labels],
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


def _label(head: HeadResult, label: Label) -> list[str]:
    """Role, detail, score, baseline, interval and p-value."""
    offset = head.positional.offset if head.positional else None
    named = label.role == "positional" and offset is not None
    return [
        role_name(label.role),
        words.describe_offset(offset or 0) if named else label.detail,
        decimal(label.score),
        f"{decimal(label.baseline)} {label.against}".strip(),
        interval_text(label.interval),
        p_text(label.p_adjusted),
    ]


def _facts(head: HeadResult) -> Iterator[tuple[str, str]]:
    if head.positional is not None:
        offset = head.positional.offset
        at = "" if offset is None else f" ({words.describe_offset(offset)})"
        yield "Best offset", f"{decimal(head.positional.score)}{at}"
    if head.syntactic:
        yield "Best relation", _best_relation(head)
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
        yield causes.card_fact(head.cause)
    if head.prefix is not None:
        yield prefix_matching.card_fact(head.prefix)


def _best_relation(head: HeadResult) -> str:
    """Say the numbers of the held-out half, as the head's labels do."""
    if head.best_relation is None:
        return "none was selected"
    best, found = head.best_relation
    return (
        f"{best.relation} {best.direction} {decimal(found.accuracy)} on held-out sentences, "
        f"strongest baseline {decimal(found.baselines[found.strongest])} ({found.strongest})"
    )


def classify_files(result: ClassifyResult) -> dict[str, bytes]:
    """Return heads.csv, relations.csv and the figures."""
    from headscope.analyses.classify.figures import (
        alignment_map,
        cause_map,
        prefix_map,
        relation_bars,
        role_map,
    )

    csv, figures = {"heads": to_csv(result)}, {"roles": role_map(result)}
    if "cross" in result.stacks:
        figures["alignment"] = alignment_map(result)
    if result.corpus.trees and "encoder" in result.stacks:
        csv["relations"] = frame_csv(result.relations_frame())
        figures["relations"] = relation_bars(result)
    if any(head.cause is not None for head in result.heads):
        figures["causes"] = cause_map(result)
    if any(head.prefix is not None for head in result.heads):
        figures["prefix_matching"] = prefix_map(result)
    return folder_files(csv, figures)


VIEW = View(
    tables.classify_report,
    classify_files,
    # Only a run with gold trees, one with cross-attention, or one that removed heads, writes these.
    stale=names_of("relations", "alignment", "causes", "prefix_matching"),
    facts=facts,
    scales=SCALES,
    section=section,
    more=more,
    key_numbers=causes.key_numbers,
    compared=compared,
)
