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
from headscope.data.token_rows import Padded, PairRow, Row, padded
from headscope.models.anatomy.layers import Anatomy
from headscope.models.anatomy.readout import Readout, embedding, task_head
from headscope.models.anatomy.residual import Contributions, RecordedRun, record
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import Select
from headscope.tasks.base import TOKEN_HEADS, one_position

AT_ONCE = 512  # Tokens of a batch, padding included: larger ones are slower in float64.
SHUFFLED = 256  # Examples that are paired with others as a control
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


@dataclass(frozen=True)
class Tokens:
    """The parts of one example by source token, (rows, pos) each; zeros at padding."""

    embeddings: Array
    heads: Array  # (rows, n_layers, n_heads, pos)
    feed_forward: Array
    #: For a cosine (pos of the first, pos of the second): what two tokens' states contribute
    #: together, without terms that involve biases. For a target (target_pos, source_pos): what
    #: cross-attention read from a source token for the logit of a target's token.
    table: Array | None


def select_read(loaded: LoadedModel, examples: Sequence[Example], repeat: int = 1) -> Select | None:
    """Return which positions a language model's head reads: only each row's masked one.

    An embedding does not use the head, so there it reads a single position.
    """
    if examples[0].kind == "cosine" and loaded.task_head in TOKEN_HEADS:
        return one_position
    if examples[0].kind != "token":
        return None
    places = torch.tensor([example.position for example in examples]).repeat(repeat)
    return lambda hidden: hidden[torch.arange(len(hidden)), places.to(hidden.device)][:, None]


def vectors(
    loaded: LoadedModel,
    kind: str,
    batch: Padded,
    hidden: Tensor,
    logits: Tensor | None,
) -> Tensor:
    """Return the vector of each row that outputs are read from: unit embedding, or logits."""
    if kind == "cosine":
        return torch.nn.functional.normalize(
            loaded.pooling.embed(hidden, batch.attention_mask), dim=-1
        )
    assert logits is not None
    return logits.flatten(1)


def value_of(example: Example, found: Tensor) -> Tensor:
    """Read an example's output from the vectors of its rows, (..., rows, d)."""
    if example.kind == "cosine":
        return (found[..., 0, :] * found[..., 1, :]).sum(-1)
    if example.kind == "target":
        return _gold(example, found)[1].mean(-1)
    return found[..., 0, example.label]


def _gold(example: Example, found: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits at a target's counted positions, and those of its own tokens there.

    Shapes: (..., positions, vocabulary) and (..., positions).
    """
    row, places = example.pair, list(example.positions)
    flat = found[..., 0, :]
    logits = flat.reshape(*flat.shape[:-1], len(row.labels), -1)[..., places, :]
    labels = torch.tensor([row.labels[i] for i in places], device=found.device)
    own = labels[:, None].expand(*logits.shape[:-1], 1)
    return logits, logits.gather(-1, own)[..., 0]


def margin_of(example: Example, found: Tensor) -> Tensor:
    """Return by how much the second text is nearer than the third, or the label is ahead.

    For a target this is the smallest margin of its counted tokens.
    """
    if example.kind == "cosine":
        return (found[..., 0, :] * (found[..., 1, :] - found[..., 2, :])).sum(-1)
    if example.kind == "target":
        logits, own = _gold(example, found)
        labels = [example.pair.labels[i] for i in example.positions]
        rest = logits.clone()
        rest[..., range(len(labels)), labels] = float("-inf")
        return (own - rest.amax(-1)).amin(-1)
    rest = found[..., 0, :].clone()
    rest[..., example.label] = float("-inf")
    return found[..., 0, example.label] - rest.amax(-1)


def measure_parts(
    loaded: LoadedModel,
    stream: Anatomy,
    examples: Sequence[Example],
    tell: Callable[[int], None] = lambda done: None,
) -> Parts:
    """Take the output of every example apart; ``tell`` gets how many are done."""
    found: list[tuple[int, tuple[Array, ...]]] = []
    for indices, run, output, parts, lengths in _runs(loaded, stream, examples, patterns=False):
        heads = _by_example(parts.heads.sum(-1), run, indices)
        columns = [
            output,
            _by_example(parts.embeddings.sum(-1), run, indices),
            heads,
            _by_example(parts.feed_forward.sum(-1), run, indices),
            _by_example(parts.biases, run, indices),
        ]
        if lengths is not None:  # in the sum, products of a head with the other text count half
            shorter = run.contributions(lengths).heads.sum(-1)
            columns.append(2 * heads - _by_example(shorter, run, indices))
        found += [
            (i, tuple(column[place].cpu().numpy() for column in columns))
            for place, i in enumerate(indices)
        ]
        tell(len(found))
    found.sort(key=lambda item: item[0])
    return Parts(*(np.stack(values) for values in zip(*(item[1] for item in found), strict=True)))


def measure_tokens(loaded: LoadedModel, stream: Anatomy, example: Example) -> Tokens:
    """Split one output by token: what heads read from each, and what the other parts add there."""
    (_, run, _, parts, _) = next(iter(_runs(loaded, stream, [example], patterns=True)))
    table = None if parts.cross is None else parts.cross[0].cpu().numpy()
    if example.kind == "cosine":
        states, _ = run.source_states()  # (rows, pos, source_pos, d_model)
        pooled = []
        for row in range(2):
            n = len(example.rows[row])
            # With its statistics held fixed, all from pooling on is linear in each source token.
            own = run.hidden[row : row + 1]
            readout = Readout(embedding(loaded, run.real[row : row + 1]), own)
            pooled.append(_through(readout, states[row], n))
        a, b = pooled
        whole = loaded.pooling.embed(run.hidden, run.real)
        table_ = a @ b.T / (whole[0].norm() * whole[1].norm())
        table = table_.cpu().numpy()
    return Tokens(
        parts.embeddings.cpu().numpy(),
        parts.heads.cpu().numpy(),
        parts.feed_forward.cpu().numpy(),
        table,
    )


def _through(readout: Readout, states: Tensor, n: int) -> Tensor:
    """Map each source token's states (pos, source_pos, d_model) to its part of an embedding."""
    width = readout.value.shape[1]
    rows = []
    for k in range(width):
        unit = torch.zeros_like(readout.value)
        unit[0, k] = 1.0
        g, _ = readout.of(unit)  # (1, pos, d_model)
        rows.append(torch.einsum("qd,qsd->s", g[0], states[:, :n]))
    return torch.stack(rows, 1)  # (source_pos, d)


def _runs(
    loaded: LoadedModel, stream: Anatomy, examples: Sequence[Example], *, patterns: bool
) -> Iterator[tuple[list[int], RecordedRun, Tensor, Contributions, Tensor | None]]:
    """Run examples in batches; yield their indices, the run, their outputs and each row's parts.

    For a cosine the last item is the readout of each row's own direction, (rows, pos, d_model):
    cosine times a / |a|^2, by which a part of a changes the cosine through the length of a.
    """
    kind = examples[0].kind
    most = AT_ONCE if kind != "target" else min(AT_ONCE, LOGITS // loaded.vocab_size)
    lengths: Tensor | None = None
    for indices in batches([len(example) for example in examples], most):
        part = [examples[i] for i in indices]
        rows = [row for example in part for row in example.rows[: 2 if kind == "cosine" else 1]]
        batch = padded(rows, loaded.pad_id, loaded.device)
        more, select = batch.decoder_inputs or None, select_read(loaded, part)
        run = record(loaded, stream, *batch.inputs, decoder=more, patterns=patterns, select=select)
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
            function = task_head(loaded, stream.end, *batch.inputs, decoder=more, read=read)
            readout = Readout(function, run.hidden)
            weights = torch.ones_like(readout.value)
            assert run.logits is not None
            output = read(run.logits)[:, 0]
        else:
            function = task_head(loaded, stream.end, *batch.inputs, select)
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
    rows, places, labels, weights = zip(
        *(
            (i, place, example.pair.labels[place], 1 / len(example.positions))
            for i, example in enumerate(examples)
            for place in example.positions
        ),
        strict=True,
    )
    own = logits[list(rows), list(places), list(labels)]
    mean = logits.new_zeros(len(examples)).index_add(
        0, torch.tensor(rows, device=own.device), own * own.new_tensor(weights)
    )
    return mean[:, None]


def _by_example(values: Tensor, run: RecordedRun, indices: Sequence[int]) -> Tensor:
    """Add up the rows of each example."""
    return values.reshape(len(indices), len(run.hidden) // len(indices), *values.shape[1:]).sum(1)


def spread(n: int, most: int) -> list[int]:
    """Return at most ``most`` indices below ``n``, evenly spread."""
    return [i * n // min(n, most) for i in range(min(n, most))]


def with_next(examples: Sequence[Example]) -> Iterator[tuple[Example, Example]]:
    """Yield examples, :data:`SHUFFLED` at most and spread evenly, each with the one after it."""
    for i in spread(len(examples), SHUFFLED):
        yield examples[i], examples[(i + 1) % len(examples)]


def batches(lengths: Sequence[int], tokens: int = AT_ONCE) -> Iterator[list[int]]:
    """Yield batches of examples' indices, the shortest examples first."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    part: list[int] = []
    for i in order:
        if part and (len(part) + 1) * lengths[i] > tokens:
            yield part
            part = []
        part.append(i)
    if part:
        yield part
