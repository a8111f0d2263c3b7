"""How far the outputs of a changed model are from those of the whole one, the reference.

The reference runs once, when its outputs are first asked for (:meth:`Distance.embeddings`); what
it gave is compared with any number of changed models by :meth:`Distance.measure`.

There are three kinds of task heads. A head for whole rows makes (rows, classes); one for tokens
makes (masked, classes), where *masked* are the positions that are to be predicted; one for spans
makes (rows, pos, 2), where an answer begins and ends. What a causal language model predicts at
every position is too large to be held: its distances are computed in slices of positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from threading import RLock

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headscope.core.widest import wide
from headscope.data.batches import buckets
from headscope.data.token_rows import Padded, Row, padded
from headscope.models.run.head_outputs import HeadOutputs, head_outputs, spread_of
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.pooling import cosine
from headscope.models.run.task_heads import InSlices, Joined, Select
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
    """Cosine of embeddings, and distance of the head's outputs, to a reference model.

    ``rows`` are the texts, as token ids, that the models are compared on.
    """

    def __init__(self, rows: Sequence[Row], reference: LoadedModel) -> None:
        self.head = reference.task_head
        self.head_outputs = head_outputs(reference)
        self.outputs_name = self.head_outputs.distance_name  # Of the distance of outputs: "kl", say
        self._rows = rows
        self._reference = reference
        #: Changed models are measured on several threads, each on modules of its own; the reference
        #: is one for all, and to run it, or its head, exchanges forwards of its modules.
        self._reference_lock = RLock()
        self._embeddings: Tensor | None = None
        #: Of each row: the logits; with a head for tokens, the hidden states at masked positions
        #: instead, from which the head makes the logits anew, as these are 80 times as large in a
        #: language model.
        self._outputs: list[Tensor] = []

    def select(self, batch: Padded) -> Select | InSlices | None:
        """Return which states a changed model's head for tokens reads; None for other heads.

        It reads its own states at masked positions, and behind them those of the reference, so that
        one pass of the head gives the logits of both. Of a causal language model it is the distance
        that is read, slice by slice.
        """
        if self.head not in TOKEN_HEADS:
            return None
        self.embeddings()
        reference_states = torch.cat([self._outputs[i] for i in batch.index])
        if self.head == "causal":
            return InSlices(partial(at_masks, batch), partial(self._divergence, reference_states))

        def reference_logits() -> Tensor:
            """Let the reference's head read its states once more: (masked, classes).

            Asked for where a head cannot read joined states, as in an exported graph.
            """
            with self._reference_lock, torch.no_grad():
                _, logits = self._reference.run(
                    *batch.inputs,
                    **batch.decoder_inputs,
                    select=lambda hidden: reference_states[None],
                )
            assert logits is not None
            return logits[0]

        return Joined(partial(at_masks, batch), reference_states, reference_logits)

    def _divergence(self, reference_states: Tensor, logits: Tensor, positions: slice) -> Tensor:
        """Return how far logits (n, classes) are from the reference's at these positions."""
        with self._reference_lock, torch.no_grad():
            reference = self._reference.logits_of(reference_states[positions])
        return self.head_outputs.distance(wide(reference), wide(logits))

    def measure(
        self, batch: Padded, hidden: Tensor, logits: Tensor | None, *, spread: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the ``cosine`` of embeddings and, with a head, the distance of its outputs.

        (batch,) each, by name (:attr:`outputs_name`), and differentiable. With a head for tokens
        the distance is the mean over a row's masked positions. Where outputs are plain numbers it
        is in units of their standard deviation ``spread``, if that is given.
        """
        embedding = self._reference.pooling.embed(hidden, batch.hidden_mask)
        reference_embedding = self.embeddings()[batch.index].to(embedding)
        distances = {"cosine": cosine(embedding, reference_embedding, precise=False)}
        if logits is not None and self.head is not None:
            distances[self.outputs_name] = self._between_outputs(batch, logits, spread)
        return distances

    def _between_outputs(self, batch: Padded, logits: Tensor, spread: Tensor | None) -> Tensor:
        """Return the distance of this model's outputs from the reference model's, (batch,).

        With a head for tokens ``logits`` are those of both models, as :meth:`select` joins them; of
        a causal language model they are the distances at each position.
        """
        if self.head == "causal":
            return mean_by_row(batch, logits)
        if self.head in TOKEN_HEADS:
            changed, reference = wide(logits[0]).chunk(2)
            return mean_by_row(batch, self.head_outputs.distance(reference, changed))
        stored = [self._outputs[i] for i in batch.index]
        if self.head == SPAN_HEAD:
            reference_logits = pad_sequence(stored, batch_first=True).to(logits)
            reference = spans(reference_logits, batch.attention_mask)  # log-probabilities
            changed = spans(logits, batch.attention_mask)
            # The mean of the KL of begins and of ends.
            return (reference.exp() * (reference - changed)).sum(dim=(1, 2)) / 2
        return self.head_outputs.distance(wide(torch.stack(stored)), wide(logits), spread)

    def logits(self) -> Tensor:
        """Return the reference model's logits of whole rows, (rows, classes)."""
        self.embeddings()
        return torch.stack(self._outputs)

    @cached_property
    def spread(self) -> Tensor | None:
        """Standard deviation of the reference model's outputs over the rows, (outputs,).

        The unit of outputs that are plain numbers, where their change is added to another distance;
        None for classes and labels.
        """
        if self.head_outputs is not HeadOutputs.NUMBERS or self.head != "classification":
            return None
        return spread_of(wide(self.logits()))

    def constant(self) -> bool:
        """Whether the reference model's embeddings are the same for every row."""
        embeddings = self.embeddings()
        return bool((embeddings == embeddings[:1]).all())

    def embeddings(self) -> Tensor:
        """Run the reference model if it has not run yet; return its embeddings (rows, d)."""
        with self._reference_lock:
            if self._embeddings is None:
                self._embeddings, self._outputs = self._run_reference()
            return self._embeddings

    def _run_reference(self) -> tuple[Tensor, list[Tensor]]:
        """Return the reference model's embeddings (rows, d), and what is kept of its outputs."""
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
        return torch.stack(embeddings), outputs


def _split(batch: Padded, values: Tensor) -> Sequence[Tensor]:
    """Split what a head makes of a batch, or reads, into what belongs to each row.

    ``values`` are (masked, ...) of a head for tokens, (rows, classes) of one for whole rows, and
    (rows, pos, 2) of one for spans, of which those at padding are left out.
    """
    has_an_entry_a_row = len(values) == len(batch.index) and not batch.masked.numel()
    if not has_an_entry_a_row:
        masked_of_row = torch.bincount(batch.masked[0], minlength=len(batch.index))
        return torch.split(values, masked_of_row.tolist())
    if values.dim() < 3:
        return list(values)
    lengths = batch.attention_mask.sum(dim=1).tolist()
    return [row[:length] for row, length in zip(values, lengths, strict=True)]
