"""What all tasks share: examples, tokenised once, that any version of the model is run on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.core.accumulator import Array, numpy
from headscope.core.errors import CorpusError
from headscope.core.processes import gathered_rows, share
from headscope.core.rounding import above
from headscope.data.batches import BATCH_TOKENS, buckets
from headscope.data.examples import Examples
from headscope.data.token_rows import Padded, Row, padded, sentences_of
from headscope.models.run.intervene import Run, gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.pooling import wide
from headscope.models.run.side_by_side import side_by_side
from headscope.models.run.task_heads import Select
from headscope.stats.estimate import Estimate
from headscope.stats.metrics import Metric, Outputs, resampled, value_of
from headscope.stats.paired_change import Change, interval_of, paired_change
from headscope.stats.statistics import below_chance
from headscope.tasks.distance import Distance
from headscope.tasks.loss_batches import LossBatch, RowSet, tokens_with_gradients
from headscope.tasks.positions import mean_by_row, need_logits, select_masks

R = TypeVar("R", bound=Row)
#: Rows, how many examples are measured on them, and how many examples there were.
Taken = tuple[Sequence[Row], int, int]
BatchOutputs = tuple[Array, dict[str, Array]]  # Indices of a batch's rows, and their outputs


class Task:
    """Examples of one kind and the metrics that a model earns on them.

    A task is made from examples and a model; the seed is that of what is drawn.
    """

    name: ClassVar[str]  # as ``--task`` has it
    words: ClassVar[str]  # what it measures, and what it needs, on one line
    higher_is_better: ClassVar[bool] = True  # whether a larger value is a better model
    has_labels: bool = True  # whether :meth:`loss_batches` can use labels
    #: The model's head whose outputs are compared; None where its embeddings are.
    head: ClassVar[str | None] = None
    #: An output that two models share on every example only if they are the same; None where other
    #: models may share all of them (a rank, an answer).
    identifying: ClassVar[str | None] = None
    alone: ClassVar[bool] = False  # whether batches have to be read one after the other
    #: Whether some metrics are of texts that the model writes, which takes far longer.
    writes: ClassVar[bool] = False
    notes: tuple[str, ...] = ()  # sentences about what a metric cannot say of these examples
    table: Mapping[str, Metric]  # all metrics by name; the first is the task's value

    rows: Sequence[Row]  # Everything that is read, as token ids
    n_examples: int  # How many examples are measured on them
    skipped: int  # Examples that are longer than the model's limit

    def __init__(
        self, examples: Examples, loaded: LoadedModel, seed: int = 0, limit: int | None = None
    ) -> None:
        self.data = examples
        self.pooling = loaded.pooling
        self._seed = seed
        self._limit = limit
        self.rows, self.n_examples, n_before = self._take(examples, loaded)
        if self.n_examples < 2:
            raise CorpusError(
                f"{self.n_examples} of {n_before} examples of {examples.name} fit the model's "
                f"limit of {loaded.max_length} tokens; give two that do (nothing is ever cut)."
            )
        self.skipped = n_before - self.n_examples
        self.notes = tuple(dict.fromkeys((*self.data.notes, *self.notes)))
        self.distance = Distance(self.rows, loaded)

    @property
    def metric(self) -> str:
        """Name of the task's value."""
        return next(iter(self.table))

    @property
    def rows_of_examples(self) -> Sequence[Sequence[Row]]:
        """The rows that each measured example is made of."""
        return [(row,) for row in self.rows]

    @property
    def sentences(self) -> Sequence[Sequence[Hashable]]:
        """The texts of each measured example, which no other half of the data should have."""
        return [list(chain(*map(sentences_of, rows))) for rows in self.rows_of_examples]

    def changed(self, outputs: Outputs) -> tuple[str, ...] | None:
        """Name the examples whose answer differs from the full model's, where asked for."""
        return None

    def batches(self, loaded: LoadedModel, tokens: int = BATCH_TOKENS) -> Iterator[Padded]:
        """Yield rows, padded, in batches of about ``tokens``, always in the same order."""
        for rows in buckets(self.rows, tokens):
            yield padded(rows, loaded.pad_id, loaded.device)

    def outputs(
        self, loaded: LoadedModel, gates: Tensor | None = None, *, all_metrics: bool = False
    ) -> dict[str, Array]:
        """Run a model over all examples; per-example arrays in the order of the examples."""

        @contextmanager
        def reading(model: LoadedModel) -> Iterator[Callable[[Padded], BatchOutputs]]:
            with gated(model, gates) as run:
                yield partial(self.read, run)

        batches = share(self.batches(loaded))
        return self.gathered(side_by_side(loaded, batches, reading, alone=self.alone))

    def outputs_of(self, run: Run, batches: Iterable[Padded]) -> dict[str, Array]:
        """Return per-example outputs of anything that runs as :meth:`LoadedModel.run` does."""
        return self.gathered(self.read(run, batch) for batch in batches)

    def read(self, run: Run, batch: Padded) -> BatchOutputs:
        """Run one batch, and return the stored outputs of its rows."""
        options = {**batch.decoder_inputs, "select": self._select(batch)}
        hidden, logits = run(*batch.inputs, **options)
        values = self._read(batch, hidden, logits)
        row_indices = np.asarray(batch.index, dtype=np.int64)
        return row_indices, {name: numpy(value) for name, value in values.items()}

    def gathered(self, batch_outputs: Iterable[BatchOutputs]) -> dict[str, Array]:
        """Join what :meth:`read` returned for this process's batches with the other processes'."""
        row_indices: list[Array] = []
        values_by_name: dict[str, list[Array]] = {}
        for batch_rows, values in batch_outputs:
            row_indices.append(batch_rows)
            for name, value in values.items():
                values_by_name.setdefault(name, []).append(value)
        return self._by_example(
            gathered_rows(self.name, row_indices, values_by_name, len(self.rows))
        )

    def value(self, outputs: Outputs) -> float:
        """Return the task's value of what :meth:`outputs` gave."""
        return self.metrics(outputs)[self.metric]

    def metrics(self, outputs: Outputs) -> dict[str, float]:
        """Return every metric by name, of all examples or some; rates are times 100."""
        return {name: value_of(metric, outputs) for name, metric in self.table.items()}

    def resampled(self, outputs: Outputs, *, seed: int = 0) -> Array:
        """Return the task's value of every bootstrap resample, (resamples,)."""
        return resampled(self.table[self.metric], outputs, seed=seed)

    def interval(self, outputs: Outputs, *, seed: int = 0, values: Array | None = None) -> Estimate:
        """Return the task's value with its interval; ``values`` are what :meth:`resampled` gave."""
        return interval_of(self.table[self.metric], outputs, seed=seed, values=values)

    def change(self, baseline: Outputs, outputs: Outputs, **options: Any) -> Change:
        """Return how the task's value differs from another model's on the same examples.

        ``difference`` is value minus the baseline's, whichever direction is better; the options are
        those of :func:`~headscope.stats.paired_change.paired_change`.
        """
        change = paired_change(self.table[self.metric], baseline, outputs, **options)
        return replace(change, same=self._same(baseline, outputs))

    def _same(self, baseline: Outputs, outputs: Outputs) -> bool:
        """Whether two models share, up to rounding, what only equal models share."""
        if self.identifying is None:
            return False
        differences = np.abs(outputs[self.identifying] - baseline[self.identifying])
        return not above(differences, 0.0).any()

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say what makes a model's value meaningless: outputs that do not depend on the text.

        The answer continues "the unpruned model ..."; None for a model that reads its input.
        """
        raise NotImplementedError

    def doubts(self, outputs: Outputs) -> tuple[str, ...]:
        """Say what makes the whole model's value doubtful, though the model reads its input."""
        return ()

    def loss_batches(
        self, loaded: LoadedModel, *, labels: bool = True, of_value: bool = False
    ) -> Iterator[LossBatch]:
        """Yield batches whose loss can be differentiated by gates, in the order of the rows'.

        ``labels``: the loss is that of the task's labels, where it has some; else the distance to
        the unpruned model. ``of_value``: the output e is what the task's value is made of, and
        nothing beside it.
        """
        labelled = labels and self.has_labels
        if labelled and (sets := self._sets()) is not None:
            yield from self._batches_of_sets(loaded, sets)
            return
        loss = self._loss if labelled else self._label_free_loss
        select_loss = select_masks if labelled else self.distance.select
        embed = self._embed_value if of_value else self._embed
        for batch in self.batches(loaded, tokens_with_gradients(loaded)):
            yield LossBatch(
                loaded=loaded,
                batch=batch,
                owner=torch.arange(len(batch.index), device=loaded.device),
                read_loss=loss,
                read_embed=embed,
                select_loss=select_loss(batch),
                select_embed=self._select_embed(batch),
            )

    def _batches_of_sets(
        self, loaded: LoadedModel, sets: Iterable[Sequence[Row]]
    ) -> Iterator[LossBatch]:
        """Yield batches of sets of rows, those of as many rows together.

        A batch has all first rows, then all second ones, and so on. Their output is the unit
        embeddings of the rows, end to end.
        """
        sets_by_size: dict[int, list[RowSet]] = {}
        for i, rows in enumerate(sets):
            sets_by_size.setdefault(len(rows), []).append(RowSet(i, rows))
        for sets_of_one_size in sets_by_size.values():
            for batch_of_sets in buckets(sets_of_one_size, tokens_with_gradients(loaded)):
                yield self._batch_of_sets(loaded, batch_of_sets)

    def _batch_of_sets(self, loaded: LoadedModel, sets: Sequence[RowSet]) -> LossBatch:
        """Make one batch of sets of as many rows each."""
        n_rows = len(sets[0].rows)
        rows: list[Row] = []
        for i in range(n_rows):
            rows += [row_set.rows[i] for row_set in sets]
        batch = padded(rows, loaded.pad_id, loaded.device)
        select = self._select_embed(batch)

        def embed(batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
            unit = F.normalize(self.pooling.embed(hidden, batch.attention_mask), dim=-1)
            return torch.cat(torch.split(unit, len(sets)), dim=-1)

        return LossBatch(
            loaded=loaded,
            batch=batch,
            owner=torch.arange(len(sets), device=loaded.device).repeat(n_rows),
            read_loss=partial(self._loss_of_sets, [row_set.index for row_set in sets]),
            read_embed=embed,
            select_loss=select,
            select_embed=select,
        )

    # --- what tasks differ in ---

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        """Tokenise the examples: rows, how many examples they are, and how many there were."""
        raise NotImplementedError

    def _select(self, batch: Padded) -> Select | None:
        """Return which positions the head reads while the task is measured."""
        return select_masks(batch)

    def _select_embed(self, batch: Padded) -> Select | None:
        """Return which positions the head reads for :meth:`_embed`."""
        return select_masks(batch)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        """Return the outputs to store for each row."""
        raise NotImplementedError

    def _by_example(self, by_row: dict[str, Array]) -> dict[str, Array]:
        """Turn the outputs of rows into those of examples."""
        return by_row

    def _loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the labelled loss of each row."""
        raise NotImplementedError

    def _sets(self) -> Iterable[Sequence[Row]] | None:
        """Return the rows of each example, where the labelled loss is one of several at once."""
        return None

    def _loss_of_sets(
        self, sets: list[int], batch: Padded, hidden: Tensor, logits: Tensor | None
    ) -> Tensor:
        """Return the labelled loss of each of these sets, by their numbers."""
        raise NotImplementedError

    def _label_free_loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return each row's distance to the unpruned model."""
        if self.head is not None:
            need_logits(logits)
            return self.distance.measure(batch, hidden, logits)[self.distance.outputs_name]
        return 1 - self.distance.measure(batch, hidden, logits)["cosine"]

    def _embed_value(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the part of :meth:`_embed` that the task's value is made of."""
        return self._embed(batch, hidden, logits)

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return each row's output as a vector."""
        return F.normalize(self.pooling.embed(hidden, batch.hidden_mask), dim=-1)


BELOW_CHANCE = 0.01  # p below which accuracy is said to be lower than chance.


def order_doubt(
    name: str, right: float, predicted: Array, gold: Array, kinds: str
) -> tuple[str, ...]:
    """Say that classes may be in another order where fewer are right than by chance.

    ``predicted`` and ``gold`` count every class of the data called ``name``.
    """
    chance, p = below_chance(int(right), predicted, gold)
    if p >= BELOW_CHANCE:
        return ()
    accuracy = 100 * right / gold.sum()
    return (
        f"The whole model's accuracy, {accuracy:.1f}%, is significantly below chance "
        f"({100 * chance:.1f}%, p = {p:.1g}): the {kinds} of {name} may be numbered in another "
        "order than the model's.",
    )


def numbered(encoded: Iterable[R | None]) -> tuple[list[R], list[int]]:
    """Return the rows that fit the model, numbered from 0, and their positions before."""
    fitting = [row for row in encoded if row is not None]
    positions = [row.index for row in fitting]
    return [replace(row, index=i) for i, row in enumerate(fitting)], positions


class TokenTask(Task):
    """A task whose head predicts a token at each masked or target position."""

    same_guess: ClassVar[str]  # what a model does that guesses the same token everywhere

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        """Count each row's tokens and right guesses; keep its least and its greatest guess."""
        guess = need_logits(logits)[0].argmax(dim=-1)
        rows = batch.masked[0]
        n_rows = len(batch.index)
        correct = (guess == batch.gold).float()
        zeros = guess.new_zeros(n_rows)
        return {
            "correct": correct.new_zeros(n_rows).index_add(0, rows, correct),
            "tokens": torch.bincount(rows, minlength=n_rows).float(),
            "least_guess": zeros.scatter_reduce(0, rows, guess, "amin", include_self=False),
            "most_guess": zeros.scatter_reduce(0, rows, guess, "amax", include_self=False),
        }

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where one token is guessed at every position."""
        same = outputs["most_guess"].max() <= outputs["least_guess"].min()
        return self.same_guess if same else None

    def _loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the mean cross-entropy of each row's tokens."""
        scores = wide(need_logits(logits)[0])
        return mean_by_row(batch, F.cross_entropy(scores, batch.gold, reduction="none"))

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return log-probabilities at a row's positions, end to end; shorter rows end in 0."""
        rows = batch.masked[0]
        n_rows = len(batch.index)
        counts = torch.bincount(rows, minlength=n_rows)
        first_of_row = counts.cumsum(0) - counts
        number_in_row = torch.arange(len(rows), device=rows.device) - first_of_row[rows]
        log_probabilities = wide(need_logits(logits)[0]).log_softmax(dim=-1)
        by_position = log_probabilities.new_zeros(
            n_rows, int(counts.max()), log_probabilities.shape[-1]
        )
        return by_position.index_put((rows, number_in_row), log_probabilities).flatten(1)
