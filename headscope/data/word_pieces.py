"""Which pieces are which word: sentences as a model reads them, with their words found again.

A tokenizer reads the whole text, as the model's users have it read; words are found afterwards by
where each piece stands in the text (:func:`_aligned`). Sentences also get their half of the corpus
and their control (:func:`placed`), and the rarity of their words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, tee
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headscope.data.controls import EarlierTexts
from headscope.data.frequencies import Frequencies
from headscope.data.pieces import Encoding, TextModel, tokenise
from headscope.data.sentences import Sentence, is_punctuation, split_words, text_key

IntArray = NDArray[np.int64]


class Rarity(NamedTuple):
    """Which words of one sentence count as rare; indices of words."""

    rarest: tuple[int, ...]  # The words of the lowest frequency; several where they tie
    two_rarest: tuple[int, ...]  # Those of the two lowest frequencies


@dataclass(frozen=True)
class EncodedSentence:
    """One sentence as the model reads it; its words are those that have a piece."""

    ids: IntArray  # (tokens,): Token ids, special tokens included
    word_of: IntArray  # (tokens,): Index of each token's word, -1 for special tokens
    first: IntArray  # (words,): Position of each word's first piece
    sentence: Sentence  # Its words that have a piece, and the tree between them
    rarity: Rarity | None  # None where the rare-word score skips the sentence
    half: int = 0  # 0 or 1: the half of the corpus, as :func:`placed` deals them
    #: The last sentence before it with as many words and another text: its tree is a control
    swapped: Sentence | None = None
    #: (words,): Which of the words that were given these are; None: all of them
    with_piece: IntArray | None = None
    left_out: int = 0  # Words that were given and have no piece

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def pieces(self) -> IntArray:
        """Pieces of each word, (words,)."""
        in_a_word = self.word_of >= 0
        return np.bincount(self.word_of[in_a_word], minlength=len(self.first))


class Placed(NamedTuple):
    """A sentence, its half of the corpus, and its control sentence."""

    sentence: Sentence
    half: int  # As in :class:`EncodedSentence`
    swapped: Sentence | None  # As in :class:`EncodedSentence`


def placed(sentences: Iterable[Sentence]) -> Iterator[Placed]:
    """Give each sentence of a corpus its half and its control sentence.

    Labels are chosen on one half of a corpus and confirmed on the other. Sentences of a treebank
    are halved by their zero-based index, those with a user's own pairs by their text, so that equal
    texts lie in one half. As a control each sentence is also scored against the tree or the pairs
    of the last sentence before it that has as many words and another text. Sentences that a model
    cannot read are counted too, both in the index and as controls.
    """
    half_of_text: dict[str, int] = {}
    earlier_sentences = EarlierTexts[Sentence]()
    for index, sentence in enumerate(sentences):
        text = text_key(sentence.text)
        half = index % 2
        if sentence.pairs is not None:
            half = half_of_text.setdefault(text, len(half_of_text) % 2)
        swapped = earlier_sentences.control_of(sentence, len(sentence.words), text)
        yield Placed(sentence, half, swapped)


def encode_words(
    model: TextModel,
    items: Iterable[Placed],
    frequencies: Frequencies | None = None,
    *,
    check: bool = True,
) -> Iterator[EncodedSentence | None]:
    """Tokenise sentences and find the pieces of their words; None for one that is skipped.

    A sentence is skipped when it is longer than the model's limit, and when none of its words has a
    piece; it is never cut. A word without a piece is left out, with its edges. ``check`` is that of
    :func:`tokenise`.
    """
    items, items_for_text = tee(items)
    texts = (item.sentence.text for item in items_for_text)
    for item, encoding in zip(items, tokenise(model, texts, check=check), strict=True):
        if len(encoding.ids) > model.max_length:
            yield None
        else:
            yield _encoded(item, encoding, frequencies)


def _encoded(
    item: Placed, encoding: Encoding, frequencies: Frequencies | None
) -> EncodedSentence | None:
    """Put a sentence and its tokens together, without words that have no piece; None if none has.

    The control sentence has as many words, so the words at the same places are left out of it.
    """
    sentence, word_of = _aligned(item.sentence, encoding)
    swapped = item.swapped
    word_numbers, first_positions = np.unique(word_of, return_index=True)
    is_word = word_numbers >= 0
    with_piece = word_numbers[is_word]
    if not len(with_piece):
        return None
    n_words = len(sentence.words)
    if len(with_piece) < n_words:
        sentence = sentence.keep(with_piece.tolist())
        if swapped is not None:
            swapped = swapped.keep(with_piece.tolist())
        word_of = np.where(word_of < 0, -1, np.searchsorted(with_piece, word_of))
    return EncodedSentence(
        ids=np.asarray(encoding.ids, dtype=np.int64),
        word_of=word_of,
        first=first_positions[is_word],
        sentence=sentence,
        rarity=None if frequencies is None else _rarity(sentence, frequencies),
        half=item.half,
        swapped=swapped,
        with_piece=with_piece,
        left_out=n_words - len(with_piece),
    )


def _aligned(sentence: Sentence, encoding: Encoding) -> tuple[Sentence, IntArray]:
    """Return the sentence and the word of each token, -1 for special tokens.

    A piece belongs to the word in which it begins; one that begins between two words (a space, a
    mark that no word has) to the next. In plain text a piece that reaches into other words makes
    one word of all, and a special token holds no word.
    """
    token_begins, token_stops = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
    special = np.array(encoding.special_tokens_mask, dtype=bool)
    word_of = np.full(len(special), -1, dtype=np.int64)
    word_spans = np.array(sentence.spans, dtype=np.int64).reshape(-1, 2)
    # Rows of ``word_spans`` that can have pieces:
    word_numbers = np.arange(len(word_spans))

    # A special token that the text spells out is no word.
    if encoding.written_out:
        word_numbers = _outside(word_spans, token_begins[special], token_stops[special])
        if sentence.guessed:
            sentence = sentence.keep(word_numbers.tolist())
            word_spans = word_spans[word_numbers]
            word_numbers = np.arange(len(word_spans))
    if not len(word_numbers) or special.all():
        return sentence, word_of

    # A piece belongs to the first word that ends behind the piece's begin.
    word_begins, word_stops = word_spans[word_numbers].T
    words = np.searchsorted(word_stops, token_begins[~special], side="right")
    words = words.clip(max=len(word_numbers) - 1)
    words = np.maximum.accumulate(words)  # a tokenizer may exchange marks that stand on one letter

    # In plain text a piece that reaches into other words makes one word of all.
    if sentence.guessed:
        last_words = np.searchsorted(word_begins, token_stops[~special], side="left") - 1
        sentence, words = _joined(sentence, words, last_words)
        word_numbers = np.arange(len(sentence.words))
    word_of[~special] = word_numbers[words]

    if encoding.written_out:
        final_spans = np.array(sentence.spans, dtype=np.int64)
        _keep_together(word_of, final_spans[:, 0], token_begins)
    return sentence, word_of


def _outside(word_spans: IntArray, begins: IntArray, stops: IntArray) -> IntArray:
    """List the words that no single one of some stretches of a text covers.

    ``word_spans`` (words, 2); ``begins, stops`` of the stretches.
    """
    covered = (begins <= word_spans[:, :1]) & (word_spans[:, 1:] <= stops)  # (words, stretches)
    return np.flatnonzero(~covered.any(axis=1))


def _joined(sentence: Sentence, words: IntArray, last_words: IntArray) -> tuple[Sentence, IntArray]:
    """Join the words that share a piece: the new sentence, and each piece's word in it.

    ``words, last_words`` (pieces,): the first and the last word that each piece reaches into.
    """
    begins_word = np.ones(len(sentence.words), dtype=bool)
    for piece in np.flatnonzero(last_words > words).tolist():
        begins_word[words[piece] + 1 : last_words[piece] + 1] = False
    if begins_word.all():
        return sentence, words
    bounds = [*np.flatnonzero(begins_word).tolist(), len(begins_word)]
    new_numbers = np.cumsum(begins_word) - 1
    return sentence.join(list(pairwise(bounds))), new_numbers[words]


def _keep_together(word_of: IntArray, word_begins: IntArray, token_begins: IntArray) -> None:
    """Let no special token stand between the pieces of a word; changes ``word_of``.

    One that is written inside a word is a piece of it. Where the word begins only behind it, what
    stands before it (a space) is no piece of the word.
    """
    for position in np.flatnonzero(word_of < 0).tolist():
        word = word_of[:position].max(initial=-1)
        later_pieces = np.flatnonzero(word_of[position:] >= 0)
        if word < 0 or not len(later_pieces):
            continue
        next_word = word_of[position + later_pieces[0]]
        if next_word != word:
            continue
        if word_begins[word] <= token_begins[position]:
            word_of[position] = word
        else:
            pieces_before = np.flatnonzero(word_of[:position] == word)
            word_of[pieces_before] = -1


def _rarity(sentence: Sentence, frequencies: Frequencies) -> Rarity | None:
    """Find the rarest words; None where rarity says nothing, or words are not known."""
    words = sentence.words
    candidates = [i for i, word in enumerate(words) if any(map(str.isalnum, word))]
    if not candidates or len(words) < 2 or sentence.unspaced:
        return None
    names = {i: words[i].lower() for i in candidates}
    if sentence.guessed:
        names = {i: _listed(name, frequencies) for i, name in names.items()}
    frequency = {i: frequencies.frequency(name) for i, name in names.items()}
    lowest, *higher = sorted(frequency.values())
    second_lowest = higher[0] if higher else lowest
    rarest = tuple(i for i in candidates if frequency[i] == lowest)
    if any(names[i] in frequencies.frequent for i in rarest):
        return None
    two_rarest = tuple(i for i in candidates if frequency[i] <= second_lowest)
    return Rarity(rarest, two_rarest)


def _listed(word: str, frequencies: Frequencies) -> str:
    """Return a word as a list of frequencies may know it: itself, else its rarest part.

    A piece may have joined it with a mark (``-known``), or several words (``U.S.``).
    """
    if frequencies.frequency(word):
        return word
    subwords = [subword for subword in split_words(word) if not is_punctuation(subword)]
    return min(subwords, key=frequencies.frequency, default=word)
