"""What all tasks share: examples, tokenised once, that any version of the model is run on.

A task is made of examples and a model. An *example* is what a metric counts, such as a pair of
sentences; a *row* is one sequence of tokens that the model reads (:class:`Row`), and an example is
made of one or more rows. A batch of rows as tensors is a :class:`Padded`.

:meth:`Task.outputs` runs a version of the model over the rows and stores numbers for each example.
:meth:`Task.metrics`, :meth:`Task.interval` and :meth:`Task.change` are computed from these outputs
alone. :meth:`Task.loss_batches` yields losses to differentiate by the gates of heads: factors of
their outputs, 1 in the model as it is, 0 for a removed head.

A task of one kind fills in the methods behind "what tasks differ in". At the end stand helpers of
several tasks, and :class:`TokenTask`, the base of those that predict tokens.
"""

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
from headscope.core.widest import wide
from headscope.data.batches import BATCH_TOKENS, buckets
from headscope.data.examples import Examples
from headscope.data.long_texts import left_out_notes
from headscope.data.token_rows import Padded, Row, padded, sentences_of
from headscope.models.run.intervene import Run, gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.side_by_side import side_by_side
from headscope.models.run.task_heads import InSlices, Select
from headscope.stats.estimate import Estimate
from headscope.stats.metrics import Metric, Outputs, resampled, value_of
from headscope.stats.paired_change import Change, interval_of, paired_change
from headscope.stats.statistics import below_chance
from headscope.tasks.distance import Distance
from headscope.tasks.loss_batches import LossBatch, RowSet, tokens_with_gradients
from headscope.tasks.positions import by_row, mean_by_row, need_logits, select_masks

R = TypeVar("R", bound=Row)
#: What a task makes of its examples: the rows; how many examples are measured on them; and how many
#: examples there were before those that are too long were left out.
Taken = tuple[Sequence[Row], int, int]
#: Of a batch: the indices of its rows among all rows, and their outputs by name.
BatchOutputs = tuple[Array, dict[str, Array]]


class Task:
    """Examples of one kind and the metrics that a model earns on them.

    ``seed`` decides what is drawn (masks, irrelevant documents), ``limit`` how many windows of
    running text are read.
    """

    name: ClassVar[str]  # As ``--task`` has it
    words: ClassVar[str]  # What it measures; what it needs: one line of a list of tasks
    higher_is_better: ClassVar[bool] = True  # Whether a larger value is a better model
    has_labels: bool = True  # Whether :meth:`loss_batches` can use labels
    #: The task head of the model (such as ``mlm``) that is measured; None where embeddings are.
    head: ClassVar[str | None] = None
    #: Name of an output that two models share on every example only if they are the same model;
    #: None where different models may share all outputs (a rank, an answer).
    identifying: ClassVar[str | None] = None
    alone: ClassVar[bool] = False  # Whether batches have to be read one after the other
    #: Whether some metrics are taken of texts that the model writes, which takes far longer.
    writes: ClassVar[bool] = False
    notes: tuple[str, ...] = ()  # Sentences about what a metric cannot say of these examples
    table: Mapping[str, Metric]  # All metrics by name; the first is the task's value

    rows: Sequence[Row]  # Everything that is read, as token ids
    n_examples: int  # How many examples are measured
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
        left_out = left_out_notes(self.skipped, n_before, examples.name, loaded.max_length)
        self.notes = tuple(dict.fromkeys((*self.data.notes, *self.notes, *left_out)))  # each once
        #: Compares outputs of a changed model with those of ``loaded``.
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
        """The texts of each measured example; examples with a text in common are dependent."""
        return [
            list(chain.from_iterable(map(sentences_of, rows))) for rows in self.rows_of_examples
        ]

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
        """Run a model over all examples; return arrays by name, an entry for each example.

        ``gates`` (n_layers, n_heads) change the model; with ``all_metrics`` a task that ``writes``
        measures its written texts, too.
        """

        @contextmanager
        def reading(copy: LoadedModel) -> Iterator[Callable[[Padded], BatchOutputs]]:
            """Prepare a copy of the model, one for each thread; yield what reads a batch."""
            with gated(copy, gates) as run:
                yield partial(self.read, run)

        batches = share(self.batches(loaded))
        return self.gathered(side_by_side(loaded, batches, reading, alone=self.alone))

    def outputs_of(self, run: Run, batches: Iterable[Padded]) -> dict[str, Array]:
        """Return what :meth:`outputs` does, of any function that runs a batch through a model."""
        return self.gathered(self.read(run, batch) for batch in batches)

    def read(self, run: Run, batch: Padded) -> BatchOutputs:
        """Run one batch; return the indices of its rows, and what is stored of each row."""
        options = {**batch.decoder_inputs, "select": self._select(batch)}
        hidden, logits = run(*batch.inputs, **options)
        values = self._read(batch, hidden, logits)
        row_indices = np.asarray(batch.index, dtype=np.int64)
        return row_indices, {name: numpy(value) for name, value in values.items()}

    def gathered(self, batch_outputs: Iterable[BatchOutputs]) -> dict[str, Array]:
        """Turn what :meth:`read` returned for all batches, of all processes, into outputs."""
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
        """Whether two models are the same: their ``identifying`` outputs are, up to rounding."""
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
        self, loaded: LoadedModel, *, labels: bool = True, value_only: bool = False
    ) -> Iterator[LossBatch]:
        """Yield batches whose loss can be differentiated by gates, always in the same order.

        With ``labels`` the loss is that of the task's labels, where it has some; else the distance
        to the unpruned model. With ``value_only`` the output e of a batch (:class:`LossBatch`) has
        nothing that the task's value is not made of.
        """
        use_labels = labels and self.has_labels
        if use_labels:
            sets = self._sets()
            if sets is not None:
                yield from self._batches_of_sets(loaded, sets)
                return

        # Every row has a loss of its own.
        loss = self._loss if use_labels else self._label_free_loss
        select_loss = self._select_loss if use_labels else self.distance.select
        embed = self._embed_value if value_only else self._embed
        for batch in self.batches(loaded, tokens_with_gradients(loaded)):
            yield LossBatch(
                loaded=loaded,
                batch=batch,
                owner=torch.arange(len(batch.index), device=loaded.device),
                examples=batch.index.tolist(),
                read_loss=loss,
                read_embed=embed,
                select_loss=select_loss(batch),
                select_embed=self._select_embed(batch),
            )

    def _batches_of_sets(
        self, loaded: LoadedModel, sets: Iterable[Sequence[Row]]
    ) -> Iterator[LossBatch]:
        """Yield batches of sets of rows; all sets of a batch have the same number of rows.

        A set is what a loss compares, such as the two rows of a pair, or a query and documents.
        """
        sets_by_size: dict[int, list[RowSet]] = {}
        for i, rows in enumerate(sets):
            sets_by_size.setdefault(len(rows), []).append(RowSet(i, rows))
        for sets_of_one_size in sets_by_size.values():
            for batch_of_sets in buckets(sets_of_one_size, tokens_with_gradients(loaded)):
                yield self._batch_of_sets(loaded, batch_of_sets)

    def _batch_of_sets(self, loaded: LoadedModel, sets: Sequence[RowSet]) -> LossBatch:
        """Make one batch of sets that have the same number of rows.

        Sets (a, b) and (c, d) become the rows a, c, b, d: all first rows, then all second ones. The
        output of a set is the unit embeddings of its rows, end to end: [a b], [c d].
        """
        n_rows = len(sets[0].rows)
        rows: list[Row] = []
        for i in range(n_rows):
            rows += [row_set.rows[i] for row_set in sets]
        batch = padded(rows, loaded.pad_id, loaded.device)
        select = self._select_embed(batch)

        def embed(batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
            """Return the output of each set, (sets, n_rows * d_model)."""
            unit = F.normalize(self.pooling.embed(hidden, batch.attention_mask), dim=-1)
            return torch.cat(torch.split(unit, len(sets)), dim=-1)

        examples = [row_set.index for row_set in sets]
        return LossBatch(
            loaded=loaded,
            batch=batch,
            owner=torch.arange(len(sets), device=loaded.device).repeat(n_rows),  # 0, 1, 0, 1
            examples=examples,
            read_loss=partial(self._loss_of_sets, examples),
            read_embed=embed,
            select_loss=select,
            select_embed=select,
        )

    # --- what tasks differ in ---

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        """Tokenise the examples, leaving out those that are too long."""
        raise NotImplementedError

    def _select(self, batch: Padded) -> Select | InSlices | None:
        """Return which positions the task head reads while the task is measured; None: all."""
        return select_masks(batch)

    def _select_loss(self, batch: Padded) -> Select | InSlices | None:
        """Return which positions the task head reads for the labelled loss; None: all."""
        return select_masks(batch)

    def _select_embed(self, batch: Padded) -> Select | InSlices | None:
        """Return which positions the task head reads for :meth:`_embed`; None: all."""
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
        """Return the rows of each example that its labelled loss compares.

        None where every row has a loss of its own.
        """
        return None

    def _loss_of_sets(
        self, sets: list[int], batch: Padded, hidden: Tensor, logits: Tensor | None
    ) -> Tensor:
        """Return the labelled loss of each set of a batch; ``sets`` are their numbers."""
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
        """Return each row's output e as a vector; by default its unit embedding."""
        return F.normalize(self.pooling.embed(hidden, batch.hidden_mask), dim=-1)


# --- what several tasks use ---

BELOW_CHANCE = 0.01  # p below which an accuracy is said to be lower than chance.


def order_doubt(
    name: str, right: float, predicted: Array, gold: Array, kinds: str
) -> tuple[str, ...]:
    """Say that classes may be numbered in another order, where fewer are right than by chance.

    ``predicted`` and ``gold`` count how often each class occurs, (classes,), and ``right`` how
    often they agree; ``name`` is that of the data, ``kinds`` the word for classes.
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
    """Return the rows that fit the model, numbered from 0, and the numbers that they had.

    None stands for a row that is too long: rows 0, None, 2 -> rows 0, 1 and [0, 2].
    """
    fitting = [row for row in encoded if row is not None]
    positions = [row.index for row in fitting]
    return [replace(row, index=i) for i, row in enumerate(fitting)], positions


class TokenTask(Task):
    """A task whose head predicts a token (or a tag) at certain positions of each row.

    ``batch.masked[0]`` has the row of every such position, and ``batch.gold`` its right token.
    """

    same_guess: ClassVar[str]  # Says in words that a model guesses the same token everywhere

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        """Count each row's tokens and right guesses; keep its least and its greatest guess.

        From these two it is known whether all guesses are the same token.
        """
        return self._counted(batch, need_logits(logits)[0].argmax(dim=-1))

    def _counted(self, batch: Padded, guess: Tensor) -> dict[str, Tensor]:
        """Do what :meth:`_read` does, of the token that is guessed at each position."""
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
        log_probabilities = wide(need_logits(logits)[0]).log_softmax(dim=-1)
        return by_row(batch, log_probabilities).flatten(1)
