"""The sentences that say what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headscope.results import ClassifyResult, ControlResult, HeadResult, Label
from headscope.results.roles import NO_ROLE, Role, role_name, role_of, roles_of
from headscope.show.cells import joined, plural

#: The relations that Voita et al. 2019 (arXiv:1905.09418) name heads for.
VOITA_RELATIONS = ("nsubj", "obj", "amod", "advmod")


def describe_offset(offset: int) -> str:
    """Say an offset in words: -1 is ``previous token``."""
    names = {-1: "previous token", 1: "next token"}
    return names.get(offset, f"{abs(offset)} tokens {'back' if offset < 0 else 'ahead'}")


def primary_label(head: HeadResult) -> Label | None:
    """Return the first label of a head's primary role."""
    return next((label for label in head.labels if label.role == head.primary), None)


def marks(width: int = 4, stacks: Sequence[str] = ("encoder",)) -> dict[str, str]:
    """Explain by role what a mark on the map means: ``syn syntactic``; marks cut to a width."""
    return {
        role.key: f"{role.mark[:width]:<2} {role.name.replace('-', ' ')}"
        for role in (*roles_of(*stacks), NO_ROLE)
        if role.mark
    }


def mark_of(head: HeadResult) -> str:
    """Write a head's primary role in at most four characters: its offset, its token, its mark."""
    label = primary_label(head)
    if head.primary == "positional" and label is not None:
        return label.detail
    if head.primary == "special" and label is not None:
        return "[" if label.detail == "first" else "]"
    return role_of(head.primary).mark


def found_sentence(result: ClassifyResult) -> str:
    """Say how many heads have which role, how many none, and what was not tested."""
    *roles, (_, _, without, _) = role_counts(result)
    parts = [_positional(result.heads)]
    if result.corpus.trees:
        parts.append(_syntactic(result))
    parts += [f"{n} {name}" for _, name, n, _ in roles[2:] if n]
    found = (
        f"Of {len(result.heads)} heads, {', '.join(parts)}; {without} have no role that this "
        "corpus shows (a head can have several)."
    )
    return " ".join(filter(None, (found, untested_sentence(result), result.corpus.note)))


def untested_sentence(result: ClassifyResult) -> str:
    """Name the roles that this corpus cannot show; empty where there is none."""
    if not result.untestable:
        return ""
    named = [f"{role_name(role)} ({why})" for role, why in result.untestable.items()]
    return f"Not testable on this corpus: {', '.join(named)}."


def roles_notes(result: ClassifyResult) -> list[str]:
    """Sentences that stand beside a table of roles: the relations, the controls, the caveats."""
    syntactic = f"Of the syntactic heads: {_syntactic(result)}." if result.corpus.trees else ""
    notes = (syntactic, control_sentence(result), untested_sentence(result), result.corpus.note)
    return [note for note in notes if note]


def corpus_text(result: ClassifyResult) -> str:
    """Say what was read."""
    corpus = result.corpus
    return (
        f"{corpus.name}: {corpus.sentences:,} sentences, {corpus.skipped:,} skipped, "
        f"{corpus.queries:,} tokens"
    )


def role_counts(result: ClassifyResult) -> list[tuple[str, str, int, str]]:
    """Return (role, its name, heads, heads of the control) for every role that a head can have."""
    counts = Counter(role for head in result.heads for role in head.roles)
    control = result.control or ControlResult()
    roles = _roles(result)
    known = {r.key: getattr(control, r.key) for r in roles} if control.random_weights else {}
    rows = [(r.key, r.name, counts[r.key], str(known.get(r.key, "-"))) for r in roles]
    without = sum(not head.roles for head in result.heads)
    return [*rows, ("none", "no role on this corpus", without, "-")]


def _roles(result: ClassifyResult) -> tuple[Role, ...]:
    """The roles that heads of these stacks can have."""
    return roles_of(*{head.stack for head in result.heads})


def role_rows(result: ClassifyResult, *, every: bool = True) -> list[tuple[str, str, str]]:
    """Return name, heads and heads of the control by role; only what was found unless ``every``."""
    untested = result.untestable
    return [
        (name, "not testable" if role in untested else str(n), control)
        for role, name, n, control in role_counts(result)
        if every or n or role in untested or role == "none"
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


def control_sentence(result: ClassifyResult) -> str:
    """Say what the same rules label where there is nothing to find."""
    control = result.control or ControlResult()
    parts = []
    if control.swapped is not None:
        labels, heads = control.swapped.labels, control.swapped.heads
        parts.append(
            f"against the trees of other sentences as long, {labels} {plural(labels, 'label')} on "
            f"{heads} {plural(heads, 'head')}"
        )
    if not control.random_weights:
        parts.append("random weights were not run (--control does)")
    else:
        counts = [f"{getattr(control, role.key)} {role.name}" for role in _roles(result)]
        parts.append(
            f"with random weights (seed {control.seed}), of {control.heads} heads "
            f"{', '.join(counts)}"
        )
    return (
        f"Controls: {'; '.join(parts)}. Syntactic and rare-word labels there are false positives."
    )
