"""What is taken apart: one output of a model, and how it is read from a run.

An output is one number: the cosine of two texts' embeddings (or the difference of two cosines), the
logit of a class, the logit of a token at a mask, or the mean logit of the tokens of what an
encoder-decoder should write.
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

    kind: str  # ``cosine``, ``class``, ``token`` or ``target``
    #: One row for a logit, two for a cosine. With a third row the output is the cosine of the first
    #: with the second, minus that of the first with the third.
    rows: tuple[Row, ...]
    label: int = 0  # The class or the token whose logit it is
    position: int = 0  # Of the mask
    positions: tuple[int, ...] = ()  # Of the target's tokens that count; its row is a PairRow.

    @property
    def pair(self) -> PairRow:
        """The source and its target."""
        (row,) = self.rows
        assert isinstance(row, PairRow)
        return row

    def __len__(self) -> int:
        """Tokens that it takes up in a batch, padding included."""
        return len(self.rows) * max(map(len, self.rows))


class ExampleBatch(NamedTuple):
    """Some examples that are run together."""

    indices: list[int]  # Of the examples among all
    examples: list[Example]
    rows: Padded  # Those of the first example, then those of the second, and so on


def batches(loaded: LoadedModel, examples: Sequence[Example]) -> Iterator[ExampleBatch]:
    """Yield a few examples at a time, the shortest first."""
    tokens = TOKENS_AT_ONCE
    if examples[0].kind == "target":
        tokens = min(tokens, LOGITS_AT_ONCE // loaded.vocab_size)
    shortest_first = iter(sorted(range(len(examples)), key=lambda i: len(examples[i])))
    for bucket in buckets(examples, tokens):
        rows: list[Row] = []
        for example in bucket:
            rows += example.rows
        indices = [next(shortest_first) for _ in bucket]
        yield ExampleBatch(indices, bucket, padded(rows, loaded.pad_id, loaded.device))


def select_read(loaded: LoadedModel, examples: Sequence[Example], repeat: int = 1) -> Select | None:
    """Return what keeps a task head from reading every position, which for a vocabulary is slow.

    For a masked token it reads each row's mask alone; for a cosine, which does not use it, a single
    position. None where the head reads what it always does. ``repeat`` says how often the batch
    holds all examples.
    """
    if examples[0].kind == "cosine" and loaded.task_head in TOKEN_HEADS:
        return one_position
    if examples[0].kind != "token":
        return None
    positions = torch.tensor([example.position for example in examples]).repeat(repeat)

    def at_masks(hidden: Tensor) -> Tensor:
        """Return the states at the masks, (batch, 1, d_model), of all of them."""
        rows = torch.arange(len(hidden))
        return hidden[rows, positions.to(hidden.device)][:, None]

    return at_masks


def vectors(
    loaded: LoadedModel, kind: str, batch: Padded, hidden: Tensor, logits: Tensor | None
) -> Tensor:
    """Return the vector of each row that outputs are read from: unit embedding, or logits."""
    if kind == "cosine":
        embedded = loaded.pooling.embed(hidden, batch.attention_mask)
        return torch.nn.functional.normalize(embedded, dim=-1)
    assert logits is not None
    return logits.flatten(1)


def value_of(example: Example, rows: Tensor) -> Tensor:
    """Read an example's output from the vectors of its rows, (..., rows, d): (...)."""
    if example.kind == "cosine":
        first = rows[..., :1, :]
        cosines = (first * rows[..., 1:, :]).sum(-1)
        if len(example.rows) == 3:
            return cosines[..., 0] - cosines[..., 1]
        return cosines[..., 0]
    if example.kind == "target":
        return _target_logits(example, rows).mean(-1)
    return rows[..., 0, example.label]


def _target_logits(example: Example, rows: Tensor) -> Tensor:
    """Return the logits of a target's counted tokens, (..., positions).

    ``rows`` (..., 1, target_pos * vocabulary) are the logits of all positions, one after the other.
    """
    target = example.pair.labels
    positions = list(example.positions)
    flat = rows[..., 0, :]
    logits = flat.reshape(*flat.shape[:-1], len(target), -1)[..., positions, :]
    labels = torch.tensor([target[i] for i in positions], device=rows.device)
    return logits.gather(-1, labels[:, None].expand(*logits.shape[:-1], 1))[..., 0]


def logit_values(examples: Sequence[Example], logits: Tensor) -> Tensor:
    """Read each example's output from its own row of logits (batch, pos, classes): (batch, 1)."""
    values = []
    for example, row in zip(examples, logits, strict=True):
        without_padding = row
        if example.kind == "target":
            without_padding = row[: len(example.pair.labels)]
        values.append(value_of(example, without_padding.flatten()[None]))
    return torch.stack(values)[:, None]


def predicted(loaded: LoadedModel, examples: Sequence[Example]) -> list[Example]:
    """Give each example the class, label or token that the model finds likeliest."""
    labelled = dict(enumerate(examples))
    for batch in batches(loaded, examples):
        run: Run = partial(loaded.run, select=select_read(loaded, batch.examples))
        with intervene(loaded) as router, torch.no_grad():
            logits = router.checked(run, *batch.rows.inputs)[1]
        assert logits is not None
        for i, example, row in zip(batch.indices, batch.examples, logits, strict=True):
            labelled[i] = replace(example, label=int(row.argmax()))
    return list(labelled.values())
