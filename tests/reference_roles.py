"""The oracle of the rare-word and broad roles, and `classify`, every label of a corpus at once.

A rare word's queries share one target, so the sentence is the sampled unit.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from reference import RareTarget, Sentence, benjamini_hochberg, rare_target, ratio
from reference_choices import Corpus, Floats, Observed, observe, uniform_hit
from reference_labels import Q, exceeds, label, upper_tail


def rare_words(
    corpus: Corpus, frequency: Callable[[str], float], frequent: set[str]
) -> dict[tuple[int, int], dict[str, Any]]:
    """The rare-word score of every head, the sentence as the sampled unit."""
    pairs = [(one, rare_target(one.sentence.forms, frequency, frequent)) for one in corpus.observed]
    scored = [(one, target) for one, target in pairs if target and rare_queries(target)]
    queries = np.array([len(rare_queries(target)) for _, target in scored], dtype=np.float64)
    chance = np.array([chance_hits(target) for _, target in scored])
    uniform = np.array([uniform_hits(one, target) for one, target in scored])
    result = {}
    for position, head in enumerate(corpus.heads):
        hits = np.array([rare_hits(one, target, position) for one, target in scored])
        result[head] = rare_entry(hits, queries, chance, uniform)
    adjusted = benjamini_hochberg([entry["p"] for entry in result.values()])
    for entry, p in zip(result.values(), adjusted, strict=True):
        entry["p_adjusted"] = p
        entry["labelled"] = (
            entry["rate"] >= 0.5 and exceeds(entry["rate"], entry["uniform"]) and p <= Q
        )
    return result


def rare_queries(target: RareTarget) -> list[int]:
    """Every word but the rarest."""
    return [word for word in range(target.words) if word not in target.rarest]


def rare_hits(one: Observed, target: RareTarget, head: int) -> float:
    return float(sum(one.choice[head, query] in target.rarest for query in rare_queries(target)))


def chance_hits(target: RareTarget) -> float:
    """Expected hits of a word drawn at random from the others of the sentence."""
    return len(rare_queries(target)) * len(target.rarest) / (target.words - 1)


def uniform_hits(one: Observed, target: RareTarget) -> float:
    return sum(uniform_hit(one.pieces, query, target.rarest) for query in rare_queries(target))


def rare_entry(hits: Floats, queries: Floats, chance: Floats, uniform: Floats) -> dict[str, Any]:
    """All arrays are over sentences."""
    if len(hits) < 2:
        return {"sentences": len(hits), "rate": 0.0, "uniform": 0.0, "p": 1.0}
    rate, error = clustered_ratio(hits, queries)
    p = {
        "chance": upper_tail(*clustered_ratio(hits - chance, queries)),
        "uniform": upper_tail(*clustered_ratio(hits - uniform, queries)),
    }
    return {
        "sentences": len(hits),
        "queries": int(queries.sum()),
        "rate": rate,
        "chance": ratio(float(chance.sum()), float(queries.sum())),
        "uniform": ratio(float(uniform.sum()), float(queries.sum())),
        "error": error,
        "interval": (max(0.0, rate - 1.959964 * error), min(1.0, rate + 1.959964 * error)),
        "p_values": p,
        "p": max(p.values()),
    }


def clustered_ratio(value: Floats, size: Floats) -> tuple[float, float]:
    """Sum of values over sum of sizes, and its standard error when sentences are sampled.

    The linearised (ratio) estimator: S/(S-1) times the sum of squared residuals, over size^2.
    """
    count = len(value)
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
    max_length: int | None = None,
    control_seed: int | None = None,
) -> dict[str, Any]:
    """All labels of the second edition, per head as (layer, head)."""
    corpus = observe(model_dir, sentences, max_length, control_seed)
    return {
        "sentences": len(corpus.observed),
        "skipped": len(corpus.sentences) - len(corpus.observed),
        "syntactic": label(corpus),
        "swapped": label(corpus, swapped=True),
        "rare": rare_words(corpus, frequency, frequent),
        "broad": broad(corpus),
    }
