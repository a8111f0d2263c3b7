"""Whether a head carries its role: its pattern alone is taken from another sentence.

A role says where a head looks. Here a head looks elsewhere, as it would in a minimal pair
(``minimal_pairs.py``), and everything else is left as it is: at the rows of one query,

    z_h := P'_h v_h,    P' of the other sentence, v of this one

so that no word of the other sentence gets in; z of the other sentence would bring its words along,
and then a pair with an equal answer would change as much. What later heads (their q, k and v) and
the output (the last state) read at that query is compared with the unchanged run. All is a share
of the change when all heads of the layer are patched together, so that layers and readers have one
scale.

References
----------
Geiger et al. 2021, arXiv:2106.02997 (interchange interventions); Wang et al. 2022,
arXiv:2211.00593 (patching single heads); Berger & Hsu 1996, Statistical Science 11 (a claim of two
parts is tested by the larger p; equivalence).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np
import torch
from scipy.special import stdtr
from torch import Tensor

from headscope.analyses.classify.known_roles import places
from headscope.analyses.classify.optional.minimal_pairs import (
    MinimalPair,
    positional_pairs,
    syntactic_pairs,
)
from headscope.analyses.classify.optional.results import HeadPatch, PatchEffect, Patching
from headscope.analyses.classify.result import ClassifyResult, HeadResult
from headscope.attention import Mask, attention_pattern, stream_attention
from headscope.core.accumulator import Array, numpy
from headscope.core.progress import Progress
from headscope.core.rounding import ROUNDING
from headscope.core.widest import exact
from headscope.data.batches import buckets
from headscope.data.corpus import Corpus
from headscope.data.pieces import EncodedSentence, encode_words, placed
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.intervene import intervene
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.replay import Replay
from headscope.models.run.routing import prepared
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.statistics import (
    FEWEST_UNITS,
    adjust,
    finite,
    standard_error,
    t_half_width,
    wilson,
)

SENTENCES = 4096  # Sentences of the corpus that pairs are made of, at most.
OTHERS = 5  # Other heads of the layer that are patched too, at most, drawn at random.
SMALLEST = 0.05  # The smallest gain that counts: a twentieth of the change by the layer.
LEVEL = 0.05  # Adjusted p at which something is said of a head.
_AT_ONCE = 4096  # Tokens that run together.


@dataclass(frozen=True)
class Patches:
    """What patching heads of one layer changes, by reader: later heads if there are any, output.

    Changes are lengths, as shares of the mean length over pairs when all heads of the layer are
    patched together. Pairs are in the order of their lengths.
    """

    shares: Array  # (readers, heads, 2, pairs): where the relation points elsewhere, and where not
    together: Array  # (readers, pairs): of all heads together; 1 in the mean
    size: Array  # (readers,): the mean of that length, as a share of the length of what is read
    shift: Array  # (pairs,): how much more the first head looks at the new place than at the old


def patch(
    view: LoadedModel, pairs: Sequence[MinimalPair], row: int, heads: Sequence[int]
) -> Patches:
    """Patch heads of a layer, all of them together and each of ``heads`` (their indices) alone.

    A layer whose changes nobody reads has shares of 0, and 1 for all heads together.
    """
    replay = Replay(view)
    rows_together = _AT_ONCE // (2 + 2 * len(heads))
    lengths_by_batch = []
    shift_by_batch = []
    with prepared(view.network):
        for batch in buckets(pairs, rows_together):
            patched = _BatchPatch(view, batch, row)
            lengths_by_batch.append(patched.lengths(replay, heads))
            shift_by_batch.append(patched.shift(heads[0]))
    lengths = np.concatenate(lengths_by_batch, -1)  # (reads, 1 and versions, pairs)
    read = lengths[:, :1]
    changes = np.where(lengths[:, 1:] > ROUNDING * read, lengths[:, 1:], 0.0)
    # As shares of the mean change when all heads of the layer are patched.
    unit = changes[:, :1].mean(-1, keepdims=True)
    unread = unit <= 0
    shares = np.where(unread, 0.0, changes / np.where(unread, 1.0, unit))
    shares[:, :1] += unread
    size = (unit / read.mean(-1, keepdims=True))[:, 0, 0]
    # Reads are q, k and v of every later layer, and the output: two readers.
    readers = [slice(None, -1), slice(-1, None)] if len(shares) > 1 else [slice(None)]
    of_readers = np.stack([shares[reader].mean(0) for reader in readers])
    return Patches(
        shares=of_readers[:, 1:].reshape(len(readers), len(heads), 2, -1),
        together=of_readers[:, 0],
        size=np.array([size[reader].mean() for reader in readers]),
        shift=np.concatenate(shift_by_batch),
    )


class _BatchPatch:
    """A batch of minimal pairs: the pattern rows of their other sentences, put into the first."""

    def __init__(self, view: LoadedModel, pairs: Sequence[MinimalPair], row: int) -> None:
        self._view = view
        self._pairs = pairs
        self._row = row  # Of the layer whose heads are patched
        pair_of_query: list[int] = []
        queries: list[int] = []
        queries_elsewhere: list[int] = []
        for i, pair in enumerate(pairs):
            pair_of_query += [i] * len(pair.rows)
            queries += pair.rows
            queries_elsewhere += pair.rows_elsewhere
        #: (queries,): the pair of each query piece, its position, and that in ``elsewhere``
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
        n_pairs = len(self._pairs)
        ids, mask = view.pad([pair.sentence for pair in self._pairs])
        values: list[Tensor] = []

        def record_values(
            site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
        ) -> Tensor:
            if site.row == self._row:
                values.append(v)
            return stream_attention(q, k, v, mask=mask, scale=scale)

        with intervene(view, attention=record_values) as router, replay.recording() as recorded:
            router.checked(view.forward, ids, mask)
        (v,) = values
        # What each head would write with the other rows: (2, queries, heads, d_head)
        z_new = (self._rows[..., None, :] @ v[self._pair_of])[..., 0, :]
        # The first copy is unchanged; then all heads together; then each head, elsewhere and same.
        versions: list[tuple[int, list[int]]] = [(0, [*range(z_new.shape[2])])]
        for head in heads:
            versions += [(0, [head]), (1, [head])]
        n_copies = 1 + len(versions)
        first_row = torch.arange(n_copies, device=view.device)[:, None] * n_pairs
        rows_of_queries = (first_row + self._pair_of).flatten()
        lengths: list[Array] = []

        def measure(states: Tensor) -> None:
            """Take lengths of what is read at the queries; states (copies x batch, ..., pos, d)."""
            by_position = states.movedim(-2, 1)
            read = exact(by_position[rows_of_queries, self._query.repeat(n_copies)])
            read = read.view(n_copies, len(self._query), -1)
            squares = torch.cat([read[:1], read[1:] - read[:1]]).square().sum(-1)
            total = squares.new_zeros(n_copies, n_pairs)
            total.index_add_(1, self._pair_of.to(squares.device), squares)
            lengths.append(numpy(total.sqrt()))

        def patched(
            site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
        ) -> Tensor:
            z = stream_attention(q, k, v, mask=mask, scale=scale)
            if site.row == self._row:
                for copy, (kind, changed_heads) in enumerate(versions, start=1):
                    rows = copy * n_pairs + self._pair_of
                    for head in changed_heads:
                        z[rows, head, self._query] = z_new[kind, :, head]
            elif site.row > self._row:
                for states in (q, k, v):
                    measure(states)
            return z

        playing = replay.playing(recorded, self._row, n_copies)
        with intervene(view, attention=patched) as router, playing:
            copies = (ids.repeat(n_copies, 1), mask.repeat(n_copies, 1))
            measure(router.checked(view.forward, *copies))
        return np.stack(lengths)

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


# --- what that says of heads ----------------------------------------------------------------------


def with_patching(
    result: ClassifyResult,
    loaded: LoadedModel,
    corpus: Corpus,
    *,
    sentences: int | None,
    pairs: int,
    seed: int,
    progress: Progress,
) -> ClassifyResult:
    """Patch every head that has a positional or a syntactic role, and say whether it carries it."""
    to_patch = list(_roles(result))
    notes = []
    if not corpus.has_trees:
        notes.append("Syntactic heads were not patched: that needs gold trees (give a treebank).")
    elif not to_patch:
        notes.append("No head has a positional or syntactic role, so none was patched.")
    if loaded.encoder_decoder and any(head.stack != "encoder" for head, _, _ in to_patch):
        notes.append("Of an encoder-decoder model only heads of the encoder are patched.")
        to_patch = [row for row in to_patch if row[0].stack == "encoder"]
    encoded: list[EncodedSentence] = []
    if to_patch:
        first = islice(iter(corpus), min(SENTENCES, sentences or SENTENCES))
        encoded = [item for item in encode_words(loaded, placed(first)) if item is not None]
    patches: list[tuple[str, HeadPatch]] = []
    for n_done, (head, role, detail) in enumerate(to_patch, start=1):
        rng = np.random.default_rng([seed, n_done])
        view = loaded.only(head.stack)
        head_patch = _patch_role(result, view, head, role, detail, encoded, pairs, rng)
        patches.append((head.name, head_patch))
        progress("patching heads", n_done, len(to_patch))
    adjusted = _adjusted([head_patch for _, head_patch in patches])
    patches_of: dict[str, list[HeadPatch]] = {}
    for (name, _), head_patch in zip(patches, adjusted, strict=True):
        patches_of.setdefault(name, []).append(head_patch)
    return replace(
        result,
        heads=tuple(
            replace(head, patched=tuple(patches_of.get(head.name, ()))) for head in result.heads
        ),
        patching=Patching(pairs, SMALLEST, seed, tuple(notes)),
    )


def _roles(result: ClassifyResult) -> Iterator[tuple[HeadResult, str, str]]:
    """Yield each head with its offset, and with its best relation, where that is a label."""
    for head in result.heads:
        for label in head.labels:
            if label.role == "positional":
                yield head, label.role, label.detail
        if "syntactic" in head.roles and head.best_relation is not None:
            best, _ = head.best_relation
            yield head, "syntactic", f"{best.relation} {best.direction}"


def _patch_role(
    result: ClassifyResult,
    view: LoadedModel,
    head: HeadResult,
    role: str,
    detail: str,
    encoded: Sequence[EncodedSentence],
    limit: int,
    rng: np.random.Generator,
) -> HeadPatch:
    """Patch one head in minimal pairs of its role, beside heads of its layer without that role."""
    place_of = places(view)
    row, index = place_of[head.stack, head.layer, head.head]
    if role == "positional":
        causal = view.sites[row].causal
        pairs = positional_pairs(encoded, int(detail), limit, rng, causal=causal)
    else:
        relation, _, direction = detail.partition(" ")
        pairs = syntactic_pairs(encoded, relation, direction, limit, rng)
    without_role = [
        place_of[other.stack, other.layer, other.head][1]
        for other in result.heads
        if (other.stack, other.layer) == (head.stack, head.layer)
        and (role, detail) not in [(label.role, label.detail) for label in other.labels]
    ]
    compared_heads = rng.permutation(without_role).tolist()[:OTHERS]
    follows = UNKNOWN
    effects = tuple[PatchEffect, ...]()
    if len(pairs) >= FEWEST_UNITS:
        patches = patch(view, pairs, row, [index, *compared_heads])
        n_followed = int((patches.shift > 0).sum())
        low, high = wilson(n_followed, len(pairs))
        follows = Estimate(n_followed / len(pairs), float(low), float(high))
        effects = tuple(_effects(patches))
    return HeadPatch(
        role=role,
        detail=detail,
        pairs=len(pairs),
        follows=follows,
        others=len(compared_heads),
        effects=effects,
        verdict="",
    )


def p_above(values: Array) -> float:
    """Return the two-sided p of Student's t where the mean of the values exceeds 0, else 1."""
    n = len(values)
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / np.sqrt(n)
    if error <= 0:
        return 0.0 if mean > 0 else 1.0
    return min(1.0, 2 * float(stdtr(n - 1, -mean / error)))


def evidence(gains: Array, together: Array) -> tuple[float, float]:
    """Return two p-values: that the first head carries its role, and that it does not.

    ``gains`` (heads, pairs), ``together`` (pairs,): the change when all heads are patched. To
    carry it, the gain has to exceed both 0 and the mean gain of the others, paired over sentences;
    not to carry it, to lie below :data:`SMALLEST` of that change.
    """
    gain = gains[0]
    gains_of_others = gains[1:]
    p_over_others = 0.0
    if len(gains_of_others):
        p_over_others = p_above(gain - gains_of_others.mean(axis=0))
    return max(p_above(gain), p_over_others), p_above(SMALLEST * together - gain)


def verdict(carries: float, does_not: float) -> str:
    """Decide by both p-values; a gain too small to count is none, however sure its sign."""
    if does_not <= LEVEL:
        return "does not"
    return "carries" if carries <= LEVEL else "not told apart"


def _effects(patches: Patches) -> Iterator[PatchEffect]:
    """Yield the numbers of each reader; their p-values are not adjusted yet."""
    readers = ("later heads", "output")[-len(patches.shares) :]
    rows = zip(readers, patches.shares, patches.together, patches.size, strict=True)
    for reader, shares, together, size in rows:
        gains = shares[:, 0] - shares[:, 1]
        gain = gains[0]
        over_others = UNKNOWN
        if len(gains) > 1:
            over_others = _mean(gain - gains[1:].mean(axis=0), together)
        p_carries, p_does_not = evidence(gains, together)
        yield PatchEffect(
            reader=reader,
            elsewhere=float(shares[0, 0].mean()),
            same=float(shares[0, 1].mean()),
            gain=_mean(gain, together),
            over_others=over_others,
            p_carries=p_carries,
            p_does_not=p_does_not,
            verdict="",
            layer_change=float(size),
        )


def _adjusted(patched: Sequence[HeadPatch]) -> Iterator[HeadPatch]:
    """Adjust the p-values of all heads, roles and readers together, and add the verdicts."""
    all_effects = list(chain.from_iterable(head.effects for head in patched))
    p_carries = iter(adjust(np.array([effect.p_carries for effect in all_effects])).tolist())
    p_does_not = iter(adjust(np.array([effect.p_does_not for effect in all_effects])).tolist())
    for head in patched:
        effects = []
        for effect in head.effects:
            carries = next(p_carries)
            does_not = next(p_does_not)
            effects.append(
                replace(
                    effect,
                    p_carries=carries,
                    p_does_not=does_not,
                    verdict=verdict(carries, does_not),
                )
            )
        verdicts = {effect.verdict for effect in effects}
        overall = "carries" if "carries" in verdicts else "not told apart"
        if len(verdicts) < 2:  # all readers agree, or there is none
            overall = next(iter(verdicts), "not measured")
        yield replace(head, effects=tuple(effects), verdict=overall)


def _mean(values: Array, together: Array) -> Estimate:
    """Return the ratio of two means over pairs, of which the second is 1, with its interval.

    Student's t of what remains when the ratio is taken away (Cochran 1977, section 6.4); no
    interval where no pair differs.
    """
    mean = float(values.mean())
    rest = values - mean * together
    error = standard_error(rest.sum(), (rest**2).sum(), len(rest))
    half_width = float(t_half_width(error, len(rest)))
    return Estimate.around(mean, finite(half_width) if half_width > ROUNDING else None)
