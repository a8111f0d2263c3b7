"""Cross-attention heads: the fast sums against loops over dense patterns, and planted heads."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hand_made import activations
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import evidence_of, judged
from scipy import stats

from headscope.analyses.classify.cross import CrossHeads
from headscope.analyses.classify.labels import untestable
from headscope.analyses.classify.rows import RowReducer
from headscope.analyses.classify.scores import HeadResult
from headscope.data.batches import Source
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import FEWEST_UNITS

N_LAYERS = 2
N_HEADS = 3


@dataclass
class Pair:
    """One pair: which tokens are content, and the patterns (layers, heads, queries, keys)."""

    query: list[bool]
    key: list[bool]
    pattern: np.ndarray


def random_pair(rng: np.random.Generator, longest: int = 9) -> Pair:
    """Patterns with many equal weights, special tokens anywhere."""
    n_query = rng.integers(1, longest + 1)
    n_key = rng.integers(1, longest + 1)
    weights = rng.integers(0, 4, (N_LAYERS, N_HEADS, n_query, n_key)).astype(float)
    weights[..., 0] += weights.sum(-1) == 0
    return Pair(
        (rng.random(n_query) < 0.8).tolist(),
        (rng.random(n_key) < 0.8).tolist(),
        weights / weights.sum(-1, keepdims=True),
    )


def padded(pairs: Sequence[Pair]) -> tuple[Source, torch.Tensor]:
    """Pad pairs to one batch; padded queries attend evenly, padded keys get nothing."""
    n_query = max(len(pair.query) for pair in pairs)
    n_key = max(len(pair.key) for pair in pairs)
    layers, heads = pairs[0].pattern.shape[:2]
    pattern = torch.zeros(len(pairs), layers, heads, n_query, n_key, dtype=torch.float64)
    source = torch.zeros(len(pairs), n_key, dtype=torch.int64)
    source_content = torch.zeros(len(pairs), n_key, dtype=torch.bool)
    target_content = torch.zeros(len(pairs), n_query, dtype=torch.bool)
    for row, pair in enumerate(pairs):
        q = len(pair.query)
        k = len(pair.key)
        pattern[row, :, :, :, :k] = 1 / k
        pattern[row, :, :, :q, :k] = torch.from_numpy(pair.pattern)
        source[row, :k] = 1
        source_content[row, :k] = torch.tensor(pair.key)
        target_content[row, :q] = torch.tensor(pair.query)
    return Source(source, source, source_content, target_content), pattern


def measured(pairs: Sequence[Pair], per_batch: int = 4, rows_at_once: int = 3) -> CrossHeads:
    """Show patterns in batches and chunks."""
    layers, heads = pairs[0].pattern.shape[:2]
    sums = CrossHeads(layers, heads)
    reducer = RowReducer(layers, heads, sums.update, "cross")
    for begin in range(0, len(pairs), per_batch):
        batch, pattern = padded(pairs[begin : begin + per_batch])
        reducer.start(cast(Any, SimpleNamespace(source=batch)))
        for layer in range(layers):
            for row, head in product(range(0, len(pattern), rows_at_once), range(heads)):
                rows = slice(row, min(row + rows_at_once, len(pattern)))
                heads_at_once = slice(head, head + 1)
                chunk = pattern[rows, layer, heads_at_once]
                reducer.observe(activations(chunk, "cross", layer, rows, heads_at_once, N_HEADS))
            reducer.observe(activations(pattern[:1, layer, :1], "decoder", layer))
            reducer.finish("cross", layer)
    return sums


def slow_pair(pair: Pair, pattern: np.ndarray) -> dict[str, Any] | None:
    """Everything of one pattern (queries, keys), from the definitions; None if too short."""
    queries = np.flatnonzero(pair.query).tolist()
    keys = np.flatnonzero(pair.key).tolist()
    special = [j for j in range(len(pair.key)) if j not in keys]
    if len(queries) < 3 or len(keys) < 3:
        return None
    n = len(pair.key)
    rows: dict[str, list[float]] = {name: [] for name in CrossHeads.quantities[1:]}
    looks_at = []
    near_random = []
    for number, i in enumerate(queries):
        weights = [pattern[i, j] for j in keys]
        looks_at.append(weights.index(max(weights)))
        line = number * (len(keys) - 1) / (len(queries) - 1)
        near = [abs(j - line) < 1 + 1e-9 for j in range(len(keys))]
        near_random.append(sum(near) / len(keys))
        entropy = -sum(p * math.log(p) for p in pattern[i] if p > 0)
        rows["diagonal"].append(near[looks_at[-1]])
        rows["confidence"].append(max(weights))
        rows["entropy"].append(entropy)
        rows["relative_entropy"].append(entropy / math.log(n))
        rows["special_mass"].append(sum(pattern[i, j] for j in special))
        rows["first_special_mass"].append(pattern[i, special[0]] if special else 0.0)
        rows["last_special_mass"].append(pattern[i, special[-1]] if special else 0.0)
        if n >= 20:
            rows["long_entropy"].append(entropy / math.log(n))
    constant = len(set(looks_at)) == 1
    return {
        "rows": rows,
        "alignment": 0.0 if constant else stats.spearmanr(range(len(looks_at)), looks_at).statistic,
        "uniform": {
            "diagonal": near_random,
            "confidence": [1 / n] * len(queries),
            "special_mass": [len(special) / n] * len(queries),
        },
    }


def clustered_error(measured_pairs: Sequence[dict[str, Any]], name: str) -> float:
    """The standard error of a ratio of sums over pairs (Cochran 1977, section 6.4)."""
    sums = np.array([sum(pair["rows"][name]) for pair in measured_pairs], dtype=float)
    counts = np.array([len(pair["rows"][name]) for pair in measured_pairs], dtype=float)
    if counts.sum() == 0:
        return math.nan
    if (counts > 0).sum() < FEWEST_UNITS:
        return math.inf
    residual = sums - sums.sum() / counts.sum() * counts
    n = counts.sum() ** 2 / (counts**2).sum()  # pairs of one length that would tell as much
    return math.sqrt(n / (n - 1) * float((residual**2).sum())) / counts.sum()


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_pairs=st.integers(1, 16),
    longest=st.sampled_from([4, 9, 26]),
    per_batch=st.integers(1, 5),
    rows_at_once=st.integers(1, 4),
)
def test_sums_equal_loops_over_dense_patterns(seed, n_pairs, longest, per_batch, rows_at_once):
    def mean(values: Sequence[float]) -> float:
        return float(np.mean(values)) if values else math.nan

    def pooled(table: str, name: str) -> float:
        return mean(list(chain.from_iterable(pair[table][name] for pair in measured_pairs)))

    rng = np.random.default_rng(seed)
    pairs = [random_pair(rng, longest) for _ in range(n_pairs)]
    sums = measured(pairs, per_batch, rows_at_once)
    means = sums.means()
    errors = sums.standard_errors()
    alignment = sums.mean("alignment")
    alignment_error = sums.error("alignment")
    for layer in range(N_LAYERS):
        for head in range(N_HEADS):
            slow = [slow_pair(pair, pair.pattern[layer, head]) for pair in pairs]
            measured_pairs = [pair for pair in slow if pair is not None]
            assert int(sums.units) == len(measured_pairs)
            assert int(sums.skipped) == n_pairs - len(measured_pairs)
            values = [pair["alignment"] for pair in measured_pairs]
            np.testing.assert_allclose(alignment[layer, head], mean(values), atol=1e-12)
            if len(measured_pairs) >= FEWEST_UNITS:
                error = np.std(values, ddof=1) / math.sqrt(len(measured_pairs))
                np.testing.assert_allclose(alignment_error[layer, head], error, atol=1e-7)
            for i, name in enumerate(CrossHeads.quantities[1:], start=1):
                mean_and_error = (means[layer, head][i], errors[layer, head][i])
                expected = (pooled("rows", name), clustered_error(measured_pairs, name))
                np.testing.assert_allclose(mean_and_error, expected, atol=1e-6, err_msg=name)
            for name in ("diagonal", "confidence", "special_mass"):
                uniform = pooled("uniform", name)
                np.testing.assert_allclose(sums.expected(name), uniform, atol=1e-6, err_msg=name)


#: From (query place, queries, keys, random numbers) to weights over the content keys.
Habit = Callable[[int, int, int, np.random.Generator], np.ndarray]


def looking(key: Callable[[int, int, int], int], weight: float = 0.9) -> Habit:
    def weights(i: int, m_query: int, m_key: int, rng: np.random.Generator) -> np.ndarray:
        row = np.full(m_key, (1 - weight) / (m_key - 1))
        row[key(i, m_query, m_key)] = weight
        return row

    return weights


def along(i: int, m_query: int, m_key: int) -> int:
    return round(i * (m_key - 1) / (m_query - 1))


def creeping(i: int, m_query: int, m_key: int, rng: np.random.Generator) -> np.ndarray:
    """Nearly even attention whose largest weight follows the position."""
    row = np.full(m_key, 1.0)
    row[along(i, m_query, m_key)] += 1e-3
    return row / row.sum()


HABITS: dict[str, Habit] = {
    "along": looking(along),
    "backwards": looking(lambda i, q, k: k - 1 - along(i, q, k)),
    "soft": looking(along, 0.6),
    "first": looking(lambda i, q, k: 0),
    "last": looking(lambda i, q, k: k - 1),
    "even": lambda i, q, k, rng: np.full(k, 1 / k),
    "creeping": creeping,
    "random": lambda i, q, k, rng: rng.dirichlet(np.full(k, 0.1)),
    # Nearly everything on the special token; what is left follows the position.
    "sink": lambda i, q, k, rng: 0.05 * looking(along)(i, q, k, rng),
}
HEADS = list(HABITS.values())


def planted(habits: Sequence[Habit], lengths: Sequence[int], seed: int = 0) -> Iterator[Pair]:
    """Pairs of these many target tokens, one layer, a head for each habit.

    The target begins with a special token, the source ends in one.
    """
    rng = np.random.default_rng(seed)
    more = np.random.default_rng(seed).integers(-1, 3, len(lengths)).tolist()
    for m_query, difference in zip(lengths, more, strict=True):
        m_key = max(4, m_query + difference)
        pattern = np.zeros((1, len(habits), m_query + 1, m_key + 1))
        pattern[..., 0, -1] = 1.0
        for head, habit in enumerate(habits):
            for i in range(m_query):
                pattern[0, head, i + 1, :-1] = habit(i, m_query, m_key, rng)
        pattern[..., -1] = 1 - pattern[..., :-1].sum(-1)
        yield Pair([False, *[True] * m_query], [*[True] * m_key, False], pattern)


def heads_of(lengths: Sequence[int]) -> dict[str, HeadResult]:
    sums = measured(list(planted(HEADS, lengths)), per_batch=16, rows_at_once=16)
    heads = judged(sums, "cross", [range(len(HABITS))])
    return dict(zip(HABITS, heads, strict=True))


def test_planted_heads_earn_their_roles_and_no_others():
    heads = heads_of([4, 6, 12, 20, 25] * 26)
    assert {name: head.roles for name, head in heads.items()} == {
        "along": ("monotonic", "sharp"),
        "backwards": ("anti_monotonic", "sharp"),
        "soft": ("monotonic",),
        "first": ("sharp",),
        "last": ("sharp",),
        "even": ("broad",),
        "creeping": ("broad",),
        "random": (),
        "sink": ("special",),
    }
    assert heads["along"].primary == "monotonic"
    assert heads["sink"].labels[0].detail == "last"
    for head in heads.values():  # syntax and offsets do not exist for cross-attention
        assert (head.stack, head.positional, head.syntactic, head.rare) == ("cross", None, (), None)
        assert head.punctuation_mass is head.self_rate is head.duplicate_rate is None
    alignments: dict[str, Any] = {name: head.alignment for name, head in heads.items()}
    score = {name: alignment.score.value for name, alignment in alignments.items()}
    assert score["along"] > 0.95
    assert score["backwards"] == pytest.approx(-score["along"])
    # Argmax alone would call these two as monotonic as the first.
    assert score["creeping"] == score["sink"] == pytest.approx(score["along"])
    assert abs(score["random"]) < 0.2
    assert score["first"] == score["last"] == score["even"] == 0
    assert alignments["along"].diagonal == 1


def test_what_cannot_be_shown():
    # A handful of short pairs is in order by luck now and then.
    roles = [head.roles for head in heads_of([5] * 49).values()]
    assert set(chain.from_iterable(roles)) == {"special"}
    reasons = untestable(evidence_of(measured(list(planted(HEADS, [5] * 49))), "cross"))
    assert list(reasons) == ["monotonic", "anti_monotonic", "sharp", "broad"]
    # Sources without special tokens cannot show a sink.
    pairs = list(planted([HABITS["along"]], [6] * 60))
    for pair in pairs:
        content = pair.pattern[..., :-1]
        pair.pattern = content / content.sum(-1, keepdims=True).clip(1e-9)
        pair.key = pair.key[:-1]
    sums = measured(pairs)
    assert untestable(evidence_of(sums, "cross"))["special"] == "no source has a special token"
    # Nothing measured is unknown, and never zero.
    (head,) = judged(CrossHeads(1, 1), "cross")
    assert (head.roles, head.confidence) == ((), None)
    assert head.alignment.score == Estimate(None)
    assert head.sharpness.confidence == Estimate(None)
