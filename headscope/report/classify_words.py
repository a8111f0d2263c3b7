"""The sentences that say what was found."""

from __future__ import annotations

from collections import Counter

from headscope.results import ClassifyResult, HeadResult

__all__ = ["control_sentence", "describe_offset", "found_sentence"]

ROLE_NAMES = {
    "positional": "positional",
    "syntactic": "syntactic",
    "rare": "rare-word",
    "special": "special-token",
    "punctuation": "punctuation",
    "broad": "broad",
    "self": "self",
    "duplicate": "duplicate-token",
}


def describe_offset(offset: int) -> str:
    """Say an offset in words: -1 is ``previous token``."""
    names = {-1: "previous token", 1: "next token"}
    return names.get(offset, f"{abs(offset)} tokens {'back' if offset < 0 else 'ahead'}")


def found_sentence(result: ClassifyResult) -> str:
    """One sentence: how many heads have which role, and how many none."""
    heads = result.heads
    counts = Counter(role for head in heads for role in head.roles)
    parts = [_positional(heads, counts["positional"])]
    parts += [f"{counts[r]} {ROLE_NAMES[r]}" for r in list(ROLE_NAMES)[1:] if counts[r]]
    without = sum(not head.roles for head in heads)
    return (
        f"Of {len(heads)} heads, {', '.join(parts)}; {without} have no role that this corpus shows "
        "(a head can have several)."
    )


def _positional(heads: tuple[HeadResult, ...], count: int) -> str:
    if not count:
        return "none is positional"
    named = [
        f"{head.name} {describe_offset(head.positional.offset)}"
        for head in heads
        if "positional" in head.roles and head.positional.offset is not None
    ]
    shown = ", ".join(named[:3]) + (", ..." if len(named) > 3 else "")
    return f"{count} {'is' if count == 1 else 'are'} positional ({shown})"


def control_sentence(result: ClassifyResult) -> str:
    """Say what the same architecture with random weights earned."""
    control = result.control
    if control is None:
        return "Control: not run; --control measures the same architecture with random weights."
    return (
        f"Control: with random weights (seed {control.seed}) {control.syntactic} of "
        f"{control.heads} heads earn a syntactic and {control.rare} a rare-word label; "
        "each would be a false positive."
    )
