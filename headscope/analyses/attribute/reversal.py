"""Sets of heads whose removal reverses a comparison or changes a prediction, and their controls.

A greedy search finds a set, and every member that is not needed is put back. Beside it stand random
sets of as many heads in the same layers, and the same search on other texts whose margin is within
20%.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from headscope.analyses.attribute import AttributeOptions
from headscope.analyses.attribute.examples import other_texts, target_of
from headscope.analyses.attribute.measure import Example, margin_of, predicted
from headscope.analyses.attribute.removal import TOGETHER, HeadIndex, Replacement, Versions
from headscope.analyses.attribute.result import OtherSearch, Reversal
from headscope.core.accumulator import Array
from headscope.core.errors import InputError
from headscope.core.heads import head_name
from headscope.core.progress import Progress
from headscope.core.widest import exact
from headscope.data.token_rows import PairRow, Row, encode_rows
from headscope.models.run.loaded import LoadedModel

NEAR = 0.2  # Relative difference up to which another text's margin counts as the same.
DRAWS = 100  # Random sets of as many heads in the same layers, to compare.
TRIED = 20  # Random sets that are drawn for each that is wanted, since some come up again.
SEARCHES = 5  # Other texts with the same margin on which the same search is run.


class Search(NamedTuple):
    """The result of a search."""

    chosen: tuple[HeadIndex, ...]  # In the order of their choice
    heads: tuple[HeadIndex, ...]  # Those of them that are needed
    margins: tuple[float, ...]  # With all heads, and after each choice
    put_back: tuple[float, ...]  # Without the heads but one, for each of them
    margin: float  # Without the heads

    @property
    def reversed(self) -> bool:
        """Whether the margin is below zero."""
        return self.margin < 0


def search(versions: Versions, heads: Sequence[HeadIndex], most: int) -> Search:
    """Remove the head that lowers the margin most, again and again, until it is below zero.

    The greedy search is lazy (Minoux 1978): heads are tried in the order of how much they lowered
    the margin when last tried, until that is less than this round's best head does. Then heads are
    put back, the first chosen first, as long as the margin stays below zero without the others.
    """
    chosen: list[HeadIndex] = []
    margins = [float(versions.measure([()])[0])]
    lowers = dict.fromkeys(heads, math.inf)  # What each head lowered the margin by, last time
    while margins[-1] >= 0 and lowers and len(chosen) < most:
        order = sorted(lowers, key=lambda head: -lowers[head])
        best = -math.inf
        tried: list[HeadIndex] = []
        while len(tried) < len(order) and lowers[order[len(tried)]] > best:
            once = len(order) if not chosen else TOGETHER
            part = order[len(tried) : len(tried) + once]
            tried += part
            without = versions.measure([(*chosen, head) for head in part], base=chosen)
            lowers.update(zip(part, (margins[-1] - without).tolist(), strict=True))
            best = max(best, *(lowers[head] for head in part))
        chosen.append(max(tried, key=lambda head: lowers[head]))
        del lowers[chosen[-1]]
        # Measured again in a separate complete run: this number decides.
        margins.append(float(versions.measure([chosen], base=chosen)[0]))
    needed = list(chosen)
    margin = margins[-1]
    put_back = np.zeros(0)
    while margin < 0:
        put_back = versions.measure([[h for h in needed if h != head] for head in needed])
        spare = [head for head, of in zip(needed, put_back, strict=True) if of < 0]
        if not spare:
            break
        needed.remove(spare[0])
        margin = float(versions.measure([needed], base=needed)[0])
    back = tuple(put_back.tolist())
    return Search(tuple(chosen), tuple(needed), tuple(margins), back, margin)


def matched_sets(
    chosen: Sequence[HeadIndex], heads: Sequence[HeadIndex], draws: int, seed: int
) -> list[list[HeadIndex]]:
    """Draw different random sets of as many heads in the same layers, without the set itself.

    There are fewer than ``draws`` where the layers have no more such sets.
    """
    rng = np.random.default_rng(abs(seed))
    rows = [row for row, _ in chosen]
    of_row = {row: [head for head in heads if head[0] == row] for row in rows}
    sets: dict[frozenset[HeadIndex], None] = {}
    for _ in range(TRIED * draws):
        drawn = frozenset(
            in_layer[i]
            for row, in_layer in of_row.items()
            for i in rng.choice(len(in_layer), size=rows.count(row), replace=False)
        )
        if drawn != frozenset(chosen) and len(sets) < draws:
            sets[drawn] = None
    return [sorted(drawn) for drawn in sets]


def find_reversal(
    loaded: LoadedModel,
    example: Example,
    rows: Sequence[Row],
    heads: Sequence[HeadIndex],
    means: Replacement,
    draws: Sequence[Replacement],
    options: AttributeOptions,
    progress: Progress,
) -> Reversal:
    """Search the heads whose removal reverses the comparison, or changes the prediction.

    ``rows`` are other texts, from which those of the same margin are taken.
    """
    versions = Versions(loaded, example, margin_of)
    swapped = example.kind == "cosine" and float(versions.measure([()])[0]) < 0
    if swapped:
        first, second, third = example.rows
        example = replace(example, rows=(first, third, second))
        versions = Versions(loaded, example, margin_of)
    most = options.most
    total = 1 + SEARCHES
    result = search(versions, heads, most)
    progress("search", 1, total)
    sets = matched_sets(result.heads, heads, DRAWS, options.seed) if result.reversed else []
    random = versions.measure(sets) if sets else np.zeros(0)
    at_mean = versions.measure([result.heads], means)
    resampled = [float(versions.measure([result.heads], draw)[0]) for draw in draws]
    searches = []
    candidates = _of_margin(loaded, rows, example, result.margins[0], options)
    for i, other in enumerate(islice(candidates, SEARCHES), 2):
        same = search(Versions(loaded, other, margin_of), heads, most)
        needed = len(same.heads) if same.reversed else None
        searches.append(OtherSearch(same.margins[0], needed))
        progress("search", i, total)

    def names(indices: Sequence[HeadIndex]) -> tuple[str, ...]:
        of = ((loaded.sites[row], i) for row, i in indices)
        return tuple(head_name(site.layer, site.head_ids[i], site.stack) for site, i in of)

    return Reversal(
        question="nearer" if example.kind == "cosine" else "predicted",
        swapped=swapped,
        heads=names(result.heads),
        margins=result.margins,
        found=result.reversed,
        most=most,
        random_reversed=int((random < 0).sum()),
        draws=len(sets),
        others=tuple(searches),
        margin=result.margin,
        put_back=result.put_back,
        chosen=names(result.chosen),
        margin_mean=float(at_mean[0]),
        margins_resampled=tuple(resampled),
    )


# --- what is searched, and other texts of the same margin -----------------------------------------


def searched(loaded: LoadedModel, example: Example, options: AttributeOptions) -> Example | None:
    """Return what is searched: the example with the third text, or with what is predicted.

    None where no search is asked for.
    """
    if options.against is None:
        return predicted(loaded, [example], same_label=True)[0] if options.flip else None
    third = next(encode_rows(loaded, [loaded.pooling.prompt + options.against], None))
    if third is None or not third.content:
        raise InputError(f"The text of against does not fit {loaded.name}; give another.")
    return replace(example, rows=(*example.rows, third))


def _of_margin(
    loaded: LoadedModel,
    rows: Sequence[Row],
    example: Example,
    margin: float,
    options: AttributeOptions,
) -> Iterator[Example]:
    """Yield other examples in random order whose margin is the same within 20%.

    They are triples of the calibration text, or others of its texts, of the half whose lengths are
    nearest. Where only one token of a target counts, only one of theirs does.
    """

    def length(some: Sequence[Row]) -> float:
        sizes = [len(row.labels) if isinstance(row, PairRow) else len(row) for row in some]
        return sum(sizes) / len(sizes)

    near = sorted(rows, key=lambda row: abs(length([row]) - length(example.rows)))
    near = near[: max(3 * SEARCHES, len(rows) // 2)]
    order = np.random.default_rng(abs(options.seed)).permutation(len(near))
    near = [near[i] for i in order]

    def same(of: float | Array) -> Array:
        return np.asarray(np.abs(of - margin) <= NEAR * margin)

    if example.kind == "cosine":
        # Every text read alone, as a search reads it: the cosines of a triple are read from these.
        alone = (Versions(loaded, replace(example, rows=(row,))) for row in near)
        embedded = exact(torch.cat([of.vectors() for of in alone])).cpu().numpy()
        cosines = embedded @ embedded.T
        margins = cosines[:, :, None] - cosines[:, None, :]
        triples = np.argwhere(same(margins))
        for i in np.random.default_rng(abs(options.seed)).permutation(len(triples)):
            if len(set(triple := triples[i].tolist())) == 3:
                yield replace(example, rows=tuple(near[j] for j in triple))
        return
    if example.kind == "target":
        others = [target_of(row) for row in near if isinstance(row, PairRow)]
        if options.at is not None:
            others = [replace(e, positions=e.positions[: options.at][-1:]) for e in others]
    else:
        others = other_texts(loaded, example, near)
    for other in predicted(loaded, others, same_label=True):
        if same(float(Versions(loaded, other, margin_of).measure([()])[0])):
            yield other
