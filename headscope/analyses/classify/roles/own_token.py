"""Heads that look at the token itself: the share of queries with their largest weight there.

The share (``self_rate`` in :class:`headscope.analyses.classify.sums.Profile`) is judged like any
mean over queries: against its threshold and against uniform attention.
"""

from __future__ import annotations

from headscope.core.roles import CLARK, SELF_ATTENTION, Role

ROLES = (
    Role(
        rank=100,
        key="self",
        name="self",
        mark="self",
        colour="#8B4513",
        style="bright_yellow",
        light="#ecd9c6",
        dark="#5e3a17",
        stacks=SELF_ATTENTION,
        words="looks at the token itself",
        source=CLARK,
        measure="self_rate",
        threshold="self",
    ),
)
