"""Sequences of token ids as a task's model reads them, with masked positions where it predicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.errors import CorpusError, InputError

__all__ = ["MASKED_SHARE", "Padded", "Row", "encode_rows", "mask_row", "pad_rows", "window_rows"]

#: Share of a row's content tokens that are replaced by the mask token (Devlin et al. 2018).
MASKED_SHARE = 0.15
_AT_ONCE = 256


@dataclass(frozen=True)
class Row:
    """One sequence with its special tokens.

    Attributes
    ----------
    index : int
        Its place among all rows of the task.
    ids : tuple of int
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
    input_ids, attention_mask : Tensor, (batch, pos), int64
    token_type_ids : Tensor, (batch, pos), or None
    masked : Tensor, (2, masked)
        Row and position of every masked token, row by row.
    gold : Tensor, (masked,)
    """

    index: Any
    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor | None
    masked: Tensor
    gold: Tensor

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """What a model is called with."""
        return self.input_ids, self.attention_mask, self.token_type_ids


def encode_rows(
    tokenizer: Any,
    first: Sequence[str],
    second: Sequence[str] | None,
    *,
    max_length: int,
    vocab_size: int,
) -> Iterator[Row | None]:
    """Yield each text (or pair) as a row, or None where it is longer than allowed; never cut.

    Raises
    ------
    CorpusError
        If the tokenizer gives an id that the embedding lacks.
    """
    for start in range(0, len(first), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        encoded = tokenizer(
            list(first[part]), None if second is None else list(second[part]),
            truncation=False, padding=False, verbose=False, return_special_tokens_mask=True,
        )  # fmt: skip
        types = encoded.get("token_type_ids") if second is not None else None
        for i, ids in enumerate(encoded["input_ids"]):
            check_ids(ids, vocab_size)
            special = encoded["special_tokens_mask"][i]
            row = Row(
                index=start + i,
                ids=tuple(ids),
                types=None if types is None else tuple(types[i]),
                content=tuple(p for p, is_special in enumerate(special) if not is_special),
            )
            yield row if len(row) <= max_length else None


def check_ids(ids: Sequence[int], vocab_size: int) -> None:
    """Refuse token ids that the embedding has no row for."""
    if max(ids, default=0) >= vocab_size:
        raise CorpusError(
            f"The tokenizer gives token id {max(ids)}, but the model's embedding has {vocab_size} "
            "rows; tokenizer and weights do not belong together."
        )


def window_rows(
    tokenizer: Any, lines: Iterable[str], *, length: int, count: int, vocab_size: int
) -> list[Row]:
    """Cut text into windows of exactly ``length`` tokens, and take the first ``count`` of them.

    Lines are tokenised one by one without special tokens and joined into one stream; window i
    covers stream tokens [i (n - s), (i + 1)(n - s)) with the model's s special tokens around them;
    a partial last window is dropped.
    """
    before, after = _special_ids(tokenizer)
    width = length - len(before) - len(after)
    content = tuple(range(len(before), len(before) + width))
    stream = _stream(tokenizer, lines, vocab_size)
    rows: list[Row] = []
    while len(rows) < count and len(window := tuple(islice(stream, width))) == width:
        rows.append(Row(len(rows), (*before, *window, *after), None, content))
    return rows


def _special_ids(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Special tokens that the tokenizer puts before and after a sequence."""
    encoded = tokenizer(["a"], return_special_tokens_mask=True, verbose=False)
    ids, special = encoded["input_ids"][0], encoded["special_tokens_mask"][0]
    inner = [i for i, is_special in enumerate(special) if not is_special]
    if not inner:
        raise InputError("The tokenizer gives no token for the letter a; it cannot be used here.")
    return tuple(ids[: inner[0]]), tuple(ids[inner[-1] + 1 :])


def _stream(tokenizer: Any, lines: Iterable[str], vocab_size: int) -> Iterator[int]:
    source = iter(lines)
    while chunk := list(islice(source, _AT_ONCE)):
        encoded = tokenizer(chunk, add_special_tokens=False, truncation=False, verbose=False)
        for ids in encoded["input_ids"]:
            check_ids(ids, vocab_size)
            yield from ids


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
    return replace(
        row, ids=tuple(ids), masked=masked, gold=tuple(row.ids[position] for position in masked)
    )


def pad_rows(rows: Sequence[Row], pad_id: int, device: str) -> Padded:
    """Right-pad rows into one batch."""
    longest = max(map(len, rows))
    masked = [(i, position) for i, row in enumerate(rows) for position in row.masked]
    lengths = torch.tensor([len(row) for row in rows])
    types = None
    if rows[0].types is not None:
        types = _filled([row.types or () for row in rows], longest, 0).to(device)
    return Padded(
        index=np.array([row.index for row in rows]),
        input_ids=_filled([row.ids for row in rows], longest, pad_id).to(device),
        attention_mask=(torch.arange(longest) < lengths[:, None]).long().to(device),
        token_type_ids=types,
        masked=torch.tensor(masked, dtype=torch.long).reshape(-1, 2).t().to(device),
        gold=torch.tensor([t for row in rows for t in row.gold], dtype=torch.long).to(device),
    )


def _filled(rows: Sequence[Sequence[int]], longest: int, fill: int) -> Tensor:
    out = torch.full((len(rows), longest), fill, dtype=torch.long)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row, dtype=torch.long)
    return out
