"""Sequences of token ids as a task's model reads them, with masked positions where it predicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headscope.data.pieces import TextModel, frame, token_stream, tokenise
from headscope.measures.accumulator import Array

#: Share of a row's content tokens that are replaced by the mask token (Devlin et al. 2018).
MASKED_SHARE = 0.15


@dataclass(frozen=True)
class Row:
    """One sequence with its special tokens.

    Attributes
    ----------
    index : int
        Its place among all rows of the task.
    ids : tuple of int
        Token ids, special tokens included.
    types : tuple of int or None
        Token types, for pairs of models that have them.
    content : tuple of int
        Positions that are no special token.
    masked : tuple of int
        Positions whose token was replaced by the mask token.
    gold : tuple of int
        The tokens that stood there.
    """

    index: int
    ids: tuple[int, ...]
    types: tuple[int, ...] | None
    content: tuple[int, ...]
    masked: tuple[int, ...] = ()
    gold: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Padded:
    """Rows as tensors.

    Attributes
    ----------
    index : array of int, (batch,)
        The place of each row among all rows of the task.
    input_ids, attention_mask : Tensor, (batch, pos), int64
        Token ids; 1 for tokens and 0 for padding.
    token_type_ids : Tensor, (batch, pos), or None
        0 or 1 for the first or second text of a pair.
    masked : Tensor, (2, masked)
        Row and position of every masked token, row by row.
    gold : Tensor, (masked,)
        The token ids that stood there.
    """

    index: Array
    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor | None
    masked: Tensor
    gold: Tensor

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """What a model is called with."""
        return self.input_ids, self.attention_mask, self.token_type_ids

    @property
    def decoder_inputs(self) -> dict[str, Tensor]:
        """What a model with a decoder is called with besides, by name."""
        return {}

    @property
    def hidden_mask(self) -> Tensor:
        """1 where the last hidden state belongs to a token, 0 where it belongs to padding."""
        return self.attention_mask

    def queries_of(self, stack: str) -> Tensor:
        """(batch, pos): 1 where a query of this stack's attention belongs to a token."""
        return self.attention_mask


def encode_rows(
    model: TextModel, first: Sequence[str], second: Sequence[str] | None
) -> Iterator[Row | None]:
    """Yield each text (or pair) as a row, or None where it is longer than allowed; never cut.

    Texts are encoded by :func:`~headscope.data.pieces.tokenise`, whose errors pass.
    """
    typed = second is not None and "token_type_ids" in model.tokenizer.model_input_names
    for i, encoding in enumerate(tokenise(model, first, pairs=second)):
        if len(encoding.ids) > model.max_length:
            yield None
            continue
        special = encoding.special_tokens_mask
        content = tuple(p for p, is_special in enumerate(special) if not is_special)
        types = tuple(encoding.type_ids) if typed else None
        yield Row(i, tuple(encoding.ids), types, content)


def window_rows(model: TextModel, lines: Iterable[str], *, length: int, count: int) -> list[Row]:
    """Cut text into windows of exactly ``length`` tokens, and take the first ``count`` of them.

    Lines are tokenised one by one without special tokens and joined into one stream; window i
    covers stream tokens [i (n - s), (i + 1)(n - s)) with the model's s special tokens around them;
    a partial last window is dropped. Errors are those of :func:`~headscope.data.pieces.frame` and
    :func:`~headscope.data.pieces.tokenise`.
    """
    around = frame(model, length)
    content = tuple(range(len(around.before), len(around.before) + around.width))
    stream = token_stream(model, lines)
    rows: list[Row] = []
    while len(rows) < count:
        window = tuple(islice(stream, around.width))
        if len(window) < around.width:
            break
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


def pad_rows(rows: Sequence[Row], pad_id: int, device: str) -> Padded:
    """Right-pad rows into one batch."""
    masked = [(i, position) for i, row in enumerate(rows) for position in row.masked]
    lengths = torch.tensor([len(row.ids) for row in rows])
    types = None
    if rows[0].types is not None:
        types = filled([row.types or () for row in rows], 0).to(device)
    return Padded(
        index=np.array([row.index for row in rows]),
        input_ids=filled([row.ids for row in rows], pad_id).to(device),
        attention_mask=(torch.arange(int(lengths.max())) < lengths[:, None]).long().to(device),
        token_type_ids=types,
        masked=torch.tensor(masked, dtype=torch.long).reshape(-1, 2).t().to(device),
        gold=torch.tensor([t for row in rows for t in row.gold], dtype=torch.long).to(device),
    )


def filled(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """Right-pad sequences of numbers: (batch, longest), int64."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=fill)
