"""Sentences in which the word that a head looks for has moved, and others in which it has not.

*Syntactic.* The query word stays. A stretch of words, with the word that it should look at, is
replaced by a stretch of as many pieces from another sentence, in which it stands beside a word of
the same relation on the same side. Where the word to look at has another place in the new stretch,
the relation points elsewhere; where it has the same place, the answer is equal, whatever the words.

*Positional.* "The token before" is at the same place in every sentence, so no sentence makes such
a relation point elsewhere. Both rows are of one other sentence of the same length: that of the
query's position has the equal answer, and that of a neighbouring position points one token
further.

:func:`syntactic_pairs` and :func:`positional_pairs` make them; the functions between find the
stretches that can be replaced, from the tree of a sentence.

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
from itertools import chain, product

import numpy as np

from headscope.data.word_pieces import EncodedSentence

LONGEST = 12  # Pieces of a stretch that is replaced, at most.
Positions = Sequence[int]


@dataclass(frozen=True)
class MinimalPair:
    """A sentence and the two whose patterns are put into it; all have as many tokens."""

    sentence: Sequence[int]  # Token ids, special tokens included
    elsewhere: Sequence[int]  # Those of the sentence in which the relation points elsewhere
    same: Sequence[int]  # Those of the sentence in which it points to the same place
    rows: Positions  # The query's pieces, in ``sentence`` and in ``same``
    rows_elsewhere: Positions  # The query's pieces in ``elsewhere``
    targets: Positions  # Where the relation points in ``sentence`` and in ``same``
    targets_elsewhere: Positions  # Where it points in ``elsewhere``

    def __len__(self) -> int:
        return len(self.sentence)


@dataclass(frozen=True, eq=False)
class Stretch:
    """The words from ``start`` to before ``stop`` of a sentence, with what a query looks for."""

    sentence: EncodedSentence
    query: int  # The word that looks; it stands outside the stretch
    target: int  # The word that it looks for; it stands inside
    start: int
    stop: int

    @cached_property
    def positions(self) -> slice:
        """The positions of its pieces."""
        return _pieces(self.sentence, self.start, self.stop)

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """Its token ids."""
        return tuple(self.sentence.ids[self.positions].tolist())

    @cached_property
    def target_span(self) -> tuple[int, int]:
        """Pieces of the stretch before the target, and up to its end."""
        target = _pieces(self.sentence, self.target, self.target + 1)
        return target.start - self.positions.start, target.stop - self.positions.start

    def with_other(self, other: Stretch) -> tuple[list[int], Positions]:
        """Replace it by another stretch; return token ids and the positions of the target."""
        ids = self.sentence.ids.copy()
        ids[self.positions] = other.ids
        begin = self.positions.start
        start, stop = other.target_span
        return ids.tolist(), range(begin + start, begin + stop)


def _pieces(sentence: EncodedSentence, start: int, stop: int) -> slice:
    """Return the positions of the pieces of words ``start`` to before ``stop``."""
    last = stop - 1
    return slice(int(sentence.first[start]), int(sentence.first[last] + sentence.pieces[last]))


Span = tuple[int, int]  # The words from the first to before the second


def subtree_spans(heads: Sequence[int]) -> list[Span | None]:
    """Return the words of each word's subtree; None where it is not contiguous."""
    n = len(heads)
    first = list(range(n))
    last = list(range(n))
    n_words = [0] * n
    for word in range(n):
        ancestor = word
        while ancestor >= 0:
            first[ancestor] = min(first[ancestor], word)
            last[ancestor] = max(last[ancestor], word)
            n_words[ancestor] += 1
            ancestor = heads[ancestor]
    spans: list[Span | None] = []
    for word in range(n):
        contiguous = last[word] - first[word] + 1 == n_words[word]
        spans.append((first[word], last[word] + 1) if contiguous else None)
    return spans


def stretches(sentence: EncodedSentence, relation: str, direction: str) -> Iterator[Stretch]:
    """Yield every stretch of a sentence that can be replaced for this relation and direction.

    ``head->dep``: from the head to the dependent, with any number of the head's dependents beyond.
    ``dep->head``: from the dependent to the head, with any number of the head's dependents on its
    other side. Only where subtrees are contiguous and no second word would be right.
    """
    heads = sentence.sentence.heads or ()
    relations = sentence.sentence.relations or ()
    subtrees = subtree_spans(heads)
    for dependent, head in enumerate(heads):
        if head < 0 or relations[dependent] != relation:
            continue
        dependents = [word for word, its_head in enumerate(heads) if its_head == head]
        spans = {word: span for word in dependents if (span := subtrees[word]) is not None}
        if len(spans) < len(dependents):
            continue
        # Where the head's dependents on its left start, and where those on its right stop.
        starts = [start for start, _ in spans.values() if start < head]
        stops = [stop for start, stop in spans.values() if start > head]
        if direction == "dep->head":
            query = dependent
            target = head
            candidates = _spans_with_head(dependent, head, spans[dependent], starts, stops)
        else:
            if sum(relations[word] == relation for word in dependents) > 1:
                continue
            query = head
            target = dependent
            candidates = _spans_with_dependent(dependent, head, spans[dependent], starts, stops)
        for start, stop in candidates:
            stretch = Stretch(sentence, query, target, start, stop)
            if len(stretch.ids) <= LONGEST:
                yield stretch


def _spans_with_head(
    dependent: int, head: int, subtree: Span, starts: Sequence[int], stops: Sequence[int]
) -> list[Span]:
    """Return the spans beside a dependent's subtree that hold its head."""
    subtree_start, subtree_stop = subtree
    if dependent > head:
        return [(start, subtree_start) for start in (head, *starts)]
    return [(subtree_stop, stop) for stop in (head + 1, *stops)]


def _spans_with_dependent(
    dependent: int, head: int, subtree: Span, starts: Sequence[int], stops: Sequence[int]
) -> list[Span]:
    """Return the spans beside a head that hold the subtree of its dependent."""
    subtree_start, subtree_stop = subtree
    if dependent > head:
        return [(head + 1, stop) for stop in stops if stop >= subtree_stop]
    return [(start, head) for start in starts if start <= subtree_start]


def syntactic_pairs(
    sentences: Sequence[EncodedSentence],
    relation: str,
    direction: str,
    limit: int,
    rng: np.random.Generator,
) -> list[MinimalPair]:
    """Make at most one pair of each sentence, in random order, until there are ``limit``.

    Of a sentence the shortest stretch is replaced for which there are both replacements.
    """
    by_sentence = [list(stretches(sentence, relation, direction)) for sentence in sentences]
    # Stretches that can stand for one another: the target on the same side, as many pieces.
    pool: dict[tuple[bool, int], list[Stretch]] = defaultdict(list)
    for stretch in chain(*by_sentence):
        pool[stretch.query < stretch.target, len(stretch.ids)].append(stretch)
    pairs: list[MinimalPair] = []
    for i in rng.permutation(len(by_sentence)).tolist():
        if len(pairs) == limit:
            break
        candidates = by_sentence[i]
        shuffled = [candidates[j] for j in rng.permutation(len(candidates)).tolist()]
        for stretch in sorted(shuffled, key=lambda candidate: len(candidate.ids)):
            alike = pool[stretch.query < stretch.target, len(stretch.ids)]
            pair = _minimal_pair(stretch, alike, rng)
            if pair is not None:
                pairs.append(pair)
                break
    return pairs


def _minimal_pair(
    stretch: Stretch, alike: Sequence[Stretch], rng: np.random.Generator
) -> MinimalPair | None:
    """Replace a stretch by one whose target has moved, and by one where it has not.

    None where there is no such stretch in another sentence.
    """
    start, stop = stretch.target_span
    replacements = [
        other
        for other in alike
        if other.ids != stretch.ids and other.sentence is not stretch.sentence
    ]
    moved = [
        other
        for other in replacements
        if other.target_span[1] <= start or other.target_span[0] >= stop
    ]
    same = [other for other in replacements if other.target_span == (start, stop)]
    if not (moved and same):
        return None
    elsewhere, new_targets = stretch.with_other(moved[int(rng.integers(len(moved)))])
    equal, targets = stretch.with_other(same[int(rng.integers(len(same)))])
    query_pieces = _pieces(stretch.sentence, stretch.query, stretch.query + 1)
    rows = range(query_pieces.start, query_pieces.stop)
    return MinimalPair(
        sentence=stretch.sentence.ids.tolist(),
        elsewhere=elsewhere,
        same=equal,
        rows=rows,
        rows_elsewhere=rows,
        targets=targets,
        targets_elsewhere=new_targets,
    )


def positional_pairs(
    sentences: Sequence[EncodedSentence],
    offset: int,
    limit: int,
    rng: np.random.Generator,
    *,
    causal: bool,
) -> list[MinimalPair]:
    """Make at most one pair of each sentence, in random order, until there are ``limit``.

    In a causal model the neighbouring row is that on the left.
    """
    # Sentences whose words stand at the same positions can lend one another their patterns.
    alike: dict[bytes, list[list[int]]] = defaultdict(list)
    for sentence in sentences:
        alike[(sentence.word_of >= 0).tobytes()].append(sentence.ids.tolist())
    steps = (-1,) if causal else (-1, 1)
    pairs: list[MinimalPair] = []
    for i in rng.permutation(len(sentences)).tolist():
        if len(pairs) == limit:
            break
        tokens = sentences[i].ids.tolist()
        content = sentences[i].word_of >= 0
        other_sentences = [ids for ids in alike[content.tobytes()] if ids != tokens]
        rows = _rows_and_neighbours(np.flatnonzero(content).tolist(), offset, steps)
        if not (other_sentences and rows):
            continue
        other_sentence = other_sentences[int(rng.integers(len(other_sentences)))]
        row, next_row = rows[int(rng.integers(len(rows)))]
        pairs.append(
            MinimalPair(
                sentence=tokens,
                elsewhere=other_sentence,
                same=other_sentence,
                rows=(row,),
                rows_elsewhere=(next_row,),
                targets=(row + offset,),
                targets_elsewhere=(next_row + offset,),
            )
        )
    return pairs


def _rows_and_neighbours(
    content: Sequence[int], offset: int, steps: Sequence[int]
) -> list[tuple[int, int]]:
    """Return (row, neighbouring row) where both rows and their targets are content tokens."""
    content_set = set(content)
    return [
        (row, row + step)
        for row, step in product(content, steps)
        if {row + offset, row + step, row + step + offset} <= content_set
    ]
