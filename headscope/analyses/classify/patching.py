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

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from scipy.special import stdtr
from torch import Tensor

from headscope.analyses.classify.known_roles import places
from headscope.analyses.classify.minimal_pairs import (
    MinimalPair,
    positional_pairs,
    syntactic_pairs,
)
from headscope.analyses.classify.patch_result import HeadPatch, PatchEffect, Patching
from headscope.analyses.classify.result import ClassifyResult, HeadResult
from headscope.attention import Mask, attention_pattern, stream_attention
from headscope.core.accumulator import Array, numpy
from headscope.core.progress import Progress
from headscope.core.rounding import ROUNDING
from headscope.core.widest import exact
from headscope.data.batches import buckets
from headscope.data.corpus import Corpus
from headscope.data.pieces import encode_words, placed
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.intervene import intervene
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.replay import Replay
from headscope.models.run.routing import prepared
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.paired_change import FEWEST
from headscope.stats.statistics import adjust, standard_error, t_half_width, wilson

SENTENCES = 4096  # Sentences of the corpus that pairs are made of, at most.
SMALLEST = 0.05  # The smallest gain that counts: a twentieth of what the whole layer does.
LEVEL = 0.05  # Adjusted p at which something is said of a head.
_AT_ONCE = 4096  # Tokens that run together.
_READERS = ("later heads", "output")


@dataclass(frozen=True)
class Patches:
    """What patching every head of one layer changes."""

    #: (readers, heads, 2, pairs): share of what all heads change together, where the relation
    #: points elsewhere and where it does not; of the last layer the output is the only reader.
    #: Pairs are in the order of their lengths.
    shares: Array
    layer: Array  # (readers, pairs): what all heads change together, as a share of what is read
    follows: Array  # (heads, pairs), bool: whether the head looks more at the new place


def patch(view: LoadedModel, pairs: Sequence[MinimalPair], row: int) -> Patches:
    """Patch each head of the layer of this row, alone and all together, in every pair."""
    replay, copies = Replay(view), 2 + 2 * view.sites[row].n_heads
    with prepared(view.network):
        parts = [_patch_batch(view, replay, p, row) for p in buckets(pairs, _AT_ONCE // copies)]
    fields = ("shares", "layer", "follows")
    return Patches(*(np.concatenate([getattr(p, name) for p in parts], -1) for name in fields))


def _patch_batch(
    view: LoadedModel, replay: Replay, pairs: Sequence[MinimalPair], row: int
) -> Patches:
    """Run the unchanged model and its patched versions as copies of one batch."""
    device, n, n_heads = view.device, len(pairs), view.sites[row].n_heads
    of = torch.tensor([i for i, pair in enumerate(pairs) for _ in pair.rows], device=device)
    at = torch.tensor([q for pair in pairs for q in pair.rows], device=device)
    taken = torch.tensor([q for pair in pairs for q in pair.rows_elsewhere], device=device)
    seen: dict[str, Tensor] = {}

    def look(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        if site.row == row:
            seen.update(pattern=attention_pattern(q, k, scale=scale, mask=mask), v=v)
        return stream_attention(q, k, v, mask=mask, scale=scale)

    with intervene(view, attention=look) as router:
        others = [pair.elsewhere for pair in pairs] + [pair.same for pair in pairs]
        router.checked(view.forward, *view.pad(others))
        pattern = seen["pattern"]
        ids, real = view.pad([pair.sentence for pair in pairs])
        with replay.recording() as recorded:
            router.checked(view.forward, ids, real)
    # (2, rows, heads, key_pos): elsewhere and same
    rows = torch.stack([pattern[of, :, taken], pattern[n + of, :, at]])
    z_new = (rows[..., None, :] @ seen["v"][of])[..., 0, :]  # (2, rows, heads, d_head)
    every = [
        (0, slice(None)),
        *((kind, slice(h, h + 1)) for h in range(n_heads) for kind in (0, 1)),
    ]
    copies = 1 + len(every)
    where = (torch.arange(copies, device=device)[:, None] * n + of).flatten()
    reads: dict[str, list[Tensor]] = {name: [] for name in _READERS}

    def keep(reader: str, states: Tensor) -> None:
        """Keep what is read at the query rows, (copies, rows, width); states (..., pos, width)."""
        own = states if states.dim() == 4 else states[:, None]
        reads[reader].append(own[where, :, at.repeat(copies)].flatten(1).view(copies, len(of), -1))

    def patched(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        z = stream_attention(q, k, v, mask=mask, scale=scale)
        if site.row == row:
            for i, (kind, heads) in enumerate(every, start=1):
                z[i * n + of, heads, at] = z_new[kind][:, heads]
        elif site.row > row:
            for states in (q, k, v):
                keep("later heads", states)
        return z

    with intervene(view, attention=patched) as router, replay.playing(recorded, row, copies):
        keep("output", router.checked(view.forward, ids.repeat(copies, 1), real.repeat(copies, 1)))
    by_reader = [_changes(states, of, n) for states in reads.values() if states]
    shares = np.stack([share.reshape(n_heads, 2, n) for share, _ in by_reader])
    new, old = (
        _weight(rows[0], of, [getattr(pair, name) for pair in pairs])
        for name in ("place_elsewhere", "place")
    )
    return Patches(shares, np.stack([layer for _, layer in by_reader]), new > old)


def _changes(reads: Sequence[Tensor], of: Tensor, n: int) -> tuple[Array, Array]:
    """Measure the changes in what is read, averaged over reads: (versions, pairs) and (pairs,).

    Each read is (copies, rows, width): the unchanged model, the one with all heads patched, the
    others. A change within rounding counts as none.
    """
    shares, layers = [], []
    for read in reads:
        states = exact(read)

        def length(rows: Tensor) -> Tensor:
            squares = rows.square().sum(-1)  # (copies, rows)
            return squares.new_zeros(len(squares), n).index_add_(1, of, squares).sqrt()

        size = length(states[:1])
        least = (ROUNDING * size).clamp(min=torch.finfo(size.dtype).tiny)
        change = length(states[1:] - states[:1])
        change = torch.where(change > least, change, 0.0)
        shares.append(change[1:] / torch.maximum(change[:1], least))
        layers.append(change[0] / size[0].clamp(min=torch.finfo(size.dtype).tiny))
    return numpy(torch.stack(shares).mean(0)), numpy(torch.stack(layers).mean(0))


def _weight(rows: Tensor, of: Tensor, places: Sequence[Sequence[int]]) -> Array:
    """Add up each pair's weight on a place: (heads, pairs), from rows (rows, heads, key_pos)."""
    marks = rows.new_zeros(len(places), rows.shape[-1])
    for i, place in enumerate(places):
        marks[i, list(place)] = 1.0
    weights = (rows * marks[of][:, None]).sum(-1)  # (rows, heads)
    total = weights.new_zeros(len(places), rows.shape[1]).index_add_(0, of, weights)
    return numpy(total).T


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
    wanted, notes = list(_roles(result)), []
    if not corpus.has_trees:
        notes.append("Syntactic heads were not patched: that needs gold trees (give --treebank).")
    elif not wanted:
        notes.append("No head has a positional or syntactic role, so none was patched.")
    if loaded.encoder_decoder and any(head.stack != "encoder" for head, _, _ in wanted):
        notes.append("Of an encoder-decoder model only heads of the encoder are patched.")
        wanted = [row for row in wanted if row[0].stack == "encoder"]
    read = islice(iter(corpus), min(SENTENCES, sentences or SENTENCES)) if wanted else ()
    encoded = [item for item in encode_words(loaded, placed(read)) if item is not None]
    patched = []
    for done, (head, role, detail) in enumerate(wanted, start=1):
        view, rng = loaded.only(head.stack), np.random.default_rng([seed, done])
        place_of = places(view)
        row, place = place_of[head.stack, head.layer, head.head]
        if role == "positional":
            causal = view.sites[row].causal
            made = positional_pairs(encoded, int(detail), pairs, rng, causal=causal)
        else:
            made = syntactic_pairs(encoded, *detail.split(" "), pairs, rng)
        others = [
            place_of[h.stack, h.layer, h.head][1]
            for h in result.heads
            if (h.stack, h.layer) == (head.stack, head.layer)
            and (role, detail) not in [(label.role, label.detail) for label in h.labels]
        ]
        follows, effects = UNKNOWN, ()
        if len(made) >= FEWEST:
            patches = patch(view, made, row)
            hits = int(patches.follows[place].sum())
            follows = Estimate(hits / len(made), *map(float, wilson(hits, len(made))))
            effects = tuple(_effects(patches, place, others))
        patched.append(HeadPatch(role, detail, len(made), follows, len(others), effects, ""))
        progress("patching heads", done, len(wanted))
    by_head: dict[str, list[HeadPatch]] = defaultdict(list)
    for (head, *_), of_head in zip(wanted, _adjusted(patched), strict=True):
        by_head[head.name].append(of_head)
    return replace(
        result,
        heads=tuple(replace(head, patched=tuple(by_head[head.name])) for head in result.heads),
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


def p_above(values: Array) -> float:
    """Return the two-sided p of Student's t where the mean of the values exceeds 0, else 1."""
    n, mean = len(values), float(values.mean())
    error = float(values.std(ddof=1)) / np.sqrt(n)
    if error <= 0:
        return 0.0 if mean > 0 else 1.0
    return min(1.0, 2 * float(stdtr(n - 1, -mean / error)))


def evidence(gains: Array, place: int, others: Sequence[int]) -> tuple[float, float]:
    """Return p that a head carries its role, and p that it does not.

    ``gains`` (heads, pairs). To carry it, the gain has to exceed both 0 and the mean gain of the
    others, paired over sentences; not to carry it, to lie below :data:`SMALLEST`.
    """
    own = gains[place]
    over = p_above(own - gains[others].mean(axis=0)) if others else 0.0
    return max(p_above(own), over), p_above(SMALLEST - own)


def verdict(carries: float, does_not: float) -> str:
    """Say what both p show; an effect too small to count is none, however sure its sign."""
    if does_not <= LEVEL:
        return "does not"
    return "carries" if carries <= LEVEL else "not told apart"


def _effects(patches: Patches, place: int, others: list[int]) -> Iterator[PatchEffect]:
    """Put the numbers of each reader together; p are not adjusted yet."""
    for shares, layer, reader in zip(
        patches.shares, patches.layer, _READERS[-len(patches.shares) :], strict=True
    ):
        gains = shares[:, 0] - shares[:, 1]
        by_others = [evidence(gains, g, [o for o in others if o != g]) for g in others]
        carries, does_not = evidence(gains, place, others)
        yield PatchEffect(
            reader=reader,
            elsewhere=float(shares[place, 0].mean()),
            same=float(shares[place, 1].mean()),
            gain=_mean(gains[place]),
            over_others=_mean(gains[place] - gains[others].mean(axis=0)) if others else UNKNOWN,
            p_carries=carries,
            p_does_not=does_not,
            verdict="",
            others_carry=sum(verdict(*p) == "carries" for p in by_others),
            layer_change=float(layer.mean()),
        )


def _adjusted(patched: Sequence[HeadPatch]) -> Iterator[HeadPatch]:
    """Adjust the p of all heads, roles and readers together, and say what they show."""
    every = [(e.p_carries, e.p_does_not) for head in patched for e in head.effects]
    both = [adjust(np.array(column)).tolist() for column in zip(*every, strict=True)]
    adjusted = zip(*both, strict=True)
    for head in patched:
        effects = tuple(
            replace(effect, p_carries=a, p_does_not=b, verdict=verdict(a, b))
            for effect, (a, b) in zip(head.effects, adjusted, strict=False)
        )
        verdicts = {effect.verdict for effect in effects}
        overall = "carries" if "carries" in verdicts else "not told apart"
        if len(verdicts) < 2:  # all readers agree, or there is none
            overall = next(iter(verdicts), "not measured")
        yield replace(head, effects=effects, verdict=overall)


def _mean(values: Array) -> Estimate:
    """Return a mean over pairs with Student's interval; without one where no pair differs."""
    error = standard_error(values.sum(), (values**2).sum(), len(values))
    half = float(t_half_width(error, len(values)))
    return Estimate.around(float(values.mean()), half if half > ROUNDING else None)
