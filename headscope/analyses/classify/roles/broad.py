"""Broad heads: they spread attention over the whole sentence (Clark et al. 2019, section 3.3).

Measured is the entropy of a query's attention as a share of ln n, the most that is possible over n
tokens; only of queries that see 20 tokens or more. Nothing is broader than uniform attention, so
the threshold itself is the baseline; heads with random weights are broad, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headscope.core.roles import CLARK, Role

if TYPE_CHECKING:
    from headscope.analyses.classify.evidence import Evidence

MIN_LONG = 50  # Long sequences that the role needs


def untestable(evidence: Evidence) -> str:
    """Say why no head could have earned the role; empty if one could."""
    from headscope.analyses.classify.rows import LONG

    n_long = int(evidence.means.long_units)
    if n_long >= MIN_LONG:
        return ""
    sequences = "sources" if evidence.stack == "cross" else "sequences"
    return f"{n_long} {sequences} have {LONG} tokens or more, fewer than {MIN_LONG}"


ROLES = (
    Role(
        rank=90,
        key="broad",
        name="broad",
        mark="broad",
        colour="#D55E00",
        style="red",
        light="#f9c9c2",
        dark="#7a2d22",
        words="spreads its attention over the whole sentence",
        source=CLARK,
        sentence="Spreads its attention: its entropy is {score:.0%} of the most that is possible. "
        "Heads with random weights do so too.",
        measure="long_entropy",
        threshold="broad_relative",
        strict=True,  # more than the threshold, not just as much
        untestable=untestable,
    ),
)
