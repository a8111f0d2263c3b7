"""From words to token ids, with the first piece of every word and its rarity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import tee
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headscope.core.errors import CorpusError, InputError
from headscope.core.files import sha256_of_file
from headscope.data.corpus import Corpus
from headscope.data.files import read_filled
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
    #: The last sentence before it in the corpus with as many words; its tree serves as a control
    swapped: Sentence | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def pieces(self) -> IntArray:
        """Pieces of each word, (words,)."""
        return np.bincount(self.word_of[self.word_of >= 0], minlength=len(self.first))


class Placed(NamedTuple):
    """A sentence and what its place in the corpus decides."""

    sentence: Sentence
    half: int  # As in :class:`EncodedSentence`
    swapped: Sentence | None  # As in :class:`EncodedSentence`


def placed(sentences: Iterable[Sentence]) -> Iterator[Placed]:
    """Give each sentence of a corpus its half and the sentence whose tree it is scored against.

    Labels are chosen on one half of a corpus (even zero-based indices) and confirmed on the other.
    As a control each sentence is scored against the tree of the sentence before it that has as many
    words; the first of each length has none. Sentences that a model cannot read count for both.
    """
    before: dict[int, Sentence] = {}
    for index, sentence in enumerate(sentences):
        length = len(sentence.words)
        yield Placed(sentence, index % 2, before.get(length))
        before[length] = sentence


class Encoder:
    """Tokenises sentences word by word; what cannot be aligned or is too long is left out."""

    def __init__(self, model: TextModel, frequencies: Frequencies | None = None) -> None:
        self._model = model
        self._frequencies = frequencies

    def encode(
        self, places: Iterable[Placed], *, check: bool = True
    ) -> Iterator[EncodedSentence | None]:
        """Yield each sentence encoded, or None where it has to be skipped.

        A sentence is skipped when it is longer than the model's limit, or when one of its words
        yields no piece; it is never cut. ``check`` is that of
        :func:`~headscope.data.pieces.tokenise`.
        """
        places, again = tee(places)
        words = (place.sentence.words for place in again)
        yield from map(self._align, places, tokenise(self._model, words, check=check))

    def _align(self, place: Placed, encoding: Encoding) -> EncodedSentence | None:
        sentence = place.sentence
        ids = np.asarray(encoding.ids, dtype=np.int64)
        if len(ids) > self._model.max_length:
            return None
        word_of = np.array([-1 if w is None else w for w in encoding.word_ids], dtype=np.int64)
        words, first = np.unique(word_of, return_index=True)
        first = first[words >= 0]
        if len(first) != len(sentence.words):
            return None
        rarity = self._rarity(sentence.words)
        return EncodedSentence(ids, word_of, first, sentence, rarity, place.half, place.swapped)

    def _rarity(self, words: Sequence[str]) -> Rarity | None:
        frequencies = self._frequencies
        candidates = [i for i, word in enumerate(words) if any(map(str.isalnum, word))]
        if frequencies is None or not candidates or len(words) < 2:
            return None
        frequency = {i: frequencies.frequency(words[i].lower()) for i in candidates}
        ordered = sorted(frequency.values())
        lowest, second = ordered[0], ordered[min(1, len(ordered) - 1)]
        rarest = tuple(i for i in candidates if frequency[i] == lowest)
        if any(words[i].lower() in frequencies.frequent for i in rarest):
            return None
        two_rarest = tuple(i for i in candidates if frequency[i] <= second)
        return Rarity(rarest, two_rarest, tuple(candidates))


#: Sentences whose rarest word is among this many most frequent words say nothing about rarity.
N_FREQUENT = 500
#: What the second column of a frequency file may be called in a heading.
_HEADINGS = ("count", "freq", "frequency")
#: Languages that wordfreq counts in a list of another code.
_SAME_LIST = {"no": "nb", "tl": "fil", "hr": "sh", "sr": "sh", "bs": "sh"}


@dataclass(frozen=True)
class Frequencies:
    """Word frequencies and where they come from."""

    source: str  # Named in every output: the file, ``wordfreq VERSION, language xx`` or the corpus
    #: Lower-cased word to count or relative frequency; 0 for an unseen word
    frequency: Callable[[str], float]
    frequent: frozenset[str]  # The 500 most frequent words
    sha256: str | None = None  # Of the user's file


def find_frequencies(corpus: Corpus, path: str | Path | None, language: str | None) -> Frequencies:
    """Take the first source there is: the user's file, wordfreq for the language, the corpus."""
    if path is not None:
        return _from_file(Path(path))
    for code, asked_for in ((language, True), (corpus.language, False)):
        if code is not None:
            return _from_wordfreq(code, asked_for) or _from_corpus(corpus)
    return _from_corpus(corpus)


def _from_file(path: Path) -> Frequencies:
    counts: dict[str, float] = {}
    for number, line in read_filled(path):
        word, tab, count = line.rpartition("\t")
        try:
            value = float(count)
        except ValueError:
            value = -1.0
        if number == 1 and value < 0 and tab and count.strip().lower() in _HEADINGS:
            continue
        if not tab or not word or "\t" in word or not 0 <= value < float("inf"):
            raise CorpusError(
                f"{path}, line {number}: not 'word<TAB>count' with a count of 0 or more."
            )
        # Lists that tell upper from lower case are added up: scores look words up in lower case.
        counts[word.lower()] = counts.get(word.lower(), 0.0) + value
    if not counts:
        raise CorpusError(f"{path} holds no 'word<TAB>count' line.")
    return replace(_from_counts(f"file {path}", counts), sha256=sha256_of_file(path))


def wordfreq_list(language: str) -> str | None:
    """Return the code of wordfreq's list of this very language; None where there is none.

    wordfreq itself would take the list of another language (English for Irish, Spanish for
    Basque); only another spelling of the same language will do.
    """
    import wordfreq
    from langcodes import Language
    from langcodes.tag_parser import LanguageTagError

    try:
        tag = Language.get(language)
    except LanguageTagError:
        raise InputError(
            f"The language {language!r} is not a language code; give an ISO code such as en or de."
        ) from None
    lists, code = wordfreq.available_languages(), tag.language or ""
    found = code if code in lists else _SAME_LIST.get(code)
    return found if found in lists else None


def _from_wordfreq(language: str, asked_for: bool) -> Frequencies | None:
    """Use wordfreq's list of this very language; None where there is none."""
    import importlib.metadata

    import wordfreq

    found = wordfreq_list(language)
    if found is None:
        return None
    try:
        frequent = wordfreq.top_n_list(found, N_FREQUENT)
        wordfreq.word_frequency("a", found)
    except ModuleNotFoundError as error:
        if not asked_for:  # the language was only read off the file's name
            return None
        raise InputError(
            f"wordfreq needs the package {error.name} to look up words of the language {found}; "
            "install it (pip install 'wordfreq[cjk]') or give a file of frequencies."
        ) from None

    def frequency(word: str) -> float:  # wordfreq keeps a bounded cache of its own
        return float(wordfreq.word_frequency(word, found))

    version = importlib.metadata.version("wordfreq")
    return Frequencies(f"wordfreq {version}, language {found}", frequency, frozenset(frequent))


def _from_corpus(corpus: Corpus) -> Frequencies:
    counts = Counter(word.lower() for sentence in corpus for word in sentence.words)
    return _from_counts(f"the corpus itself ({corpus.name})", counts)


def _from_counts(source: str, counts: Mapping[str, float]) -> Frequencies:
    # sorted() is stable: ties keep the order of the source.
    top = sorted(counts, key=lambda word: -counts[word])[:N_FREQUENT]
    return Frequencies(source, lambda word: counts.get(word, 0.0), frozenset(top))
