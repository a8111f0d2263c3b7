"""Measure an output without some heads, in batches, and search sets of heads that reverse it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.attribute.measure import Example, margin_of, select_read, value_of, vectors
from headscope.core.accumulator import Array
from headscope.core.widest import exact
from headscope.data.token_rows import Padded, PairRow, Row, filled, padded
from headscope.models.run.intervene import Means, gated, sums_of_z
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.replay import Recorded, Replay

AT_ONCE = 4096  # Tokens of a batch
TOGETHER = 12  # Versions of a text in a batch: a layer of heads in most models.
LOGITS = 20_000_000  # Entries of the logits of a batch.
Place = tuple[int, int]  # Row of the site, and index of the head in it.
Heads = Sequence[Place]


class MeanZ(NamedTuple):
    """What each head puts out on average, (n_heads, d_head) by row of the site."""

    ordinary: dict[int, Tensor]
    special: dict[int, Tensor]  # At special tokens; the ordinary mean where there are none
    tokens: int  # Tokens read; of an encoder-decoder those of the sources

    def at_tokens(self, loaded: LoadedModel, row: Row) -> Means:
        """Return the mean of each token of a text, (1, n_heads, pos, d_head) by row of the site."""
        content = {stack: content_of([row], stack, "cpu") for stack in loaded.stacks}
        both = ((site, self.ordinary[site.row], self.special[site.row]) for site in loaded.sites)
        return {
            site.row: torch.where(content[site.stack][:, None, :, None], mean[:, None], at[:, None])
            for site, mean, at in both
        }


def mean_outputs(loaded: LoadedModel, rows: Sequence[Row]) -> MeanZ:
    """Average every head's z over the positions of some texts, special tokens apart."""

    def batches() -> Iterator[tuple[Padded, dict[str, tuple[Tensor, Tensor]]]]:
        for start in range(0, len(rows), 32):
            part = rows[start : start + 32]
            batch, masks = padded(part, loaded.pad_id, loaded.device), {}
            for stack in loaded.stacks:
                content = content_of(part, stack, loaded.device)
                real = batch.queries_of(stack).bool()
                masks[stack] = (real & content, real & ~content)
            yield batch, masks

    sums, counts = sums_of_z(loaded, batches(), kinds=2)
    ordinary, special = {}, {}
    for row, total in sums.items():
        count = counts[row]
        shared = 1 if count[1] else 0
        ordinary[row] = total[0] / count[0].clamp(min=1)
        special[row] = total[shared] / count[shared].clamp(min=1)
    return MeanZ(ordinary, special, sum(len(row.ids) for row in rows))


def content_of(rows: Sequence[Row], stack: str, device: str) -> Tensor:
    """Return which of a stack's queries are ordinary tokens, (batch, query_pos)."""
    marks = []
    for row in rows:
        length, content = len(row.ids), row.content
        if stack != "encoder" and isinstance(row, PairRow):
            length, content = len(row.labels), row.decoder_content
        marks.append([int(position in content) for position in range(length)])
    return filled(marks, 0).bool().to(device)


class Versions:
    """One example, run with many sets of heads removed at a time.

    All sets contain the heads ``base``. One run without just those is recorded; for each set, the
    layers before its first further head are replayed from that run.
    """

    def __init__(self, loaded: LoadedModel, example: Example) -> None:
        self._loaded, self._example = loaded, example
        self._texts = [_Text(loaded, example, row) for row in example.rows]
        self._base: frozenset[Place] | None = None
        self._without_base: list[Tensor] = []  # Each text's vector without those heads, (1, d)

    def values(self, sets: Sequence[Heads], means: MeanZ | None = None) -> Array:
        """Return the output without each set of heads, (sets,); their means stay if given."""
        return self._read(sets, value_of, frozenset(), means)

    def margins(self, sets: Sequence[Heads], base: Heads = ()) -> Array:
        """Return the margin of a comparison, or of a prediction, without each set, (sets,)."""
        return self._read(sets, margin_of, frozenset(base))

    def _read(
        self,
        sets: Sequence[Heads],
        read: Callable[[Example, Tensor], Tensor],
        base: frozenset[Place],
        means: MeanZ | None = None,
    ) -> Array:
        if self._base != base:
            self._without_base = [text.record(list(base)) for text in self._texts]
            self._base = base
        of_texts = [
            (text, None if means is None else means.at_tokens(self._loaded, text.row))
            for text in self._texts
        ]
        before = self._texts[0].layers_before
        further = [[row for row, head in heads if (row, head) not in base] for heads in sets]
        first = {i: min(rows, key=before) for i, rows in enumerate(further) if rows}
        results = np.zeros(len(sets))
        for i in range(len(sets)):
            if i not in first:
                results[i] = float(read(self._example, torch.stack(self._without_base, 1))[0])
        # All batches have one size, since matrix products are compiled for each shape.
        order = sorted(first, key=lambda i: before(first[i]))
        size = min(TOGETHER, *(text.at_once for text in self._texts))
        for start in range(0, len(order), size):
            part = order[start : start + size]
            filled_up = part + part[-1:] * (size - len(part) if len(order) > size else 0)
            without = [sets[i] for i in filled_up]
            rows = [text.run(without, first[part[0]], at_tokens) for text, at_tokens in of_texts]
            values = exact(read(self._example, torch.stack(rows, 1)))
            results[part] = values[: len(part)].cpu().numpy()
        return results


class _Text:
    """One text of an example, run on its own and so without padding."""

    def __init__(self, loaded: LoadedModel, example: Example, row: Row) -> None:
        self._loaded, self._example, self.row = loaded, example, row
        self._replay, self._recorded = Replay(loaded), Recorded()
        most = AT_ONCE // len(row)
        if example.kind == "target":
            most = min(most, LOGITS // (len(row) * loaded.vocab_size))
        self.at_once = max(1, most)

    def record(self, heads: Heads) -> Tensor:
        """Run without some heads and record what the layers return; return the vector, (1, d)."""
        with self._replay.recording() as self._recorded:
            return self.run([heads], 0)

    def layers_before(self, row: int) -> int:
        """Count the layers that need not run again for a change at the site of this row."""
        return self._recorded.before(self._loaded.sites[row])

    def run(self, sets: Sequence[Heads], row: int, means: Means | None = None) -> Tensor:
        """Return the vector without each set of heads, (sets, d); ``means`` stay in their place.

        Layers before the site of this row are played back from the recorded run.
        """
        loaded = self._loaded
        gates = torch.ones(len(sets), loaded.n_layers, loaded.n_heads)
        for i, heads in enumerate(sets):
            for place in heads:
                gates[(i, *place)] = 0.0
        batch = padded([self.row] * len(sets), loaded.pad_id, loaded.device)
        select = select_read(loaded, [self._example], len(sets))
        playing = self._replay.playing(self._recorded, row, len(sets))
        with gated(loaded, gates.to(loaded.device), means=means) as run, playing:
            hidden, logits = run(*batch.inputs, **batch.decoder_inputs, select=select)
        return vectors(loaded, self._example.kind, batch, hidden, logits)


class Search(NamedTuple):
    """The result of a greedy search."""

    heads: tuple[Place, ...]  # In the order of their choice
    margins: tuple[float, ...]  # With all heads, and after each choice

    @property
    def reversed(self) -> bool:
        """Whether the last margin is below zero."""
        return self.margins[-1] < 0


def search(versions: Versions, heads: Sequence[Place], most: int) -> Search:
    """Remove the head that lowers the margin most, again and again, until it is below zero.

    The greedy search is lazy (Minoux 1978): heads are tried in the order of how much they lowered
    the margin when last tried, until that is less than this round's best head does.
    """
    chosen: list[Place] = []
    margins = [float(versions.margins([()])[0])]
    lowers = dict.fromkeys(heads, math.inf)  # What each head lowered the margin by, last time
    while margins[-1] >= 0 and lowers and len(chosen) < most:
        order = sorted(lowers, key=lambda head: -lowers[head])
        best, tried = -math.inf, list[Place]()
        while len(tried) < len(order) and lowers[order[len(tried)]] > best:
            once = len(order) if not chosen else TOGETHER
            part = order[len(tried) : len(tried) + once]
            tried += part
            without = versions.margins([(*chosen, head) for head in part], chosen)
            lowers.update(zip(part, (margins[-1] - without).tolist(), strict=True))
            best = max(best, *(lowers[head] for head in part))
        chosen.append(max(tried, key=lambda head: lowers[head]))
        del lowers[chosen[-1]]
        # Measured again in a complete run of its own: this number decides.
        margins.append(float(versions.margins([chosen], chosen)[0]))
    return Search(tuple(chosen), tuple(margins))


def random_reversals(
    versions: Versions, heads: Sequence[Place], size: int, draws: int, seed: int
) -> int:
    """Count how many of ``draws`` random sets of ``size`` heads turn the margin below zero."""
    rng = np.random.default_rng(seed)
    sets = [
        [heads[i] for i in rng.choice(len(heads), size=size, replace=False)] for _ in range(draws)
    ]
    return int((versions.margins(sets) < 0).sum())
