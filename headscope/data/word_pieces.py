"""Which pieces are which word: sentences as a model reads them, with their words found again.

A tokenizer reads the whole text, as the model's users have it read; words are found afterwards by
where each piece stands in the text. Of "The dancers sat"::

    tokens        [CLS]  the  dance  ##rs  sat  [SEP]
    word_of        -1     0     1     1     2    -1       (:func:`_aligned`)
    first                [1,    2,          4]            position of each word's first piece

:func:`placed` gives each sentence its half of the corpus and its control, :func:`encode_words` its
tokens and words; at the end, which words are rare.
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
    """Which words of one sentence are its rarest, as indices."""

    rarest: tuple[int, ...]  # The words of the lowest frequency; several where they tie
    two_rarest: tuple[int, ...]  # The words of the two lowest frequencies


@dataclass(frozen=True)
class EncodedSentence:
    """One sentence as the model reads it, without the words that have no piece."""

    ids: IntArray  # (tokens,): Token ids, special tokens included
    word_of: IntArray  # (tokens,): Index of each token's word, -1 for special tokens
    first: IntArray  # (words,): Position of each word's first piece
    sentence: Sentence  # Its words that have a piece, and the edges between them
    rarity: Rarity | None  # None where the rare-word score skips the sentence
    half: int = 0  # 0 or 1: the half of the corpus that :func:`placed` puts it in
    #: The last sentence before it with as many words and another text: its edges are a control
    swapped: Sentence | None = None
    #: (words,): Index of each word in the sentence before words without a piece were left out;
    #: None where the words are all of them
    with_piece: IntArray | None = None
    left_out: int = 0  # Number of words that were left out since they have no piece

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def pieces(self) -> IntArray:
        """Number of pieces of each word, (words,)."""
        in_a_word = self.word_of >= 0
        return np.bincount(self.word_of[in_a_word], minlength=len(self.first))


class Placed(NamedTuple):
    """A sentence, its half of the corpus, and its control sentence."""

    sentence: Sentence
    half: int  # 0 or 1
    swapped: Sentence | None  # None where no sentence before it has as many words


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
    piece; it is never cut. A word without a piece is left out, with its edges. With ``check`` a
    text is refused of which the tokenizer knows no piece (:func:`tokenise`).
    """
    # Two passes over one stream: the tokenizer reads texts ahead, some at a time.
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

    The control sentence has as many words, so the words with the same indices are left out of it.
    """
    sentence, word_of = _aligned(item.sentence, encoding)
    swapped = item.swapped
    # word_of [-1, 0, 1, 1, 3, -1] -> indices [-1, 0, 1, 3] at positions [0, 1, 2, 4]
    word_indices, first_positions = np.unique(word_of, return_index=True)
    is_word = word_indices >= 0
    with_piece = word_indices[is_word]
    if not len(with_piece):
        return None

    # Word 2 has no piece there: leave it out, and count the others anew (3 becomes 2).
    n_words = len(sentence.words)
    if len(with_piece) < n_words:
        sentence = sentence.keep(with_piece.tolist())
        if swapped is not None:
            swapped = swapped.keep(with_piece.tolist())
        new_indices = np.searchsorted(with_piece, word_of)
        word_of = np.where(word_of < 0, -1, new_indices)
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
    mark that no word has) to the next. Words of a treebank or of a user stay as they are. Those of
    plain text were only guessed (``sentence.guessed``), so the sentence may change: a piece that
    reaches into other words makes one word of all, and a special token that is written in the text
    is no word.
    """
    token_begins, token_stops = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
    special = np.array(encoding.special_tokens_mask, dtype=bool)
    word_of = np.full(len(special), -1, dtype=np.int64)
    word_spans = np.array(sentence.spans, dtype=np.int64).reshape(-1, 2)
    candidates = np.arange(len(word_spans))  # words that can have pieces

    # A special token that is written in the text is no word.
    if encoding.written_out:
        candidates = _outside(word_spans, token_begins[special], token_stops[special])
        if sentence.guessed:
            sentence = sentence.keep(candidates.tolist())
            word_spans = word_spans[candidates]
            candidates = np.arange(len(word_spans))
    if not len(candidates) or special.all():
        return sentence, word_of

    # A piece belongs to the first word that ends behind the piece's begin.
    word_begins, word_stops = word_spans[candidates].T
    first_words = np.searchsorted(word_stops, token_begins[~special], side="right")  # (pieces,)
    first_words = first_words.clip(max=len(candidates) - 1)
    # Words never go back: a tokenizer may exchange marks that stand on one letter.
    first_words = np.maximum.accumulate(first_words)

    # In plain text a piece that reaches into other words makes one word of all.
    if sentence.guessed:
        last_words = np.searchsorted(word_begins, token_stops[~special], side="left") - 1
        sentence, first_words = _joined(sentence, first_words, last_words)
        candidates = np.arange(len(sentence.words))
    word_of[~special] = candidates[first_words]

    if encoding.written_out:
        final_spans = np.array(sentence.spans, dtype=np.int64)
        _keep_together(word_of, final_spans[:, 0], token_begins)
    return sentence, word_of


def _outside(word_spans: IntArray, begins: IntArray, stops: IntArray) -> IntArray:
    """List the words that lie in none of some special tokens.

    ``word_spans`` (words, 2); ``begins`` and ``stops`` (tokens,) are those of the special tokens.
    """
    lies_in = (begins <= word_spans[:, :1]) & (word_spans[:, 1:] <= stops)  # (words, tokens)
    return np.flatnonzero(~lies_in.any(axis=1))


def _joined(
    sentence: Sentence, first_words: IntArray, last_words: IntArray
) -> tuple[Sentence, IntArray]:
    """Join the words that share a piece: the new sentence, and each piece's word in it.

    ``first_words`` and ``last_words`` (pieces,) are the words that each piece reaches into. With
    [0, 1] and [0, 2], of three words, the second piece reaches from word 1 to word 2: these two
    become one.
    """
    begins_word = np.ones(len(sentence.words), dtype=bool)  # [True, True, False] there
    for piece in np.flatnonzero(last_words > first_words).tolist():
        begins_word[first_words[piece] + 1 : last_words[piece] + 1] = False
    if begins_word.all():
        return sentence, first_words
    bounds = [*np.flatnonzero(begins_word).tolist(), len(begins_word)]  # [0, 1, 3]
    new_indices = np.cumsum(begins_word) - 1  # [0, 1, 1]
    return sentence.join(list(pairwise(bounds))), new_indices[first_words]


def _keep_together(word_of: IntArray, word_begins: IntArray, token_begins: IntArray) -> None:
    """Let no special token stand between the pieces of a word; changes ``word_of``.

    A special token that is written inside a word becomes a piece of it: [0, -1, 0] -> [0, 0, 0].
    Where the word begins only behind the special token, what stands before the token (a space) is
    no piece of the word: [0, -1, 0] -> [-1, -1, 0].
    """
    for position in np.flatnonzero(word_of < 0).tolist():
        word_before = word_of[:position].max(initial=-1)
        later_pieces = position + np.flatnonzero(word_of[position:] >= 0)
        if word_before < 0 or not len(later_pieces):
            continue
        word_behind = word_of[later_pieces[0]]
        if word_before != word_behind:
            continue
        if word_begins[word_before] <= token_begins[position]:
            word_of[position] = word_before
        else:
            pieces_before = np.flatnonzero(word_of[:position] == word_before)
            word_of[pieces_before] = -1


def _rarity(sentence: Sentence, frequencies: Frequencies) -> Rarity | None:
    """Find the rarest words of a sentence.

    None where one of them is among the most frequent words of the language, where there are fewer
    than two words, and in scripts without spaces, whose words are not known.
    """
    words = sentence.words
    candidates = [i for i, word in enumerate(words) if any(map(str.isalnum, word))]
    if not candidates or len(words) < 2 or sentence.unspaced:
        return None
    names = {i: words[i].lower() for i in candidates}  # what the list calls each word
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
