"""Sequences of token ids as a task's model reads them, and the tokens that it is to predict.

A :class:`Row` is one text, or two texts read together; :func:`encode_rows`, :func:`window_rows` and
:func:`mask_row` make rows. A :class:`PairRow`, at the end of the file, is a row with a target that
a decoder writes; :func:`encode_pairs` makes them. :func:`padded` makes a batch of either.

An ``Encoding`` is a text (or a pair) as the tokenizer reads it: ``ids``, and of each token
``special_tokens_mask`` (1 at special tokens), ``offsets`` (where it begins and ends in the text)
and ``sequence_ids`` (0 or 1, the text of a pair that it is of; None at the tokens around texts).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, tee
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headscope.core.accumulator import Array
from headscope.data.controls import EarlierTexts
from headscope.data.pieces import Encoding, TextModel, frame, special_ids, token_stream, tokenise
from headscope.data.sentences import punctuation_spans
from headscope.data.token_types import TokenTypes

#: Share of a row's content tokens that are replaced by the mask token (Devlin et al. 2018).
MASKED_SHARE = 0.15
#: Label of a target's position at which no token is asked for; torch's cross entropy passes it
#: over.
NO_LABEL = -100


@dataclass(frozen=True)
class Row:
    """One sequence with its special tokens.

    "[CLS] the [MASK] sat [SEP]", where the mask replaced "cat", has content (1, 2, 3), masked (2,)
    and gold (id of "cat",).
    """

    index: int  # Among all rows of the task
    ids: tuple[int, ...]  # Token ids, special tokens included
    types: tuple[int, ...] | None  # Token types; None where the model is given none
    content: tuple[int, ...]  # Positions of tokens that are not special
    masked: tuple[int, ...] = ()  # Positions whose token was replaced by the mask token
    gold: tuple[int, ...] = ()  # Token ids that stood at the masked positions
    #: Positions whose next token a causal language model is to predict
    before_next: tuple[int, ...] = ()
    second: int | None = None  # Position where the second of two texts begins; None of one text

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Padded:
    """Rows as tensors."""

    index: Array  # (batch,): The index of each row among all rows of the task
    input_ids: Tensor  # (batch, pos), int64
    attention_mask: Tensor  # (batch, pos), int64: 1 for tokens and 0 for padding
    token_type_ids: Tensor | None  # (batch, pos); None: the model takes its default types
    #: (2, predicted): Row and position of every state that predicts a token, row by row: those of
    #: masked tokens, of tokens that a decoder is to write, or of tokens before the predicted one.
    #: [[0, 1], [2, 4]]: one at position 2 of row 0, one at position 4 of row 1
    masked: Tensor
    gold: Tensor  # (predicted,): Ids of the right tokens at these positions
    #: (batch, target_pos), int64: What a decoder reads; None where rows have no target
    decoder_ids: Tensor | None = None
    decoder_mask: Tensor | None = None  # The same shape: 1 for tokens and 0 for padding

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Ids, mask and types that a model is called with."""
        return self.input_ids, self.attention_mask, self.token_type_ids

    @property
    def decoder_inputs(self) -> dict[str, Tensor]:
        """Ids and mask that the decoder reads, by the names of a model's arguments."""
        if self.decoder_ids is None or self.decoder_mask is None:
            return {}
        return {"decoder_input_ids": self.decoder_ids, "decoder_attention_mask": self.decoder_mask}

    @property
    def hidden_mask(self) -> Tensor:
        """1 where the model's last hidden state belongs to a token: of the decoder if it has one.

        (batch, pos), or (batch, target_pos) with a decoder.
        """
        return self.attention_mask if self.decoder_mask is None else self.decoder_mask

    def queries_of(self, stack: str) -> Tensor:
        """1 where a query belongs to a token; a stack is ``encoder``, ``decoder`` or ``cross``."""
        return self.attention_mask if stack == "encoder" else self.hidden_mask


class TypedModel(TextModel, Protocol):
    """A model that may read token types beside token ids."""

    @property
    def token_types(self) -> TokenTypes:
        """The token types that it is given."""


def encode_rows(
    model: TypedModel, first: Sequence[str], second: Sequence[str] | None
) -> Iterator[Row | None]:
    """Yield each text (or pair) as a row, or None where it is longer than allowed; never cut.

    Texts are encoded by :func:`~headscope.data.pieces.tokenise`, whose errors propagate.
    """
    for i, encoding in enumerate(tokenise(model, first, pairs=second)):
        if len(encoding.ids) > model.max_length:
            yield None
            continue
        second_begin = None
        if second is not None:
            # [CLS] a b [SEP] c [SEP] has [None, 0, 0, None, 1, None]: the second text begins at 4.
            text_numbers = encoding.sequence_ids
            second_begin = text_numbers.index(1) if 1 in text_numbers else len(text_numbers)
        yield Row(
            index=i,
            ids=tuple(encoding.ids),
            types=model.token_types.of_encoding(encoding, pair=second is not None),
            content=_content(encoding.special_tokens_mask),
            second=second_begin,
        )


def unended_rows(model: TypedModel, texts: Sequence[str]) -> Iterator[Row | None]:
    """Yield each text as a row without the special tokens that the tokenizer puts behind it.

    So its last token is followed by what comes next. None for a text that is longer than allowed.
    """
    n_behind = len(frame(model, model.max_length).after)
    for row in encode_rows(model, texts, None):
        if row is None or n_behind == 0:
            yield row
            continue
        types = None if row.types is None else row.types[:-n_behind]
        yield replace(row, ids=row.ids[:-n_behind], types=types)


def window_rows(model: TextModel, lines: Iterable[str], *, length: int, count: int) -> list[Row]:
    """Cut text into windows of exactly ``length`` tokens, and take the first ``count`` of them.

    Lines are tokenised one by one without special tokens and joined into one stream. Each window is
    the next stretch of it with the model's special tokens around: "a b c d e" in windows of 4 is
    "[CLS] a b [SEP]" and "[CLS] c d [SEP]"; a partial last window is dropped. Errors are those of
    :func:`~headscope.data.pieces.frame` and :func:`~headscope.data.pieces.tokenise`.
    """
    before, after, width = frame(model, length)  # special tokens around a window, tokens inside
    special = special_ids(model.tokenizer)
    stream = token_stream(model, lines)
    rows: list[Row] = []
    while len(rows) < count:
        window = tuple(islice(stream, width))
        if len(window) < width:
            break
        positions = enumerate(window, start=len(before))
        content = tuple(position for position, token in positions if token not in special)
        row = Row(index=len(rows), ids=(*before, *window, *after), types=None, content=content)
        rows.append(row)
    return rows


def mask_row(row: Row, mask_id: int, seed: int) -> Row:
    """Replace 15% of a row's content tokens (at least one) by the mask token.

    The positions depend on the seed, the row's index and its length alone, so that models that are
    compared predict the same tokens.
    """
    if not row.content:
        return row
    count = max(1, round(MASKED_SHARE * len(row.content)))
    rng = np.random.default_rng((abs(seed), row.index))
    masked = tuple(sorted(rng.choice(row.content, size=count, replace=False).tolist()))
    ids = list(row.ids)
    for position in masked:
        ids[position] = mask_id
    gold = tuple(row.ids[position] for position in masked)
    return replace(row, ids=tuple(ids), masked=masked, gold=gold)


def row_of_next_tokens(row: Row) -> Row:
    """Ask for each content token of a row that has a token before it, at the position of that."""
    return replace(row, before_next=tuple(position - 1 for position in row.content if position))


def padded(rows: Sequence[Row], pad_id: int, device: str) -> Padded:
    """Right-pad rows into one batch. All of them have a target (:class:`PairRow`), or none."""
    pairs = [row for row in rows if isinstance(row, PairRow)]
    predicted = torch.tensor(list(_predicted(rows, pairs)), dtype=torch.long)  # [predicted, 3]
    predicted = predicted.reshape(-1, 3)  # also where nothing is predicted
    row_index, position, gold = predicted.t().to(device)
    types = [row.types for row in rows if row.types is not None]
    decoder_ids = None
    decoder_mask = None
    if pairs:
        decoder_ids = filled([row.decoder_ids for row in pairs], pad_id).to(device)
        decoder_mask = filled([[1] * len(row.decoder_ids) for row in pairs], 0).to(device)
    return Padded(
        index=np.array([row.index for row in rows]),
        input_ids=filled([row.ids for row in rows], pad_id).to(device),
        attention_mask=filled([[1] * len(row.ids) for row in rows], 0).to(device),
        token_type_ids=filled(types, 0).to(device) if types else None,
        masked=torch.stack([row_index, position]),
        gold=gold,
        decoder_ids=decoder_ids,
        decoder_mask=decoder_mask,
    )


def _predicted(rows: Sequence[Row], pairs: Sequence[PairRow]) -> Iterator[tuple[int, int, int]]:
    """Yield row, position and token id of every token that is to be predicted.

    ``pairs`` are the rows again where they have a target, else empty.
    """
    for i, row in enumerate(rows):
        for position, token in zip(row.masked, row.gold, strict=True):
            yield i, position, token
        for position in row.before_next:
            yield i, position, row.ids[position + 1]
    for i, pair in enumerate(pairs):
        for position, label in enumerate(pair.labels):
            if label != NO_LABEL:
                yield i, position, label


def filled(rows: Sequence[Sequence[int] | Array], fill: int) -> Tensor:
    """Right-pad sequences of numbers: (batch, longest), int64."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=fill)


# --- sources and targets, of models with a decoder ---


@dataclass(frozen=True)
class Ends:
    """The special tokens at both ends of a target."""

    start: int  # Token id that the decoder reads first
    stop: int  # Token id that ends every target
    first: int | None = None  # Token id of the language code that begins every target, if any


@dataclass(frozen=True, kw_only=True)
class PairRow(Row):
    """One source, whose tokens are those of :class:`Row`, and its target.

    The target "le chat ." has::

        decoder_ids     <start>  le    chat  .
        labels          le       chat  .     <stop>
        decoder_content         (1,    2,    3)
    """

    #: (target_pos,): What the decoder reads: the start token, then all labels but the last
    decoder_ids: tuple[int, ...]
    #: (target_pos,): What the decoder should write at each position (NO_LABEL where it is not
    #: asked); ends in one stop token
    labels: tuple[int, ...]
    decoder_content: tuple[int, ...]  # Positions at which the decoder reads no special token
    #: Positions at which the decoder reads a piece of nothing but punctuation
    decoder_punctuation: tuple[int, ...] = ()
    #: Where each token of the source begins and ends in its text
    source_spans: tuple[tuple[int, int], ...] = ()
    #: (target_pos - 1,): Where each label begins and ends in the target's text, the last left out
    target_spans: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.ids) + len(self.labels)


def encode_pairs(
    model: TextModel,
    sources: Iterable[str],
    targets: Iterable[str],
    target_ends: Ends,
    *,
    check: bool = True,
) -> Iterator[PairRow | None]:
    """Tokenise sources and targets; None for a pair that the model cannot read whole.

    Each side gets the special tokens that the tokenizer itself puts there, with one exception:
    special tokens after a target's text are replaced by one stop token, which some tokenizers add
    and others do not. Of a model that is told its languages, a target begins with its language's
    code and no other special token. Nothing is ever cut. With ``check`` sources are refused of
    which the tokenizer knows no piece (:func:`~headscope.data.pieces.tokenise`).
    """
    target_texts, targets = tee(targets)
    encoded_sources = tokenise(model, sources, check=check)
    encoded_targets = tokenise(model, targets, targets=True)
    pairs = zip(encoded_sources, encoded_targets, target_texts, strict=True)
    for i, (source, target, target_text) in enumerate(pairs):
        row = _pair_row(
            index=i,
            source=source,
            target=target,
            target_text=target_text,
            target_ends=target_ends,
        )
        longest = max(len(row.ids), len(row.labels))
        yield row if row.ids and longest <= model.max_length else None


def _pair_row(
    *, index: int, source: Encoding, target: Encoding, target_text: str, target_ends: Ends
) -> PairRow:
    """Put a source and its target together, the target with the decoder's special tokens."""
    # What the tokenizer wrote behind the text gives way to one stop token.
    special = target.special_tokens_mask
    stop = len(target.ids)
    while stop and (special[stop - 1] or target.ids[stop - 1] == target_ends.stop):
        stop -= 1

    # What it wrote before the text gives way to the language's code, if the model is told one.
    start = 0
    code: tuple[int, ...] = ()
    if target_ends.first is not None:
        code = (target_ends.first,)
        while start < stop and special[start]:
            start += 1

    labels = (*code, *target.ids[start:stop], target_ends.stop)
    # The decoder reads a token one position after it has written it: of a text a b it writes
    # "code a b stop", and reads "start code a b".
    n_code = len(code)
    n_before_text = 1 + n_code  # the start token and the code
    shift = n_before_text - start  # from a position in ``target`` to that in ``decoder_ids``
    punctuation = [position + shift for position in _punctuation(target_text, target)]
    return PairRow(
        index=index,
        ids=tuple(source.ids),
        types=None,
        content=_content(source.special_tokens_mask),
        decoder_ids=(target_ends.start, *labels[:-1]),
        labels=labels,
        decoder_content=_content([1] * n_before_text + special[start:stop]),
        decoder_punctuation=tuple(punctuation),
        source_spans=tuple(source.offsets),
        target_spans=(*[(0, 0)] * n_code, *target.offsets[start:stop]),  # a code stands in no text
    )


def _content(special: Sequence[int]) -> tuple[int, ...]:
    """List the positions that are no special token: [1, 0, 0, 1] -> (1, 2)."""
    return tuple(position for position, is_special in enumerate(special) if not is_special)


def _punctuation(text: str, encoding: Encoding) -> Iterator[int]:
    """Yield the positions of tokens that are nothing but punctuation."""
    is_mark = punctuation_spans(text)
    for position, (begin, stop) in enumerate(encoding.offsets):
        if encoding.special_tokens_mask[position]:
            continue
        characters = [i for i in range(begin, stop) if not text[i].isspace()]
        if characters and all(is_mark[i] for i in characters):
            yield position


def with_swapped_sources(rows: Iterable[PairRow | None]) -> Iterator[PairRow | None]:
    """Give each target the source of another pair: a control.

    It is the last source before the pair's own that has as many content tokens and is another text.
    A pair without one becomes None, as the first of each length does; so does what was None.
    """
    earlier = EarlierTexts[PairRow]()
    for row in rows:
        if row is None:
            yield None
            continue
        other_row = earlier.control_of(row, size=len(row.content), text=row.ids)
        if other_row is None:
            yield None
        else:
            yield replace(row, ids=other_row.ids, content=other_row.content)


def sentences_of(row: Row) -> Iterator[Hashable]:
    """Yield each text of a row as a tuple of its tokens, those of masked positions included.

    Special tokens around a text are left out. A target is marked as such: a source of the same
    tokens is another text.
    """
    ids = list(row.ids)
    for position, token in zip(row.masked, row.gold, strict=True):
        ids[position] = token
    second_begin = len(ids) if row.second is None else row.second
    first_text = [position for position in row.content if position < second_begin]
    second_text = [position for position in row.content if position >= second_begin]
    for positions in (first_text, second_text):
        if positions:  # special tokens that are written inside a text belong to it
            yield tuple(ids[positions[0] : positions[-1] + 1])
    if isinstance(row, PairRow):
        yield "target", row.labels
