"""Whether a head carries its role: its pattern alone is taken from another sentence.

A role says where a head looks. One head alone looks elsewhere (``patched_runs.py``), as it would in
a minimal pair (``minimal_pairs.py``); it carries its role if what is read of it depends on that.

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
SMALLEST = 0.05  # The smallest gain that counts: a twentieth of the change by the layer.
LEVEL = 0.05  # Adjusted p at which something is said of a head.


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
    # Choose what is patched.
    to_patch = list(_roles_to_patch(result))
    notes = []
    if not corpus.has_trees:
        notes.append("Syntactic heads were not patched: that needs gold trees (give a treebank).")
    elif not to_patch:
        notes.append("No head has a positional or syntactic role, so none was patched.")
    if loaded.encoder_decoder and any(head.stack != "encoder" for head, _, _ in to_patch):
        notes.append("Of an encoder-decoder model only heads of the encoder are patched.")
        to_patch = [
            (head, role, detail) for head, role, detail in to_patch if head.stack == "encoder"
        ]
    encoded: list[EncodedSentence] = []
    if to_patch:
        first = islice(iter(corpus), min(SENTENCES, sentences or SENTENCES))
        encoded = [item for item in encode_words(loaded, placed(first)) if item is not None]

    # Patch each head in minimal pairs of its role.
    patches: list[HeadPatch] = []
    for n_done, (head, role, detail) in enumerate(to_patch, start=1):
        rng = np.random.default_rng([seed, n_done])
        head_patch = _patch_role(
            result,
            loaded.only(head.stack),
            head,
            role,
            detail,
            encoded=encoded,
            limit=pairs,
            rng=rng,
        )
        patches.append(head_patch)
        progress("patching heads", n_done, len(to_patch))

    # Decide, and add the patches to their heads.
    patches_by_head: dict[str, list[HeadPatch]] = {}
    for (head, _, _), head_patch in zip(to_patch, _decided(patches), strict=True):
        patches_by_head.setdefault(head.name, []).append(head_patch)
    heads = [
        replace(head, patched=tuple(patches_by_head.get(head.name, ()))) for head in result.heads
    ]
    patching = Patching(pairs, SMALLEST, seed, tuple(notes))
    return replace(result, heads=tuple(heads), patching=patching)


def _roles_to_patch(result: ClassifyResult) -> Iterator[tuple[HeadResult, str, str]]:
    """Yield (head, role, detail): its offset, and its best relation, where that is a label."""
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
    *,
    encoded: Sequence[EncodedSentence],
    limit: int,
    rng: np.random.Generator,
) -> HeadPatch:
    """Patch one head in minimal pairs of its role, beside heads of its layer without that role.

    The effects have no verdict yet.
    """
    # Make the pairs, and draw the heads that it is compared with.
    place_of = places(view)
    row, index = place_of[head.stack, head.layer, head.head]
    if role == "positional":
        causal = view.sites[row].causal
        pairs = positional_pairs(encoded, int(detail), limit, rng, causal=causal)
    else:
        relation, _, direction = detail.partition(" ")
        pairs = syntactic_pairs(encoded, relation, direction, limit, rng)
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
    effects_of_all = list(chain.from_iterable(head_patch.effects for head_patch in patches))
    p_carries = adjust(np.array([effect.p_carries for effect in effects_of_all])).tolist()
    p_does_not = adjust(np.array([effect.p_does_not for effect in effects_of_all])).tolist()
    adjusted = zip(p_carries, p_does_not, strict=True)  # in the order of the effects
    for head_patch in patches:
        effects = []
        for effect in head_patch.effects:
            carries, does_not = next(adjusted)
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
        yield replace(head_patch, effects=tuple(effects), verdict=overall)


def _share(values: Array, together: Array) -> Estimate:
    """Return the mean of values as a share of that of ``together``, which is 1; with its interval.

    Student's t of what remains when the ratio is taken away (Cochran 1977, section 6.4); no
    interval where no pair differs.
    """
    mean = float(values.mean())
    remainder = values - mean * together
    error = standard_error(remainder.sum(), (remainder**2).sum(), len(remainder))
    half_width = float(t_half_width(error, len(remainder)))
    return Estimate.around(mean, finite(half_width) if half_width > ROUNDING else None)
