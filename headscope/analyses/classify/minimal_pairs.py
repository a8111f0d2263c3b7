"""Sentences in which the word that a head looks for has moved, and others in which it has not.

*Syntactic.* The query word stays. A stretch of words, with the word that it should look at, is
replaced by a stretch of as many pieces from another sentence, in which it stands beside a word of
the same relation on the same side. Where the word to look at has another place in the new stretch,
the relation points elsewhere; where it has the same place, the answer is equal, whatever the words.

*Positional.* "The token before" is at the same place in every sentence, so no sentence makes such
a relation point elsewhere. Both rows are of one other sentence of the same length: that of the
query's position has the equal answer, and that of a neighbouring position points one token
further.

References
----------
Vig et al. 2020, arXiv:2004.12265 (changed words as interventions); Zhang & Nanda 2024,
arXiv:2309.16042 (exchange words for others of the same form rather than adding noise).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from headscope.data.word_pieces import EncodedSentence

LONGEST = 12  # Pieces of a stretch that is replaced, at most.
Positions = Sequence[int]


@dataclass(frozen=True)
class MinimalPair:
    """A sentence and the two whose patterns are put into it; all have as many tokens."""

    sentence: Sequence[int]  # Token ids, special tokens included
    elsewhere: Sequence[int]  # Where the relation points elsewhere
    same: Sequence[int]  # Where it points to the same place
    rows: Positions  # Of the query's pieces, in ``sentence`` and in ``same``
    rows_elsewhere: Positions  # The rows of ``elsewhere`` that replace them
    targets: Positions  # Where the relation points in ``sentence`` and in ``same``
    targets_elsewhere: Positions

    def __len__(self) -> int:
        return len(self.sentence)


@dataclass(frozen=True, eq=False)
class Stretch:
    """The words from ``start`` to before ``stop`` of a sentence, with what a query looks for."""

    of: EncodedSentence
    query: int  # The word outside the stretch that looks, and the one inside that it looks for.
    target: int
    start: int
    stop: int

    @cached_property
    def at(self) -> slice:
        """The positions of its pieces."""
        return _pieces(self.of, self.start, self.stop)

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """Its token ids."""
        return tuple(self.of.ids[self.at].tolist())

    @cached_property
    def target_span(self) -> tuple[int, int]:
        """Pieces of the stretch before the target, and up to its end."""
        target = _pieces(self.of, self.target, self.target + 1)
        return target.start - self.at.start, target.stop - self.at.start

    def with_other(self, other: Stretch) -> tuple[list[int], Positions]:
        """Replace it by another stretch; return token ids and the positions of the target."""
        ids = self.of.ids.copy()
        (start, stop) = other.target_span
        ids[self.at] = other.ids
        return ids.tolist(), range(self.at.start + start, self.at.start + stop)


def _pieces(of: EncodedSentence, start: int, stop: int) -> slice:
    last = stop - 1
    return slice(int(of.first[start]), int(of.first[last] + of.pieces[last]))


def extents(heads: Sequence[int]) -> list[tuple[int, int] | None]:
    """Return the words (start, stop) of each word's subtree; None where it is not contiguous."""
    low = [*range(len(heads))]
    high = [*range(len(heads))]
    count = [0] * len(heads)
    for word in range(len(heads)):
        above = word
        while above >= 0:
            low[above], high[above] = min(low[above], word), max(high[above], word)
            count[above] += 1
            above = heads[above]
    ends = zip(low, high, count, strict=True)
    return [(a, b + 1) if b + 1 - a == n else None for a, b, n in ends]


def stretches(of: EncodedSentence, relation: str, direction: str) -> Iterator[Stretch]:
    """Yield every stretch of a sentence that can be replaced for this relation and direction.

    ``head->dep``: from the head to the dependent, with any number of the head's dependents beyond.
    ``dep->head``: from the dependent to the head, with any number of the head's dependents on its
    other side. Only where subtrees are contiguous and no second word would be right.
    """
    heads = of.sentence.heads or ()
    relations = of.sentence.relations or ()
    reach = extents(heads)
    for dependent, head in enumerate(heads):
        below = [word for word, above in enumerate(heads) if above == head]
        blocks = [block for word in below if (block := reach[word]) is not None]
        if head < 0 or relations[dependent] != relation or len(blocks) < len(below):
            continue
        start, stop = blocks[below.index(dependent)]
        left = [a for a, _ in blocks if a < head]  # Where the head's dependents start,
        right = [b for a, b in blocks if a > head]  # and where those on its right stop.
        if direction == "dep->head":
            query = dependent
            target = head
            cuts = [(stop, cut) for cut in (head + 1, *right)]
            if dependent > head:
                cuts = [(cut, start) for cut in (head, *left)]
        else:
            query = head
            target = dependent
            cuts = [(cut, head) for cut in left if cut <= start]
            if dependent > head:
                cuts = [(head + 1, cut) for cut in right if cut >= stop]
            if sum(relations[word] == relation for word in below) > 1:
                continue
        candidates = (Stretch(of, query, target, *cut) for cut in cuts)
        yield from (stretch for stretch in candidates if len(stretch.ids) <= LONGEST)


def syntactic_pairs(
    sentences: Sequence[EncodedSentence],
    relation: str,
    direction: str,
    limit: int,
    rng: np.random.Generator,
) -> list[MinimalPair]:
    """Make at most one pair of each sentence, with the shortest stretch that has both kinds."""
    of_each = [list(stretches(sentence, relation, direction)) for sentence in sentences]
    pool: dict[tuple[bool, int], list[Stretch]] = defaultdict(list)
    for stretch in chain(*of_each):
        pool[stretch.query < stretch.target, len(stretch.ids)].append(stretch)
    pairs: list[MinimalPair] = []
    for i in rng.permutation(len(of_each)).tolist():
        if len(pairs) == limit:
            break
        shuffled = [of_each[i][j] for j in rng.permutation(len(of_each[i])).tolist()]
        for stretch in sorted(shuffled, key=lambda one: len(one.ids)):
            start, stop = stretch.target_span
            alike = pool[stretch.query < stretch.target, len(stretch.ids)]
            others = [s for s in alike if s.ids != stretch.ids and s.of is not stretch.of]
            moved = [s for s in others if s.target_span[1] <= start or s.target_span[0] >= stop]
            same = [s for s in others if s.target_span == (start, stop)]
            if not (moved and same):
                continue
            elsewhere, new_targets = stretch.with_other(moved[int(rng.integers(len(moved)))])
            equal, targets = stretch.with_other(same[int(rng.integers(len(same)))])
            at = _pieces(stretch.of, stretch.query, stretch.query + 1)
            rows = range(at.start, at.stop)
            sentence = stretch.of.ids.tolist()
            pairs.append(MinimalPair(sentence, elsewhere, equal, rows, rows, targets, new_targets))
            break
    return pairs


def positional_pairs(
    sentences: Sequence[EncodedSentence],
    offset: int,
    limit: int,
    rng: np.random.Generator,
    *,
    causal: bool,
) -> list[MinimalPair]:
    """Make at most one pair of each sentence; in a causal model the row is that of the left."""
    alike: dict[bytes, list[list[int]]] = defaultdict(list)
    for sentence in sentences:
        alike[(sentence.word_of >= 0).tobytes()].append(sentence.ids.tolist())
    pairs: list[MinimalPair] = []
    for i in rng.permutation(len(sentences)).tolist():
        tokens = sentences[i].ids.tolist()
        content = sentences[i].word_of >= 0
        others = [ids for ids in alike[content.tobytes()] if ids != tokens]
        inside = set(np.flatnonzero(content).tolist())
        rows = [
            (row, row + step)
            for row in sorted(inside)
            for step in ((-1,) if causal else (-1, 1))
            if {row + offset, row + step, row + step + offset} <= inside
        ]
        if len(pairs) == limit:
            break
        if others and rows:
            other = others[int(rng.integers(len(others)))]
            row, next_row = rows[int(rng.integers(len(rows)))]
            at = (row,), (next_row,), (row + offset,), (next_row + offset,)
            pairs.append(MinimalPair(tokens, other, other, *at))
    return pairs
