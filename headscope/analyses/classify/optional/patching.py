"""Whether a head carries its role: its pattern alone is taken from another sentence.

A role says where a head looks. A minimal pair (``minimal_pairs.py``) is a sentence and two others:
one in which the head should look elsewhere, and one in which it should look at the same place. One
head alone looks as in these (``patched_runs.py``), which changes what later heads and the output
read. Its *gain* is the change with the first less that with the second; the head carries its role
if the gain is large enough, and larger than that of other heads of the layer.

:func:`with_patching` goes through the heads; :func:`_patch_role` measures one, :func:`evidence` and
:func:`verdict` decide.

References
----------
Berger & Hsu 1996, Statistical Science 11 (a claim of two parts is tested by the larger p;
equivalence).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

from headscope.analyses.classify.known_roles import places
from headscope.analyses.classify.optional.minimal_pairs import (
    positional_pairs,
    syntactic_pairs,
)
from headscope.analyses.classify.optional.patched_runs import Patches, patch
from headscope.analyses.classify.optional.results import HeadPatch, PatchEffect, Patching
from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.classify.scores import HeadResult
from headscope.core.accumulator import Array
from headscope.core.progress import Progress
from headscope.core.rounding import ROUNDING
from headscope.data.corpus import Corpus
from headscope.data.word_pieces import EncodedSentence, encode_words, placed
from headscope.models.run.loaded import LoadedModel
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
#: The smallest gain that counts, as a share of the change when the whole layer is patched.
SMALLEST = 0.05
LEVEL = 0.05  # Adjusted p at which something is said of a head.


class _RoleOfHead(NamedTuple):
    """What is patched: a head, and one of its roles."""

    head: HeadResult
    role: str  # ``positional`` or ``syntactic``
    detail: str  # The offset (``-1``), or the relation (``obj dep->head``)


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
    """Patch every head that has a positional or a syntactic role, and say whether it carries it.

    ``sentences`` of the corpus are used (None: all), at most :data:`SENTENCES`; each head is
    patched in at most so many ``pairs``.
    """
    # Choose what is patched.
    to_patch = list(_roles_to_patch(result))
    notes = []
    if not corpus.has_trees:
        notes.append("Syntactic heads were not patched: that needs gold trees (give a treebank).")
    elif not to_patch:
        notes.append("No head has a positional or syntactic role, so none was patched.")
    if loaded.encoder_decoder and any(chosen.head.stack != "encoder" for chosen in to_patch):
        notes.append("Of an encoder-decoder model only heads of the encoder are patched.")
        to_patch = [chosen for chosen in to_patch if chosen.head.stack == "encoder"]
    encoded: list[EncodedSentence] = []
    if to_patch:
        first = islice(iter(corpus), min(SENTENCES, sentences or SENTENCES))
        # None stands for a sentence that the model cannot read.
        encoded = [item for item in encode_words(loaded, placed(first)) if item is not None]

    # Patch each head in minimal pairs of its role.
    patches: list[HeadPatch] = []
    for n_done, chosen in enumerate(to_patch, start=1):
        rng = np.random.default_rng([seed, n_done])
        view = loaded.only(chosen.head.stack)
        patches.append(_patch_role(result, view, chosen, encoded=encoded, limit=pairs, rng=rng))
        progress("patching heads", n_done, len(to_patch))

    # Decide, and add the patches to their heads.
    patches_by_head: dict[str, list[HeadPatch]] = {}
    for chosen, head_patch in zip(to_patch, _decided(patches), strict=True):
        patches_by_head.setdefault(chosen.head.name, []).append(head_patch)
    heads = [
        replace(head, patched=tuple(patches_by_head.get(head.name, ()))) for head in result.heads
    ]
    patching = Patching(pairs, SMALLEST, seed, tuple(notes))
    return replace(result, heads=tuple(heads), patching=patching)


def _roles_to_patch(result: ClassifyResult) -> Iterator[_RoleOfHead]:
    """Yield of each head its offset, if it is positional, and its best relation, if syntactic."""
    for head in result.heads:
        for label in head.labels:
            if label.role == "positional":
                yield _RoleOfHead(head, "positional", label.detail)
        if "syntactic" in head.roles and head.best_relation is not None:
            best, _ = head.best_relation
            yield _RoleOfHead(head, "syntactic", f"{best.relation} {best.direction}")


def _patch_role(
    result: ClassifyResult,
    view: LoadedModel,
    chosen: _RoleOfHead,
    *,
    encoded: Sequence[EncodedSentence],
    limit: int,
    rng: np.random.Generator,
) -> HeadPatch:
    """Patch one head in minimal pairs of its role, beside heads of its layer without that role.

    ``view`` is the model's stack with this head. The effects have no verdict yet.
    """
    # Make the pairs, and draw the heads that it is compared with.
    head, role, detail = chosen
    place_of = places(view)  # (stack, layer, head) of the original model -> layer and index in view
    layer, index = place_of[head.stack, head.layer, head.head]
    causal = view.sites[layer].causal
    if role == "positional":
        pairs = positional_pairs(encoded, int(detail), limit, rng, causal=causal)
    else:
        relation, _, direction = detail.partition(" ")
        pairs = syntactic_pairs(encoded, relation, direction, limit, rng, causal=causal)
    without_role = []  # indices of heads of the same layer
    for other in result.heads:
        same_layer = (other.stack, other.layer) == (head.stack, head.layer)
        has_role = any((label.role, label.detail) == (role, detail) for label in other.labels)
        if same_layer and not has_role:
            _, other_index = place_of[other.stack, other.layer, other.head]
            without_role.append(other_index)
    compared_heads = rng.permutation(without_role).tolist()[:OTHERS]

    # Patch them.
    follows = UNKNOWN
    effects = tuple[PatchEffect, ...]()
    if len(pairs) >= FEWEST_UNITS:
        patches = patch(view, pairs, layer, [index, *compared_heads])
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

    ``gains`` (heads, pairs), the first of the head itself; ``together`` (pairs,): the change when
    all heads are patched. A head carries its role if its gain exceeds both 0 and the mean gain of
    the other heads, paired over sentences; it does not if its gain lies below :data:`SMALLEST` of
    ``together``.
    """
    gain = gains[0]
    gains_of_others = gains[1:]
    p_over_others = 0.0
    if len(gains_of_others):
        p_over_others = p_above(gain - gains_of_others.mean(axis=0))
    return max(p_above(gain), p_over_others), p_above(SMALLEST * together - gain)


def verdict(carries: float, does_not: float) -> str:
    """Decide by both p-values; a gain that is too small to count is no gain, however sure."""
    if does_not <= LEVEL:
        return "does not"
    return "carries" if carries <= LEVEL else "not told apart"


def _effects(patches: Patches) -> Iterator[PatchEffect]:
    """Yield the numbers of each reader; their p-values are not adjusted yet."""
    readers: tuple[str, ...] = ("later heads", "output")
    if len(patches.shares) == 1:  # no later heads
        readers = ("output",)
    by_reader = zip(readers, patches.shares, patches.together, patches.size, strict=True)
    for reader, shares, together, size in by_reader:
        gains = shares[:, 0] - shares[:, 1]  # [heads, pairs]: points elsewhere, less same place
        gain = gains[0]
        over_others = UNKNOWN
        if len(gains) > 1:
            over_others = _share(gain - gains[1:].mean(axis=0), together)
        p_carries, p_does_not = evidence(gains, together)
        yield PatchEffect(
            reader=reader,
            elsewhere=float(shares[0, 0].mean()),
            same=float(shares[0, 1].mean()),
            gain=_share(gain, together),
            over_others=over_others,
            p_carries=p_carries,
            p_does_not=p_does_not,
            verdict="",
            layer_change=float(size),
        )


def _decided(patches: Sequence[HeadPatch]) -> Iterator[HeadPatch]:
    """Adjust the p-values of all heads, roles and readers together, and add the verdicts."""
    effects = list(chain.from_iterable(head_patch.effects for head_patch in patches))
    p_carries = adjust(np.array([effect.p_carries for effect in effects])).tolist()
    p_does_not = adjust(np.array([effect.p_does_not for effect in effects])).tolist()
    decided = [
        replace(effect, p_carries=yes, p_does_not=no, verdict=verdict(yes, no))
        for effect, yes, no in zip(effects, p_carries, p_does_not, strict=True)
    ]
    start = 0
    for head_patch in patches:
        stop = start + len(head_patch.effects)
        effects_of_head = tuple(decided[start:stop])
        overall = _over_readers({effect.verdict for effect in effects_of_head})
        yield replace(head_patch, effects=effects_of_head, verdict=overall)
        start = stop


def _over_readers(verdicts: set[str]) -> str:
    """Join the verdicts of all readers: one that depends on the head is enough."""
    if not verdicts:
        return "not measured"
    if "carries" in verdicts:
        return "carries"
    if verdicts == {"does not"}:
        return "does not"
    return "not told apart"


def _share(values: Array, together: Array) -> Estimate:
    """Return the mean of values, a share of the mean of ``together``, with its interval.

    That mean is 1, but an estimate too, so the interval is that of a ratio: Student's t of values
    less ratio times ``together`` (Cochran 1977, section 6.4). No interval where no pair differs.
    """
    mean = float(values.mean())
    remainder = values - mean * together
    error = standard_error(remainder.sum(), (remainder**2).sum(), len(remainder))
    half_width = float(t_half_width(error, len(remainder)))
    return Estimate.around(mean, finite(half_width) if half_width > ROUNDING else None)
