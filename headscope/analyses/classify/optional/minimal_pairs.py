"""Sentences in which the word that a head looks for has moved, and others in which it has not.

*Syntactic.* The query word stays. A *stretch* of words, with the target (the word that the query
should look at), is replaced by a stretch of another sentence: as many pieces, beside a word of the
same relation on the same side. If "saw" looks for its subject::

    sentence    the old CAT saw it
    elsewhere   DOGS from here saw it      the stretch of "dogs from here ran": the target has moved
    same        a big DOG saw it           the stretch of "a big dog ran": new words, same place

*Positional.* "The token before" is at the same place in every sentence, so no sentence makes such
a relation point elsewhere. Both pattern rows are of one other sentence of the same length: that of
the query's own position has the equal answer, and that of a neighbouring position points one token
further.

:func:`syntactic_pairs` and :func:`positional_pairs` make them; the functions before them find the
stretches that can be replaced, from the tree of a sentence. An :class:`EncodedSentence` is a
sentence in the model's tokens: ``word_of`` is each token's word (-1: special token), ``first`` each
word's first token, ``pieces`` how many tokens a word has, ``sentence`` its words and tree.

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
Positions = Sequence[int]  # Of tokens in a sentence
Span = tuple[int, int]  # The words from the first to before the second


@dataclass(frozen=True)
class MinimalPair:
    """A sentence and the two whose patterns are put into it; all have as many tokens."""

    sentence: Sequence[int]  # Token ids, special tokens included
    elsewhere: Sequence[int]  # Token ids of the sentence in which the relation points elsewhere
    same: Sequence[int]  # Token ids of the sentence in which it points to the same place
    queries: Positions  # The pieces of the query word, in ``sentence`` and in ``same``
    queries_elsewhere: Positions  # The pieces of the query word in ``elsewhere``
    targets: Positions  # Where the relation points in ``sentence`` and in ``same``
    targets_elsewhere: Positions  # Where it points in ``elsewhere``

    def __len__(self) -> int:
        return len(self.sentence)


@dataclass(frozen=True, eq=False)
class Stretch:
    """The words from ``start`` to before ``stop`` of a sentence, with the target of a query.

    ``the old cat`` in ``the old cat saw it``: query 3, target 2, start 0, stop 3.
    """

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
        """Where the target's pieces start and stop in the stretch.

        ``the old ##est cat`` with the target ``oldest``: (1, 3).
        """
        target = _pieces(self.sentence, self.target, self.target + 1)
        return target.start - self.positions.start, target.stop - self.positions.start

    def with_other(self, other: Stretch) -> tuple[list[int], Positions]:
        """Replace it by a stretch of as many pieces.

        Returns the token ids of the new sentence, and the positions of the new target in it.
        """
        ids = self.sentence.ids.copy()
        ids[self.positions] = other.ids
        stretch_start = self.positions.start
        target_start, target_stop = other.target_span
        target = range(stretch_start + target_start, stretch_start + target_stop)
        return ids.tolist(), target


def _pieces(sentence: EncodedSentence, start: int, stop: int) -> slice:
    """Return the positions of the pieces of words ``start`` to before ``stop``."""
    last = stop - 1
    return slice(int(sentence.first[start]), int(sentence.first[last] + sentence.pieces[last]))


def subtree_spans(heads: Sequence[int]) -> list[Span | None]:
    """Return the words of each word's subtree; None where it is not contiguous.

    ``heads`` are the words that they depend on, -1 for the root:
    ``the old cat saw``, heads [2, 2, 3, -1] -> [(0, 1), (1, 2), (0, 3), (0, 4)].
    """
    n = len(heads)
    first = list(range(n))
    last = list(range(n))
    n_words = [0] * n
    for word in range(n):
        ancestor = word
        while ancestor >= 0:  # up to the root, whose head is -1
            first[ancestor] = min(first[ancestor], word)
            last[ancestor] = max(last[ancestor], word)
            n_words[ancestor] += 1
            ancestor = heads[ancestor]
    spans: list[Span | None] = []
    for word in range(n):
        contiguous = last[word] - first[word] + 1 == n_words[word]
        spans.append((first[word], last[word] + 1) if contiguous else None)
    return spans


def stretches(encoded: EncodedSentence, relation: str, direction: str) -> Iterator[Stretch]:
    """Yield every stretch of a sentence that can be replaced for this relation and direction.

    Here a head is no attention head but the word that another one depends on. A stretch begins
    beside the query and goes on over the target, up to the end of the head or of one of the head's
    dependents. In ``now the cat saw it``:

    - nsubj ``head->dep``, query ``saw``, target ``cat``: ``the cat`` and ``now the cat``;
    - nsubj ``dep->head``, query ``cat``, target ``saw``: ``saw`` and ``saw it``.

    Only where the subtrees of all the head's dependents are contiguous, and no second dependent has
    the relation that the head looks for.
    """
    heads = encoded.sentence.heads or ()
    relations = encoded.sentence.relations or ()
    subtrees = subtree_spans(heads)
    for dependent, head in enumerate(heads):
        if head < 0 or relations[dependent] != relation:
            continue
        dependents = [word for word, its_head in enumerate(heads) if its_head == head]
        spans = {word: span for word in dependents if (span := subtrees[word]) is not None}
        if len(spans) < len(dependents):
            continue
        # Where the head's dependents on its left start, and where those on its right stop.
        left_starts = [start for start, _ in spans.values() if start < head]
        right_stops = [stop for start, stop in spans.values() if start > head]
        subtree_start, subtree_stop = spans[dependent]
        candidates: list[Span]
        if direction == "dep->head":  # from the dependent's subtree over the head
            query = dependent
            target = head
            if dependent > head:
                candidates = [(start, subtree_start) for start in (head, *left_starts)]
            else:
                candidates = [(subtree_stop, stop) for stop in (head + 1, *right_stops)]
        else:  # from the head over the dependent's subtree
            if sum(relations[word] == relation for word in dependents) > 1:
                continue
            query = head
            target = dependent
            if dependent > head:
                candidates = [(head + 1, stop) for stop in right_stops if stop >= subtree_stop]
            else:
                candidates = [(start, head) for start in left_starts if start <= subtree_start]
        for start, stop in candidates:
            stretch = Stretch(encoded, query, target, start, stop)
            if len(stretch.ids) <= LONGEST:
                yield stretch


def syntactic_pairs(
    sentences: Sequence[EncodedSentence],
    relation: str,
    direction: str,
    limit: int,
    rng: np.random.Generator,
    *,
    causal: bool = False,
) -> list[MinimalPair]:
    """Make at most one pair of each sentence, in random order, until there are ``limit``.

    Of a sentence the shortest stretch is replaced for which there are both replacements. In a
    ``causal`` stack a query looks only for words before it.
    """
    by_sentence: list[list[Stretch]] = []
    for sentence in sentences:
        of_sentence = list(stretches(sentence, relation, direction))
        if causal:
            of_sentence = [stretch for stretch in of_sentence if stretch.target < stretch.query]
        by_sentence.append(of_sentence)
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
    target_start, target_stop = stretch.target_span
    replacements = [
        other
        for other in alike
        if other.ids != stretch.ids and other.sentence is not stretch.sentence
    ]
    moved = [
        other
        for other in replacements
        if other.target_span[1] <= target_start or other.target_span[0] >= target_stop
    ]
    unmoved = [other for other in replacements if other.target_span == stretch.target_span]
    if not (moved and unmoved):
        return None
    elsewhere, new_targets = stretch.with_other(moved[int(rng.integers(len(moved)))])
    same, targets = stretch.with_other(unmoved[int(rng.integers(len(unmoved)))])
    query_pieces = _pieces(stretch.sentence, stretch.query, stretch.query + 1)
    queries = range(query_pieces.start, query_pieces.stop)
    return MinimalPair(
        sentence=stretch.sentence.ids.tolist(),
        elsewhere=elsewhere,
        same=same,
        queries=queries,
        queries_elsewhere=queries,
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

    ``offset`` is that of the target from the query: -1 for the token before. The neighbour, whose
    pattern row points one token further, is the query on the left or right; in a causal model the
    one on the left.
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
        queries = _queries_and_neighbours(np.flatnonzero(content).tolist(), offset, steps)
        if not (other_sentences and queries):
            continue
        other_sentence = other_sentences[int(rng.integers(len(other_sentences)))]
        query, neighbour = queries[int(rng.integers(len(queries)))]
        pairs.append(
            MinimalPair(
                sentence=tokens,
                elsewhere=other_sentence,
                same=other_sentence,
                queries=(query,),
                queries_elsewhere=(neighbour,),
                targets=(query + offset,),
                targets_elsewhere=(neighbour + offset,),
            )
        )
    return pairs


def _queries_and_neighbours(
    content: Positions, offset: int, steps: Sequence[int]
) -> list[tuple[int, int]]:
    """Return (query, neighbour) where both and their targets are content tokens.

    A neighbour lies one of the ``steps`` away: content [1, 2, 3, 4], offset -1, steps (-1, 1) ->
    [(2, 3), (3, 2), (3, 4), (4, 3)].
    """
    content_set = set(content)
    return [
        (query, query + step)
        for query, step in product(content, steps)
        if {query + offset, query + step, query + step + offset} <= content_set
    ]
