"""Which roles a corpus can show at all: "not tested" is not "no head has it"."""

from __future__ import annotations

from headscope.measures.classify.profile import LONG, QUANTITIES, UNIFORM
from headscope.measures.classify.sums import HeadMeasures
from headscope.measures.classify.thresholds import Thresholds

#: Sequences of LONG tokens or more that the broad role needs.
MIN_LONG = 50


def untestable(sums: HeadMeasures, thresholds: Thresholds, *, trees: bool) -> dict[str, str]:
    """Return the roles that no head could have earned, each with the reason.

    ``trees`` says whether the corpus has gold trees; of the thresholds only ``min_trials`` counts.
    """
    queries = dict(zip(QUANTITIES, sums.profile.queries.tolist(), strict=True))
    expected = dict(zip(UNIFORM, sums.profile.uniform.tolist(), strict=True))
    reasons = {
        "positional": not sums.positional.queries.any() and "no sentence has two tokens",
        "syntactic": _no_relation(sums, thresholds, trees),
        "rare": int(sums.rare.sentences) < 2
        and "fewer than two sentences have a rarest word outside the 500 most frequent",
        "special": not expected["special_mass"] and "the model adds no special tokens",
        "punctuation": not expected["punctuation_mass"] and "no word is punctuation",
        "broad": not broad_is_testable(sums)
        and f"{int(sums.profile.long_sentences)} sequences have {LONG} tokens or more, fewer than "
        f"{MIN_LONG}",
        "duplicate": not queries["duplicate_rate"] and "no token occurs twice in a sentence",
    }
    return {role: reason for role, reason in reasons.items() if reason}


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
