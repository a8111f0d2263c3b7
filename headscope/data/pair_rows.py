"""Sources and targets as token ids, as an encoder-decoder model reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import tee

import torch
from torch import Tensor

from headscope.data.pieces import Encoding, TextModel, tokenise, tokenise_targets
from headscope.data.sentence import punctuation_spans
from headscope.data.token_rows import Padded, Row, filled, pad_rows

#: Label of a padded position.
NO_LABEL = -100


@dataclass(frozen=True)
class Ends:
    """Where a decoder begins and where it stops.

    Attributes
    ----------
    start : int
        Token id that it reads first.
    stop : int
        Token id that ends every target.
    """

    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class PairRow(Row):
    """One source, as :class:`~headscope.data.token_rows.Row` has it, and its target.

    Attributes
    ----------
    decoder_ids : tuple of int, (target_pos,)
        What the decoder reads: the start token, then all labels but the last.
    labels : tuple of int, (target_pos,)
        What it should write at each of these positions; ends in one stop token.
    decoder_content : tuple of int
        Positions at which the decoder reads no special token.
    decoder_punctuation : tuple of int
        Those at which it reads a piece of nothing but punctuation.
    """

    decoder_ids: tuple[int, ...]
    labels: tuple[int, ...]
    decoder_content: tuple[int, ...]
    decoder_punctuation: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ids) + len(self.labels)


@dataclass(frozen=True)
class PaddedPairs(Padded):
    """Pairs as tensors; ``masked`` and ``gold`` are every target position and its label.

    Attributes
    ----------
    decoder_ids, decoder_mask : Tensor, (batch, target_pos), int64
        What the decoder reads; 1 for tokens and 0 for padding.
    labels : Tensor, (batch, target_pos), int64
        What it should write; :data:`NO_LABEL` at padding.
    source_content, decoder_content : Tensor of bool, (batch, pos) and (batch, target_pos)
        True where the encoder, or the decoder, reads a token that is not special.
    """

    decoder_ids: Tensor
    decoder_mask: Tensor
    labels: Tensor
    source_content: Tensor
    decoder_content: Tensor

    @property
    def decoder_inputs(self) -> dict[str, Tensor]:
        """What a model with a decoder is called with besides, by name."""
        return {"decoder_input_ids": self.decoder_ids, "decoder_attention_mask": self.decoder_mask}

    @property
    def hidden_mask(self) -> Tensor:
        """The last hidden state is the decoder's."""
        return self.decoder_mask

    def queries_of(self, stack: str) -> Tensor:
        """(batch, pos): source tokens for the encoder, what the decoder reads for the others."""
        return self.attention_mask if stack == "encoder" else self.decoder_mask


def encode_pairs(
    model: TextModel, sources: Iterable[str], targets: Iterable[str], ends: Ends
) -> Iterator[PairRow | None]:
    """Tokenise sources and targets; None for a pair that the model cannot read whole.

    Each side gets the special tokens that the tokenizer itself puts there, with one exception:
    special tokens after a target's text are replaced by one stop token, which some tokenizers add
    and others do not. Nothing is ever cut.

    Parameters
    ----------
    model : TextModel
        Whose tokenizer and limits are used.
    sources, targets : iterable of str
        As many of each.
    ends : Ends
        Of the model's decoder.

    Yields
    ------
    PairRow or None
        None where either side is longer than the model's limit, or a source has no token.
    """
    texts, targets = tee(targets)
    both = zip(tokenise(model, sources), tokenise_targets(model, targets), texts, strict=True)
    for i, (source, target, text) in enumerate(both):
        labels, special = _ended(target.ids, target.special_tokens_mask, ends.stop)
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
            decoder_content=_content([1, *special[:-1]]),
            # The decoder reads a token one place after the one where it writes it.
            decoder_punctuation=tuple(i + 1 for i in _punctuation(text, target)),
        )


def _ended(
    ids: Sequence[int], special: Sequence[int], stop: int
) -> tuple[tuple[int, ...], list[int]]:
    """Let a target end in one stop token; also says which of its tokens are special."""
    size = len(ids)
    while size and (special[size - 1] or ids[size - 1] == stop):
        size -= 1
    return (*ids[:size], stop), [*special[:size], 1]


def _content(special: Sequence[int]) -> tuple[int, ...]:
    return tuple(position for position, is_special in enumerate(special) if not is_special)


def _punctuation(text: str, encoding: Encoding) -> Iterator[int]:
    """Yield the tokens all of whose characters belong to words that are punctuation."""
    marked = punctuation_spans(text)
    for token, (begin, end) in enumerate(encoding.offsets):
        inside = [i for i in range(begin, end) if not text[i].isspace()]
        if inside and all(marked[i] for i in inside) and not encoding.special_tokens_mask[token]:
            yield token


def pad_pairs(rows: Sequence[PairRow], pad_id: int, device: str) -> PaddedPairs:
    """Right-pad both sides of pairs into one batch."""
    source = pad_rows(rows, pad_id, device)
    labels = filled([row.labels for row in rows], NO_LABEL).to(device)
    real = labels != NO_LABEL
    return PaddedPairs(
        index=source.index,
        input_ids=source.input_ids,
        attention_mask=source.attention_mask,
        token_type_ids=None,
        masked=real.nonzero().t(),
        gold=labels[real],
        decoder_ids=filled([row.decoder_ids for row in rows], pad_id).to(device),
        decoder_mask=real.long(),
        labels=labels,
        source_content=_marked([row.content for row in rows], source.input_ids),
        decoder_content=_marked([row.decoder_content for row in rows], labels),
    )


def padded(rows: Sequence[Row], pad_id: int, device: str) -> Padded:
    """Pad rows of either kind into one batch."""
    pairs = [row for row in rows if isinstance(row, PairRow)]
    return pad_pairs(pairs, pad_id, device) if pairs else pad_rows(rows, pad_id, device)


def _marked(positions: Sequence[Sequence[int]], like: Tensor) -> Tensor:
    """Mark some positions of each row: bool, in the shape of ``like``."""
    marks = torch.zeros(like.shape, dtype=torch.bool)
    for row, at in zip(marks, positions, strict=True):
        row[list(at)] = True
    return marks.to(like.device)
