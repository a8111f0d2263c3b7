"""The oracle of the labels: a literal reading of docs/definitions/roles.md, second edition.

One sentence at a time goes through transformers' own eager attention; what is kept of it are
choices, the word that a word attends most in a head. All rules work on choices: a head, a baseline
and a kernel are all "from word i, look at word j". The kernel knows half A only, whichever
sentences it is evaluated on; a distance that no pair of words in A has counts as 0. Nothing of the
package is used. Readings where the definitions are silent:

* Margins are compared with 1e-9 to spare, so that 0.60 beats 0.50 by 0.10.
* A relation and direction with fewer than 50 trials on half B can never be confirmed, so nothing of
  it is selected and nothing of it enters the correction.  Neither do `punct` and `root`.
* The paired z against uniform is one-sided, with the sample variance (n - 1) of the differences.
* A rare word's queries share one target, so the sentence is the sampled unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from reference import (
    Encoded,
    Key,
    Model,
    Sentence,
    Trial,
    baseline_hit,
    best_offset,
    rare_target,
    syntactic_trials,
)
from scipy import stats

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
CLIP = 20  # of a distance in the kernel
MARGIN = 0.10
MIN_TRIALS = 50
Q = 0.05
NEVER_A_LABEL = ("punct", "root")
VOITA = ("nsubj", "obj", "amod", "advmod")
FIXED = ("offset", "first", "last")  # baselines that know nothing of the head or the pieces
BASELINES = ("offset", "first", "last", "uniform", "kernel")
SLACK = 1e-9


@dataclass
class Observed:
    """What the rules need of one measured sentence; arrays are over (heads, words).

    `index` is its zero-based place in the file; `n` counts its tokens with special ones.
    """

    index: int
    sentence: Sentence
    kept: list[int]  # Which of the file's words are its words
    n: int
    pieces: Ints  # of every word
    choice: Ints  # argmax of the sum over the attended word's pieces
    choice_mean: Ints  # the same with the mean
    relative_entropy: Floats  # (heads, non-special rows): H / ln n
    kernel_choice: Ints | None = None  # filled in once the kernels are known

    @property
    def in_a(self) -> bool:
        """Half A: the even indices of the file."""
        return self.index % 2 == 0


def word_attention(patterns: Floats, encoded: Encoded) -> Floats:
    """(heads, words, words): mean over the attending word's pieces, sum over the attended one's."""
    words = range(len(encoded.sentence.forms))
    pieces = [encoded.pieces(word) for word in words]
    rows = np.stack([patterns[:, pieces[w], :].mean(axis=1) for w in words], axis=1)
    return np.stack([rows[:, :, pieces[w]].sum(axis=2) for w in words], axis=2)


def choose(attention: Floats) -> Ints:
    """Every word's argmax in every head, the diagonal excluded; ties: the lowest index.

    What reaches the largest but for 64 roundings of float32 is a tie.
    """
    without = attention.copy()
    words = np.arange(attention.shape[1])
    without[:, words, words] = -np.inf
    largest = without.max(axis=2, keepdims=True)
    first_largest: Ints = (without >= largest - 64 / 2**23 * np.abs(largest)).argmax(axis=2)
    return first_largest


def distances(words: int) -> Ints:
    """j - i for every ordered pair (i, j), clipped to -20..20."""
    order = np.arange(words)
    clipped: Ints = np.clip(order[None, :] - order[:, None], -CLIP, CLIP)
    return clipped


def uniform_hit(pieces: Ints, query: int, targets: frozenset[int]) -> float:
    """Evenly spread attention looks at the words with most pieces, which share the argmax."""
    other_words = [word for word in range(len(pieces)) if word != query]
    most = max(pieces[word] for word in other_words)
    top = [word for word in other_words if pieces[word] == most]
    return sum(word in targets for word in top) / len(top)


@dataclass
class Corpus:
    """The file's sentences, and those that were measured."""

    sentences: list[Sentence]
    observed: list[Observed]
    heads: list[tuple[int, int]]


def observe(model_dir: str | Path, sentences: Sequence[Sentence]) -> Corpus:
    """Run every usable sentence through the model, one by one, then let the kernels choose."""
    model = Model(model_dir)
    observed = []
    config = model.model.config
    heads = list(product(range(config.num_hidden_layers), range(config.num_attention_heads)))
    # Sums over the ordered word pairs of half A by clipped distance (-20..20, at index 0..40)
    total = np.zeros((len(heads), 2 * CLIP + 1))
    pairs = np.zeros(2 * CLIP + 1)
    for index, sentence in enumerate(sentences):
        encoded = model.encode(sentence)
        if not encoded.is_usable(int(config.max_position_embeddings)):
            continue
        patterns = np.concatenate(model.patterns(encoded))
        words = len(encoded.sentence.forms)
        pieces = np.array([len(encoded.pieces(word)) for word in range(words)])
        attention = word_attention(patterns, encoded)
        per_piece = attention / pieces
        if index % 2:
            continue
        for r in range(-CLIP, CLIP + 1):
            at_offset = (distances(words) == r) & (r != 0)
            total[:, r + CLIP] += per_piece[:, at_offset].sum(axis=1)
            pairs[r + CLIP] += at_offset.sum()
        rows = patterns[:, encoded.queries, :]
        entropy = -(rows * np.log(np.where(rows > 0, rows, 1.0))).sum(axis=2)
        n = len(encoded.ids)
        choices = (choose(attention), choose(per_piece))
        observed.append(
            Observed(
                index,
                encoded.sentence,
                encoded.kept,
                n,
                pieces,
                *choices,
                entropy / math.log(n),
            )
        )
    kernel = np.where(pairs > 0, total / np.maximum(pairs, 1), 0.0)
    for one in observed:  # from i, the argmax over j != i of K_h(j - i) times j's pieces
        by_kernel = kernel[:, distances(len(one.pieces)) + CLIP] * one.pieces
        one.kernel_choice = choose(by_kernel)
    return Corpus(list(sentences), observed, heads)


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
    hits: dict[str, Floats]  # by sum, mean, kernel: (trials, heads); by first, last, uniform, in_a

    def part(self, which: Floats) -> Outcomes:
        trials = [trial for trial, keep in zip(self.trials, which, strict=True) if keep]
        rows = np.flatnonzero(which)
        return Outcomes(trials, {name: values[rows] for name, values in self.hits.items()})

    def offset(self, offset: int) -> Floats:
        return np.array([baseline_hit(trial, offset) for trial in self.trials], dtype=float)


def collect(corpus: Corpus, trees: Sequence[Sentence | None]) -> dict[Key, Outcomes]:
    """Score every measured sentence against `trees[index]`, where there is one."""
    by_relation: dict[Key, list[tuple[Observed, Trial]]] = {}
    for one in corpus.observed:
        tree = trees[one.index]
        if tree is None:
            continue
        for trial in syntactic_trials(tree.only(one.kept)):
            by_relation.setdefault((trial.relation, trial.direction), []).append((one, trial))
    return {key: outcomes(pairs) for key, pairs in sorted(by_relation.items())}


def outcomes(pairs: Sequence[tuple[Observed, Trial]]) -> Outcomes:
    def each(value: Callable[[Observed, Trial], Any]) -> Floats:
        return np.array([value(one, trial) for one, trial in pairs], dtype=float)

    def hit(choice: Ints | None, trial: Trial) -> NDArray[np.bool_]:
        """(heads,): whether the query's choice is a target."""
        assert choice is not None
        return np.isin(choice[:, trial.query], list(trial.targets))

    hits = {
        "in_a": each(lambda one, trial: one.in_a),
        "sum": each(lambda one, trial: hit(one.choice, trial)),
        "mean": each(lambda one, trial: hit(one.choice_mean, trial)),
        "kernel": each(lambda one, trial: hit(one.kernel_choice, trial)),
        # A word that is itself the first (or last) looks at itself, which is never a target.
        "first": each(lambda one, trial: 0 in trial.targets),
        "last": each(lambda one, trial: len(one.pieces) - 1 in trial.targets),
        "uniform": each(lambda one, trial: uniform_hit(one.pieces, trial.query, trial.targets)),
    }
    return Outcomes([trial for _, trial in pairs], hits)


def label(corpus: Corpus, *, swapped: bool = False) -> dict[tuple[int, int], dict[Key, Any]]:
    """Per head, per (relation, direction): every number of a syntactic entry, and the label.

    With `swapped` each sentence meets the tree of the sentence before it that is as long.
    """
    trees: list[Sentence | None] = [*corpus.sentences]
    if swapped:
        trees = previous_of_same_length(corpus.sentences)
    result: dict[tuple[int, int], dict[Key, Any]] = {head: {} for head in corpus.heads}
    tested: list[dict[str, Any]] = []
    for key, outcomes in collect(corpus, trees).items():
        half_a = outcomes.part(outcomes.hits["in_a"])
        half_b = outcomes.part(1 - outcomes.hits["in_a"])
        for position, head in enumerate(corpus.heads):
            entry = describe(outcomes, half_a, position)
            entry["selected"] = may_be_labelled(key, half_b) and is_selected(entry["half_a"])
            if entry["selected"]:
                entry["confirmed"] = confirm(half_a, half_b, position)
                tested.append(entry)
            result[head][key] = entry
    adjusted = adjusted_p([entry["confirmed"]["p"] for entry in tested])
    for entry, p in zip(tested, adjusted, strict=True):
        entry["confirmed"]["p_adjusted"] = p
        entry["labelled"] = is_confirmed(entry["confirmed"])
    return result


def describe(outcomes: Outcomes, half_a: Outcomes, head: int) -> dict[str, Any]:
    """The figures on all sentences and those on half A."""
    offset = best_offset(outcomes.trials)
    offset_a = best_offset(half_a.trials) if half_a.trials else None
    return {
        **figures(outcomes, offset, head),
        "offset": offset,
        "half_a": figures(half_a, offset_a, head),
        "confirmed": None,
        "labelled": False,
    }


def figures(half: Outcomes, offset: int | None, head: int) -> dict[str, Any]:
    """One half: the head and what it must beat, the offset chosen on A."""
    if not half.trials:
        return {"trials": 0}
    return {
        "trials": len(half.trials),
        "accuracy": float(half.hits["sum"][:, head].mean()),
        "accuracy_mean": float(half.hits["mean"][:, head].mean()),
        "baselines": rates(half, offset, head),
    }


def rates(outcomes: Outcomes, offset: int | None, head: int) -> dict[str, float]:
    """The five baselines; without an offset (no trial to choose it on) that one never hits."""
    hits = {
        "offset": outcomes.offset(offset) if offset is not None else np.zeros(len(outcomes.trials)),
        **{name: outcomes.hits[name] for name in ("first", "last", "uniform")},
        "kernel": outcomes.hits["kernel"][:, head],
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
    hits = half_b.hits["sum"][:, head]
    base = (half_b.offset(offset), half_b.hits["first"], half_b.hits["last"])
    p = [mcnemar_of(hits > 0, fixed > 0) for fixed in base]
    p.append(paired_z(hits - half_b.hits["uniform"]))
    return {
        **figure,
        "strongest": max(BASELINES, key=lambda name: figure["baselines"][name]),
        "interval": list(
            stats.binomtest(int(hits.sum()), len(hits)).proportion_ci(method="wilson")
        ),
        "p": max(p),
    }


def is_confirmed(half: dict[str, Any]) -> bool:
    """The rule on B; `p_adjusted` has been filled in."""
    return (
        half["p_adjusted"] <= Q
        and all(exceeds(half["accuracy"], value) for value in half["baselines"].values())
        and all(exceeds(half["accuracy_mean"], half["baselines"][name]) for name in FIXED)
    )


def adjusted_p(p: Sequence[float]) -> list[float]:
    """Benjamini-Hochberg."""
    return stats.false_discovery_control(p).tolist() if p else []


def mcnemar_of(hits: NDArray[np.bool_], base: NDArray[np.bool_]) -> float:
    """Exact, two-sided, on the trials where exactly one of the two hits."""
    only_head = int((hits & ~base).sum())
    only_base = int((base & ~hits).sum())
    disagreements = only_head + only_base
    return float(stats.binomtest(only_head, disagreements).pvalue) if disagreements else 1.0


def paired_z(difference: Floats) -> float:
    """One-sided p of a positive mean, by the normal law; 1 where it cannot be told from zero."""
    size = len(difference)
    spread = float(difference.std(ddof=1)) if size > 1 else 0.0
    return upper_tail(float(difference.mean()), spread / math.sqrt(size))


def upper_tail(mean: float, error: float, units: float = math.inf) -> float:
    """Student's t over so many sampled units; normal where there is no number of them."""
    if error == 0:
        return 0.0 if mean > 0 else 1.0
    return float(stats.t.sf(mean / error, units - 1))


def effective_units(size: Floats) -> float:
    """How many sentences of equal size say as much as these."""
    return float(size.sum() ** 2 / (size**2).sum())


def share_ends(rate: float, error: float, units: float) -> tuple[float, float]:
    """The shares p with (p - rate)^2 = t^2 p (1 - p) / trials, trials as this error comes from."""
    trials = units if error == 0 else rate * (1 - rate) / error**2
    square = stats.t.ppf(0.975, units - 1) ** 2 / trials
    low, high = sorted(np.roots([1 + square, -2 * rate - square, rate**2]).real)
    return float(low), float(high)


def rare_words(
    corpus: Corpus, frequency: Callable[[str], float], frequent: set[str]
) -> dict[tuple[int, int], dict[str, Any]]:
    """The rare-word score of every head, the sentence as the sampled unit."""
    pairs = [(one, rare_target(one.sentence.forms, frequency, frequent)) for one in corpus.observed]
    scored = []  # with the queries: every word but the rarest
    for one, target in pairs:
        words = [w for w in range(target.words) if w not in target.rarest] if target else []
        if target and words:
            scored.append((one, target, words))
    size = np.array([len(words) for *_, words in scored], dtype=np.float64)
    # Expected hits of a word drawn at random from the others of the sentence, and of even attention
    chance = np.array([len(w) * len(t.rarest) / (t.words - 1) for _, t, w in scored])
    uniform = np.array([sum(uniform_hit(o.pieces, q, t.rarest) for q in w) for o, t, w in scored])
    result = {}
    for position, head in enumerate(corpus.heads):
        hits = np.array([sum(o.choice[position, q] in t.rarest for q in w) for o, t, w in scored])
        near = [sum(o.choice[position, q] in t.two_rarest for q in w) for o, t, w in scored]
        rate, error = clustered_ratio(hits, size)
        units = effective_units(size)
        p = [upper_tail(*clustered_ratio(hits - other, size), units) for other in (chance, uniform)]
        result[head] = {
            "sentences": len(hits),
            "queries": int(size.sum()),
            "rate": rate,
            "uniform": float(uniform.sum() / size.sum()),
            "chance": float(chance.sum() / size.sum()),
            "two_rarest": float(sum(near) / size.sum()),
            "interval": share_ends(rate, error, units),
            "p": max(p),
        }
    adjusted = adjusted_p([entry["p"] for entry in result.values()])
    for entry, p_adjusted in zip(result.values(), adjusted, strict=True):
        over = entry["rate"] >= 0.5 and exceeds(entry["rate"], entry["uniform"])
        entry |= {"p_adjusted": p_adjusted, "labelled": over and p_adjusted <= Q}
    return result


def clustered_ratio(value: Floats, size: Floats) -> tuple[float, float]:
    """Sum of values over sum of sizes, and its standard error when sentences are sampled.

    The linearised (ratio) estimator: n/(n-1) times the sum of squared residuals, over size^2, with
    n the effective number of sentences.
    """
    count = effective_units(size)
    share = value.sum() / size.sum()
    residual = value - share * size
    return float(share), math.sqrt(count / (count - 1) * (residual**2).sum()) / float(size.sum())


def broad(corpus: Corpus) -> dict[tuple[int, int], dict[str, Any]]:
    """Mean of H / ln n over non-special rows of sequences with n >= 20; None: not testable."""
    long = [one for one in corpus.observed if one.n >= 20]
    result: dict[tuple[int, int], dict[str, Any]] = {}
    for position, head in enumerate(corpus.heads):
        rows = [value for one in long for value in one.relative_entropy[position]]
        mean = float(np.mean(rows)) if rows else None
        testable = len(long) >= 50
        labelled = testable and mean is not None and mean > 0.8
        result[head] = {
            "sequences": len(long),
            "mean": mean,
            "broad": labelled if testable else None,
        }
    return result


def classify(
    model_dir: str | Path,
    sentences: Sequence[Sentence],
    frequency: Callable[[str], float],
    frequent: set[str],
) -> dict[str, Any]:
    """All labels of the second edition, per head as (layer, head)."""
    corpus = observe(model_dir, sentences)
    return {
        "syntactic": label(corpus),
        "swapped": label(corpus, swapped=True),
        "rare": rare_words(corpus, frequency, frequent),
        "broad": broad(corpus),
    }
