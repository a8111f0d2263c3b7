"""The oracle of the syntactic labels: a literal reading of the definitions' second edition.

All rules work on choices (`reference_choices`): a head, a baseline and a kernel are all "from word
i, look at word j".  Nothing of the package is used.  Readings where the definitions are silent:

* Margins are compared with 1e-9 to spare, so that 0.60 beats 0.50 by 0.10.
* A relation and direction with fewer than 50 trials on half B can never be confirmed, so nothing of
  it is selected and nothing of it enters the correction.  Neither do `punct` and `root`.
* The paired z against uniform is one-sided, with the sample variance (n - 1) of the differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from reference import (
    Key,
    Sentence,
    Trial,
    baseline_hit,
    benjamini_hochberg,
    best_offset,
    mcnemar,
    syntactic_trials,
    wilson,
)
from reference_choices import Corpus, Floats, Ints, Observed, uniform_hit

MARGIN = 0.10
MIN_TRIALS = 50
Q = 0.05
NEVER_A_LABEL = ("punct", "root")
VOITA = ("nsubj", "obj", "amod", "advmod")
FIXED = ("offset", "first", "last")  # baselines that know nothing of the head or the pieces
BASELINES = ("offset", "first", "last", "uniform", "kernel")
SLACK = 1e-9


def previous_of_same_length(sentences: Sequence[Sentence]) -> list[Sentence | None]:
    """For every sentence the one before it with as many words; None for the first of a length.

    Every sentence of the file counts, measured or skipped.
    """
    latest: dict[int, Sentence] = {}
    result = []
    for sentence in sentences:
        result.append(latest.get(len(sentence.forms)))
        latest[len(sentence.forms)] = sentence
    return result


@dataclass
class Outcomes:
    """All trials of one relation and direction, in the file's order."""

    trials: list[Trial]
    in_a: NDArray[np.bool_]  # (trials,)
    hits: NDArray[np.bool_]  # (trials, heads)
    hits_mean: NDArray[np.bool_]
    kernel: NDArray[np.bool_]
    first: NDArray[np.bool_]  # (trials,)
    last: NDArray[np.bool_]
    uniform: Floats  # (trials,): the expectation

    def part(self, which: NDArray[np.bool_]) -> Outcomes:
        return Outcomes(
            [trial for trial, keep in zip(self.trials, which, strict=True) if keep],
            self.in_a[which],
            self.hits[which],
            self.hits_mean[which],
            self.kernel[which],
            self.first[which],
            self.last[which],
            self.uniform[which],
        )

    def offset(self, offset: int) -> NDArray[np.bool_]:
        return np.array([baseline_hit(trial, offset) for trial in self.trials], dtype=bool)


def collect(corpus: Corpus, trees: Sequence[Sentence | None]) -> dict[Key, Outcomes]:
    """Score every measured sentence against `trees[index]`, where there is one."""
    found: dict[Key, list[tuple[Observed, Trial]]] = {}
    for one in corpus.observed:
        tree = trees[one.index]
        for trial in syntactic_trials(tree) if tree is not None else []:
            found.setdefault((trial.relation, trial.direction), []).append((one, trial))
    return {key: outcomes(pairs) for key, pairs in sorted(found.items())}


def outcomes(pairs: Sequence[tuple[Observed, Trial]]) -> Outcomes:
    return Outcomes(
        [trial for _, trial in pairs],
        np.array([one.in_a for one, _ in pairs]),
        np.array([hit(one.choice, trial) for one, trial in pairs]),
        np.array([hit(one.choice_mean, trial) for one, trial in pairs]),
        np.array([hit(one.kernel_choice, trial) for one, trial in pairs]),
        # A word that is itself the first (or last) looks at itself, which is never a target.
        np.array([0 in trial.targets for _, trial in pairs]),
        np.array([len(one.pieces) - 1 in trial.targets for one, trial in pairs]),
        np.array([uniform_hit(one.pieces, trial.query, trial.targets) for one, trial in pairs]),
    )


def hit(choice: Ints | None, trial: Trial) -> NDArray[np.bool_]:
    """(heads,): whether the query's choice is a target."""
    assert choice is not None
    return np.isin(choice[:, trial.query], list(trial.targets))


def label(corpus: Corpus, *, swapped: bool = False) -> dict[tuple[int, int], dict[Key, Any]]:
    """Per head, per (relation, direction): every number of a syntactic entry, and the label.

    With `swapped` each sentence meets the tree of the sentence before it that is as long.
    """
    trees = previous_of_same_length(corpus.sentences) if swapped else corpus.sentences
    result: dict[tuple[int, int], dict[Key, Any]] = {head: {} for head in corpus.heads}
    tested: list[dict[str, Any]] = []
    for key, every in collect(corpus, trees).items():
        half_a, half_b = every.part(every.in_a), every.part(~every.in_a)
        for position, head in enumerate(corpus.heads):
            entry = describe(every, half_a, half_b, position)
            entry["selected"] = may_be_labelled(key, half_b) and is_selected(entry["half_a"])
            if entry["selected"]:
                entry["confirmed"] = confirm(half_a, half_b, position)
                tested.append(entry)
            result[head][key] = entry
    adjusted = benjamini_hochberg([entry["confirmed"]["p"] for entry in tested])
    for entry, p in zip(tested, adjusted, strict=True):
        entry["confirmed"]["p_adjusted"] = p
        entry["labelled"] = is_confirmed(entry["confirmed"])
    return result


def describe(every: Outcomes, half_a: Outcomes, half_b: Outcomes, head: int) -> dict[str, Any]:
    """The figures on all sentences and those on half A."""
    offset_all = best_offset(every.trials)
    offset_a = best_offset(half_a.trials) if half_a.trials else None
    return {
        "trials": len(every.trials),
        "accuracy": float(every.hits[:, head].mean()),
        "accuracy_mean": float(every.hits_mean[:, head].mean()),
        "baseline_offset": offset_all,
        "baselines": rates(every, offset_all, head),
        "half_a": figures(half_a, offset_a, head),
        "half_b": figures(half_b, offset_a, head),
        "confirmed": None,
        "labelled": False,
    }


def figures(half: Outcomes, offset: int | None, head: int) -> dict[str, Any]:
    """One half: the head and what it must beat, the offset chosen on A."""
    if not half.trials:
        return {"trials": 0}
    return {
        "trials": len(half.trials),
        "accuracy": float(half.hits[:, head].mean()),
        "accuracy_mean": float(half.hits_mean[:, head].mean()),
        "baselines": rates(half, offset, head),
    }


def rates(part: Outcomes, offset: int | None, head: int) -> dict[str, float]:
    """The five baselines; without an offset (no trial to choose it on) that one never hits."""
    hits = {
        "offset": part.offset(offset) if offset is not None else np.zeros(len(part.trials)),
        "first": part.first,
        "last": part.last,
        "uniform": part.uniform,
        "kernel": part.kernel[:, head],
    }
    return {name: float(value.mean()) for name, value in hits.items()}


def exceeds(value: float, other: float) -> bool:
    return value - other >= MARGIN - SLACK


def may_be_labelled(key: Key, half_b: Outcomes) -> bool:
    """Whether a label is possible at all, whatever the head does."""
    return key[0] not in NEVER_A_LABEL and len(half_b.trials) >= MIN_TRIALS


def is_selected(half: dict[str, Any]) -> bool:
    """On A: enough trials, and above every baseline by the margin."""
    return half["trials"] >= MIN_TRIALS and all(
        exceeds(half["accuracy"], value) for value in half["baselines"].values()
    )


def confirm(half_a: Outcomes, half_b: Outcomes, head: int) -> dict[str, Any]:
    """A selected head on B: its figures, and the largest of the four paired p-values."""
    offset = best_offset(half_a.trials)
    figure = figures(half_b, offset, head)
    hits = half_b.hits[:, head]
    base = {"offset": half_b.offset(offset), "first": half_b.first, "last": half_b.last}
    p = {name: mcnemar_of(hits, base[name]) for name in FIXED}
    p["uniform"] = paired_z(hits - half_b.uniform)
    return {
        **figure,
        "strongest": max(BASELINES, key=lambda name: figure["baselines"][name]),
        "interval": wilson(int(hits.sum()), len(hits)),
        "p_values": p,
        "p": max(p.values()),
    }


def is_confirmed(half: dict[str, Any]) -> bool:
    """The rule on B; `p_adjusted` has been filled in."""
    return (
        half["p_adjusted"] <= Q
        and all(exceeds(half["accuracy"], value) for value in half["baselines"].values())
        and all(exceeds(half["accuracy_mean"], half["baselines"][name]) for name in FIXED)
    )


def mcnemar_of(hits: NDArray[np.bool_], base: NDArray[np.bool_]) -> float:
    """Exact, two-sided, on the trials where exactly one of the two hits."""
    return mcnemar(int((hits & ~base).sum()), int((base & ~hits).sum()))


def paired_z(difference: Floats) -> float:
    """One-sided p of a positive mean, by the normal law; 1 where it cannot be told from zero."""
    size = len(difference)
    spread = float(difference.std(ddof=1)) if size > 1 else 0.0
    return upper_tail(float(difference.mean()), spread / math.sqrt(size))


def upper_tail(mean: float, error: float) -> float:
    if error == 0:
        return 0.0 if mean > 0 else 1.0
    return 0.5 * math.erfc(mean / error / math.sqrt(2))


def labels_of(table: dict[tuple[int, int], dict[Key, Any]]) -> list[tuple[int, int, str, str]]:
    """(layer, head, relation, direction) of every label."""
    return [
        (*head, *key)
        for head, entries in table.items()
        for key, entry in entries.items()
        if entry["labelled"]
    ]
