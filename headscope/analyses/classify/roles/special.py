"""Special-token heads: their weight is on tokens such as [CLS] and [SEP] (Clark et al. 2019).

Measured is the mean weight on special tokens (``special_mass`` in
:class:`headscope.analyses.classify.sums.Profile`); a label says whether more of it lies on the
first or on the last of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headscope.core.roles import CLARK, Role

if TYPE_CHECKING:
    from headscope.analyses.classify.evidence import Evidence
    from headscope.analyses.classify.query_means import QueryMeans
    from headscope.core.accumulator import Array


def first_or_last(means: QueryMeans) -> Array:
    """Say of every head which special token has more of its weight: ``first`` or ``last``."""
    return which_special(means.mean("first_special_mass"), means.mean("last_special_mass"))


def which_special(first: Array, last: Array) -> Array:
    """Say which of two weights is larger; ``last`` where they are equal up to rounding."""
    import numpy as np

    from headscope.core.rounding import above

    return np.where(above(first, last), "first", "last")


def untestable(evidence: Evidence) -> str:
    """Say why no head could have earned the role; empty if one could."""
    if evidence.stack == "cross":
        if not evidence.means.expected("special_mass") > 0:
            return "no source has a special token"
        return evidence.too_few_pairs_for_a_test
    if not evidence.sees("special_mass"):
        if evidence.stack == "decoder":
            return "no token sees a special one before it"
        return "the model adds no special tokens"
    return evidence.too_few_sentences


def _token_words(token: str) -> str:
    """Say in words which special token a label's detail is."""
    names = {"first": "the first special token (CLS)", "last": "the last one (SEP)"}
    return names.get(token, "special tokens")


ROLES = (
    Role(
        rank=70,
        key="special",
        name="special-token",
        mark="",
        colour="#E69F00",
        style="yellow",
        light="#fbe3a4",
        dark="#6b5200",
        words="looks at special tokens, such as [CLS] and [SEP]",
        source=CLARK,
        sentence="Puts {score:.2f} of its attention on special tokens, most of it on {detail}; "
        "evenly spread attention puts {baseline:.2f} there.",
        detail=_token_words,
        legend="CLS, SEP = first, last special token",
        measure="special_mass",
        threshold="special",
        strict=True,  # more than the threshold, not just as much
        details=first_or_last,
        untestable=untestable,
    ),
)
