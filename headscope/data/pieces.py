"""Text to token ids: the one place where a tokenizer is called on a user's text.

Of sentences in words the pieces are aligned with the words, and their rarity is looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, tee
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding as Encoding

from headscope.core.errors import CorpusError, InputError
from headscope.data.files import Sentence
from headscope.data.frequencies import Frequencies

_AT_ONCE = 256  # Texts handed to the tokenizer at a time.


class TextModel(Protocol):
    """The part of a model that headscope needs to encode text for it."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def tokenizer(self) -> Any:
        """Its own fast tokenizer."""

    @property
    def max_length(self) -> int:
        """Tokens of its longest sequence, special ones included."""

    @property
    def vocab_size(self) -> int:
        """Rows of its input embedding."""

    @property
    def unreadable(self) -> str | None:
        """Why no text can be read for it, if so."""


class Frame(NamedTuple):
    """The special tokens that a tokenizer puts around a sequence, and the room between them."""

    before: tuple[int, ...]  # before, after: Token ids; either may be empty
    after: tuple[int, ...]
    width: int  # Tokens of text that a sequence holds besides, at least 1


def tokenise(
    model: TextModel,
    texts: Iterable[str | Sequence[str]],
    *,
    pairs: Iterable[str] | None = None,
    targets: bool = False,
    special: bool = True,
    check: bool = True,
) -> Iterator[Encoding]:
    """Yield one encoding per text, in order; nothing is cut and nothing padded.

    ``targets``: the texts are those that a decoder is to write. Some tokenizers put other special
    tokens around a target than around a source. ``check``: texts that are read are refused where
    the first ones hold no piece that the tokenizer knows: only the unknown token would be measured.
    """
    # Byte-level and sentence-piece vocabularies spell the space before a word as part of its first
    # piece. Handed a bare word, some of them take it for the middle of another word.
    pre_tokenizer = repr(model.tokenizer.backend_tokenizer.pre_tokenizer)
    spaced = "ByteLevel" in pre_tokenizer or "Metaspace" in pre_tokenizer
    before, check = " " if spaced else "", check and not targets
    firsts, seconds = iter(texts), None if pairs is None else iter(pairs)
    while chunk := list(islice(firsts, _AT_ONCE)):
        if targets:
            encodings = encodings_of(model, text_target=chunk)
        else:
            in_words = not isinstance(chunk[0], str)
            encodings = encodings_of(
                model,
                [[before + word for word in words] for words in chunk] if in_words else chunk,
                None if seconds is None else list(islice(seconds, len(chunk))),
                is_split_into_words=in_words,
                add_special_tokens=special,
            )
        if check:
            check = False
            counts = [count_unknown(model.tokenizer, encoding) for encoding in encodings]
            unknown, pieces = (sum(column) for column in zip(*counts, strict=True))
            if 0 < pieces == unknown:
                raise CorpusError(
                    f"The tokenizer of {model.name} knows no piece of the text (it has "
                    f"{len(model.tokenizer):,} pieces, the model's embedding {model.vocab_size:,} "
                    "rows); give a text in the model's script, or the tokenizer files that belong "
                    "to the model."
                )
        for encoding in encodings:
            if (highest := max(encoding.ids, default=0)) >= model.vocab_size:
                raise CorpusError(
                    f"The tokenizer gives token id {highest}, but the model's embedding has "
                    f"{model.vocab_size} rows; tokenizer and weights do not belong together."
                )
            yield encoding


def count_unknown(tokenizer: Any, encoding: Encoding) -> tuple[int, int]:
    """Return how many pieces of a text its tokenizer does not know, and how many there are.

    Special tokens around the text do not count. A tokenizer that spells every byte knows all.
    """
    backend = tokenizer.backend_tokenizer
    by_model = backend.token_to_id(getattr(backend.model, "unk_token", None) or "")
    unknown = {tokenizer.unk_token_id, by_model}
    marked = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
    ids = [token for token, special in marked if not special]
    return sum(token in unknown for token in ids), len(ids)


def encodings_of(
    model: TextModel, *texts: Sequence[object] | None, **options: Any
) -> list[Encoding]:
    """Call the tokenizer; nothing is cut and nothing padded."""
    if model.unreadable is not None:
        raise InputError(model.unreadable)
    fixed = {"truncation": False, "padding": False, "verbose": False}
    try:
        return list(model.tokenizer(*texts, **options, **fixed).encodings)
    except Exception as error:  # tokenizers raises no more special kind
        raise unreadable(model, error) from error


def unreadable(model: TextModel, error: Exception) -> CorpusError:
    """Return the error for a tokenizer that has failed, in one sentence."""
    said = " ".join(str(error).split()) or type(error).__name__
    return CorpusError(
        f"The tokenizer of {model.name} cannot read the text ({said}); check that its files "
        "belong to the model."
    )


def token_stream(model: TextModel, lines: Iterable[str]) -> Iterator[int]:
    """Tokenise lines one by one, without special tokens and as :func:`tokenise`; join their ids."""
    for encoding in tokenise(model, lines, special=False):
        yield from encoding.ids


def frame(model: TextModel, length: int) -> Frame:
    """Find the special tokens around a sequence of ``length`` tokens, those included."""
    (encoding,) = encodings_of(model, ["a"])
    ids, special = encoding.ids, encoding.special_tokens_mask
    inner = [i for i, is_special in enumerate(special) if not is_special]
    if not inner:
        raise InputError("The tokenizer gives no token for the letter a; it cannot be used here.")
    before, after = tuple(ids[: inner[0]]), tuple(ids[inner[-1] + 1 :])
    n_special = len(before) + len(after)
    if length <= n_special:
        raise InputError(
            f"The length is {length}, but {n_special} of those are special tokens; give "
            f"{n_special + 1} tokens or more."
        )
    return Frame(before, after, length - n_special)


def encode_lines(model: TextModel, lines: Iterable[str]) -> Iterator[list[int] | None]:
    """Yield each line's token ids with special tokens, or None where it is longer than allowed."""
    for encoding in tokenise(model, lines):
        yield encoding.ids if len(encoding.ids) <= model.max_length else None


IntArray = NDArray[np.int64]


class Rarity(NamedTuple):
    """Which words of one sentence count as rare; indices of words."""

    #: rarest, two_rarest: The words of the lowest frequency, and those of the two lowest; ties
    #: count
    rarest: tuple[int, ...]
    two_rarest: tuple[int, ...]


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
    """A sentence, its half of the corpus, and its control sentence."""

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


def encode_words(
    model: TextModel,
    items: Iterable[Placed],
    frequencies: Frequencies | None = None,
    *,
    check: bool = True,
) -> Iterator[EncodedSentence | None]:
    """Tokenise sentences word by word; yield None for one that has to be skipped.

    A sentence is skipped when it is longer than the model's limit, or when one of its words yields
    no piece; it is never cut. ``check`` is that of :func:`tokenise`.
    """
    items, again = tee(items)
    words_of = (item.sentence.words for item in again)
    encodings = tokenise(model, words_of, check=check)
    for (sentence, half, swapped), encoding in zip(items, encodings, strict=True):
        ids = np.asarray(encoding.ids, dtype=np.int64)
        word_of = np.array([-1 if w is None else w for w in encoding.word_ids], dtype=np.int64)
        words, first = np.unique(word_of, return_index=True)
        first = first[words >= 0]
        if len(ids) > model.max_length or len(first) != len(sentence.words):
            yield None
            continue
        rarity = None if frequencies is None else _rarity(sentence.words, frequencies)
        yield EncodedSentence(ids, word_of, first, sentence, rarity, half, swapped)


def _rarity(words: Sequence[str], frequencies: Frequencies) -> Rarity | None:
    candidates = [i for i, word in enumerate(words) if any(map(str.isalnum, word))]
    if not candidates or len(words) < 2:
        return None
    frequency = {i: frequencies.frequency(words[i].lower()) for i in candidates}
    ordered = sorted(frequency.values())
    lowest, second = ordered[0], ordered[min(1, len(ordered) - 1)]
    rarest = tuple(i for i in candidates if frequency[i] == lowest)
    if any(words[i].lower() in frequencies.frequent for i in rarest):
        return None
    two_rarest = tuple(i for i in candidates if frequency[i] <= second)
    return Rarity(rarest, two_rarest)
