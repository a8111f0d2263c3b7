"""How far the outputs of a changed model are from those of the whole one, the reference.

The reference runs once, when its outputs are first asked for (:meth:`Distance.embeddings`); what
it gave is compared with any number of changed models.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headscope.data.batches import buckets
from headscope.data.token_rows import Padded, Row, padded
from headscope.models.run.head_outputs import HeadOutputs, head_outputs, spread_of
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.pooling import cosine, wide
from headscope.models.run.task_heads import Joined, Select
from headscope.models.surgery.output_maps import original_outputs
from headscope.tasks.positions import (
    SPAN_HEAD,
    TOKEN_HEADS,
    at_masks,
    mean_by_row,
    one_position,
    spans,
)


class Distance:
    """Cosine of embeddings, and distance of the head's outputs, to a reference model."""

    def __init__(self, rows: Sequence[Row], reference: LoadedModel) -> None:
        self.head = reference.task_head
        self.head_outputs = head_outputs(reference)
        self.outputs_name = self.head_outputs.distance_name  # Name of the distance of outputs
        self._rows = rows
        self._reference = reference
        self._embeddings: Tensor | None = None
        #: Per row: the logits (of classes, or of where an answer begins and ends), or the hidden
        #: states at masked, target or tagged positions, from which the head makes its logits anew:
        #: those of a language model are 80 times as large.
        self._outputs: list[Tensor] = []

    def select(self, batch: Padded) -> Select | None:
        """Return what a changed model's head reads; None of a head that reads whole rows.

        It reads the states at masks, and behind them those of the reference, so that one pass of
        the head gives the logits of both.
        """
        if self.head not in TOKEN_HEADS:
            return None
        self.embeddings()
        reference_states = torch.cat([self._outputs[i] for i in batch.index])

        def reference_logits() -> Tensor:
            """Let the unpruned model's head read its states once more: (masked, classes)."""
            with torch.no_grad():
                _, logits = self._reference.run(
                    *batch.inputs,
                    **batch.decoder_inputs,
                    select=lambda hidden: reference_states[None],
                )
            assert logits is not None
            return logits[0]

        return Joined(partial(at_masks, batch), reference_states, reference_logits)

    def measure(
        self, batch: Padded, hidden: Tensor, logits: Tensor | None, *, spread: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return ``cosine`` and, with a head, what :attr:`outputs_name` names: (batch,) each.

        Both are differentiable. The distance of a language model's outputs is the mean over the
        masks of a row; that of numbers is in units of their ``spread`` where that is given.
        """
        embedding = self._reference.pooling.embed(hidden, batch.hidden_mask)
        reference_embedding = self.embeddings()[batch.index].to(embedding)
        distances = {"cosine": cosine(embedding, reference_embedding, precise=False)}
        if logits is not None and self.head is not None:
            distances[self.outputs_name] = self._between_outputs(batch, logits, spread)
        return distances

    def _between_outputs(self, batch: Padded, logits: Tensor, spread: Tensor | None) -> Tensor:
        """Return the distance of this model's outputs from the reference model's, (batch,).

        With a head for tokens ``logits`` are those of both models, as :meth:`select` joins them.
        """
        if self.head in TOKEN_HEADS:
            changed, reference = wide(logits[0]).chunk(2)
            return mean_by_row(batch, self.head_outputs.distance(reference, changed))
        stored = [self._outputs[i] for i in batch.index]
        if self.head == SPAN_HEAD:
            reference_logits = pad_sequence(stored, batch_first=True).to(logits)
            reference = spans(reference_logits, batch.attention_mask)
            changed = spans(logits, batch.attention_mask)
            return (reference.exp() * (reference - changed)).sum(dim=(1, 2)) / 2
        return self.head_outputs.distance(wide(torch.stack(stored)), wide(logits), spread)

    def logits(self) -> Tensor:
        """Return the reference model's logits of whole rows, (rows, classes)."""
        self.embeddings()
        return torch.stack(self._outputs)

    @cached_property
    def spread(self) -> Tensor | None:
        """The unit of numbers where their change is added to another distance, (outputs,).

        Their standard deviation over the rows, of the reference model; None for other outputs.
        """
        if self.head_outputs is not HeadOutputs.NUMBERS or self.head != "classification":
            return None
        return spread_of(wide(self.logits()))

    def constant(self) -> bool:
        """Whether the reference model's embeddings are the same for every row."""
        embeddings = self.embeddings()
        return bool((embeddings == embeddings[:1]).all())

    def embeddings(self) -> Tensor:
        """Run the reference model, once; returns its embeddings (rows, d)."""
        if self._embeddings is not None:
            return self._embeddings
        loaded = self._reference
        reads_tokens = self.head in TOKEN_HEADS
        select = one_position if reads_tokens else None
        embeddings: list[Tensor] = [torch.empty(0)] * len(self._rows)
        outputs: list[Tensor] = [torch.empty(0)] * len(self._rows)
        with original_outputs(loaded), gated(loaded) as run:
            for rows in buckets(self._rows):
                batch = padded(rows, loaded.pad_id, loaded.device)
                hidden, logits = run(*batch.inputs, **batch.decoder_inputs, select=select)
                batch_embeddings = loaded.pooling.embed(hidden, batch.hidden_mask)
                for i, embedding in zip(batch.index, batch_embeddings, strict=True):
                    embeddings[i] = embedding
                batch_outputs = at_masks(batch, hidden) if reads_tokens else logits
                if batch_outputs is not None:
                    row_outputs = _split(batch, batch_outputs)
                    for i, output in zip(batch.index, row_outputs, strict=True):
                        outputs[i] = output
        self._embeddings = torch.stack(embeddings)
        self._outputs = outputs
        return self._embeddings


def _split(batch: Padded, values: Tensor) -> Sequence[Tensor]:
    """Split a head's outputs by the batch's rows: (rows, ...), or of masks (masked, ...).

    Of outputs at all positions, (rows, pos, ...), those at padding are left out.
    """
    by_rows = len(values) == len(batch.index) and not batch.masked.numel()
    if by_rows and values.dim() < 3:
        return list(values)
    if by_rows:
        lengths = batch.attention_mask.sum(dim=1).tolist()
        return [row[:length] for row, length in zip(values, lengths, strict=True)]
    sizes = torch.bincount(batch.masked[0], minlength=len(batch.index))
    return torch.split(values, sizes.tolist())
