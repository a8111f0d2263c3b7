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
from headscope.analyses.classify.optional_results import HeadPatch, PatchEffect, Patching
from headscope.analyses.classify.result import ClassifyResult, HeadResult
from headscope.attention import Mask, attention_pattern, stream_attention
from headscope.core.accumulator import Array, numpy
from headscope.core.progress import Progress
from headscope.core.rounding import ROUNDING
from headscope.core.widest import exact
from headscope.data.batches import buckets
from headscope.data.corpus import Corpus
from headscope.data.word_pieces import encode_words, placed
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
    together = _AT_ONCE // (2 + 2 * len(heads))
    with prepared(view.network):
        parts = [_patch_batch(view, replay, p, row, heads) for p in buckets(pairs, together)]
    lengths, shift = (np.concatenate(columns, -1) for columns in zip(*parts, strict=True))
    # (reads, 1 and versions, pairs)
    read = lengths[:, :1]
    changes = lengths[:, 1:]
    changes = np.where(changes > ROUNDING * read, changes, 0.0)
    unit = changes[:, :1].mean(-1, keepdims=True)
    unread = unit <= 0
    shares = np.where(unread, 0.0, changes / np.where(unread, 1.0, unit))
    shares[:, :1] += unread
    size = (unit / read.mean(-1, keepdims=True))[:, 0, 0]
    readers = [slice(None, -1), slice(-1, None)] if len(shares) > 1 else [slice(None)]
    of_readers = np.stack([shares[reader].mean(0) for reader in readers])
    return Patches(
        of_readers[:, 1:].reshape(len(readers), len(heads), 2, -1),
        of_readers[:, 0],
        np.array([size[reader].mean() for reader in readers]),
        shift,
    )


def _patch_batch(
    view: LoadedModel,
    replay: Replay,
    pairs: Sequence[MinimalPair],
    row: int,
    heads: Sequence[int],
) -> tuple[Array, Array]:
    """Run the unchanged model and its patched versions as copies of one batch.

    Returns lengths (reads, 2 + 2 heads, pairs): of what is read unchanged, and of its changes with
    all heads patched and with each alone; reads are q, k and v of each later layer, and the output.
    The other is the shift of :class:`Patches`.
    """
    n = len(pairs)
    device = view.device
    of = torch.tensor([i for i, pair in enumerate(pairs) for _ in pair.rows], device=device)
    at, taken = (
        torch.tensor([q for pair in pairs for q in getattr(pair, name)], device=device)
        for name in ("rows", "rows_elsewhere")
    )
    seen: dict[str, Tensor] = {}

    def record_pattern(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        if site.row == row:
            seen.update(pattern=attention_pattern(q, k, scale=scale, mask=mask), v=v)
        return stream_attention(q, k, v, mask=mask, scale=scale)

    ids, real = view.pad([pair.sentence for pair in pairs])
    with intervene(view, attention=record_pattern) as router:
        others = [pair.elsewhere for pair in pairs] + [pair.same for pair in pairs]
        router.checked(view.forward, *view.pad(others))
        pattern = seen["pattern"]
        # (2, rows, heads, key_pos): of the sentences that point elsewhere, and of the others
        rows = torch.stack([pattern[of, :, taken], pattern[n + of, :, at]])
        with replay.recording() as recorded:
            router.checked(view.forward, ids, real)
    z_new = (rows[..., None, :] @ seen["v"][of])[..., 0, :]  # (2, rows, heads, d_head)
    versions: list[tuple[int, list[int]]] = [(0, [*range(z_new.shape[2])])]
    versions += [(kind, [head]) for head in heads for kind in (0, 1)]
    copies = 1 + len(versions)
    every = (torch.arange(copies, device=device)[:, None] * n + of).flatten()
    lengths: list[Array] = []

    def keep(states: Tensor) -> None:
        """Keep lengths of what is read at the query rows; states (copies x batch, ..., pos, d)."""
        read = exact(states.movedim(-2, 1)[every, at.repeat(copies)]).view(copies, len(of), -1)
        squares = torch.cat([read[:1], read[1:] - read[:1]]).square().sum(-1)  # (copies, rows)
        total = squares.new_zeros(copies, n).index_add_(1, of.to(squares.device), squares)
        lengths.append(numpy(total.sqrt()))

    def patched(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        z = stream_attention(q, k, v, mask=mask, scale=scale)
        if site.row == row:
            for i, (kind, changed) in enumerate(versions, start=1):
                for head in changed:
                    z[i * n + of, head, at] = z_new[kind, :, head]
        elif site.row > row:
            for states in (q, k, v):
                keep(states)
        return z

    with intervene(view, attention=patched) as router, replay.playing(recorded, row, copies):
        keep(router.checked(view.forward, ids.repeat(copies, 1), real.repeat(copies, 1)))
    shift = np.zeros(n)
    for weights, i in zip(numpy(exact(rows[0, :, heads[0]])), of.tolist(), strict=True):
        pair = pairs[i]
        shift[i] += weights[list(pair.targets_elsewhere)].sum() - weights[list(pair.targets)].sum()
    return np.stack(lengths), shift


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
    wanted = list(_roles(result))
    notes = []
    if not corpus.has_trees:
        notes.append("Syntactic heads were not patched: that needs gold trees (give a treebank).")
    elif not wanted:
        notes.append("No head has a positional or syntactic role, so none was patched.")
    if loaded.encoder_decoder and any(head.stack != "encoder" for head, _, _ in wanted):
        notes.append("Of an encoder-decoder model only heads of the encoder are patched.")
        wanted = [row for row in wanted if row[0].stack == "encoder"]
    read = islice(iter(corpus), min(SENTENCES, sentences or SENTENCES)) if wanted else ()
    encoded = [item for item in encode_words(loaded, placed(read)) if item is not None]
    patched = []
    for done, (head, role, detail) in enumerate(wanted, start=1):
        view = loaded.only(head.stack)
        rng = np.random.default_rng([seed, done])
        place_of = places(view)
        row, index = place_of[head.stack, head.layer, head.head]
        if role == "positional":
            causal = view.sites[row].causal
            made = positional_pairs(encoded, int(detail), pairs, rng, causal=causal)
        else:
            relation, _, direction = detail.partition(" ")
            made = syntactic_pairs(encoded, relation, direction, pairs, rng)
        others = [
            place_of[h.stack, h.layer, h.head][1]
            for h in result.heads
            if (h.stack, h.layer) == (head.stack, head.layer)
            and (role, detail) not in [(label.role, label.detail) for label in h.labels]
        ]
        others = rng.permutation(others).tolist()[:OTHERS]
        follows = UNKNOWN
        effects = tuple[PatchEffect, ...]()
        if len(made) >= FEWEST_UNITS:
            patches = patch(view, made, row, [index, *others])
            hits = int((patches.shift > 0).sum())
            follows = Estimate(hits / len(made), *map(float, wilson(hits, len(made))))
            effects = tuple(_effects(patches))
        patched.append(HeadPatch(role, detail, len(made), follows, len(others), effects, ""))
        progress("patching heads", done, len(wanted))
    named = list(zip((head.name for head, *_ in wanted), _adjusted(patched), strict=True))
    return replace(
        result,
        heads=tuple(
            replace(head, patched=tuple(patch for name, patch in named if name == head.name))
            for head in result.heads
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
    gain, *others = gains
    over = p_above(gain - np.mean(others, axis=0)) if others else 0.0
    return max(p_above(gain), over), p_above(SMALLEST * together - gain)


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
        others = gains[1:]
        carries, does_not = evidence(gains, together)
        yield PatchEffect(
            reader=reader,
            elsewhere=float(shares[0, 0].mean()),
            same=float(shares[0, 1].mean()),
            gain=_mean(gain, together),
            over_others=_mean(gain - others.mean(axis=0), together) if len(others) else UNKNOWN,
            p_carries=carries,
            p_does_not=does_not,
            verdict="",
            layer_change=float(size),
        )


def _adjusted(patched: Sequence[HeadPatch]) -> Iterator[HeadPatch]:
    """Adjust the p-values of all heads, roles and readers together, and add the verdicts."""
    every = [effect for head in patched for effect in head.effects]
    carries, does_not = (
        iter(adjust(np.array([getattr(effect, name) for effect in every])).tolist())
        for name in ("p_carries", "p_does_not")
    )
    for head in patched:
        both = [(next(carries), next(does_not)) for _ in head.effects]
        effects = tuple(
            replace(effect, p_carries=a, p_does_not=b, verdict=verdict(a, b))
            for effect, (a, b) in zip(head.effects, both, strict=True)
        )
        verdicts = {effect.verdict for effect in effects}
        overall = "carries" if "carries" in verdicts else "not told apart"
        if len(verdicts) < 2:  # all readers agree, or there is none
            overall = next(iter(verdicts), "not measured")
        yield replace(head, effects=effects, verdict=overall)


def _mean(values: Array, together: Array) -> Estimate:
    """Return the ratio of two means over pairs, of which the second is 1, with its interval.

    Student's t of what remains when the ratio is taken away (Cochran 1977, section 6.4); no
    interval where no pair differs.
    """
    mean = float(values.mean())
    rest = values - mean * together
    error = standard_error(rest.sum(), (rest**2).sum(), len(rest))
    half = float(t_half_width(error, len(rest)))
    return Estimate.around(mean, finite(half) if half > ROUNDING else None)
