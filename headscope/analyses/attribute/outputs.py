"""What is taken apart: one output of a model, and how it is read from a run.

An output is one number: the cosine of two texts' embeddings (or the difference of two cosines), the
logit of a class, the logit of a token at a mask, the logit of the token after a text (or the
difference of two), or the mean logit of the tokens of what an encoder-decoder should write. An
:class:`Example` says which output of which texts it is.

A ``Row`` is one tokenised text, and a ``PairRow`` a source with the target that a decoder should
write. From a run of the model each row gets a *vector* (:func:`vectors`): its embedding of length
1, or its logits. An output is read from the vectors of an example's rows (:func:`value_of`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from headscope.data.batches import buckets
from headscope.data.token_rows import Padded, PairRow, Row, padded
from headscope.models.run.intervene import Run, intervene
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import Select
from headscope.tasks.positions import TOKEN_HEADS, one_position

#: Tokens of a batch, padding included, where a run keeps the states of every layer.
TOKENS_AT_ONCE = 128
#: Entries of the logits of such a batch, where every position has logits of its own.
LOGITS_AT_ONCE = 10_000_000


@dataclass(frozen=True)
class Example:
    """One output: of one text or two, or of three for a difference of two cosines."""

    kind: str  # ``cosine``, ``class``, ``token``, ``next`` or ``target``
    #: One row for a logit, two for a cosine. With a third row the output is the cosine of the first
    #: with the second, minus that of the first with the third.
    rows: tuple[Row, ...]
    label: int = 0  # The class or the token whose logit it is
    #: A second token, after a text, whose logit is taken off.
    against: int | None = None
    #: Whose logits are read: where the mask stands, or the last token of a text.
    position: int = 0
    #: The positions of a target whose tokens count; its row is a PairRow
    target_positions: tuple[int, ...] = ()

    @property
    def source_and_target(self) -> PairRow:
        """The only row of an example of the kind ``target``."""
        (row,) = self.rows
        assert isinstance(row, PairRow)
        return row

    def __len__(self) -> int:
        """Count the tokens that it takes up in a batch, padding included."""
        return len(self.rows) * max(map(len, self.rows))


class ExampleBatch(NamedTuple):
    """Some examples that are run together."""

    indices: list[int]  # Which of all examples they are
    examples: list[Example]
    rows: Padded  # The rows of the first example, then those of the second, and so on


def batches(loaded: LoadedModel, examples: Sequence[Example]) -> Iterator[ExampleBatch]:
    """Yield a few examples at a time, the shortest first."""
    tokens = TOKENS_AT_ONCE
    if examples[0].kind == "target":
        tokens = min(tokens, LOGITS_AT_ONCE // loaded.vocab_size)
    # ``buckets`` sorts by length and cuts the sorted list; the indices are sorted the same way.
    shortest_first = sorted(range(len(examples)), key=lambda i: len(examples[i]))
    n_done = 0
    for bucket in buckets(examples, tokens):
        rows: list[Row] = []
        for example in bucket:
            rows += example.rows
        indices = shortest_first[n_done : n_done + len(bucket)]
        n_done += len(bucket)
        yield ExampleBatch(indices, bucket, padded(rows, loaded.pad_id, loaded.device))


def select_read(loaded: LoadedModel, examples: Sequence[Example], repeat: int = 1) -> Select | None:
    """Return the function that picks the last states which the task head reads.

    Logits over a vocabulary at every position would be slow. So for a masked token the head reads
    each row's mask alone, for a next token each row's last position, and for a cosine, which does
    not need the head, a single position. None where it reads all states as usual. ``repeat`` says
    how often the batch holds all examples.
    """
    if examples[0].kind == "cosine" and loaded.task_head in TOKEN_HEADS:
        return one_position
    if examples[0].kind not in ("token", "next"):
        return None
    positions = torch.tensor([example.position for example in examples]).repeat(repeat)

    def at_positions(hidden: Tensor) -> Tensor:
        """Pick the state that is read of each row: (batch, pos, d_model) -> (batch, 1, d_model)."""
        rows = torch.arange(len(hidden))
        return hidden[rows, positions.to(hidden.device)][:, None]

    return at_positions


def vectors(
    loaded: LoadedModel, kind: str, batch: Padded, hidden: Tensor, logits: Tensor | None
) -> Tensor:
    """Return the vector of each row, (batch, d): its embedding of length 1, or all its logits."""
    if kind == "cosine":
        embedded = loaded.pooling.embed(hidden, batch.attention_mask)
        return torch.nn.functional.normalize(embedded, dim=-1)
    assert logits is not None
    return logits.flatten(1)


def value_of(example: Example, rows: Tensor) -> Tensor:
    """Read an example's output from the vectors of its rows: (..., rows, d) -> (...)."""
    if example.kind == "cosine":
        first = rows[..., :1, :]
        compared = rows[..., 1:, :]
        cosines = (first * compared).sum(-1)  # (..., one or two)
        if len(example.rows) == 3:
            return cosines[..., 0] - cosines[..., 1]
        return cosines[..., 0]
    if example.kind == "target":
        return _target_logits(example, rows).mean(-1)
    logits = rows[..., 0, :]
    if example.against is not None:
        return logits[..., example.label] - logits[..., example.against]
    return logits[..., example.label]


def _target_logits(example: Example, rows: Tensor) -> Tensor:
    """Return the logits of a target's counted tokens, (..., positions).

    ``rows`` (..., 1, target_pos * vocabulary) are the logits of all positions, one after the other.
    """
    target = example.source_and_target.labels
    positions = list(example.target_positions)
    flat = rows[..., 0, :]
    by_position = flat.reshape(*flat.shape[:-1], len(target), -1)  # (..., target_pos, vocabulary)
    logits = by_position[..., positions, :]
    labels = torch.tensor([target[i] for i in positions], device=rows.device)
    return logits.gather(-1, labels[:, None].expand(*logits.shape[:-1], 1))[..., 0]


def logit_values(examples: Sequence[Example], logits: Tensor) -> Tensor:
    """Read each example's output from its logits: (batch, pos, outputs) -> (batch, 1).

    For a class the logits are (batch, outputs).
    """
    values = []
    for example, row in zip(examples, logits, strict=True):
        without_padding = row
        if example.kind == "target":
            without_padding = row[: len(example.source_and_target.labels)]
        values.append(value_of(example, without_padding.flatten()[None]))
    return torch.stack(values)[:, None]


def predicted(loaded: LoadedModel, examples: Sequence[Example]) -> list[Example]:
    """Give each example the class, label or token that the model finds likeliest."""
    labelled = list(examples)
    for i, logits in output_logits(loaded, examples):
        labelled[i] = replace(examples[i], label=int(logits.argmax()))
    return labelled


def output_logits(loaded: LoadedModel, examples: Sequence[Example]) -> Iterator[tuple[int, Tensor]]:
    """Yield the number of each example and its logits, of a class or at the position it reads."""
    for batch in batches(loaded, examples):
        run: Run = partial(loaded.run, select=select_read(loaded, batch.examples))
        with intervene(loaded) as router, torch.no_grad():
            logits = router.checked(run, *batch.rows.inputs)[1]
        assert logits is not None
        yield from zip(batch.indices, logits, strict=True)
