"""Which positions a task's head reads, and what it makes of them.

A batch of rows is a :class:`Padded`. ``batch.masked`` (2, predicted) has the row and the position
of every token that is to be predicted: masked tokens, words that get a tag, or targets of a
decoder. With [[0, 0, 1], [2, 5, 3]] these are tokens 2 and 5 of row 0, and token 3 of row 1.

A *select* function takes hidden states (batch, pos, d_model) and returns those that the head is to
read, in the same form; a language model's head is costly, so it reads only what is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.core.errors import InputError
from headscope.core.widest import wide
from headscope.data.token_rows import Padded
from headscope.models.run.task_heads import Select

#: Task heads that predict a token, or a tag, at each position in ``batch.masked``.
TOKEN_HEADS = ("mlm", "seq2seq", "token-classification", "causal")
#: The task head that says where an answer begins and where it ends, each one of all positions.
SPAN_HEAD = "question-answering"


def need_logits(logits: Tensor | None) -> Tensor:
    """Refuse a model without a head where the task reads it."""
    if logits is None:
        raise InputError("This model has lost its task head; load it with task_head='auto'.")
    return logits


def one_position(hidden: Tensor) -> Tensor:
    """Select a single position, where the head's outputs are not needed: (1, 1, d_model)."""
    return hidden[:1, :1]


def at_masks(batch: Padded, hidden: Tensor) -> Tensor:
    """Pick the states at masked (or target) positions, row by row: (predicted, d_model)."""
    rows, positions = batch.masked
    return hidden[rows, positions]


def mean_by_row(batch: Padded, values: Tensor) -> Tensor:
    """Average values of masked positions over each row's positions: (predicted,) -> (batch,)."""
    n_rows = len(batch.index)
    rows, _ = batch.masked
    total = values.new_zeros(n_rows).index_add(0, rows, values)
    count = torch.bincount(rows, minlength=n_rows)
    return total / count.clamp(min=1)


def by_row(batch: Padded, values: Tensor, longest: int | None = None) -> Tensor:
    """Lay out values of masked positions by row: (predicted, ...) -> (batch, longest, ...).

    Rows with fewer than ``longest`` positions, by default the most that a row has, end in 0.
    """
    rows = batch.masked[0]  # [0, 0, 1, 1, 1], say
    n_rows = len(batch.index)
    counts = torch.bincount(rows, minlength=n_rows)  # [2, 3]
    first_of_row = counts.cumsum(0) - counts  # [0, 2]
    number_in_row = torch.arange(len(rows), device=rows.device) - first_of_row[rows]  # 0 1 0 1 2
    table = values.new_zeros(n_rows, longest or int(counts.max()), *values.shape[1:])
    return table.index_put((rows, number_in_row), values)


def select_masks(batch: Padded) -> Select | None:
    """Return what selects masked (or target) positions; None where the batch has none."""
    if not batch.masked.numel():
        return None
    return lambda hidden: at_masks(batch, hidden)[None]


def spans(logits: Tensor, mask: Tensor) -> Tensor:
    """Return log-probabilities of an answer's begin and end, (batch, pos, 2); 0 at padding.

    ``mask`` (batch, pos) is 1 for tokens.
    """
    padding = ~mask.bool()[..., None]
    scores = wide(logits).masked_fill(padding, -torch.inf)
    return scores.log_softmax(dim=1).masked_fill(padding, 0)
