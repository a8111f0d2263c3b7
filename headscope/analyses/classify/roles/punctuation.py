"""Punctuation heads: their weight is on punctuation marks (Clark et al. 2019, section 3.2).

Measured is the mean weight on punctuation (``punctuation_mass`` in
:class:`headscope.analyses.classify.sums.Profile`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headscope.core.roles import CLARK, SELF_ATTENTION, Role

if TYPE_CHECKING:
    from headscope.analyses.classify.evidence import Evidence


def untestable(evidence: Evidence) -> str:
    """Say why no head could have earned the role; empty if one could."""
    if not evidence.sees("punctuation_mass"):
        return "no word is punctuation"
    return evidence.too_few_sentences


ROLES = (
    Role(
        rank=80,
        key="punctuation",
        name="punctuation",
        mark="punct",
        colour="#56B4E9",
        style="cyan",
        light="#b9e9ec",
        dark="#0f5a61",
        stacks=SELF_ATTENTION,
        words="looks at punctuation",
        source=CLARK,
        measure="punctuation_mass",
        threshold="punctuation",
        strict=True,  # more than the threshold, not just as much
        untestable=untestable,
    ),
)
