"""Heads that look at another copy of a token.

Measured is, over tokens that occur more than once in their sentence, the share whose largest weight
is on another occurrence (``duplicate_rate`` in
:class:`headscope.analyses.classify.sums.Profile`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headscope.core.roles import SELF_ATTENTION, Role

if TYPE_CHECKING:
    from headscope.analyses.classify.evidence import Evidence


def untestable(evidence: Evidence) -> str:
    """Say why no head could have earned the role; empty if one could."""
    n_twice = evidence.sampled("duplicate_rate")
    if n_twice >= evidence.fewest_sentences:
        return ""
    return f"fewer than {evidence.fewest_sentences} sentences have a token twice ({n_twice})"


ROLES = (
    Role(
        rank=110,
        key="duplicate",
        name="duplicate-token",
        mark="dup",
        colour="#6A5ACD",
        style="bright_cyan",
        light="#dcd8f6",
        dark="#3d3480",
        stacks=SELF_ATTENTION,
        words="looks at another copy of the same token",
        measure="duplicate_rate",
        threshold="duplicate",
        untestable=untestable,
    ),
)
