"""What all tasks share: examples, tokenised once, that any version of the model is run on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from headscope.core.accumulator import Array, numpy
from headscope.core.errors import CorpusError, InputError
from headscope.core.processes import joined_rows, share
from headscope.core.rounding import above
from headscope.data.batches import BATCH_TOKENS, LARGE, buckets
from headscope.data.examples import Examples
from headscope.data.token_rows import Padded, Row, padded, sentences_of
from headscope.models.run.head_outputs import HeadOutputs, head_outputs, spread_of
from headscope.models.run.intervene import Means, Run, gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.pooling import cosine, wide
from headscope.models.run.side_by_side import side_by_side
from headscope.models.run.task_heads import Joined, Select
from headscope.models.surgery.output_maps import original_outputs
from headscope.stats.estimate import Estimate
from headscope.stats.metrics import Metric, Outputs, resampled, value_of
from headscope.stats.paired_change import Change, interval_of, paired_change
from headscope.stats.statistics import below_chance

R = TypeVar("R", bound=Row)
#: Rows, how many examples are measured on them, and how many examples there were.
Taken = tuple[Sequence[Row], int, int]
BatchOutputs = tuple[Array, dict[str, Array]]  # Indices of a batch's rows, and their outputs
#: Task heads that make a token, or a tag, at each position that a batch asks for.
TOKEN_HEADS = ("mlm", "seq2seq", "token-classification")
#: The task head that says where an answer begins and ends: it chooses one of all positions.
SPAN_HEAD = "question-answering"


def _tokens_with_gradients(loaded: LoadedModel) -> int:
    """Return the tokens of a batch whose graph, some ten states of every layer, is held."""
    large = sum(weight.numel() for weight in loaded.model.parameters()) > LARGE
    return BATCH_TOKENS // 4 if large else BATCH_TOKENS


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

    def __init__(
        self, examples: Examples, loaded: LoadedModel, seed: int = 0, limit: int | None = None
    ) -> None:
        self.data = examples
        self.pooling = loaded.pooling
        self._seed = seed
        self._limit = limit
        self.rows, self.n_examples, all_of_them = self._take(examples, loaded)
        if self.n_examples < 2:
            raise CorpusError(
                f"{self.n_examples} of {all_of_them} examples of {examples.name} fit the model's "
                f"limit of {loaded.max_length} tokens; give two that do (nothing is ever cut)."
            )
        self.skipped = all_of_them - self.n_examples
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
        return [
            [text for row in rows for text in sentences_of(row)] for rows in self.rows_of_examples
        ]

    def changed(self, outputs: Outputs) -> tuple[str, ...] | None:
        """Name the examples whose answer differs from the full model's, where asked for."""
        return None

    def batches(self, loaded: LoadedModel, tokens: int = BATCH_TOKENS) -> Iterator[Padded]:
        """Yield rows, padded, in batches of about ``tokens``, always in the same order."""
        for part in buckets(self.rows, tokens):
            yield padded(part, loaded.pad_id, loaded.device)

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
        values = self._read(batch, *run(*batch.inputs, **options))
        by_row = {name: numpy(value) for name, value in values.items()}
        return np.asarray(batch.index, dtype=np.int64), by_row

    def gathered(self, parts: Iterable[BatchOutputs]) -> dict[str, Array]:
        """Join what :meth:`read` returned for this process's batches with the other processes'."""
        index: list[Array] = []
        by_row: dict[str, list[Array]] = {}
        for rows, values in parts:
            index.append(rows)
            for name, value in values.items():
                by_row.setdefault(name, []).append(value)
        return self._by_example(joined_rows(self.name, index, by_row, len(self.rows)))

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
        theirs = baseline[self.identifying]
        ours = outputs[self.identifying]
        return not above(np.abs(ours - theirs), 0.0).any()

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

        ``of_value``: the output e is what the task's value is made of, and nothing beside it.
        """
        labelled = labels and self.has_labels
        if labelled and (sets := self._sets()) is not None:
            yield from self._batches_of_sets(loaded, sets)
            return
        loss = self._loss if labelled else self._label_free_loss
        select = _select_masks if labelled else self.distance.select
        for batch in self.batches(loaded, _tokens_with_gradients(loaded)):
            owner = torch.arange(len(batch.index), device=loaded.device)
            selects = select(batch), self._select_embed(batch)
            embed = self._embed_value if of_value else self._embed
            yield LossBatch(loaded, batch, owner, loss, embed, *selects)

    def _batches_of_sets(
        self, loaded: LoadedModel, sets: Iterable[Sequence[Row]]
    ) -> Iterator[LossBatch]:
        """Yield batches of sets of rows, those of as many rows together.

        A batch has all first rows, then all second ones, and so on. Their output is the unit
        embeddings of the rows, end to end.
        """
        by_size: dict[int, list[_Set]] = {}
        for i, rows in enumerate(sets):
            by_size.setdefault(len(rows), []).append(_Set(i, rows))
        for n_rows, alike in by_size.items():
            for part in buckets(alike, _tokens_with_gradients(loaded)):
                rows = [one.rows[i] for i in range(n_rows) for one in part]
                batch = padded(rows, loaded.pad_id, loaded.device)
                owner = torch.arange(len(part), device=loaded.device).repeat(n_rows)
                select = self._select_embed(batch)

                def embed(
                    batch: Padded, hidden: Tensor, logits: Tensor | None, n: int = len(part)
                ) -> Tensor:
                    unit = F.normalize(self.pooling.embed(hidden, batch.attention_mask), dim=-1)
                    return torch.cat(torch.split(unit, n), dim=-1)

                read = partial(self._loss_of_sets, [one.index for one in part])
                yield LossBatch(loaded, batch, owner, read, embed, select, select)

    # Tasks differ in the methods that follow.

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        """Tokenise the examples: rows, how many examples they are, and how many there were."""
        raise NotImplementedError

    def _select(self, batch: Padded) -> Select | None:
        """Return which positions the head reads while the task is measured."""
        return _select_masks(batch)

    def _select_embed(self, batch: Padded) -> Select | None:
        """Return which positions the head reads for :meth:`_embed`."""
        return _select_masks(batch)

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
            return self.distance.measure(batch, hidden, logits)[self.distance.of_outputs]
        return 1 - self.distance.measure(batch, hidden, logits)["cosine"]

    def _embed_value(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the part of :meth:`_embed` that the task's value is made of."""
        return self._embed(batch, hidden, logits)

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return each row's output as a vector."""
        return F.normalize(self.pooling.embed(hidden, batch.hidden_mask), dim=-1)


class _Set:
    """Rows that are compared with each other, as one item for batching."""

    def __init__(self, index: int, rows: Sequence[Row]) -> None:
        self.index = index
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows) * max(map(len, self.rows))


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
    return [replace(row, index=i) for i, row in enumerate(fitting)], [row.index for row in fitting]


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


class TokenTask(Task):
    """A task whose head predicts a token at each masked or target position."""

    same_guess: ClassVar[str]  # what a model does that guesses the same token everywhere

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        """Count each row's tokens and right guesses; keep its least and its greatest guess."""
        guess = need_logits(logits)[0].argmax(dim=-1)
        rows = batch.masked[0]
        size = len(batch.index)
        right = guess == batch.gold
        correct = right.float()
        zeros = guess.new_zeros(size)
        return {
            "correct": correct.new_zeros(size).index_add(0, rows, correct),
            "tokens": torch.bincount(rows, minlength=size).float(),
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
        return by_row(batch, F.cross_entropy(scores, batch.gold, reduction="none"))

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return log-probabilities at a row's positions, end to end; shorter rows end in 0."""
        rows = batch.masked[0]
        size = len(batch.index)
        count = torch.bincount(rows, minlength=size)
        position = torch.arange(len(rows), device=rows.device) - (count.cumsum(0) - count)[rows]
        flat = wide(need_logits(logits)[0]).log_softmax(dim=-1)
        room = flat.new_zeros(size, int(count.max()), flat.shape[-1])
        return room.index_put((rows, position), flat).flatten(1)


class Distance:
    """Cosine of embeddings, and distance of the head's outputs, to a reference model."""

    def __init__(self, rows: Sequence[Row], reference: LoadedModel) -> None:
        self.head = reference.task_head
        self.outputs_are = head_outputs(reference)
        self.of_outputs = self.outputs_are.distance_name  # Name of the distance of outputs
        self._rows = rows
        self._reference = reference
        self._pooled: Tensor | None = None
        #: Per row: the logits (of classes, or of where an answer begins and ends), or the hidden
        #: states at masked, target or tagged positions, from which the head makes its logits anew:
        #: those of a language model are 80 times as large.
        self._outputs: list[Tensor] = []

    def select(self, batch: Padded) -> Select | None:
        """Return what the head of the other model is to get."""
        if self.head not in TOKEN_HEADS:
            return None
        self.embeddings()
        theirs = torch.cat([self._outputs[i] for i in batch.index])

        def their_logits() -> Tensor:
            """Let the unpruned model's head read its states once more: (masked, classes)."""
            with torch.no_grad():
                _, logits = self._reference.run(
                    *batch.inputs, **batch.decoder_inputs, select=lambda hidden: theirs[None]
                )
            assert logits is not None
            return logits[0]

        return Joined(partial(at_masks, batch), theirs, their_logits)

    def measure(
        self, batch: Padded, hidden: Tensor, logits: Tensor | None, *, spread: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return ``cosine`` and, with a head, what :attr:`of_outputs` names: (batch,) each.

        Both are differentiable. A language model's is the mean over the masks of a row; numbers are
        compared in units of their ``spread`` where that is given.
        """
        ours = self._reference.pooling.embed(hidden, batch.hidden_mask)
        theirs = self.embeddings()[batch.index].to(ours)
        distances = {"cosine": cosine(ours, theirs, precise=False)}
        if logits is None or self.head is None:
            return distances
        return {**distances, self.of_outputs: self._between_outputs(batch, logits, spread)}

    def _between_outputs(self, batch: Padded, logits: Tensor, spread: Tensor | None) -> Tensor:
        """Return the distance of this model's outputs from the reference model's, (batch,)."""
        if self.head in TOKEN_HEADS:
            other, full = wide(logits[0]).chunk(2)
            return by_row(batch, self.outputs_are.distance(full, other))
        if self.head == SPAN_HEAD:
            full = pad_sequence([self._outputs[i] for i in batch.index], batch_first=True)
            full, other = (spans(part, batch.attention_mask) for part in (full.to(logits), logits))
            return (full.exp() * (full - other)).sum(dim=(1, 2)) / 2
        stored = torch.stack([self._outputs[i] for i in batch.index])
        return self.outputs_are.distance(wide(stored), wide(logits), spread)

    def logits(self) -> Tensor:
        """Return the reference model's logits of whole rows, (rows, classes)."""
        self.embeddings()
        return torch.stack(self._outputs)

    @cached_property
    def spread(self) -> Tensor | None:
        """The unit of numbers where their change is added to another distance, (outputs,).

        Their standard deviation over the rows, of the reference model; None for other outputs.
        """
        if self.outputs_are is not HeadOutputs.NUMBERS or self.head != "classification":
            return None
        return spread_of(wide(self.logits()))

    def constant(self) -> bool:
        """Whether the reference model's embeddings are the same for every row."""
        pooled = self.embeddings()
        return bool((pooled == pooled[:1]).all())

    def embeddings(self) -> Tensor:
        """Run the reference model, once; returns its embeddings (rows, d)."""
        if self._pooled is not None:
            return self._pooled
        loaded = self._reference
        by_token = self.head in TOKEN_HEADS
        states: list[Tensor] = [torch.empty(0)] * len(self._rows)
        outputs: list[Tensor] = [torch.empty(0)] * len(self._rows)
        with original_outputs(loaded), gated(loaded) as run:
            for part in buckets(self._rows):
                batch = padded(part, loaded.pad_id, loaded.device)
                few = one_position if by_token else None
                hidden, logits = run(*batch.inputs, **batch.decoder_inputs, select=few)
                out = at_masks(batch, hidden) if by_token else logits
                split = _split(batch, out) if out is not None else [torch.empty(0)] * len(part)
                pooled = loaded.pooling.embed(hidden, batch.hidden_mask)
                for i, state, output in zip(batch.index, pooled, split, strict=True):
                    states[i] = state
                    outputs[i] = output
        self._pooled = torch.stack(states)
        self._outputs = outputs
        return self._pooled


def one_position(hidden: Tensor) -> Tensor:
    """Select one position for the head, where its outputs are not needed."""
    return hidden[:1, :1]


def at_masks(batch: Padded, hidden: Tensor) -> Tensor:
    """Pick the states at masked (or target) positions, row by row: (masked, d_model)."""
    return hidden[batch.masked[0], batch.masked[1]]


def by_row(batch: Padded, values: Tensor) -> Tensor:
    """Average one value per masked position over each row's positions: (batch,)."""
    size = len(batch.index)
    total = values.new_zeros(size).index_add(0, batch.masked[0], values)
    return total / torch.bincount(batch.masked[0], minlength=size).clamp(min=1)


def spans(logits: Tensor, mask: Tensor) -> Tensor:
    """Return log-probabilities of an answer's begin and end, (batch, pos, 2); 0 at padding."""
    padding = ~mask.bool()[..., None]
    return wide(logits).masked_fill(padding, -torch.inf).log_softmax(dim=1).masked_fill(padding, 0)


def _split(batch: Padded, values: Tensor) -> Sequence[Tensor]:
    """Split values by the batch's rows, or by each row's masks."""
    if len(values) == len(batch.index) and not batch.masked.numel():
        if values.dim() < 3:
            return list(values)
        lengths = batch.attention_mask.sum(dim=1).tolist()
        return [row[:length] for row, length in zip(values, lengths, strict=True)]
    sizes = torch.bincount(batch.masked[0], minlength=len(batch.index))
    return torch.split(values, sizes.tolist())


#: From a batch's hidden states and logits to a loss (size,) or an embedding (size, d).
Read = Callable[[Padded, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True, eq=False)
class LossBatch:
    """Some examples whose loss can be differentiated by the gates of heads.

    With gates ``(size, n_layers, n_heads)`` the gradient of ``loss(gates).sum()`` holds every
    example's own derivative d loss_i / d xi. With gates ``(rows, n_layers, n_heads, pos)`` it is
    z . dL/dz of every query; ``pos`` is the length of the longest sequence that any stack reads.
    """

    _loaded: LoadedModel
    _batch: Padded
    _owner: Tensor  # Which example each row belongs to, (rows,).
    _loss: Read
    _embed: Read
    #: Which positions the head reads for the loss, and for the embedding.
    _select_loss: Select | None = None
    _select_embed: Select | None = None
    means: Means | None = None  # What a gate of zero leaves behind; zeros unless given.

    @property
    def size(self) -> int:
        """Examples in the batch."""
        return int(self._owner.max()) + 1

    @property
    def query_mask(self) -> Tensor:
        """(rows, n_layers, pos): 1 where a layer's query is a real token.

        The queries of decoder and cross-attention are target positions, those of the encoder are
        source positions.
        """
        masks = [self._batch.queries_of(site.stack) for site in self._loaded.sites]
        longest = max(mask.shape[1] for mask in masks)
        return torch.stack([F.pad(mask, (0, longest - mask.shape[1])) for mask in masks], dim=1)

    def gates(self, kind: str = "example") -> Tensor:
        """Return gates of one to differentiate by."""
        heads = (self._loaded.n_layers, self._loaded.n_heads)
        rows, _, pos = self.query_mask.shape
        shape = {"shared": heads, "example": (self.size, *heads), "token": (rows, *heads, pos)}
        dtype = next(self._loaded.model.parameters()).dtype
        return torch.ones(shape[kind], dtype=dtype, device=self._loaded.device, requires_grad=True)

    def loss(self, gates: Tensor) -> Tensor:
        """Return each example's loss, (size,)."""
        return self._read(gates, self._loss, self._select_loss)

    def embed(self, gates: Tensor) -> Tensor:
        """Return each example's output e, (size, d): what label-free derivatives are taken of."""
        return self._read(gates, self._embed, self._select_embed)

    def full(self) -> Tensor:
        """Return the unpruned model's e, (size, d), even while its output maps are replaced."""
        with original_outputs(self._loaded):
            return self.embed(self.gates().detach())

    def _read(self, gates: Tensor, read: Read, select: Select | None) -> Tensor:
        by_row = gates[self._owner] if gates.dim() == 3 else gates
        batch = self._batch
        # Without gradients to record, the faster products are used.
        with gated(self._loaded, by_row, gradients=gates.requires_grad, means=self.means) as run:
            return read(batch, *run(*batch.inputs, **batch.decoder_inputs, select=select))
