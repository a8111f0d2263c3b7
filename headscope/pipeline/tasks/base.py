"""What all tasks share: examples, tokenised once, that any version of the model is run on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.data.batches import BATCH_TOKENS, buckets
from headscope.data.examples import Examples
from headscope.data.pair_rows import padded
from headscope.data.token_rows import Padded, Row
from headscope.errors import InputError
from headscope.measures.accumulator import Array, numpy
from headscope.measures.metrics import Metric, Outputs, resampled
from headscope.measures.paired_change import Change, Estimate, interval_of, paired_change
from headscope.models.intervene import Run, gated
from headscope.models.loaded import LoadedModel
from headscope.models.task_heads import Select
from headscope.pipeline.tasks.distance import Distance, at_masks
from headscope.pipeline.tasks.losses import LossBatch, Read
from headscope.processes.sharing import joined_rows, share


class Task:
    """Examples of one kind and the metrics that a model earns on them.

    Parameters
    ----------
    examples : Examples
        What is measured on, as it was read.
    loaded : LoadedModel
        The unpruned model: what label-free distances are measured to.
    rows : sequence of Row
        Numbered from 0 without gaps.
    skipped : int
        Examples that are no rows, because they are longer than the model's limit.

    Attributes
    ----------
    name : str
        fidelity, mlm, classification, similarity or seq2seq.
    higher_is_better : bool
        Whether a larger value is a better model.
    has_labels : bool
        Whether :meth:`loss_batches` can use labels.
    n_examples : int
        Measured examples.
    data : Examples
        As given.
    pooling : Pooling
        How every version of the model makes an embedding of a row: as the unpruned model does.
    notes : tuple of str
        Sentences about what a metric cannot say of these examples.
    """

    name: ClassVar[str]
    higher_is_better: ClassVar[bool] = True
    has_labels: ClassVar[bool] = True
    notes: tuple[str, ...] = ()
    #: All metrics by name; the first is the task's value.
    table: Mapping[str, Metric]

    def __init__(
        self, examples: Examples, loaded: LoadedModel, rows: Sequence[Row], skipped: int
    ) -> None:
        self.data = examples
        self.rows = rows
        self.n_examples = len(rows)
        self.skipped = skipped
        self.pooling = loaded.pooling
        self.distance = Distance(rows, loaded)

    @property
    def metric(self) -> str:
        """Name of the task's value."""
        return next(iter(self.table))

    @property
    def rows_of_examples(self) -> Sequence[Sequence[Row]]:
        """The rows that each measured example is made of."""
        return [(row,) for row in self.rows]

    # --- measuring ----------------------------------------------------------------------------

    def outputs(
        self, loaded: LoadedModel, gates: Tensor | None = None, *, all_metrics: bool = False
    ) -> dict[str, Array]:
        """Run a model over all examples; per-example arrays in the order of the examples.

        Parameters
        ----------
        loaded : LoadedModel
            The model, or a pruned copy of it.
        gates : Tensor, (n_layers, n_heads), optional
            Multiply each head's z.
        all_metrics : bool
            Also find out what metrics need that cost far more than the task's value. Without it
            :meth:`metrics` leaves those out.
        """
        with gated(loaded, gates) as run:
            return self.outputs_of(run, share(self.batches(loaded)))

    def outputs_of(self, run: Run, batches: Iterable[Padded]) -> dict[str, Array]:
        """Do the same with anything that runs as :meth:`LoadedModel.run` does.

        Parameters
        ----------
        run : callable
            Takes what :meth:`LoadedModel.run` takes and returns the same.
        batches : iterable of Padded
            What :meth:`batches` gave: every row once, in one of the processes that share the run.
        """
        place: list[Array] = []
        found: dict[str, list[Array]] = {}
        for batch in batches:
            given = {**batch.decoder_inputs, "select": self._select(batch)}
            read = self._read(batch, *run(*batch.inputs, **given))
            place.append(np.asarray(batch.index, dtype=np.int64))
            for name, values in read.items():
                found.setdefault(name, []).append(numpy(values))
        return self._by_example(joined_rows(self.name, place, found, len(self.rows)))

    def value(self, outputs: Outputs) -> float:
        """Return the task's value of what :meth:`outputs` gave."""
        return self.metrics(outputs)[self.metric]

    def metrics(self, outputs: Outputs) -> dict[str, float]:
        """Return every metric by name, of all examples or some; rates are times 100."""
        ones = np.ones((1, len(next(iter(outputs.values())))))
        return {name: float(metric(outputs, ones)[0]) for name, metric in self.table.items()}

    def interval(self, outputs: Outputs, *, seed: int = 0, values: Array | None = None) -> Estimate:
        """Return the task's value with its interval; ``values`` are what :meth:`resampled` gave."""
        return interval_of(self.table[self.metric], outputs, seed=seed, values=values)

    def change(
        self,
        baseline: Outputs,
        outputs: Outputs,
        *,
        seed: int = 0,
        drawn: Array | None = None,
        values: Array | None = None,
    ) -> Change:
        """Return how the task's value differs from another model's on the same examples.

        ``difference`` is value minus the baseline's, whichever direction is better; ``drawn`` is
        what :meth:`resampled` gave for the baseline, ``values`` what it gave for these outputs.
        """
        metric = self.table[self.metric]
        return paired_change(metric, baseline, outputs, seed=seed, drawn=drawn, values=values)

    def resampled(self, outputs: Outputs, *, seed: int = 0) -> Array:
        """Return the task's value of every bootstrap resample, (resamples,)."""
        return resampled(self.table[self.metric], outputs, seed=seed)

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say what makes a model's value meaningless: outputs that do not depend on the text.

        The answer continues "the unpruned model ..."; None for a model that reads its input.
        """
        raise NotImplementedError

    # --- differentiating ----------------------------------------------------------------------

    def loss_batches(self, loaded: LoadedModel, *, labels: bool = True) -> Iterator[LossBatch]:
        """Yield batches whose loss can be differentiated by gates.

        Parameters
        ----------
        loaded : LoadedModel
            The unpruned model; gates are what prunes it.
        labels : bool
            Use the task's labels if it has any. Otherwise the loss is the distance to the unpruned
            model's own outputs, which is zero, with zero gradient, while all gates are 1.
        """
        if labels and self.has_labels:
            return self._labelled_batches(loaded)
        return self._batches_of(loaded, self._label_free_loss, self.distance.select)

    def _labelled_batches(self, loaded: LoadedModel) -> Iterator[LossBatch]:
        return self._batches_of(loaded, self._loss, _select_masks)

    def _batches_of(
        self, loaded: LoadedModel, loss: Read, select: Callable[[Padded], Select | None]
    ) -> Iterator[LossBatch]:
        for batch in self.batches(loaded):
            owner = torch.arange(len(batch.index), device=loaded.device)
            yield LossBatch(
                loaded,
                batch,
                owner,
                loss=loss,
                embed=self._embed,
                select_loss=select(batch),
                select_embed=self._select_embed(batch),
            )

    # --- what tasks differ in -----------------------------------------------------------------

    def _select(self, batch: Padded) -> Select | None:
        """Say what the head gets while the task is measured."""
        return _select_masks(batch)

    def _select_embed(self, batch: Padded) -> Select | None:
        """Say what the head gets while :meth:`_embed` is read."""
        return _select_masks(batch)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        """Return what is kept of each row."""
        raise NotImplementedError

    def _by_example(self, found: dict[str, Array]) -> dict[str, Array]:
        """Turn what is kept of rows into what is kept of examples."""
        return found

    def _loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the labelled loss of each row."""
        raise NotImplementedError

    def _label_free_loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return each row's distance to the unpruned model."""
        return 1 - self.distance.measure(batch, hidden, logits)["cosine"]

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return each row's output as a vector."""
        return F.normalize(self.pooling.embed(hidden, batch.hidden_mask), dim=-1)

    def batches(self, loaded: LoadedModel, tokens: int = BATCH_TOKENS) -> Iterator[Padded]:
        """Yield all rows, padded, in the order of :meth:`loss_batches` without labels.

        ``tokens`` is about how many a batch holds.
        """
        for part in buckets(self.rows, tokens):
            yield padded(part, loaded.pad_id, loaded.device)


def need_logits(logits: Tensor | None) -> Tensor:
    """Refuse a model without a head where the task reads it."""
    if logits is None:
        raise InputError("This model has lost its task head; load it with task_head='auto'.")
    return logits


def _select_masks(batch: Padded) -> Select | None:
    """Let the head of a language model see masked (or target) positions only."""
    if not batch.masked.numel():
        return None
    return lambda hidden: at_masks(batch, hidden)[None]
