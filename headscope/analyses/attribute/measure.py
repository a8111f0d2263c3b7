"""The parts of an output: examples, and the exact sum of what the model's parts contribute.

Of an encoder-decoder whose target is taken apart the parts are the decoder's: its embeddings, heads
of self-attention and of cross-attention, feed-forward networks and biases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from headscope.core.accumulator import Array
from headscope.data.batches import buckets
from headscope.data.token_rows import Padded, PairRow, Row, padded
from headscope.models.anatomy.layers import Anatomy
from headscope.models.anatomy.readout import Readout, embedding, task_head
from headscope.models.anatomy.residual import Contributions, RecordedRun, record
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import Select
from headscope.tasks.base import TOKEN_HEADS, one_position

AT_ONCE = 512  # Tokens of a batch, padding included: larger ones are slower in float64.
LOGITS = 10_000_000  # Entries of the logits of a batch in which every position has its own.


@dataclass(frozen=True)
class Example:
    """One output: the cosine of two rows, a logit of one, or the mean logit of a target."""

    kind: str  # ``cosine``, ``class``, ``token`` or ``target``
    #: One for a logit, two for a cosine; a third is what the second is compared with.
    rows: tuple[Row, ...]
    label: int = 0  # Of the logit
    position: int = 0  # Of the mask
    positions: tuple[int, ...] = ()  # Of the target's tokens that count; its row is a PairRow.

    @property
    def pair(self) -> PairRow:
        """The source and its target."""
        (row,) = self.rows
        assert isinstance(row, PairRow)
        return row

    def __len__(self) -> int:
        return len(self.rows) * max(map(len, self.rows))


@dataclass(frozen=True)
class Parts:
    """What every part contributes to the outputs of some examples, each array by example first."""

    output: Array  # (examples,)
    embeddings: Array  # (examples,)
    heads: Array  # (examples, n_layers, n_heads)
    feed_forward: Array  # (examples, n_layers)
    biases: Array  # (examples,)
    #: (examples, n_layers, n_heads): how a cosine changes at first order as a head's write fades,
    #: the lengths of both embeddings included; None for logits. No part of the sum.
    first_order: Array | None = None

    @property
    def error(self) -> Array:
        """How far the sum is from the output, relative to the sum of absolute parts."""
        each = (self.embeddings[:, None], self.heads, self.feed_forward, self.biases[:, None])
        flat = [part.reshape(len(self.output), -1) for part in each]
        total, absolute = (sum(f(part).sum(1) for part in flat) for f in (np.asarray, np.abs))
        return np.asarray(np.abs(total - self.output) / np.maximum(absolute, 1e-300))


# --- what an output is read from ------------------------------------------------------------------


def select_read(loaded: LoadedModel, examples: Sequence[Example], repeat: int = 1) -> Select | None:
    """Return which positions a language model's head reads: only each row's masked one.

    An embedding does not use the head, so there it reads a single position.
    """
    if examples[0].kind == "cosine" and loaded.task_head in TOKEN_HEADS:
        return one_position
    if examples[0].kind != "token":
        return None
    positions = torch.tensor([example.position for example in examples]).repeat(repeat)
    return lambda hidden: hidden[torch.arange(len(hidden)), positions.to(hidden.device)][:, None]


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
    """Read an example's output from the vectors of its rows, (..., rows, d)."""
    if example.kind == "cosine":
        return (rows[..., 0, :] * rows[..., 1, :]).sum(-1)
    if example.kind == "target":
        return _target_logits(example, rows)[1].mean(-1)
    return rows[..., 0, example.label]


def margin_of(example: Example, rows: Tensor) -> Tensor:
    """Return by how much the second text is nearer than the third, or the label is ahead.

    For a target this is the smallest margin of its counted tokens.
    """
    if example.kind == "cosine":
        return (rows[..., 0, :] * (rows[..., 1, :] - rows[..., 2, :])).sum(-1)
    if example.kind == "target":
        logits, target = _target_logits(example, rows)
        labels = [example.pair.labels[i] for i in example.positions]
        others = logits.clone()
        others[..., range(len(labels)), labels] = float("-inf")
        return (target - others.amax(-1)).amin(-1)
    others = rows[..., 0, :].clone()
    others[..., example.label] = float("-inf")
    return rows[..., 0, example.label] - others.amax(-1)


def _target_logits(example: Example, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits at a target's counted positions, and those of its own tokens there.

    Shapes: (..., positions, vocabulary) and (..., positions).
    """
    pair, positions = example.pair, list(example.positions)
    flat = rows[..., 0, :]
    logits = flat.reshape(*flat.shape[:-1], len(pair.labels), -1)[..., positions, :]
    labels = torch.tensor([pair.labels[i] for i in positions], device=rows.device)
    return logits, logits.gather(-1, labels[:, None].expand(*logits.shape[:-1], 1))[..., 0]


# --- the sum --------------------------------------------------------------------------------------


def measure_parts(
    loaded: LoadedModel,
    anatomy: Anatomy,
    examples: Sequence[Example],
    progress: Callable[[int], None] = lambda done: None,
) -> Parts:
    """Take the output of every example apart; ``progress`` gets how many are done."""
    columns: dict[int, list[Array]] = {}  # By the place of the example
    for indices, run, output, parts, lengths in _runs(loaded, anatomy, examples, patterns=False):

        def by_example(values: Tensor, n: int = len(indices)) -> Tensor:
            """Add up the rows of each example."""
            return values.reshape(n, len(values) // n, *values.shape[1:]).sum(1)

        heads = by_example(parts.heads.sum(-1))
        batch = [
            output,
            by_example(parts.embeddings.sum(-1)),
            heads,
            by_example(parts.feed_forward.sum(-1)),
            by_example(parts.biases),
        ]
        if lengths is not None:  # in the sum, products of a head with the other text count half
            shorter = run.contributions(lengths).heads.sum(-1)
            batch.append(2 * heads - by_example(shorter))
        for place, i in enumerate(indices):
            columns[i] = [column[place].cpu().numpy() for column in batch]
        progress(len(columns))
    rows = (columns[i] for i in range(len(examples)))
    return Parts(*(np.stack(values) for values in zip(*rows, strict=True)))


def measure_tokens(
    loaded: LoadedModel, anatomy: Anatomy, example: Example
) -> tuple[float, Contributions, Array | None]:
    """Split one output by token: what heads read from each, and what the other parts add there.

    Returns the output, its parts by source token, and a table of what two tokens contribute
    together. For a cosine (pos of the first, pos of the second): their states, without terms that
    involve biases. For a target (target_pos, source_pos): what cross-attention read from a source
    token for the logit of a target's token.
    """
    ((_, run, output, parts, _),) = _runs(loaded, anatomy, [example], patterns=True)
    table = parts.cross[0] if parts.cross is not None else None
    if example.kind == "cosine":
        states, _ = run.source_states()  # (rows, pos, source_pos, d_model)
        pooled = []
        for row in range(2):
            # With its statistics held fixed, all from pooling on is linear in each source token.
            hidden = run.hidden[row : row + 1]
            readout = Readout(embedding(loaded, run.real[row : row + 1]), hidden)
            of_source = []  # Each source token's part of a coordinate of the embedding
            for k in range(readout.value.shape[1]):
                unit = torch.zeros_like(readout.value)
                unit[0, k] = 1.0
                g, _ = readout.of(unit)  # (1, pos, d_model)
                n = len(example.rows[row])
                of_source.append(torch.einsum("qd,qsd->s", g[0], states[row][:, :n]))
            pooled.append(torch.stack(of_source, 1))  # (source_pos, d)
        first, second = pooled
        embedded = loaded.pooling.embed(run.hidden, run.real)
        table = first @ second.T / (embedded[0].norm() * embedded[1].norm())
    return float(output[0]), parts, None if table is None else table.cpu().numpy()


def _runs(
    loaded: LoadedModel, anatomy: Anatomy, examples: Sequence[Example], *, patterns: bool
) -> Iterator[tuple[list[int], RecordedRun, Tensor, Contributions, Tensor | None]]:
    """Run examples in batches; yield their indices, the run, their outputs and each row's parts.

    For a cosine the last item is the readout of each row's own direction, (rows, pos, d_model):
    cosine times a / |a|^2, by which a part of a changes the cosine through the length of a.
    """
    kind = examples[0].kind
    most = AT_ONCE if kind != "target" else min(AT_ONCE, LOGITS // loaded.vocab_size)
    shortest_first = sorted(range(len(examples)), key=lambda i: len(examples[i]))
    lengths: Tensor | None = None
    done = 0
    for part in buckets(examples, most):
        indices = shortest_first[done : done + len(part)]
        done += len(part)
        rows = [row for example in part for row in example.rows[: 2 if kind == "cosine" else 1]]
        batch = padded(rows, loaded.pad_id, loaded.device)
        decoder, select = batch.decoder_inputs or None, select_read(loaded, part)
        run = record(
            loaded, anatomy, *batch.inputs, decoder=decoder, patterns=patterns, select=select
        )
        if kind == "cosine":
            readout = Readout(embedding(loaded, batch.attention_mask), run.hidden)
            pairs = readout.value.reshape(len(part), 2, -1)
            length = pairs.norm(dim=-1).prod(-1)[:, None, None].clamp(min=1e-300)
            weights = (pairs.flip(1) / (2 * length)).flatten(0, 1)
            output = (pairs[:, 0] * pairs[:, 1]).sum(-1) / length[:, 0, 0]
            square = (pairs * pairs).sum(-1, keepdim=True).clamp(min=1e-300)
            lengths, _ = readout.of((output[:, None, None] * pairs / square).flatten(0, 1))
        elif kind == "target":
            read = partial(_mean_logit, part)
            function = task_head(loaded, anatomy.end, *batch.inputs, decoder=decoder, read=read)
            readout = Readout(function, run.hidden)
            weights = torch.ones_like(readout.value)
            assert run.logits is not None
            output = read(run.logits)[:, 0]
        else:
            function = task_head(loaded, anatomy.end, *batch.inputs, select)
            readout = Readout(function, run.hidden)
            labels = torch.tensor([example.label for example in part], device=loaded.device)
            weights = torch.zeros_like(readout.value).scatter(1, labels[:, None], 1.0)
            assert run.logits is not None
            logits = run.logits if select is None else run.logits[:, 0]
            output = logits.gather(1, labels[:, None])[:, 0]
        g, constant = readout.of(weights)
        parts = run.contributions(g, by_source=patterns)
        yield indices, run, output, replace(parts, biases=parts.biases + constant), lengths


def _mean_logit(examples: Sequence[Example], logits: Tensor) -> Tensor:
    """Return the mean logit of each target's tokens, (batch, 1), from (batch, pos, vocabulary)."""
    rows, positions, labels, weights = zip(
        *(
            (i, position, example.pair.labels[position], 1 / len(example.positions))
            for i, example in enumerate(examples)
            for position in example.positions
        ),
        strict=True,
    )
    counted = logits[list(rows), list(positions), list(labels)]
    mean = logits.new_zeros(len(examples)).index_add(
        0, torch.tensor(rows, device=logits.device), counted * counted.new_tensor(weights)
    )
    return mean[:, None]


def spread(n: int, most: int) -> list[int]:
    """Return at most ``most`` indices below ``n``, evenly spread."""
    return [i * n // min(n, most) for i in range(min(n, most))]
