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
from headscope.core.errors import ValidationFailedError
from headscope.core.memory import give_back
from headscope.data.batches import buckets
from headscope.data.token_rows import Padded, PairRow, Row, padded
from headscope.models.anatomy.layers import Anatomy
from headscope.models.anatomy.readout import Readout, embedding, task_head
from headscope.models.anatomy.residual import Contributions, RecordedRun, record
from headscope.models.run.head_outputs import HeadOutputs, head_outputs
from headscope.models.run.intervene import Run, intervene
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import Select
from headscope.tasks.positions import TOKEN_HEADS, one_position

#: Largest error of the sum, relative to the sum of absolute parts: float64 gives 1e-15, and modules
#: that round to float32 inside (the norms of some families) 1e-7.
TOLERANCE = 1e-6
AT_ONCE = 128  # Tokens of a batch, padding included: a run keeps the states of every layer.
LOGITS = 10_000_000  # Entries of the logits of a batch in which every position has its own.


@dataclass(frozen=True)
class Example:
    """One output: the cosine of two rows, a logit of one, or the mean logit of a target."""

    kind: str  # ``cosine``, ``class``, ``token`` or ``target``
    #: One for a logit, two for a cosine; a third is what the second is compared with.
    rows: tuple[Row, ...]
    label: int = 0  # Of the logit
    #: Of a label that is independent of the others: 1 where it is predicted, its probability being
    #: above 0.5, and -1 where it is not; 0 where labels are alternatives.
    side: int = 0
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

    For a target this is the smallest margin of its counted tokens, and for a label that is
    independent of the others the distance of its logit from 0, where its probability is 0.5.
    """
    if example.kind == "cosine":
        return (rows[..., 0, :] * (rows[..., 1, :] - rows[..., 2, :])).sum(-1)
    if example.kind == "target":
        logits, target = _target_logits(example, rows)
        labels = [example.pair.labels[i] for i in example.positions]
        others = logits.clone()
        others[..., range(len(labels)), labels] = float("-inf")
        return (target - others.amax(-1)).amin(-1)
    if example.side:
        return example.side * rows[..., 0, example.label]
    others = rows[..., 0, :].clone()
    others[..., example.label] = float("-inf")
    return rows[..., 0, example.label] - others.amax(-1)


def _target_logits(example: Example, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits at a target's counted positions, and those of its tokens there.

    Shapes: (..., positions, vocabulary) and (..., positions).
    """
    pair = example.pair
    positions = list(example.positions)
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
    """Take the output of every example apart; ``progress`` gets how many are done.

    Raises ValidationFailedError where the parts do not add up to the output.
    """
    columns: dict[int, list[Array]] = {}  # By index of the example
    for indices, run, output, added, lengths in _runs(loaded, anatomy, examples, patterns=False):

        def by_example(values: Tensor, n: int = len(indices)) -> Tensor:
            """Add up the rows of each example."""
            return values.reshape(n, len(values) // n, *values.shape[1:]).sum(1)

        heads = by_example(added.heads.sum(-1))
        batch = [
            output,
            by_example(added.embeddings.sum(-1)),
            heads,
            by_example(added.feed_forward.sum(-1)),
            by_example(added.biases),
        ]
        if lengths is not None:  # in the sum, products of a head with the other text count half
            shorter = run.contributions(lengths).heads.sum(-1)
            batch.append(2 * heads - by_example(shorter))
        for row, i in enumerate(indices):
            columns[i] = [column[row].cpu().numpy() for column in batch]
        progress(len(columns))
        del run, added  # before the next batch is run
        give_back()
    rows = (columns[i] for i in range(len(examples)))
    parts = Parts(*(np.stack(values) for values in zip(*rows, strict=True)))
    if not (worst := float(parts.error.max())) <= TOLERANCE:
        raise ValidationFailedError(
            f"The parts of {loaded.name} do not add up to its output (they are off by {worst:.1e} "
            f"of the sum of absolute parts, tolerance {TOLERANCE:.0e}), so nothing is reported: "
            "something behind the layers of this model is not elementwise or a norm."
        )
    return parts


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


def batches(
    loaded: LoadedModel, examples: Sequence[Example]
) -> Iterator[tuple[list[int], list[Example], Padded]]:
    """Yield some examples at a time, the shortest first: their indices, and their rows padded."""
    cosine, target = (examples[0].kind == kind for kind in ("cosine", "target"))
    most = min(AT_ONCE, LOGITS // loaded.vocab_size) if target else AT_ONCE
    shortest_first = iter(sorted(range(len(examples)), key=lambda i: len(examples[i])))
    for part in buckets(examples, most):
        rows = [row for example in part for row in example.rows[: 2 if cosine else 1]]
        indices = [next(shortest_first) for _ in part]
        yield indices, part, padded(rows, loaded.pad_id, loaded.device)


def _runs(
    loaded: LoadedModel, anatomy: Anatomy, examples: Sequence[Example], *, patterns: bool
) -> Iterator[tuple[list[int], RecordedRun, Tensor, Contributions, Tensor | None]]:
    """Run examples in batches; yield their indices, the run, their outputs and each row's parts.

    For a cosine the last item is the readout of each row's own direction, (rows, pos, d_model):
    cosine times a / |a|^2, by which a part of a changes the cosine through the length of a.
    """
    kind = examples[0].kind
    lengths: Tensor | None = None
    for indices, part, batch in batches(loaded, examples):
        decoder = batch.decoder_inputs or None
        select = select_read(loaded, part)
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
        else:
            read = partial(_values, part)
            function = task_head(
                loaded, anatomy.end, *batch.inputs, select, decoder=decoder, read=read
            )
            readout = Readout(function, run.hidden)
            weights = torch.ones_like(readout.value)
            assert run.logits is not None
            output = read(run.logits)[:, 0]
        g, constant = readout.of(weights)
        parts = run.contributions(g, by_source=patterns)
        yield indices, run, output, replace(parts, biases=parts.biases + constant), lengths
        del run, readout, parts


def _values(examples: Sequence[Example], logits: Tensor) -> Tensor:
    """Read each example's output from its own row of logits (batch, pos, classes): (batch, 1)."""
    values = []
    for example, row in zip(examples, logits, strict=True):
        row = row[: len(example.pair.labels)] if example.kind == "target" else row
        values.append(value_of(example, row.flatten()[None]))
    return torch.stack(values)[:, None]


def predicted(
    loaded: LoadedModel, examples: Sequence[Example], *, same_label: bool = False
) -> list[Example]:
    """Give each example the class or token that the model predicts, or those of its target.

    A target is read itself where its next token is predicted (teacher forcing). Of labels that are
    independent it is the likeliest one, or, if ``same_label``, the one that the example has.
    """
    labelled = dict(enumerate(examples))
    independent = head_outputs(loaded) is HeadOutputs.LABELS
    for indices, part, batch in batches(loaded, examples):
        run: Run = partial(loaded.run, select=select_read(loaded, part))
        with intervene(loaded) as router, torch.no_grad():
            logits = router.checked(run, *batch.inputs, **batch.decoder_inputs)[1]
        assert logits is not None
        for i, example, row in zip(indices, part, logits, strict=True):
            if example.kind == "target":
                labels = tuple(row[: len(example.pair.labels)].argmax(-1).tolist())
                labelled[i] = replace(example, rows=(replace(example.pair, labels=labels),))
            elif independent:
                label = example.label if same_label else int(row.argmax())
                side = 1 if float(row[label]) > 0 else -1
                labelled[i] = replace(example, label=label, side=side)
            else:
                labelled[i] = replace(example, label=int(row.argmax()))
    return list(labelled.values())


def spread(n: int, most: int) -> list[int]:
    """Return at most ``most`` indices below ``n``, evenly spread."""
    return [i * n // min(n, most) for i in range(min(n, most))]
