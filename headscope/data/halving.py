"""Examples in two halves that share no sentence, where that can be."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from headscope.data.token_rows import PairRow, Row


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


# How many sentences of one set of data stand in another one too.


@dataclass(frozen=True)
class Overlap:
    """Different sentences of a set of data, and how many of them another set has."""

    shared: int  # shared, sentences: Sentences that both sets have, and sentences of the first set
    sentences: int

    @property
    def share(self) -> float:
        """Shared / sentences, 0 where there is none."""
        return self.shared / self.sentences if self.sentences else 0.0


def overlap(sentences: Iterable[str], others: Iterable[str]) -> Overlap:
    """Compare two sets of data sentence by sentence, whatever files they came in.

    Each side of a pair is a sentence of its own: a reordered, shortened or re-paired copy of a file
    has another hash and other pairs, but the same sentences. Runs of white space count as one
    space, and none at the ends.
    """
    ours, theirs = ({" ".join(text.split()) for text in texts} for texts in (sentences, others))
    ours.discard("")
    return Overlap(len(ours & theirs), len(ours))
