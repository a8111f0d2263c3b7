"""Which roles a corpus can show at all: "not tested" is not "no head has it"."""

from __future__ import annotations

from collections.abc import Mapping

from headscope.measures.classify.cross import FEWEST, CrossHeads
from headscope.measures.classify.profile import QUANTITIES, UNIFORM
from headscope.measures.classify.rows import LONG
from headscope.measures.classify.sums import HeadMeasures
from headscope.measures.classify.thresholds import Thresholds
from headscope.results.roles import roles_of

#: Pairs that the roles of cross-attention need; those of a few would earn them by luck.
MIN_PAIRS = 50
#: Sequences of LONG tokens or more that the broad role needs.
MIN_LONG = 50

_NO_SPECIAL = {
    "encoder": "the model adds no special tokens",
    "decoder": "no token sees a special one before it",
}


def untestable(
    sums: HeadMeasures, thresholds: Thresholds, *, trees: bool, stack: str = "encoder"
) -> dict[str, str]:
    """Return the roles that no head could have earned, each with the reason.

    ``trees`` says whether the corpus has gold trees; of the thresholds only ``min_trials`` counts.
    Roles that do not apply to the stack (``encoder`` or ``decoder``) are not among them.
    """
    queries = dict(zip(QUANTITIES, sums.profile.queries.tolist(), strict=True))
    expected = dict(zip(UNIFORM, sums.profile.uniform.tolist(), strict=True))
    reasons = {
        "positional": not sums.positional.queries.any() and "no sentence has two tokens",
        "syntactic": _no_relation(sums, thresholds, trees),
        "rare": int(sums.rare.sentences) < 2
        and "fewer than two sentences have a rarest word outside the 500 most frequent",
        "special": not expected["special_mass"] and _NO_SPECIAL[stack],
        "punctuation": not expected["punctuation_mass"] and "no word is punctuation",
        "broad": not broad_is_testable(sums)
        and f"{int(sums.profile.long_sentences)} sequences have {LONG} tokens or more, fewer than "
        f"{MIN_LONG}",
        "duplicate": not queries["duplicate_rate"] and "no token occurs twice in a sentence",
    }
    return _given(reasons, stack)


def untestable_cross(sums: CrossHeads) -> dict[str, str]:
    """Return the roles that no cross-attention head could have earned, each with the reason."""
    pairs, long = int(sums.pairs), int(sums.long_pairs)
    few = (
        not cross_is_testable(sums)
        and f"{pairs} pairs have {FEWEST} tokens or more on both sides, fewer than {MIN_PAIRS}"
    )
    reasons = {
        **dict.fromkeys(("monotonic", "anti_monotonic", "sharp"), few),
        "special": not sums.expected("special_mass") > 0 and "no source has a special token",
        "broad": not cross_broad_is_testable(sums)
        and f"{long} sources have {LONG} tokens or more, fewer than {MIN_LONG}",
    }
    return _given(reasons, "cross")


def _given(reasons: Mapping[str, str | bool], stack: str) -> dict[str, str]:
    """Keep the reasons that there are, of roles that apply to a stack."""
    applying = {role.key for role in roles_of(stack)}
    return {role: str(why) for role, why in reasons.items() if why and role in applying}


def cross_is_testable(sums: CrossHeads) -> bool:
    """Whether there are enough pairs to tell an order, or sharpness, from luck."""
    return int(sums.pairs) >= MIN_PAIRS


def cross_broad_is_testable(sums: CrossHeads) -> bool:
    """Whether there are enough long sources to call a cross-attention head broad."""
    return int(sums.long_pairs) >= MIN_LONG


def broad_is_testable(sums: HeadMeasures) -> bool:
    """Whether there are enough long sequences to call a head broad."""
    return int(sums.profile.long_sentences) >= MIN_LONG


def _no_relation(sums: HeadMeasures, thresholds: Thresholds, trees: bool) -> str:
    if not trees:
        return "plain text has no gold trees (give a treebank)"
    trials: dict[tuple[str, str], list[int]] = {}
    for (half, *name), count in zip(
        sums.syntactic.relations.names, sums.syntactic.trials.tolist(), strict=True
    ):
        trials.setdefault((name[0], name[1]), [0, 0])[half] = count
    if any(min(counts) >= thresholds.min_trials for counts in trials.values()):
        return ""
    return f"no relation has {thresholds.min_trials} trials in each half of the corpus"
