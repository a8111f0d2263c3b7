"""Which positions a task's head reads, and what it makes of them."""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.core.errors import InputError
from headscope.data.token_rows import Padded
from headscope.models.run.pooling import wide
from headscope.models.run.task_heads import Select

#: Task heads that make a token, or a tag, at each position that a batch asks for.
TOKEN_HEADS = ("mlm", "seq2seq", "token-classification")
#: The task head that says where an answer begins and ends: it chooses one of all positions.
SPAN_HEAD = "question-answering"


def need_logits(logits: Tensor | None) -> Tensor:
    """Refuse a model without a head where the task reads it."""
    if logits is None:
        raise InputError("This model has lost its task head; load it with task_head='auto'.")
    return logits


def one_position(hidden: Tensor) -> Tensor:
    """Select one position for the head, where its outputs are not needed."""
    return hidden[:1, :1]


def at_masks(batch: Padded, hidden: Tensor) -> Tensor:
    """Pick the states at masked (or target) positions, row by row: (masked, d_model)."""
    return hidden[batch.masked[0], batch.masked[1]]


def mean_by_row(batch: Padded, values: Tensor) -> Tensor:
    """Average one value per masked position over each row's positions: (batch,)."""
    size = len(batch.index)
    total = values.new_zeros(size).index_add(0, batch.masked[0], values)
    return total / torch.bincount(batch.masked[0], minlength=size).clamp(min=1)


def select_masks(batch: Padded) -> Select | None:
    """Let the head of a language model see masked (or target) positions only."""
    if not batch.masked.numel():
        return None
    return lambda hidden: at_masks(batch, hidden)[None]


def spans(logits: Tensor, mask: Tensor) -> Tensor:
    """Return log-probabilities of an answer's begin and end, (batch, pos, 2); 0 at padding."""
    padding = ~mask.bool()[..., None]
    return wide(logits).masked_fill(padding, -torch.inf).log_softmax(dim=1).masked_fill(padding, 0)
