"""Runs in which one head looks where it would look in another sentence.

At a query word the head's pattern row P' is taken from the other sentence, its values v stay those
of this one::

    z_h := P'_h v_h

so that no word of the other sentence gets in; z of the other sentence would bring its words along,
and then a pair with an equal answer would change as much. Everything else is left as it is.

A *signal* is what is read at the query afterwards: q, k or v of one later layer, or the output (the
last state). Its change is the length of its difference from the unchanged run, as a share of the
change when all heads of the layer are patched together, so that layers and signals have one scale.

A batch runs in copies, one behind the other. For two :class:`MinimalPair`, A and B, and heads 3
and 5 it is this; ``elsewhere`` and ``same`` are the two other sentences of a pair::

    A B   unchanged
    A B   all heads of the layer, patched with pattern rows of ``elsewhere``
    A B   head 3, with rows of ``elsewhere``
    A B   head 3, with rows of ``same``
    A B   head 5, with rows of ``elsewhere``
    A B   head 5, with rows of ``same``

:func:`patch` patches one layer: :class:`_BatchPatch` runs a batch and returns the lengths of
signals and changes, which :func:`patch` turns into shares. The model runs under :func:`intervene`,
which calls a function of ours in place of the attention of every layer (:class:`AttentionSite`;
``row`` is its index among those that are measured); ``router.checked`` is one such run, which has
to reach every layer. A :class:`Replay` plays back what the layers
before the patched one returned, so that they do not run in every copy.

References
----------
Geiger et al. 2021, arXiv:2106.02997 (interchange interventions); Wang et al. 2022,
arXiv:2211.00593 (patching single heads).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.classify.optional.minimal_pairs import MinimalPair
from headscope.attention import Mask, attention_pattern
from headscope.core.accumulator import Array, numpy
from headscope.core.rounding import ROUNDING
from headscope.core.widest import exact
from headscope.data.batches import buckets
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.formulas import in_chunks
from headscope.models.run.intervene import intervene
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.replay import Recorded, Replay
from headscope.models.run.routing import prepared

_AT_ONCE = 4096  # Tokens that run together, in all copies.
#: The sentence of a pair that lends its pattern rows, as an index.
_ELSEWHERE = 0
_SAME = 1


@dataclass(frozen=True)
class Patches:
    """What patching heads of one layer changes, by reader: later heads if there are any, output.

    Changes are lengths, as shares of the mean length over pairs when all heads of the layer are
    patched together; those of later heads are means over their signals. Pairs are in the order of
    their lengths.
    """

    #: (readers, heads, 2, pairs): of each head alone, where the relation points elsewhere, and
    #: where it points to the same place
    shares: Array
    together: Array  # (readers, pairs): of all heads together; 1 in the mean
    size: Array  # (readers,): mean change by all heads together, as a share of the signal's length
    shift: Array  # (pairs,): how much more the first head looks at the new place than at the old


class _Version(NamedTuple):
    """A changed copy: these heads get pattern rows of this sentence."""

    lender: int  # _ELSEWHERE or _SAME
    heads: Sequence[int]


def patch(
    view: LoadedModel, pairs: Sequence[MinimalPair], layer: int, heads: Sequence[int]
) -> Patches:
    """Patch heads of a layer, all of them together and each of ``heads`` (their indices) alone.

    ``layer`` is an index into ``view.sites``, the layers that are measured. Where nobody reads what
    the layer writes, shares are 0, and 1 for all heads together.
    """
    # All heads together, then each head alone with rows of either sentence.
    versions = [_Version(_ELSEWHERE, range(view.sites[layer].n_heads))]
    for head in heads:
        versions += [_Version(_ELSEWHERE, [head]), _Version(_SAME, [head])]

    # Run the pairs, a few at a time: the unchanged copy, and one of each version.
    replay = Replay(view)
    lengths_by_batch = []
    shift_by_batch = []
    with prepared(view.network):  # once for all the runs in it
        for batch in buckets(pairs, _AT_ONCE // (1 + len(versions))):
            batch_patch = _BatchPatch(view, batch, layer)
            lengths_by_batch.append(batch_patch.lengths(replay, versions))
            shift_by_batch.append(batch_patch.shift(heads[0]))
    lengths = np.concatenate(lengths_by_batch, -1)  # [signals, 1 + versions, pairs]

    # Changes no larger than rounding are none.
    unchanged = lengths[:, :1]
    changes = np.where(lengths[:, 1:] > ROUNDING * unchanged, lengths[:, 1:], 0.0)

    # Shares of the mean change when all heads of the layer, the first version, are patched.
    layer_change = changes[:, :1].mean(-1, keepdims=True)  # [signals, 1, 1]
    is_read = layer_change > 0
    shares = np.divide(changes, layer_change, out=np.zeros_like(changes), where=is_read)
    shares[~is_read[:, 0, 0], 0] = 1.0  # of a change of 0 all heads together bring about all
    size = (layer_change / unchanged.mean(-1, keepdims=True))[:, 0, 0]

    # Means over the signals of each reader: later heads, if there are any, and last the output.
    readers = [slice(-1, None)]
    if len(shares) > 1:
        readers.insert(0, slice(0, -1))
    by_reader = np.stack([shares[reader].mean(0) for reader in readers])
    return Patches(
        shares=by_reader[:, 1:].reshape(len(readers), len(heads), 2, -1),
        together=by_reader[:, 0],
        size=np.array([size[reader].mean() for reader in readers]),
        shift=np.concatenate(shift_by_batch),
    )


class _BatchPatch:
    """A batch of minimal pairs, whose sentences get pattern rows of the pairs' other sentences."""

    def __init__(self, view: LoadedModel, pairs: Sequence[MinimalPair], layer: int) -> None:
        """List the queries of all pairs, and run the other sentences for their pattern rows."""
        self._view = view
        self._pairs = pairs
        self._layer = layer
        # Queries of all pairs in one list: of a pair with query pieces at 4 and 5 and one with a
        # query at 2, pair_of_query is [0, 0, 1] and queries is [4, 5, 2].
        pair_of_query: list[int] = []
        queries: list[int] = []
        queries_elsewhere: list[int] = []
        for i, pair in enumerate(pairs):
            pair_of_query += [i] * len(pair.queries)
            queries += pair.queries
            queries_elsewhere += pair.queries_elsewhere
        self._pair_of_query = torch.tensor(pair_of_query, device=view.device)
        self._queries = torch.tensor(queries, device=view.device)
        self._queries_elsewhere = torch.tensor(queries_elsewhere, device=view.device)
        #: (2, queries, heads, key_pos): of the sentences _ELSEWHERE and _SAME
        self._lent_rows = self._rows_of_other_sentences()

    def _rows_of_other_sentences(self) -> Tensor:
        """Run the other sentences, and take the pattern rows of their queries."""
        patterns: list[Tensor] = []

        # Runs in place of the attention of every layer.
        def record_pattern(
            site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
        ) -> Tensor:
            if site.row == self._layer:
                patterns.append(
                    attention_pattern(q, k, scale=scale, softcap=site.softcap, mask=mask)
                )
            return in_chunks(site, q, k, v, mask, scale)

        view = self._view
        sentences = [pair.elsewhere for pair in self._pairs] + [pair.same for pair in self._pairs]
        with intervene(view, attention=record_pattern) as router:
            router.checked(view.forward, *view.pad(sentences))
        (pattern,) = patterns  # [2 * pairs, heads, query_pos, key_pos]
        elsewhere = pattern[self._pair_of_query, :, self._queries_elsewhere]
        same = pattern[len(self._pairs) + self._pair_of_query, :, self._queries]
        return torch.stack([elsewhere, same])

    def lengths(self, replay: Replay, versions: Sequence[_Version]) -> Array:
        """Run the unchanged copy and one of each version as one batch.

        Returns lengths, (signals, 1 + versions, pairs): of each signal in the unchanged copy, and
        of its change in each version. Signals are q, k and v of each later layer, and the output.
        """
        view = self._view
        ids, mask = view.pad([pair.sentence for pair in self._pairs])
        v, recorded = self._values(replay, ids, mask)
        # What each head would write with the lent rows: [2, queries, heads, d_head]
        z_new = (self._lent_rows[..., None, :] @ v[self._pair_of_query])[..., 0, :]
        n_copies = 1 + len(versions)
        lengths: list[Array] = []

        # Runs in place of the attention of every layer.
        def patch_or_read(
            site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
        ) -> Tensor:
            z = in_chunks(site, q, k, v, mask, scale)
            if site.row == self._layer:
                for copy, version in enumerate(versions, start=1):
                    batch_rows = copy * len(self._pairs) + self._pair_of_query
                    for head in version.heads:
                        z[batch_rows, head, self._queries] = z_new[version.lender, :, head]
            elif site.row > self._layer:
                lengths.extend(self._lengths_of(signal, n_copies) for signal in (q, k, v))
            return z

        playing = replay.playing(recorded, self._layer, n_copies)
        with intervene(view, attention=patch_or_read) as router, playing:
            copies = (ids.repeat(n_copies, 1), mask.repeat(n_copies, 1))
            output = router.checked(view.forward, *copies)
        lengths.append(self._lengths_of(output, n_copies))
        return np.stack(lengths)

    def _values(self, replay: Replay, ids: Tensor, mask: Tensor) -> tuple[Tensor, Recorded]:
        """Run the unchanged model: v of the patched layer, and what each layer returned."""
        values: list[Tensor] = []

        def record_values(
            site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
        ) -> Tensor:
            if site.row == self._layer:
                values.append(v)
            return in_chunks(site, q, k, v, mask, scale)

        with (
            intervene(self._view, attention=record_values) as router,
            replay.recording() as recorded,
        ):
            router.checked(self._view.forward, ids, mask)
        (v,) = values
        return v, recorded

    def _lengths_of(self, signal: Tensor, n_copies: int) -> Array:
        """Return lengths over the queries of each pair, (copies, pairs).

        Of the first, unchanged copy the length of the signal, of every other that of its difference
        from the first. ``signal`` is (copies * pairs, ..., pos, d).
        """
        # Take the signal at the queries of every copy.
        n_pairs = len(self._pairs)
        n_queries = len(self._queries)
        first_rows = n_pairs * torch.arange(n_copies, device=self._view.device)
        batch_rows = (first_rows[:, None] + self._pair_of_query).flatten()  # [copies * queries]
        by_position = signal.movedim(-2, 1)  # [copies * pairs, pos, ..., d]
        at_queries = exact(by_position[batch_rows, self._queries.repeat(n_copies)])
        at_queries = at_queries.view(n_copies, n_queries, -1)

        # Lengths of pairs, from the squared lengths of their queries.
        unchanged = at_queries[:1]
        changes = at_queries[1:] - unchanged
        squares = torch.cat([unchanged, changes]).square().sum(-1)  # [copies, queries]
        squares_of_pairs = squares.new_zeros(n_copies, n_pairs)
        squares_of_pairs.index_add_(1, self._pair_of_query.to(squares.device), squares)
        return numpy(squares_of_pairs.sqrt())

    def shift(self, head: int) -> Array:
        """Return how much more a head looks at the new place than at the old: (pairs,).

        Both weights are those in the sentence in which the relation points elsewhere.
        """
        shift = np.zeros(len(self._pairs))
        weights_elsewhere = numpy(exact(self._lent_rows[_ELSEWHERE, :, head]))  # [queries, key_pos]
        for weights, i in zip(weights_elsewhere, self._pair_of_query.tolist(), strict=True):
            pair = self._pairs[i]
            new_place = weights[list(pair.targets_elsewhere)].sum()
            old_place = weights[list(pair.targets)].sum()
            shift[i] += new_place - old_place
        return shift
