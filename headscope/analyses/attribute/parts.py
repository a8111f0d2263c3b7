"""The exact sum: what each part of a model contributes to its outputs.

An output is made linear in what the layers write: with the statistics of norms held fixed it is the
dot product of the last states with some vectors, the *readout*, and a constant. The last states are
the sum of what every part has written to the residual stream, so the contribution of a part is the
dot product of what it wrote with the readout. :func:`exact_sum_of` adds all of them up and checks
the sum.

A ``RecordedRun`` is one batch with what every layer wrote; ``Contributions`` are the numbers that
it makes of a readout, by text (row) and position.

Of an encoder-decoder whose target is taken apart the parts are the decoder's: its embeddings, heads
of self-attention and of cross-attention, feed-forward networks and biases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.attribute.outputs import (
    Example,
    ExampleBatch,
    batches,
    logit_values,
    select_read,
)
from headscope.core.accumulator import Array, numpy
from headscope.core.errors import ValidationFailedError
from headscope.core.memory import release_memory
from headscope.models.anatomy.layers import Anatomy
from headscope.models.anatomy.readout import Readout, embedding, task_head
from headscope.models.anatomy.residual import Contributions, RecordedRun, record
from headscope.models.run.loaded import LoadedModel

#: Largest error of the sum, relative to the sum of absolute parts: float64 gives 1e-15, and modules
#: that round to float32 inside (the norms of some families) 1e-7.
TOLERANCE = 1e-6
_TINY = 1e-300  # Stands in for the length of an embedding that is zero.


@dataclass(frozen=True)
class ExactSum:
    """The outputs of some examples, and the parts that each of them is the sum of."""

    output: Array  # (examples,)
    embeddings: Array  # (examples,)
    heads: Array  # (examples, n_layers, n_heads)
    feed_forward: Array  # (examples, n_layers)
    biases: Array  # (examples,)
    #: (examples, n_layers, n_heads): how a cosine changes at first order as a head's write fades,
    #: the lengths of the embeddings included; None for logits. No part of the sum.
    first_order: Array | None = None

    @property
    def error(self) -> Array:
        """How far the sum is off, relative to the sum of absolute parts, (examples,)."""
        n = len(self.output)
        all_parts = np.concatenate(
            [
                self.embeddings.reshape(n, 1),
                self.heads.reshape(n, -1),
                self.feed_forward.reshape(n, -1),
                self.biases.reshape(n, 1),
            ],
            axis=1,
        )
        difference = all_parts.sum(axis=1) - self.output
        absolute = np.abs(all_parts).sum(axis=1)
        return np.asarray(np.abs(difference) / np.maximum(absolute, _TINY))


def exact_sum_of(
    loaded: LoadedModel,
    anatomy: Anatomy,
    examples: Sequence[Example],
    progress: Callable[[int], None] = lambda done: None,
) -> ExactSum:
    """Take the output of every example apart; ``progress`` gets how many are done.

    Raises ValidationFailedError where the parts do not add up to the output.
    """
    indices: list[int] = []  # Of the examples, in the order of their batches
    sums: list[ExactSum] = []  # Of each batch
    for batch in take_apart_batches(loaded, anatomy, examples, by_source=False):
        indices += batch.indices
        sums.append(_sum_of_batch(batch))
        progress(len(indices))
        del batch  # before the next batch is run
        release_memory()
    exact_sum = _in_order(sums, indices)
    worst = float(exact_sum.error.max())
    if not worst <= TOLERANCE:
        raise ValidationFailedError(
            f"The parts of {loaded.name} do not add up to its output (they are off by {worst:.1e} "
            f"of the sum of absolute parts, tolerance {TOLERANCE:.0e}), so nothing is reported: "
            "something behind the layers of this model is not elementwise or a norm."
        )
    return exact_sum


class PartsOfBatch(NamedTuple):
    """One batch of examples, taken apart."""

    indices: list[int]  # Which of all examples they are
    run: RecordedRun
    output: Tensor  # (examples,)
    contributions: Contributions  # Of each row: a text, of which an example may have several
    #: (rows, pos, d_model), for cosines: the readout of what the output loses as the embedding of
    #: the row becomes longer. None for logits.
    length_readout: Tensor | None


def take_apart_batches(
    loaded: LoadedModel, anatomy: Anatomy, examples: Sequence[Example], *, by_source: bool
) -> Iterator[PartsOfBatch]:
    """Run examples in batches and take their outputs apart.

    ``by_source`` splits what heads write by the token that they read.
    """
    for batch in batches(loaded, examples):
        # Run the batch, and keep what every layer writes.
        run = record(
            loaded,
            anatomy,
            *batch.rows.inputs,
            decoder=batch.rows.decoder_inputs or None,  # empty if there is no decoder
            patterns=by_source,
            select=select_read(loaded, batch.examples),
        )
        # Make the outputs linear in the last states: outputs = sum(readout's value * weights).
        length_readout = None
        if examples[0].kind == "cosine":
            readout = Readout(embedding(loaded, batch.rows.attention_mask), run.hidden)
            cosines = _cosine_weights(readout.value, len(batch.examples))
            output = cosines.output
            weights = cosines.by_row
            length_readout, _ = readout.of(cosines.of_lengths)
        else:
            readout = _logit_readout(loaded, anatomy, batch, run)
            assert run.logits is not None
            output = logit_values(batch.examples, run.logits)[:, 0]
            weights = torch.ones_like(readout.value)
        # Multiply what every part wrote with the readout.
        readout_vectors, constant = readout.of(weights)
        contributions = run.contributions(readout_vectors, by_source=by_source)
        with_constant = replace(contributions, biases=contributions.biases + constant)
        yield PartsOfBatch(batch.indices, run, output, with_constant, length_readout)
        del run, readout, contributions, with_constant  # memory for the next batch


def _logit_readout(
    loaded: LoadedModel, anatomy: Anatomy, batch: ExampleBatch, run: RecordedRun
) -> Readout:
    """Make the task head linear at one run; the value is each example's logit, (rows, 1)."""
    function = task_head(
        loaded,
        anatomy.end,
        *batch.rows.inputs,
        select_read(loaded, batch.examples),
        decoder=batch.rows.decoder_inputs or None,
        read=partial(logit_values, batch.examples),
    )
    return Readout(function, run.hidden)


class _CosineWeights(NamedTuple):
    """Cosines, and how they are read from embeddings: an output is the sum of weight * embedding.

    The dot product of two texts is halved between them, so that the sum over both is the cosine.
    """

    output: Tensor  # (examples,)
    by_row: Tensor  # (rows, d): weights, with the lengths of the embeddings held fixed
    #: (rows, d): vectors along the embeddings, as long as the loss of output for each unit by which
    #: an embedding becomes longer
    of_lengths: Tensor


def _cosine_weights(embeddings: Tensor, n_examples: int) -> _CosineWeights:
    """Weigh the embeddings (rows, d) of the texts of some examples.

    Of two texts a and b, a is weighed by b / (2 |a| |b|) and b by a / (2 |a| |b|). Where an example
    has a third text, the cosine with it counts negatively.
    """
    texts = embeddings.reshape(n_examples, -1, embeddings.shape[-1])  # (examples, texts, d)
    first = texts[:, :1]
    compared = texts[:, 1:]
    sign = texts.new_tensor([1.0, -1.0])[: compared.shape[1], None]  # (texts - 1, 1)
    norms = texts.norm(dim=-1, keepdim=True)
    lengths = (norms[:, :1] * norms[:, 1:]).clamp(min=_TINY)  # (examples, texts - 1, 1)
    cosines = sign * (first * compared).sum(-1, keepdim=True) / lengths
    output = cosines.sum(1)  # (examples, 1)

    first_weight = (sign * compared / (2 * lengths)).sum(1, keepdim=True)
    compared_weights = sign * first / (2 * lengths)
    weights = torch.cat([first_weight, compared_weights], dim=1)
    # A text's length changes every cosine that it takes part in: the first text's changes all.
    cosines_of_text = torch.cat([output[:, None], cosines], dim=1)  # (examples, texts, 1)
    squares = (texts * texts).sum(-1, keepdim=True).clamp(min=_TINY)
    of_lengths = cosines_of_text * texts / squares
    return _CosineWeights(output[:, 0], weights.flatten(0, 1), of_lengths.flatten(0, 1))


def _sum_of_batch(batch: PartsOfBatch) -> ExactSum:
    """Add up the parts of each example of a batch, over its texts and over positions."""
    n_examples = len(batch.indices)

    def by_example(rows: Tensor) -> Array:
        """Add up the texts of each example: (rows, ...) -> (examples, ...)."""
        return numpy(rows.reshape(n_examples, -1, *rows.shape[1:]).sum(1))

    contributions = batch.contributions
    heads = by_example(contributions.heads.sum(-1))
    first_order = None
    if batch.length_readout is not None:
        # In the sum, the product of a head's write with the other text counts half, since the other
        # half is that text's part. At first order it counts whole.
        by_length = by_example(batch.run.contributions(batch.length_readout).heads.sum(-1))
        first_order = 2 * heads - by_length
    return ExactSum(
        output=numpy(batch.output),
        embeddings=by_example(contributions.embeddings.sum(-1)),
        heads=heads,
        feed_forward=by_example(contributions.feed_forward.sum(-1)),
        biases=by_example(contributions.biases),
        first_order=first_order,
    )


def _in_order(sums: Sequence[ExactSum], indices: Sequence[int]) -> ExactSum:
    """Join the sums of batches; ``indices`` says which example each of their rows is."""
    order = np.argsort(indices)

    def joined(name: str) -> Array:
        tables = [getattr(batch_sum, name) for batch_sum in sums]
        return np.asarray(np.concatenate(tables)[order])

    return ExactSum(
        output=joined("output"),
        embeddings=joined("embeddings"),
        heads=joined("heads"),
        feed_forward=joined("feed_forward"),
        biases=joined("biases"),
        first_order=None if sums[0].first_order is None else joined("first_order"),
    )
