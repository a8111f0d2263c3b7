"""From words to token ids, with the first piece of every word and its rarity."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import tee
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headscope.data.frequencies import Frequencies
from headscope.data.pieces import Encoding, TextModel, tokenise
from headscope.data.sentence import Sentence

IntArray = NDArray[np.int64]


class Rarity(NamedTuple):
    """Which words of one sentence count as rare; indices of words."""

    #: rarest, two_rarest: The words of the lowest frequency, and those of the two lowest; ties
    #: count
    rarest: tuple[int, ...]
    two_rarest: tuple[int, ...]
    candidates: tuple[int, ...]  # All words with a letter or digit


@dataclass(frozen=True)
class EncodedSentence:
    """One sentence as the model reads it."""

    ids: IntArray  # (tokens,): Token ids, special tokens included
    word_of: IntArray  # (tokens,): Index of each token's word, -1 for special tokens
    first: IntArray  # (words,): Position of each word's first piece
    sentence: Sentence  # Its words and tree
    rarity: Rarity | None  # None where the rare-word score skips the sentence
    half: int = 0  # 0 or 1: whether the sentence's zero-based index in the corpus is even or odd
    #: The one before it in the corpus with as many words, whose tree serves as a control
    swapped: Sentence | None = None

    def __len__(self) -> int:
        return len(self.ids)


class Encoder:
    """Tokenises sentences word by word; what cannot be aligned or is too long is left out."""

    def __init__(self, model: TextModel, frequencies: Frequencies | None = None) -> None:
        self._model = model
        self._frequencies = frequencies

    def encode(self, sentences: Iterator[Sentence]) -> Iterator[EncodedSentence | None]:
        """Yield each sentence encoded, or None where it has to be skipped.

        A sentence is skipped when it is longer than the model's limit, or when one of its words
        yields no piece; it is never cut.
        """
        ours, theirs = tee(sentences)
        words = (sentence.words for sentence in theirs)
        yield from map(self._align, ours, tokenise(self._model, words))

    def _align(self, sentence: Sentence, encoding: Encoding) -> EncodedSentence | None:
        ids = np.asarray(encoding.ids, dtype=np.int64)
        if len(ids) > self._model.max_length:
            return None
        word_of = np.array([-1 if w is None else w for w in encoding.word_ids], dtype=np.int64)
        words, first = np.unique(word_of, return_index=True)
        first = first[words >= 0]
        if len(first) != len(sentence.words):
            return None
        return EncodedSentence(ids, word_of, first, sentence, self._rarity(sentence.words))

    def _rarity(self, words: Sequence[str]) -> Rarity | None:
        known = self._frequencies
        candidates = [i for i, word in enumerate(words) if any(map(str.isalnum, word))]
        if known is None or not candidates or len(words) < 2:
            return None
        frequency = {i: known.frequency(words[i].lower()) for i in candidates}
        ordered = sorted(frequency.values())
        lowest, second = ordered[0], ordered[min(1, len(ordered) - 1)]
        rarest = tuple(i for i in candidates if frequency[i] == lowest)
        if any(words[i].lower() in known.frequent for i in rarest):
            return None
        two_rarest = tuple(i for i in candidates if frequency[i] <= second)
        return Rarity(rarest, two_rarest, tuple(candidates))


# Where a sentence stands in its corpus: its half, and whose tree it is given as a control.


def placed(
    sentences: Iterable[Sentence], encoded: Iterable[EncodedSentence | None]
) -> Iterator[EncodedSentence | None]:
    """Add to each encoded sentence its half and the sentence whose tree it is scored against.

    Labels are chosen on one half of a corpus (even zero-based indices) and confirmed on the other.
    As a control each sentence is scored against the tree of the sentence before it that has as many
    words; the first of each length has none. Skipped sentences, None in ``encoded`` and in what is
    yielded, count for both.
    """
    before: dict[int, Sentence] = {}
    for index, (sentence, item) in enumerate(zip(sentences, encoded, strict=True)):
        length = len(sentence.words)
        if item is not None:
            item = dataclasses.replace(item, half=index % 2, swapped=before.get(length))
        before[length] = sentence
        yield item
