"""Text to token ids: the one place where a tokenizer is called on a user's text.

A text is read as ``tokenizer(text)`` reads it; which word a piece belongs to is found afterwards
(:mod:`.word_pieces`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Protocol

from tokenizers import Encoding as RawEncoding

from headscope.core.errors import CorpusError, InputError

_TEXTS_PER_CALL = 256  # Texts that the tokenizer gets at a time
#: A tokenizer's attributes with the tokens that it puts around texts, and that stand for words.
_AROUND_TEXTS = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
_STAND_FOR_WORDS = ("unk_token_id", "mask_token_id")


class TextModel(Protocol):
    """The part of a model that headscope needs to encode text for it."""

    @property
    def name(self) -> str:
        """The model's name in messages."""

    @property
    def tokenizer(self) -> Any:
        """The model's own fast tokenizer."""

    @property
    def max_length(self) -> int:
        """Tokens of its longest sequence, special ones included."""

    @property
    def vocab_size(self) -> int:
        """Rows of its input embedding."""

    @property
    def unreadable(self) -> str | None:
        """Why no text can be read for the model; None where it can."""


class Frame(NamedTuple):
    """The special tokens that a tokenizer puts around a sequence, and how much text fits between.

    A BERT's sequence of 128 tokens has the frame ((id of [CLS],), (id of [SEP],), 126).
    """

    before: tuple[int, ...]  # Token ids; may be empty
    after: tuple[int, ...]  # Token ids; may be empty
    width: int  # Tokens of text that a sequence holds between them, at least 1


#: Attribute of a tokenizer whose model reads two texts otherwise than ``tokenizer(a, b)`` does: a
#: :class:`PairReading`.
PAIR_READING = "headscope_pair_reading"


@dataclass(frozen=True)
class PairReading:
    """How a cross-encoder's folder wants two texts to be read together."""

    prompt: str = ""  # What the first text, or the whole template, begins with
    #: Whether both texts are put into the tokenizer's chat template, as a query and a document,
    #: with no special tokens but the template's.
    templated: bool = False
    in_parts: bool = False  # Whether the template wants each text as a list of parts
    options: Mapping[str, Any] = field(default_factory=dict)  # Further variables of the template

    def joined(self, tokenizer: Any, first: str, second: str) -> str:
        """Put two texts into the template."""
        by_role = {"system": self.prompt, "query": first, "document": second}
        messages = []
        for role, text in by_role.items():
            if role == "system" and not text:
                continue
            content = [{"type": "text", "text": text}] if self.in_parts else text
            messages.append({"role": role, "content": content})
        joined: str = tokenizer.apply_chat_template(messages, tokenize=False, **self.options)
        return joined


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
        """0 or 1: the text of a pair that each token belongs to; None of a token around texts."""
        return list(self._raw.sequence_ids)

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Where each token begins and ends in its text."""
        return list(self._raw.offsets)

    @property
    def special_tokens_mask(self) -> list[int]:
        """1 at special tokens."""
        added_mask = self._raw.special_tokens_mask
        return [
            1 if token in self._special else is_added
            for token, is_added in zip(self.ids, added_mask, strict=True)
        ]

    @property
    def written_out(self) -> bool:
        """Whether the text itself holds a special token."""
        added_mask = self._raw.special_tokens_mask
        return any(
            token in self._special and not is_added
            for token, is_added in zip(self.ids, added_mask, strict=True)
        )


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Return the tokens that are special wherever they stand.

    The mask stands for a word, and so does the unknown token, unless it begins or ends texts too.
    """
    added_tokens = tokenizer.added_tokens_decoder.items()
    marked_special = {token_id for token_id, token in added_tokens if token.special}
    around_texts = {getattr(tokenizer, name, None) for name in _AROUND_TEXTS}
    stand_for_words = {getattr(tokenizer, name, None) for name in _STAND_FOR_WORDS}
    all_special = marked_special.union(tokenizer.all_special_ids)
    return frozenset(all_special - (stand_for_words - around_texts))


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

    ``pairs`` are second texts, each of which is read together with its text. ``targets`` says that
    a decoder is to write the texts: some tokenizers put other special tokens around a target than
    around a source. Without ``special`` none are put around a text. With ``check`` texts are
    refused, unless they are targets, where the tokenizer knows no piece of the first ones: only the
    unknown token would be measured.
    """
    check = check and not targets
    remaining_texts = iter(texts)
    remaining_seconds = None if pairs is None else iter(pairs)
    while firsts := list(islice(remaining_texts, _TEXTS_PER_CALL)):
        if targets:
            encodings = encodings_of(model, text_target=firsts)
        else:
            seconds = None
            if remaining_seconds is not None:
                seconds = list(islice(remaining_seconds, len(firsts)))
            encodings = _read_together(model, firsts, seconds, special=special)
        if check:
            _refuse_unknown_text(model, encodings)
            check = False
        for encoding in encodings:
            _refuse_unknown_ids(model, encoding)
            yield encoding


def _read_together(
    model: TextModel, firsts: Sequence[str], seconds: Sequence[str] | None, *, special: bool
) -> list[Encoding]:
    """Read texts, or pairs in the way that the model's folder asks for."""
    reading: PairReading | None = getattr(model.tokenizer, PAIR_READING, None)
    if seconds is None or reading is None:
        return encodings_of(model, firsts, seconds, add_special_tokens=special)
    if not reading.templated:
        prompted = [reading.prompt + first for first in firsts]
        return encodings_of(model, prompted, seconds, add_special_tokens=special)
    try:
        texts = [
            reading.joined(model.tokenizer, first, second)
            for first, second in zip(firsts, seconds, strict=True)
        ]
    except Exception as error:  # whatever a template raises
        raise unreadable(model, error) from error
    return encodings_of(model, texts, add_special_tokens=False)


def _refuse_unknown_text(model: TextModel, encodings: Iterable[Encoding]) -> None:
    """Raise where some texts hold pieces, and the tokenizer knows none of them."""
    n_unknown = 0
    n_pieces = 0
    for encoding in encodings:
        unknown_here, pieces_here = count_unknown(model.tokenizer, encoding)
        n_unknown += unknown_here
        n_pieces += pieces_here
    if n_pieces > 0 and n_unknown == n_pieces:
        raise CorpusError(
            f"The tokenizer of {model.name} knows no piece of the text (it has "
            f"{len(model.tokenizer):,} pieces, the model's embedding {model.vocab_size:,} "
            "rows); give a text in the model's script, or the tokenizer files that belong "
            "to the model."
        )


def _refuse_unknown_ids(model: TextModel, encoding: Encoding) -> None:
    """Raise where a token has no row in the model's embedding."""
    highest = max(encoding.ids, default=0)
    if highest >= model.vocab_size:
        raise CorpusError(
            f"The tokenizer gives token id {highest}, but the model's embedding has "
            f"{model.vocab_size} rows; tokenizer and weights do not belong together."
        )


def count_unknown(tokenizer: Any, encoding: Encoding) -> tuple[int, int]:
    """Return how many pieces of a text its tokenizer does not know, and how many there are.

    Special tokens around the text do not count. A tokenizer that spells every byte knows all.
    """
    # The unknown token may be named in the tokenizer's settings, in its model, in both or nowhere.
    backend = tokenizer.backend_tokenizer
    name_in_model = getattr(backend.model, "unk_token", None) or ""
    unknown_ids = {tokenizer.unk_token_id, backend.token_to_id(name_in_model)}
    marked = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
    text_ids = [token for token, is_special in marked if not is_special]
    n_unknown = sum(token in unknown_ids for token in text_ids)
    return n_unknown, len(text_ids)


def encodings_of(
    model: TextModel, *texts: Sequence[object] | None, **options: Any
) -> list[Encoding]:
    """Call the tokenizer; nothing is cut and nothing padded."""
    if model.unreadable is not None:
        raise InputError(model.unreadable)
    options |= {"truncation": False, "padding": False, "verbose": False}
    try:
        raw_encodings = model.tokenizer(*texts, **options).encodings
    except Exception as error:  # tokenizers raises no more special kind
        raise unreadable(model, error) from error
    special = special_ids(model.tokenizer)
    return [Encoding(raw, special) for raw in raw_encodings]


def unreadable(model: TextModel, error: Exception) -> CorpusError:
    """Return the error for a tokenizer that failed to read a text."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return CorpusError(
        f"The tokenizer of {model.name} cannot read the text ({reason}); check that its files "
        "belong to the model."
    )


def token_stream(model: TextModel, lines: Iterable[str]) -> Iterator[int]:
    """Tokenise lines one by one, without special tokens and as :func:`tokenise`; join their ids."""
    for encoding in tokenise(model, lines, special=False):
        yield from encoding.ids


def frame(model: TextModel, length: int) -> Frame:
    """Find the special tokens around a sequence of ``length`` tokens, special ones included."""
    (encoding,) = encodings_of(model, ["a"])
    special = encoding.special_tokens_mask
    letter_positions = [i for i, is_special in enumerate(special) if not is_special]
    if not letter_positions:
        raise InputError("The tokenizer gives no token for the letter a; it cannot be used here.")
    before = tuple(encoding.ids[: letter_positions[0]])
    after = tuple(encoding.ids[letter_positions[-1] + 1 :])
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
