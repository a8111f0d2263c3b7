"""Examples in two halves that share no sentence, where that can be."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Sequence

from headscope.data.pair_rows import PairRow
from headscope.data.token_rows import Row


def sentences_of(row: Row) -> Iterator[Hashable]:
    """Yield each text of a row as its tokens, without special tokens and without masks.

    A row of two texts has two. The target of a translation is another text than its source.
    """
    ids = list(row.ids)
    for position, token in zip(row.masked, row.gold, strict=True):
        ids[position] = token
    start = 0
    for i, position in enumerate(row.content):
        if i + 1 == len(row.content) or row.content[i + 1] != position + 1:
            yield tuple(ids[row.content[start] : position + 1])
            start = i + 1
    if isinstance(row, PairRow):
        yield "target", row.labels


def halve(
    sentences: Sequence[Sequence[Hashable]], seed: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split examples at random into two halves.

    Examples that share a sentence, directly or through others, go to the same half. Where more than
    half of all examples hang together like that, those are dealt out one by one.

    Parameters
    ----------
    sentences : sequence of sequences
        What each example consists of.
    seed : int
        Of the split.

    Returns
    -------
    two tuples of int
        Places of the examples in ascending order, each example in one of them.
    """
    groups = _connected(sentences)
    whole = [group for group in groups if 2 * len(group) <= len(sentences)]
    torn = [[i] for group in groups if 2 * len(group) > len(sentences) for i in group]
    parts = [*whole, *torn]
    random.Random(seed).shuffle(parts)
    halves: tuple[list[int], list[int]] = ([], [])
    # The largest first, so that single examples make both halves equally long.
    for part in sorted(parts, key=len, reverse=True):
        min(halves, key=len).extend(part)
    return tuple(sorted(halves[0])), tuple(sorted(halves[1]))


def shared_sentences(
    sentences: Sequence[Sequence[Hashable]], first: Sequence[int], second: Sequence[int]
) -> int:
    """Count the different sentences that stand in both halves."""
    ours, theirs = ({text for i in half for text in sentences[i]} for half in (first, second))
    return len(ours & theirs)


def _connected(sentences: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Group examples that share a sentence, directly or through others."""
    leader = list(range(len(sentences)))

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    seen: dict[Hashable, int] = {}
    for i, texts in enumerate(sentences):
        for text in texts:
            leader[find(i)] = find(seen.setdefault(text, i))
    groups: dict[int, list[int]] = {}
    for i in range(len(sentences)):
        groups.setdefault(find(i), []).append(i)
    return list(groups.values())
