"""Text to token ids: the one place where a tokenizer is called on a user's text.

A text is read as ``tokenizer(text)`` reads it. Words are found afterwards, by where each piece
stands in the text, so that they change no piece; their rarity is looked up.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, groupby, islice, pairwise, tee
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding as RawEncoding

from headscope.core.errors import CorpusError, InputError
from headscope.data.files import (
    LastOther,
    Sentence,
    Span,
    is_punctuation,
    split_words,
    text_key,
)
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


class Encoding:
    """A text as a tokenizer reads it.

    Special tokens are those that the tokenizer puts around a text, and those that are written out
    in it (``[SEP]``), which it reads as the same tokens; the unknown token and the mask are not.
    """

    __slots__ = ("_raw", "_special", "ids")

    def __init__(self, raw: RawEncoding, special: frozenset[int]) -> None:
        self._raw = raw
        self._special = special
        self.ids: list[int] = raw.ids

    @property
    def type_ids(self) -> list[int]:
        """0 or 1 for the first or the second text of a pair."""
        return list(self._raw.type_ids)

    @property
    def sequence_ids(self) -> list[int | None]:
        """The number of the text that each token belongs to; None for those that were added."""
        return list(self._raw.sequence_ids)

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Where each token begins and ends in its text."""
        return list(self._raw.offsets)

    @property
    def special_tokens_mask(self) -> list[int]:
        """1 at special tokens."""
        marked = zip(self.ids, self._raw.special_tokens_mask, strict=True)
        return [1 if token in self._special else added for token, added in marked]

    @property
    def written_out(self) -> bool:
        """Whether the text itself holds a special token."""
        marked = zip(self.ids, self._raw.special_tokens_mask, strict=True)
        return any(token in self._special and not added for token, added in marked)


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Return the tokens that are special wherever they stand.

    The mask stands for a word, and so does the unknown token, unless it begins or ends texts too.
    """
    ids = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    ids |= set(tokenizer.all_special_ids)
    names = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
    around = {getattr(tokenizer, name, None) for name in names}
    words = {getattr(tokenizer, name, None) for name in ("unk_token_id", "mask_token_id")}
    return frozenset(ids - (words - around))


def tokenise(
    model: TextModel,
    texts: Iterable[str],
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
    check = check and not targets
    firsts = iter(texts)
    seconds = None if pairs is None else iter(pairs)
    while chunk := list(islice(firsts, _AT_ONCE)):
        if targets:
            encodings = encodings_of(model, text_target=chunk)
        else:
            second = None if seconds is None else list(islice(seconds, len(chunk)))
            encodings = encodings_of(model, chunk, second, add_special_tokens=special)
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
        raw = model.tokenizer(*texts, **options, **fixed).encodings
    except Exception as error:  # tokenizers raises no more special kind
        raise unreadable(model, error) from error
    special = special_ids(model.tokenizer)
    return [Encoding(encoding, special) for encoding in raw]


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
    ids = encoding.ids
    special = encoding.special_tokens_mask
    inner = [i for i, is_special in enumerate(special) if not is_special]
    if not inner:
        raise InputError("The tokenizer gives no token for the letter a; it cannot be used here.")
    before = tuple(ids[: inner[0]])
    after = tuple(ids[inner[-1] + 1 :])
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
        return np.bincount(self.word_of[self.word_of >= 0], minlength=len(self.first))


class Placed(NamedTuple):
    """A sentence, its half of the corpus, and its control sentence."""

    sentence: Sentence
    half: int  # As in :class:`EncodedSentence`
    swapped: Sentence | None  # As in :class:`EncodedSentence`


def placed(sentences: Iterable[Sentence]) -> Iterator[Placed]:
    """Give each sentence of a corpus its half and the sentence whose tree it is scored against.

    Labels are chosen on one half of a corpus and confirmed on the other. Sentences of a treebank
    are halved by their zero-based index, those with a user's own pairs by their text, so that equal
    texts lie in one half. As a control each sentence is scored against the tree or the pairs of the
    last sentence before it that has as many words and another text. Sentences that a model cannot
    read count for both.
    """
    halves: dict[str, int] = {}
    earlier = LastOther[Sentence]()
    for index, sentence in enumerate(sentences):
        text = text_key(sentence.text)
        half = index % 2
        if sentence.pairs is not None:
            half = halves.setdefault(text, len(halves) % 2)
        yield Placed(sentence, half, earlier.before(sentence, len(sentence.words), text))


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
    items, again = tee(items)
    encodings = tokenise(model, (item.sentence.text for item in again), check=check)
    for (sentence, half, swapped), encoding in zip(items, encodings, strict=True):
        if len(encoding.ids) > model.max_length:
            yield None
            continue
        sentence, word_of = _aligned(sentence, encoding)
        numbers, positions = np.unique(word_of, return_index=True)
        n_special = int(np.searchsorted(numbers, 0))  # -1 comes first, if it is there
        with_piece = numbers[n_special:]
        n_words = len(sentence.words)
        if not len(with_piece):
            yield None
            continue
        if len(with_piece) < n_words:
            sentence = sentence.keep(with_piece.tolist())
            # As many words as that sentence had before pieces were counted.
            swapped = None if swapped is None else swapped.keep(with_piece.tolist())
            word_of = np.where(word_of < 0, -1, np.searchsorted(with_piece, word_of))
        yield EncodedSentence(
            ids=np.asarray(encoding.ids, dtype=np.int64),
            word_of=word_of,
            first=positions[n_special:],
            sentence=sentence,
            rarity=None if frequencies is None else _rarity(sentence, frequencies),
            half=half,
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
    begins, stops = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
    special = np.array(encoding.special_tokens_mask, dtype=bool)
    word_of = np.full(len(special), -1, dtype=np.int64)
    spans = np.array(sentence.spans, dtype=np.int64).reshape(-1, 2)
    known = np.arange(len(spans))
    if encoding.written_out:
        outside = [not _covered(span, begins[special], stops[special]) for span in sentence.spans]
        known = np.flatnonzero(outside)
        if sentence.guessed:
            sentence = sentence.keep(known.tolist())
            spans = spans[known]
            known = np.arange(len(spans))
    if not len(known) or special.all():
        return sentence, word_of
    word_starts, word_stops = spans[known].T
    last_word = len(known) - 1
    words = np.searchsorted(word_stops, begins[~special], side="right").clip(max=last_word)
    words = np.maximum.accumulate(words)  # a tokenizer may exchange marks that stand on one letter
    if sentence.guessed:
        reached = np.searchsorted(word_starts, stops[~special], side="left") - 1
        begins_word = np.ones(len(known), dtype=bool)
        for piece in np.flatnonzero(reached > words).tolist():
            begins_word[words[piece] + 1 : reached[piece] + 1] = False
        if not begins_word.all():
            bounds = [*np.flatnonzero(begins_word).tolist(), len(known)]
            sentence = sentence.join(list(pairwise(bounds)))
            words = (np.cumsum(begins_word) - 1)[words]
            known = np.arange(len(bounds) - 1)
    word_of[~special] = known[words]
    if encoding.written_out:
        starts = np.array(sentence.spans, dtype=np.int64)[:, 0]
        _keep_together(word_of, starts, begins)
    return sentence, word_of


def _covered(span: Span, begins: IntArray, stops: IntArray) -> bool:
    """Whether one of several stretches of a text covers a span."""
    return bool(((begins <= span[0]) & (span[1] <= stops)).any())


def _keep_together(word_of: IntArray, starts: IntArray, begins: IntArray) -> None:
    """Let no special token stand between the pieces of a word.

    One that is written inside a word is a piece of it; before one that is not, a space counts for
    no word. ``starts`` are those of words, ``begins`` those of tokens.
    """
    for position in np.flatnonzero(word_of < 0).tolist():
        word = word_of[:position].max(initial=-1)
        later = np.flatnonzero(word_of[position:] >= 0)
        if word < 0 or not len(later) or word_of[position + later[0]] != word:
            continue
        if starts[word] <= begins[position]:
            word_of[position] = word
        else:
            pieces = np.flatnonzero(word_of[:position] == word)
            word_of[pieces] = -1


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
    ordered = sorted(frequency.values())
    lowest = ordered[0]
    second = ordered[min(1, len(ordered) - 1)]
    rarest = tuple(i for i in candidates if frequency[i] == lowest)
    if any(names[i] in frequencies.frequent for i in rarest):
        return None
    two_rarest = tuple(i for i in candidates if frequency[i] <= second)
    return Rarity(rarest, two_rarest)


def _listed(word: str, frequencies: Frequencies) -> str:
    """Return a word as a list of frequencies may know it: itself, else its rarest part.

    A piece may have joined it with a mark (``-known``), or several words (``U.S.``).
    """
    if frequencies.frequency(word):
        return word
    joined = [part for part in split_words(word) if not is_punctuation(part)]
    return min(joined, key=frequencies.frequency, default=word)


# --- pieces, for people ---


def readable_pieces(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """Return tokens as a reader may see them: the characters that begin in each.

    Byte-level vocabularies and bytes that stand in for unknown characters are spelled as text, a
    space as ``␣``. A character of several tokens stands at the first, ``…`` at the others; what is
    no character is ``<0xE4>``. Other pieces are as the vocabulary has them (``##s``, ``▁the``).
    """
    pieces = list(map(str, tokenizer.convert_ids_to_tokens(list(ids))))
    backend = tokenizer.backend_tokenizer
    kinds = repr(backend.pre_tokenizer) + repr(backend.decoder)
    added = tokenizer.added_tokens_decoder
    spelled: list[bytes | None] = []
    for number, piece in zip(ids, pieces, strict=True):
        of_piece = None
        if number not in added and "ByteLevel" in kinds:
            of_piece = _bytes_of(piece)
        elif number not in added and (byte := _BYTE.fullmatch(piece)):
            of_piece = bytes.fromhex(byte[1])
        spelled.append(of_piece)
    shown: list[str] = []
    for known, group in groupby(zip(pieces, spelled, strict=True), lambda item: item[1] is None):
        if known:
            shown += [piece for piece, _ in group]
        else:
            shown += _characters([each for _, each in group if each is not None])
    return tuple(shown)


_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_CONTINUED = "…"
_SPACE = "␣"


@cache
def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(256 + i): byte for i, byte in enumerate(shifted)}


def _bytes_of(piece: str) -> bytes | None:
    alphabet = _byte_alphabet()
    return bytes(alphabet[char] for char in piece) if set(piece) <= set(alphabet) else None


def _characters(pieces: Sequence[bytes]) -> list[str]:
    """Spell the pieces of one run of bytes."""
    joined = b"".join(pieces)
    stops = list(accumulate(map(len, pieces)))
    shown = [""] * len(pieces)
    begin = 0
    while begin < len(joined):
        size = next((n for n in range(1, 5) if _is_character(joined[begin : begin + n])), 0)
        char = joined[begin : begin + size].decode() if size else f"<0x{joined[begin]:02X}>"
        first = bisect_right(stops, begin)
        shown[first] += _SPACE if char == " " else char
        size = size or 1
        for later in range(first + 1, bisect_right(stops, begin + size - 1) + 1):
            shown[later] = _CONTINUED
        begin += size
    return shown


def _is_character(spelling: bytes) -> bool:
    try:
        return len(spelling.decode()) == 1
    except UnicodeDecodeError:
        return False
