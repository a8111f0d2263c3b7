"""Runs in which a head's pattern alone is taken from another sentence.

Everything else is left as it is: at the rows of one query,

    z_h := P'_h v_h,    P' of the other sentence, v of this one

so that no word of the other sentence gets in; z of the other sentence would bring its words along,
and then a pair with an equal answer would change as much. What later heads (their q, k and v) and
the output (the last state) read at that query is compared with the unchanged run. All is a share
of the change when all heads of the layer are patched together, so that layers and readers have one
scale.

:func:`patch` patches one layer: :class:`_BatchPatch` runs a batch and returns lengths of changes,
which :func:`patch` turns into shares.

References
----------
Geiger et al. 2021, arXiv:2106.02997 (interchange interventions); Wang et al. 2022,
arXiv:2211.00593 (patching single heads).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.classify.optional.minimal_pairs import MinimalPair
from headscope.attention import Mask, attention_pattern, stream_attention
from headscope.core.accumulator import Array, numpy
from headscope.core.rounding import ROUNDING
from headscope.core.widest import exact
from headscope.data.batches import buckets
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.intervene import intervene
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.replay import Recorded, Replay
from headscope.models.run.routing import prepared

_AT_ONCE = 4096  # Tokens that run together.


@dataclass(frozen=True)
class Patches:
    """What patching heads of one layer changes, by reader: later heads if there are any, output.

    Changes are lengths, as shares of the mean length over pairs when all heads of the layer are
    patched together. Pairs are in the order of their lengths.
    """

    #: (readers, heads, 2, pairs): of each head alone, where the relation points elsewhere, and
    #: where it points to the same place
    shares: Array
    together: Array  # (readers, pairs): of all heads together; 1 in the mean
    size: Array  # (readers,): the mean of that length, as a share of the length of what is read
    shift: Array  # (pairs,): how much more the first head looks at the new place than at the old


def patch(
    view: LoadedModel, pairs: Sequence[MinimalPair], row: int, heads: Sequence[int]
) -> Patches:
    """Patch heads of a layer, all of them together and each of ``heads`` (their indices) alone.

    A layer whose changes nobody reads has shares of 0, and 1 for all heads together.
    """
    # Run the pairs, a few at a time.
    replay = Replay(view)
    tokens_of_batch = _AT_ONCE // (2 + 2 * len(heads))  # every pair runs in as many versions
    lengths_by_batch = []
    shift_by_batch = []
    with prepared(view.network):
        for batch in buckets(pairs, tokens_of_batch):
            patched = _BatchPatch(view, batch, row)
            lengths_by_batch.append(patched.lengths(replay, heads))
            shift_by_batch.append(patched.shift(heads[0]))
    lengths = np.concatenate(lengths_by_batch, -1)  # (reads, 1 and versions, pairs)

    # Shares of the mean change when all heads of the layer, the first version, are patched.
    unchanged = lengths[:, :1]
    changes = np.where(lengths[:, 1:] > ROUNDING * unchanged, lengths[:, 1:], 0.0)
    layer_change = changes[:, :1].mean(-1, keepdims=True)
    unread = layer_change <= 0
    shares = np.where(unread, 0.0, changes / np.where(unread, 1.0, layer_change))
    shares[:, :1] += unread
    size = (layer_change / unchanged.mean(-1, keepdims=True))[:, 0, 0]

    # Means over what a reader reads: q, k and v of every later layer; and last, the output.
    readers = [slice(None, -1), slice(-1, None)] if len(shares) > 1 else [slice(None)]
    by_reader = np.stack([shares[reader].mean(0) for reader in readers])
    return Patches(
        shares=by_reader[:, 1:].reshape(len(readers), len(heads), 2, -1),
        together=by_reader[:, 0],
        size=np.array([size[reader].mean() for reader in readers]),
        shift=np.concatenate(shift_by_batch),
    )


class _BatchPatch:
    """A batch of minimal pairs, whose first sentences get pattern rows of the others."""

    def __init__(self, view: LoadedModel, pairs: Sequence[MinimalPair], row: int) -> None:
        """Find the queries of the pairs, and run their other sentences; ``row`` is the layer's."""
        self._view = view
        self._pairs = pairs
        self._row = row
        pair_of_query: list[int] = []
        queries: list[int] = []
        queries_elsewhere: list[int] = []
        for i, pair in enumerate(pairs):
            pair_of_query += [i] * len(pair.rows)
            queries += pair.rows
            queries_elsewhere += pair.rows_elsewhere
        #: (queries,): the pair of each query piece, its position, and its position in ``elsewhere``
        self._pair_of = torch.tensor(pair_of_query, device=view.device)
        self._query = torch.tensor(queries, device=view.device)
        self._query_elsewhere = torch.tensor(queries_elsewhere, device=view.device)
        #: (2, queries, heads, key_pos): rows of the sentences that point elsewhere, and of the
        #: others
        self._rows = self._rows_of_other_sentences()

    def _rows_of_other_sentences(self) -> Tensor:
        """Run the other sentences, and take the pattern rows of their queries."""
        patterns: list[Tensor] = []

        def record_pattern(
            site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
        ) -> Tensor:
            if site.row == self._row:
                patterns.append(attention_pattern(q, k, scale=scale, mask=mask))
            return stream_attention(q, k, v, mask=mask, scale=scale)

        view = self._view
        sentences = [pair.elsewhere for pair in self._pairs] + [pair.same for pair in self._pairs]
        with intervene(view, attention=record_pattern) as router:
            router.checked(view.forward, *view.pad(sentences))
        (pattern,) = patterns
        elsewhere = pattern[self._pair_of, :, self._query_elsewhere]
        same = pattern[len(self._pairs) + self._pair_of, :, self._query]
        return torch.stack([elsewhere, same])

    def lengths(self, replay: Replay, heads: Sequence[int]) -> Array:
        """Run the unchanged model and its patched versions as copies of one batch.

        Returns lengths (reads, 2 + 2 heads, pairs): of what is read unchanged, and of its changes
        with all heads patched and with each alone; reads are q, k and v of each later layer, and
        the output.
        """
        view = self._view
        ids, mask = view.pad([pair.sentence for pair in self._pairs])
        v, recorded = self._values(replay, ids, mask)
        # What each head would write with the other rows: (2, queries, heads, d_head)
        z_new = (self._rows[..., None, :] @ v[self._pair_of])[..., 0, :]
        # The first copy is unchanged. Of the others: which sentence lends its rows (0: elsewhere,
        # 1: same), and to which heads; first all heads together, then each alone.
        versions: list[tuple[int, list[int]]] = [(0, [*range(z_new.shape[2])])]
        for head in heads:
            versions += [(0, [head]), (1, [head])]
        n_copies = 1 + len(versions)
        lengths: list[Array] = []

        def patched(
            site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
        ) -> Tensor:
            z = stream_attention(q, k, v, mask=mask, scale=scale)
            if site.row == self._row:
                for copy, (lender, changed_heads) in enumerate(versions, start=1):
                    rows = copy * len(self._pairs) + self._pair_of
                    for head in changed_heads:
                        z[rows, head, self._query] = z_new[lender, :, head]
            elif site.row > self._row:
                lengths.extend(self._lengths_read(states, n_copies) for states in (q, k, v))
            return z

        playing = replay.playing(recorded, self._row, n_copies)
        with intervene(view, attention=patched) as router, playing:
            copies = (ids.repeat(n_copies, 1), mask.repeat(n_copies, 1))
            output = router.checked(view.forward, *copies)
        lengths.append(self._lengths_read(output, n_copies))
        return np.stack(lengths)

    def _values(self, replay: Replay, ids: Tensor, mask: Tensor) -> tuple[Tensor, Recorded]:
        """Run the unchanged model: v of the layer, and what its layers returned."""
        values: list[Tensor] = []

        def record_values(
            site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
        ) -> Tensor:
            if site.row == self._row:
                values.append(v)
            return stream_attention(q, k, v, mask=mask, scale=scale)

        with (
            intervene(self._view, attention=record_values) as router,
            replay.recording() as recorded,
        ):
            router.checked(self._view.forward, ids, mask)
        (v,) = values
        return v, recorded

    def _lengths_read(self, states: Tensor, n_copies: int) -> Array:
        """Return lengths of what is read at the queries, (1 + versions, pairs).

        The first is that of the unchanged copy, the others those of changes from it; ``states`` are
        (copies x batch, ..., pos, d).
        """
        n_pairs = len(self._pairs)
        first_rows = torch.arange(n_copies, device=self._view.device)[:, None] * n_pairs
        rows = (first_rows + self._pair_of).flatten()
        read = exact(states.movedim(-2, 1)[rows, self._query.repeat(n_copies)])
        read = read.view(n_copies, len(self._query), -1)
        squares = torch.cat([read[:1], read[1:] - read[:1]]).square().sum(-1)
        total = squares.new_zeros(n_copies, n_pairs)
        total.index_add_(1, self._pair_of.to(squares.device), squares)
        return numpy(total.sqrt())

    def shift(self, head: int) -> Array:
        """Return how much more a head looks at the new place than at the old: (pairs,)."""
        shift = np.zeros(len(self._pairs))
        elsewhere = numpy(exact(self._rows[0, :, head]))
        for weights, i in zip(elsewhere, self._pair_of.tolist(), strict=True):
            pair = self._pairs[i]
            new_place = weights[list(pair.targets_elsewhere)].sum()
            old_place = weights[list(pair.targets)].sum()
            shift[i] += new_place - old_place
        return shift
