"""The oracle of causal stacks: the rules of docs/definitions/roles.md in plain loops.

What differs from `reference`: a query sees itself and what stands before it; position 0 is no key;
queries start at position 2; a word is asked only for words before it, of which the one that begins
at position 0 is none. Nothing of the package is used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reference import Encoded, Matrix, Model, Sentence, lowest_argmax, ratio

CLIP = 20
Name = tuple[str, str]
Counts = defaultdict[Any, float]


def asked(sentence: Sentence, encoded: Encoded) -> list[tuple[Name, int, set[int]]]:
    """Every (relation, direction), query and visible targets; one entry a trial."""
    starts = [encoded.pieces(word)[0] for word in range(len(sentence.forms))]
    found: dict[tuple[Name, int], set[int]] = {}
    for dependent, relation in enumerate(sentence.relations):
        head = sentence.heads[dependent] - 1
        if head < 0:
            continue
        if head < dependent and starts[head] > 0:
            found[(relation, "dep->head"), dependent] = {head}
        if dependent < head and starts[dependent] > 0:
            found.setdefault(((relation, "head->dep"), head), set()).add(dependent)
    return [(name, query, targets) for (name, query), targets in found.items()]


def looks(row: Sequence[float], visible: Sequence[int]) -> int:
    """The visible word with the largest value, the first of equal ones."""
    return lowest_argmax(row, visible)


def word_rows(pattern: Matrix, encoded: Encoded) -> np.ndarray:
    """From word to word: mean over the pieces of the one, sum over those of the other."""
    n = len(encoded.sentence.forms)
    rows = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            block = pattern[np.ix_(encoded.pieces(i), encoded.pieces(j))]
            rows[i, j] = block.sum(axis=1).mean()
    return rows


def count_tokens(counts: Counts, pattern: Matrix, encoded: Encoded) -> None:
    """What needs no words: content argmax, first position, repeated tokens."""
    content = encoded.queries
    for i in content:
        row = pattern[i]
        if i >= 4:
            counts["sink queries"] += 1
            counts["sink"] += row[0]
            counts["sink uniform"] += 1 / (i + 1)
        if i < 2:
            continue
        keys = [j for j in content if 1 <= j <= i]
        chosen = lowest_argmax(row.tolist(), keys)
        counts["queries"] += 1
        counts["self"] += chosen == i
        counts["confidence"] += max(row[j] for j in keys)
        counts["chance"] += 1 / len(keys)
        for r in range(-5, 0):
            if i + r in keys:
                counts["offset queries", r] += 1
                counts["offset hits", r] += chosen == i + r
        copies = [j for j in keys if j != i and encoded.ids[j] == encoded.ids[i]]
        if copies:
            counts["copy queries"] += 1
            counts["copies"] += chosen in copies


def measure(folder: str | Path, sentences: Sequence[Sentence]) -> dict[tuple[int, int], Counts]:
    """Counts of every head, by name; syntactic ones by (name of the count, relation, direction)."""
    model = Model(folder)
    read: list[tuple[Encoded, list[Matrix]]] = []
    kernel_sums: dict[tuple[int, int], Counts] = defaultdict(lambda: Counts(float))
    result: dict[tuple[int, int], Counts] = defaultdict(lambda: Counts(float))
    for index, sentence in enumerate(sentences):
        encoded = model.encode(sentence)
        patterns = model.patterns(encoded)
        read.append((encoded, patterns))
        for layer, heads in enumerate(patterns):
            for head, pattern in enumerate(heads):
                count_tokens(result[layer, head], pattern, encoded)
                if index % 2 == 0:
                    _add_to_kernel(kernel_sums[layer, head], pattern, encoded)
    best = _best_offsets(read)
    for encoded, patterns in read:
        trials = asked(encoded.sentence, encoded)
        for layer, heads in enumerate(patterns):
            for head, pattern in enumerate(heads):
                sums = kernel_sums[layer, head]
                _count_trials(result[layer, head], pattern, encoded, trials, sums, best)
    return result


def _visible(encoded: Encoded, query: int) -> list[int]:
    return [word for word in range(query) if encoded.pieces(word)[0] > 0]


def _add_to_kernel(sums: Counts, pattern: Matrix, encoded: Encoded) -> None:
    rows = word_rows(pattern, encoded)
    for query in range(len(rows)):
        for word in _visible(encoded, query):
            step = max(word - query, -CLIP)
            sums["weight", step] += rows[query, word] / len(encoded.pieces(word))
            sums["pairs", step] += 1


def _best_offsets(read: Sequence[tuple[Encoded, Any]]) -> dict[Name, int]:
    """The distance that hits most trials of each relation; ties: the shortest."""
    hits: dict[Name, Counts] = defaultdict(lambda: Counts(float))
    for encoded, _ in read:
        for name, query, targets in asked(encoded.sentence, encoded):
            for target in targets:
                hits[name][target - query] += 1
    return {
        name: min(counts, key=lambda step: (-counts[step], -step)) for name, counts in hits.items()
    }


def _count_trials(
    counts: Counts,
    pattern: Matrix,
    encoded: Encoded,
    trials: Sequence[tuple[Name, int, set[int]]],
    kernel_sums: Counts,
    best: dict[Name, int],
) -> None:
    rows = word_rows(pattern, encoded)
    pieces = [len(encoded.pieces(word)) for word in range(len(rows))]
    for name, query, targets in trials:
        visible = _visible(encoded, query)
        by_mean = [rows[query, word] / pieces[word] for word in range(len(rows))]
        habit = [0.0] * len(rows)
        for word in visible:
            step = max(word - query, -CLIP)
            mean = ratio(kernel_sums["weight", step], kernel_sums["pairs", step])
            habit[word] = mean * pieces[word]
        longest = [word for word in visible if pieces[word] == max(pieces[w] for w in visible)]
        counts["trials", name] += 1
        counts["accuracy", name] += looks(rows[query].tolist(), visible) in targets
        counts["accuracy_mean", name] += looks(by_mean, visible) in targets
        counts["offset", name] += query + best[name] in targets
        counts["first", name] += visible[0] in targets
        counts["last", name] += query - 1 in targets
        counts["uniform", name] += len(targets & set(longest)) / len(longest)
        counts["kernel", name] += looks(habit, visible) in targets


@torch.no_grad()
def induction(
    network: Any, before: Sequence[int], tokens: Sequence[int], *, draws: int, copy: int, seed: int
) -> dict[tuple[int, int], float]:
    """Mean gain on the token after the earlier copy, sequence by sequence, tokens drawn anew."""
    rng = np.random.default_rng(seed)
    gains: dict[tuple[int, int], list[float]] = defaultdict(list)
    for _ in range(draws):
        drawn = rng.choice(tokens, 2 * copy, replace=False).tolist()
        twice = [*before, *drawn[copy:], *drawn[copy:]]
        others = [*before, *drawn]
        attentions = []
        for ids in (twice, others):
            output = network(torch.tensor([ids]), output_attentions=True)
            attentions.append([layer[0].double().numpy() for layer in output.attentions])
        for layer, (repeated, control) in enumerate(zip(*attentions, strict=True)):
            for head in range(len(repeated)):
                for i in range(len(before) + copy + 1, len(before) + 2 * copy - 1):
                    earlier = i - copy
                    gain = repeated[head, i, earlier + 1] - control[head, i, earlier + 1]
                    gains[layer, head].append(gain)
    return {head: float(np.mean(values)) for head, values in gains.items()}
