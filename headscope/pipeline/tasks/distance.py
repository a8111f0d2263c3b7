"""How far a pruned model's outputs are from the unpruned model's, without any label."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from headscope.data.batches import buckets
from headscope.data.pair_rows import padded
from headscope.data.token_rows import Padded, Row
from headscope.measures.pooling import cosine, wide
from headscope.models.intervene import gated
from headscope.models.loaded import LoadedModel
from headscope.models.task_heads import Joined, Select

#: Task heads that make a token at each position that a batch asks for.
TOKEN_HEADS = ("mlm", "seq2seq")


class Distance:
    """Cosine of embeddings, and KL of the head's outputs, to a reference model.

    Parameters
    ----------
    rows : sequence of Row
        With masked positions for a masked language model: its outputs mean something there. Pairs
        for an encoder-decoder model, whose states and outputs are the decoder's.
    reference : LoadedModel
        The unpruned model; run once over the rows when the distance is first asked for.
    """

    def __init__(self, rows: Sequence[Row], reference: LoadedModel) -> None:
        self.head = reference.task_head
        self._rows, self._reference = rows, reference
        self._pooled: Tensor | None = None
        #: Per row: the logits (classification), or the hidden states at masked or target positions,
        #: from which the head makes its logits anew: they are 80 times as large.
        self._outputs: list[Tensor] = []

    def select(self, batch: Padded) -> Select | None:
        """Return what the head of the other model is to get."""
        if self.head not in TOKEN_HEADS:
            return None
        self._prepared()
        theirs = torch.cat([self._outputs[i] for i in batch.index])
        return Joined(partial(at_masks, batch), theirs, partial(self._logits, batch, theirs))

    def _logits(self, batch: Padded, states: Tensor) -> Tensor:
        """Let the unpruned model's head read its states once more: (masked, classes)."""
        with torch.no_grad():
            _, logits = self._reference.run(
                *batch.inputs, **batch.decoder_inputs, select=lambda hidden: states[None]
            )
        assert logits is not None
        return logits[0]

    def measure(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        """Return ``cosine`` and, with a head, ``kl`` (nats): (batch,) each, differentiable."""
        ours = self._reference.pooling.embed(hidden, batch.hidden_mask)
        theirs = self._prepared()[batch.index].to(ours)
        found = {"cosine": cosine(ours, theirs, precise=False)}
        if logits is not None and self.head is not None:
            found["kl"] = self._kl(batch, logits)
        return found

    def constant(self) -> bool:
        """Whether the reference model's embeddings are the same for every row."""
        pooled = self._prepared()
        return bool((pooled == pooled[:1]).all())

    def _kl(self, batch: Padded, logits: Tensor) -> Tensor:
        """KL(unpruned || this model) of each row; a mean over its masks for a language model."""
        if self.head in TOKEN_HEADS:
            ours, theirs = wide(logits[0]).log_softmax(-1).chunk(2)
            return by_row(batch, _kl(theirs, ours))
        stored = torch.stack([self._outputs[i] for i in batch.index])
        return _kl(wide(stored).log_softmax(-1), wide(logits).log_softmax(-1))

    def _prepared(self) -> Tensor:
        """Run the reference model, once; returns its embeddings (rows, d)."""
        if self._pooled is not None:
            return self._pooled
        loaded = self._reference
        states: list[Tensor] = [torch.empty(0)] * len(self._rows)
        outputs: list[Tensor] = [torch.empty(0)] * len(self._rows)
        with gated(loaded) as run:
            for part in buckets(self._rows):
                batch = padded(part, loaded.pad_id, loaded.device)
                by_token = self.head in TOKEN_HEADS
                few = one_position if by_token else None
                hidden, logits = run(*batch.inputs, **batch.decoder_inputs, select=few)
                kept = at_masks(batch, hidden) if by_token else logits
                split = _split(batch, kept) if kept is not None else [torch.empty(0)] * len(part)
                pooled = loaded.pooling.embed(hidden, batch.hidden_mask)
                for i, state, output in zip(batch.index, pooled, split, strict=True):
                    states[i], outputs[i] = state, output
        self._pooled, self._outputs = torch.stack(states), outputs
        return self._pooled


def one_position(hidden: Tensor) -> Tensor:
    """Leave the head next to nothing to do, where its outputs are not asked for."""
    return hidden[:1, :1]


def at_masks(batch: Padded, hidden: Tensor) -> Tensor:
    """Pick the states at masked (or target) positions, row by row: (masked, d_model)."""
    return hidden[batch.masked[0], batch.masked[1]]


def by_row(batch: Padded, values: Tensor) -> Tensor:
    """Mean of one value per masked position over each row's positions: (batch,)."""
    size = len(batch.index)
    total = values.new_zeros(size).index_add(0, batch.masked[0], values)
    return total / torch.bincount(batch.masked[0], minlength=size).clamp(min=1)


def _kl(reference: Tensor, other: Tensor) -> Tensor:
    """KL divergence over the last axis, of log-probabilities."""
    return (reference.exp() * (reference - other)).sum(dim=-1)


def _split(batch: Padded, values: Tensor) -> Sequence[Tensor]:
    """Cut what belongs to the batch's rows apart: by row, or by each row's masks."""
    if len(values) == len(batch.index) and not batch.masked.numel():
        return list(values)
    sizes = torch.bincount(batch.masked[0], minlength=len(batch.index))
    return torch.split(values, sizes.tolist())
