"""Sequences of token ids as a task's model reads them, with masked positions where it predicts."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, tee
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headscope.core.accumulator import Array, Keys
from headscope.data.files import LastOther, punctuation_spans
from headscope.data.pieces import Encoding, TextModel, frame, special_ids, token_stream, tokenise
from headscope.data.token_types import TokenTypes

#: Share of a row's content tokens that are replaced by the mask token (Devlin et al. 2018).
MASKED_SHARE = 0.15


@dataclass(frozen=True)
class Row:
    """One sequence with its special tokens."""

    index: int  # Its place among all rows of the task
    ids: tuple[int, ...]  # Token ids, special tokens included
    types: tuple[int, ...] | None  # Token types; None for those that the model takes unasked
    content: tuple[int, ...]  # Positions that are no special token
    masked: tuple[int, ...] = ()  # Positions whose token was replaced by the mask token
    gold: tuple[int, ...] = ()  # The tokens that stood there
    second: int | None = None  # Of two texts: the position where the second begins

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Padded:
    """Rows as tensors."""

    index: Array  # (batch,): The place of each row among all rows of the task
    #: input_ids, attention_mask: (batch, pos), int64: Token ids; 1 for tokens and 0 for padding
    input_ids: Tensor
    attention_mask: Tensor
    #: (batch, pos), or None for the types that the model takes unasked
    token_type_ids: Tensor | None
    masked: Tensor  # (2, masked): Row and position of every masked token, row by row
    gold: Tensor  # (masked,): The token ids that stood there
    #: decoder_ids, decoder_mask: (batch, target_pos), int64, of pairs: What the decoder reads; 1
    #: for tokens and 0 for padding. ``masked`` and ``gold`` are target positions and labels then.
    decoder_ids: Tensor | None = None
    decoder_mask: Tensor | None = None

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """What a model is called with."""
        return self.input_ids, self.attention_mask, self.token_type_ids

    @property
    def decoder_inputs(self) -> dict[str, Tensor]:
        """What a model with a decoder is called with besides, by name."""
        if self.decoder_ids is None or self.decoder_mask is None:
            return {}
        return {"decoder_input_ids": self.decoder_ids, "decoder_attention_mask": self.decoder_mask}

    @property
    def hidden_mask(self) -> Tensor:
        """1 where the last hidden state, a decoder's if there is one, belongs to a token."""
        return self.attention_mask if self.decoder_mask is None else self.decoder_mask

    def queries_of(self, stack: str) -> Tensor:
        """(batch, pos): 1 where a query of this stack's attention belongs to a token."""
        return self.attention_mask if stack == "encoder" else self.hidden_mask


class TypedModel(TextModel, Protocol):
    """A model that may read token types besides."""

    @property
    def token_types(self) -> TokenTypes:
        """Which it is given."""


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
        types = model.token_types.of_encoding(encoding, pair=second is not None)
        content = _content(encoding.special_tokens_mask)
        begin = None
        if second is not None:
            texts = encoding.sequence_ids
            begin = texts.index(1) if 1 in texts else len(texts)
        yield Row(i, tuple(encoding.ids), types, content, second=begin)


def window_rows(model: TextModel, lines: Iterable[str], *, length: int, count: int) -> list[Row]:
    """Cut text into windows of exactly ``length`` tokens, and take the first ``count`` of them.

    Lines are tokenised one by one without special tokens and joined into one stream; window i
    covers stream tokens [i (n - s), (i + 1)(n - s)) with the model's s special tokens around them;
    a partial last window is dropped. Errors are those of :func:`~headscope.data.pieces.frame` and
    :func:`~headscope.data.pieces.tokenise`.
    """
    around = frame(model, length)
    special = special_ids(model.tokenizer)
    stream = token_stream(model, lines)
    rows: list[Row] = []
    while len(rows) < count:
        window = tuple(islice(stream, around.width))
        if len(window) < around.width:
            break
        positions = enumerate(window, start=len(around.before))
        content = tuple(position for position, token in positions if token not in special)
        rows.append(Row(len(rows), (*around.before, *window, *around.after), None, content))
    return rows


def mask_row(row: Row, mask_id: int, seed: int) -> Row:
    """Replace 15% of a row's content tokens (at least one) by the mask token.

    The positions depend on the seed, the row's index and its length alone, so that every model and
    every point of a curve predicts the same tokens.
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


def padded(rows: Sequence[Row], pad_id: int, device: str) -> Padded:
    """Right-pad rows into one batch; of pairs both sides."""
    pairs = [row for row in rows if isinstance(row, PairRow)]
    asked = [  # row, position and token
        *((i, *at) for i, row in enumerate(rows) for at in zip(row.masked, row.gold, strict=True)),
        *((i, *at) for i, row in enumerate(pairs) for at in enumerate(row.labels)),
    ]
    of_masks = torch.tensor([at for at in asked if at[2] != NO_LABEL], dtype=torch.long)
    *masked, gold = of_masks.reshape(-1, 3).t().to(device)
    types = [row.types for row in rows if row.types is not None]
    decoder_ids = decoder_mask = None
    if pairs:
        decoder_ids = filled([row.decoder_ids for row in pairs], pad_id).to(device)
        decoder_mask = filled([[1] * len(row.decoder_ids) for row in pairs], 0).to(device)
    return Padded(
        index=np.array([row.index for row in rows]),
        input_ids=filled([row.ids for row in rows], pad_id).to(device),
        attention_mask=filled([[1] * len(row.ids) for row in rows], 0).to(device),
        token_type_ids=filled(types, 0).to(device) if types else None,
        masked=torch.stack(masked),
        gold=gold,
        decoder_ids=decoder_ids,
        decoder_mask=decoder_mask,
    )


def filled(rows: Sequence[Sequence[int] | Array], fill: int) -> Tensor:
    """Right-pad sequences of numbers: (batch, longest), int64."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=fill)


NO_LABEL = -100  # Label of a position that is padded, or at which no token is asked for.


@dataclass(frozen=True)
class Ends:
    """Where a decoder begins and where it stops."""

    start: int  # Token id that it reads first
    stop: int  # Token id that ends every target
    first: int | None = None  # Token id of the language code that begins every target, if any


@dataclass(frozen=True, kw_only=True)
class PairRow(Row):
    """One source, as :class:`~headscope.data.token_rows.Row` has it, and its target."""

    #: (target_pos,): What the decoder reads: the start token, then all labels but the last
    decoder_ids: tuple[int, ...]
    #: (target_pos,): What it should write at each of these positions (NO_LABEL where it is not
    #: asked); ends in one stop token
    labels: tuple[int, ...]
    decoder_content: tuple[int, ...]  # Positions at which the decoder reads no special token
    #: Those at which it reads a piece of nothing but punctuation
    decoder_punctuation: tuple[int, ...] = ()
    #: Where the tokens of the source, and those that are to be written, begin and end in the text
    source_spans: tuple[tuple[int, int], ...] = ()
    target_spans: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.ids) + len(self.labels)


def encode_pairs(
    model: TextModel,
    sources: Iterable[str],
    targets: Iterable[str],
    ends: Ends,
    *,
    check: bool = True,
) -> Iterator[PairRow | None]:
    """Tokenise sources and targets; None for a pair that the model cannot read whole.

    Each side gets the special tokens that the tokenizer itself puts there, with one exception:
    special tokens after a target's text are replaced by one stop token, which some tokenizers add
    and others do not. Of a model that is told its languages, a target begins with its language's
    code and no other special token. Nothing is ever cut. ``check`` is that of
    :func:`~headscope.data.pieces.tokenise`, for the sources.
    """
    texts, targets = tee(targets)
    first = tokenise(model, sources, check=check)
    both = zip(first, tokenise(model, targets, targets=True), texts, strict=True)
    for i, (source, target, text) in enumerate(both):
        # Let the target end in one stop token.
        size = len(target.ids)
        marks = target.special_tokens_mask
        while size and (marks[size - 1] or target.ids[size - 1] == ends.stop):
            size -= 1
        begin = 0
        code = [] if ends.first is None else [ends.first]
        while code and begin < size and marks[begin]:
            begin += 1
        labels = (*code, *target.ids[begin:size], ends.stop)
        if not source.ids or max(len(source.ids), len(labels)) > model.max_length:
            yield None
            continue
        yield PairRow(
            index=i,
            ids=tuple(source.ids),
            types=None,
            content=_content(source.special_tokens_mask),
            decoder_ids=(ends.start, *labels[:-1]),
            labels=labels,
            decoder_content=_content([1, *[1 for _ in code], *marks[begin:size]]),
            decoder_punctuation=tuple(
                position + len(code) - begin for position in _punctuation(text, target)
            ),
            source_spans=tuple(source.offsets),
            target_spans=(*[(0, 0) for _ in code], *target.offsets[begin:size]),
        )


def _content(special: Sequence[int]) -> tuple[int, ...]:
    return tuple(position for position, is_special in enumerate(special) if not is_special)


def _punctuation(text: str, encoding: Encoding) -> Iterator[int]:
    """Yield the positions where a decoder reads punctuation: one after it has written it."""
    marked = punctuation_spans(text)
    for token, (begin, end) in enumerate(encoding.offsets):
        inside = [i for i in range(begin, end) if not text[i].isspace()]
        if inside and all(marked[i] for i in inside) and not encoding.special_tokens_mask[token]:
            yield token + 1


def with_swapped_sources(rows: Iterable[PairRow | None]) -> Iterator[PairRow | None]:
    """Give each pair the nearest source before it that has as many content tokens: a control.

    A source that is the same text does not count as another. The first of each length has none and
    becomes None; so does what was None.
    """
    earlier = LastOther[PairRow]()
    for row in rows:
        other = None if row is None else earlier.before(row, len(row.content), row.ids)
        if row is None or other is None:
            yield None
        else:
            yield replace(row, ids=other.ids, content=other.content)


def sentences_of(row: Row) -> Iterator[Hashable]:
    """Yield each text of a row as its tokens, without special tokens and without masks.

    A row of two texts has two. The target of a translation is another text than its source.
    """
    ids = list(row.ids)
    for position, token in zip(row.masked, row.gold, strict=True):
        ids[position] = token
    border = len(ids) if row.second is None else row.second
    first = [position for position in row.content if position < border]
    second = [position for position in row.content if position >= border]
    for text in (first, second):
        if text:  # special tokens that are written inside a text belong to it
            yield tuple(ids[text[0] : text[-1] + 1])
    if isinstance(row, PairRow):
        yield "target", row.labels


def halve(
    sentences: Sequence[Sequence[Hashable]], seed: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split examples at random into two halves.

    Examples that share a sentence, directly or through others, go to the same half. A group of more
    than half of all examples is split: its members are dealt out one by one.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = len(sentences)
    texts = Keys[Hashable]()
    pairs = [(i, n + texts.index(text)) for i, row in enumerate(sentences) for text in row]
    size = max(1, n + len(texts))
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(pairs)), tuple(edges)), shape=(size, size))
    by_label: dict[int, list[int]] = {}
    for i, label in enumerate(connected_components(graph, directed=False)[1][:n].tolist()):
        by_label.setdefault(label, []).append(i)
    groups = list(by_label.values())
    intact = [group for group in groups if 2 * len(group) <= len(sentences)]
    torn = [[i] for group in groups if 2 * len(group) > len(sentences) for i in group]
    parts = [*intact, *torn]
    random.Random(seed).shuffle(parts)
    halves: tuple[list[int], list[int]] = ([], [])
    # The largest first, so that single examples make both halves equally long.
    for part in sorted(parts, key=len, reverse=True):
        min(halves, key=len).extend(part)
    return tuple(sorted(halves[0])), tuple(sorted(halves[1]))
