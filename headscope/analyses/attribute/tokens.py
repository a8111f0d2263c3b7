"""One output by token: what heads read from each token, and what the other parts add there.

Beside the tokens there is a table of pairs of tokens. For a cosine it says what a token of the
first text and one of the second contribute together; for a target, what cross-attention read from
each source token for the logit of each target token.

``Contributions`` is what every part of the model adds to the output, here by the token that is
read: ``heads`` (rows, n_layers, n_heads, pos), ``feed_forward`` (rows, n_layers, pos) and
``embeddings`` (rows, pos), with a row for each text. A ``RecordedRun`` is the run that they come
from. For a target there is one row, a source with its target: there positions of cross-attention
heads are tokens of the source, all others are tokens that the decoder reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.attribute.outputs import Example
from headscope.analyses.attribute.parts import take_apart_batches
from headscope.analyses.attribute.result import AttributedToken, TokenPairs
from headscope.core.accumulator import Array
from headscope.data.readable_pieces import readable_pieces
from headscope.models.anatomy.layers import Anatomy
from headscope.models.anatomy.readout import Readout, embedding
from headscope.models.anatomy.residual import Contributions, RecordedRun
from headscope.models.run.loaded import LoadedModel


def split_by_token(
    loaded: LoadedModel, anatomy: Anatomy, example: Example
) -> tuple[tuple[AttributedToken, ...], TokenPairs | None]:
    """Split one output by the tokens that its parts were read from, and by pairs of them.

    There are no pairs for a single text.
    """
    # One example is one batch. ``by_source``: heads count for the token read, not for the query.
    (batch,) = take_apart_batches(loaded, anatomy, [example], by_source=True)
    output = float(batch.output[0])
    if example.kind == "target":
        texts = _texts_of_target(loaded, example, batch.contributions)
        pairs = _pairs_of_target(loaded, example, batch.contributions, output)
    else:
        texts = _texts_of_rows(example, batch.contributions)
        pairs = None
        if example.kind == "cosine":
            pairs = _pairs_of_cosine(loaded, example, batch.run, output)
    tokens: list[AttributedToken] = []
    for number, text in enumerate(texts):
        tokens += text.tokens(loaded, number)
    return tuple(tokens), pairs


@dataclass(frozen=True)
class _TextParts:
    """What comes from the tokens of one text, each array by position."""

    ids: Sequence[int]
    content: Sequence[int]  # Positions that are no special token
    heads: Array
    feed_forward: Array
    embeddings: Array

    def tokens(self, loaded: LoadedModel, text: int) -> Iterator[AttributedToken]:
        """Yield the tokens as results; ``text`` is the number of this text."""
        for position, name in enumerate(readable_pieces(loaded.tokenizer, self.ids)):
            yield AttributedToken(
                text=text,
                position=position,
                token=name,
                special=position not in self.content,
                heads=float(self.heads[position]),
                feed_forward=float(self.feed_forward[position]),
                embeddings=float(self.embeddings[position]),
            )


def _texts_of_rows(example: Example, contributions: Contributions) -> list[_TextParts]:
    """Sum the parts of each text over layers and heads."""
    heads = contributions.heads.sum((1, 2)).cpu().numpy()  # (rows, pos)
    feed_forward = contributions.feed_forward.sum(1).cpu().numpy()  # (rows, pos)
    embeddings = contributions.embeddings.cpu().numpy()  # (rows, pos)
    return [
        _TextParts(row.ids, row.content, heads[i], feed_forward[i], embeddings[i])
        for i, row in enumerate(example.rows)
    ]


def _texts_of_target(
    loaded: LoadedModel, example: Example, contributions: Contributions
) -> list[_TextParts]:
    """Return two texts: the source, which cross-attention reads, and what the decoder reads."""
    pair = example.source_and_target  # token ids of the source (``ids``) and of the target
    # (n_layers, pos): a layer is a site's row; ``pos`` is padded to the longer of both texts. It
    # counts source tokens in the rows of cross-attention, target tokens in those of the decoder.
    heads = contributions.heads[0].sum(1).cpu().numpy()
    cross = [site.row for site in loaded.sites if site.stack == "cross"]
    decoder = [site.row for site in loaded.sites if site.stack == "decoder"]
    nothing = np.zeros(len(pair))  # ``len`` counts source and target: more than is read of it
    source = _TextParts(pair.ids, pair.content, heads[cross].sum(0), nothing, nothing)
    target = _TextParts(
        ids=pair.decoder_ids,
        content=pair.decoder_content,
        heads=heads[decoder].sum(0),
        feed_forward=contributions.feed_forward[0].sum(0).cpu().numpy(),
        embeddings=contributions.embeddings[0].cpu().numpy(),
    )
    return [source, target]


def _pairs_of_target(
    loaded: LoadedModel, example: Example, contributions: Contributions, output: float
) -> TokenPairs:
    """Tabulate what cross-attention read for each counted token of the target."""
    assert contributions.cross is not None
    pair = example.source_and_target
    positions = list(example.target_positions)
    table = contributions.cross[0].cpu().numpy()[positions]  # (target tokens, source tokens)
    rows = readable_pieces(loaded.tokenizer, [pair.labels[i] for i in positions])
    columns = readable_pieces(loaded.tokenizer, pair.ids)
    return _token_pairs(rows, columns, table, output)


def _pairs_of_cosine(
    loaded: LoadedModel, example: Example, run: RecordedRun, output: float
) -> TokenPairs:
    """Tabulate what a token of the first text and one of another contribute together.

    An embedding e is the sum of what each token t adds to it, e_t, and of biases. So with two texts
    the output, cos(1, 2), is the sum over pairs of tokens (s of text 1, t of text 2) of
    ``e_s @ e_t / (|e_1| |e_2|)``, and of terms that involve biases. With three texts the output is
    cos(1, 2) - cos(1, 3): pairs with tokens of text 3 have a minus sign, and its columns stand
    behind those of text 2.
    """
    embeddings = loaded.pooling.embed(run.hidden, run.real)
    by_token = _embeddings_by_token(loaded, example, run)
    first = by_token[0]  # (tokens of the first text, d)
    tables = []
    columns: tuple[str, ...] = ()
    for i in range(1, len(example.rows)):
        sign = 1 if i == 1 else -1
        lengths = embeddings[0].norm() * embeddings[i].norm()
        tables.append(sign * first @ by_token[i].T / lengths)
        columns += readable_pieces(loaded.tokenizer, example.rows[i].ids)
    rows = readable_pieces(loaded.tokenizer, example.rows[0].ids)
    return _token_pairs(rows, columns, torch.cat(tables, dim=1).cpu().numpy(), output)


def _embeddings_by_token(loaded: LoadedModel, example: Example, run: RecordedRun) -> list[Tensor]:
    """Return what each token adds to the embedding of its text: (tokens, d) for each text."""
    states, _ = run.source_states()  # (rows, pos, source_pos, d_model)
    by_text = []
    for i, row in enumerate(example.rows):
        # From the last states to the embedding, linear with statistics (of norms) held fixed
        readout = Readout(embedding(loaded, run.real[i : i + 1]), run.hidden[i : i + 1])
        coordinates = []
        for k in range(readout.value.shape[1]):  # each coordinate of the embedding
            unit = torch.zeros_like(readout.value)
            unit[0, k] = 1.0
            weights, _ = readout.of(unit)  # (1, pos, d_model)
            coordinates.append(torch.einsum("qd,qsd->s", weights[0], states[i][:, : len(row)]))
        by_text.append(torch.stack(coordinates, 1))
    return by_text


def _token_pairs(
    rows: tuple[str, ...], columns: tuple[str, ...], table: Array, output: float
) -> TokenPairs:
    """Make a result of a table (rows, columns); the rest of the output counts as ``biases``."""
    return TokenPairs(
        rows=rows,
        columns=columns,
        values=tuple(tuple(map(float, row)) for row in table),
        biases=float(output - table.sum()),
    )
