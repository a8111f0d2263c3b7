"""What an output is without some heads, all versions in batched runs, and sets that reverse it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.attribute.measure import (
    Example,
    margin_of,
    select_mask,
    value_of,
    vectors,
)
from headscope.core.accumulator import Array
from headscope.core.widest import exact
from headscope.data.token_rows import PairRow, Row, filled, padded
from headscope.models.intervene import intervene
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.replay import Prefix
from headscope.models.routing import Router

AT_ONCE = 4096  # Tokens of a batch, padding included.
LOGITS = 20_000_000  # Entries of the logits of a batch.
Place = tuple[int, int]  # Row of the site, and place of the head in it.
Heads = Sequence[Place]
Masks = dict[str, tuple[Tensor, Tensor]]  # Of ordinary and special tokens, by stack


@dataclass(frozen=True)
class MeanZ:
    """What each head puts out on average, (n_heads, d_head) by row of the site."""

    ordinary: dict[int, Tensor]
    special: dict[int, Tensor]  # At special tokens; the ordinary mean where there are none
    tokens: int  # Tokens read; of an encoder-decoder those of the sources


def mean_outputs(loaded: LoadedModel, rows: Sequence[Row]) -> MeanZ:
    """Average every head's z over the positions of some texts, special tokens apart."""
    sums = {
        site.row: torch.zeros(2, site.n_heads, site.d_head, dtype=torch.float64)
        for site in loaded.sites
    }
    counts = {stack: torch.zeros(2, dtype=torch.float64) for stack in loaded.stacks}
    tokens = 0
    for start in range(0, len(rows), 32):
        part = rows[start : start + 32]
        batch = padded(part, loaded.pad_id, loaded.device)
        masks = {}
        for stack in loaded.stacks:
            content, real = content_of(part, stack, loaded.device), batch.queries_of(stack).bool()
            masks[stack] = (real & content, real & ~content)
            counts[stack] += torch.tensor([int(mask.sum()) for mask in masks[stack]])

        def add(site: AttentionSite, z: Tensor, masks: Masks = masks) -> Tensor:
            for i, mask in enumerate(masks[site.stack]):
                sums[site.row][i] += exact(z.transpose(1, 2)[mask]).sum(0).cpu()
            return z

        with intervene(loaded, z=add) as router:
            more = {**batch.decoder_inputs, "select": lambda hidden: hidden[:, :1]}
            router.checked(loaded.run, *batch.inputs, **more)
        tokens += int(batch.attention_mask.sum())
    ordinary, special = {}, {}
    for site in loaded.sites:
        total, count = sums[site.row], counts[site.stack]
        shared = 1 if count[1] else 0
        ordinary[site.row] = total[0] / count[0].clamp(min=1)
        special[site.row] = total[shared] / count[shared].clamp(min=1)
    return MeanZ(ordinary, special, tokens)


def content_of(rows: Sequence[Row], stack: str, device: str) -> Tensor:
    """Say at which of a stack's queries ordinary tokens stand, (batch, query_pos)."""
    marks = []
    for row in rows:
        decoder = stack != "encoder" and isinstance(row, PairRow)
        length = len(row.labels) if decoder else len(row.ids)
        content = set(row.decoder_content if decoder else row.content)
        marks.append([int(position in content) for position in range(length)])
    return filled(marks, 0).bool().to(device)


class Versions:
    """One example, run with many sets of heads removed at a time.

    Sets that have ``base`` in common share one run without those heads: what its layers returned
    before the first further head of a set is played back (:class:`~headscope.models.replay.Prefix`).
    """

    def __init__(self, loaded: LoadedModel, example: Example, means: MeanZ | None = None) -> None:
        self._loaded, self._example = loaded, example
        self._texts = [_Text(loaded, example, row, means) for row in example.rows]

    def values(self, sets: Sequence[Heads], base: Heads | None = None) -> Array:
        """Return the output without each set of heads, (sets,)."""
        return self._read(sets, value_of, base)

    def margins(self, sets: Sequence[Heads], base: Heads | None = None) -> Array:
        """Return the margin of a comparison, or of a prediction, without each set, (sets,)."""
        return self._read(sets, margin_of, base)

    def _read(
        self,
        sets: Sequence[Heads],
        read: Callable[[Example, Tensor], Tensor],
        base: Heads | None,
    ) -> Array:
        together: dict[int | None, list[int]] = {None: list(range(len(sets)))}
        if base is not None:
            for text in self._texts:
                text.start(base)
            before = self._texts[0].prefix.before
            together = {}
            for i, heads in enumerate(sets):
                rows = [row for row, place in heads if (row, place) not in base]
                together.setdefault(min(rows, key=before, default=None), []).append(i)
        found = np.zeros(len(sets))
        for row, members in together.items():
            at_once = max(1, min(text.at_once for text in self._texts))
            for start in range(0, len(members), at_once):
                part = members[start : start + at_once]
                keep = torch.ones(len(part), self._loaded.n_layers, self._loaded.n_heads)
                for i, member in enumerate(part):
                    for place in sets[member]:
                        keep[(i, *place)] = 0
                vectors = [text.run(keep.bool(), row) for text in self._texts]
                values = read(self._example, torch.stack(vectors, 1))
                found[part] = exact(values).cpu().numpy()
        return found


class _Text:
    """One text of an example, which no other pads."""

    def __init__(
        self, loaded: LoadedModel, example: Example, row: Row, means: MeanZ | None
    ) -> None:
        self._loaded, self._example, self._row, self._means = loaded, example, row, means
        self._content = {
            stack: content_of([row], stack, loaded.device)[:, None, :, None]
            for stack in loaded.stacks
        }
        self.prefix = Prefix(loaded.model, loaded.sites)
        self.at_once = AT_ONCE // len(row)
        if example.kind == "target":
            self.at_once = min(self.at_once, LOGITS // (len(row) * loaded.vocab_size))

    def start(self, base: Heads) -> None:
        """Run without the heads of ``base``, and keep what the layers return."""
        keep = torch.ones(1, self._loaded.n_layers, self._loaded.n_heads, dtype=torch.bool)
        for place in base:
            keep[(0, *place)] = False
        self._pass(keep, self.prefix.recording)

    def run(self, keep: Tensor, row: int | None) -> Tensor:
        """Return the text's vector, (versions, d), with the heads that ``keep`` leaves.

        Layers before the site of ``row`` are played back; none where that is None.
        """
        if row is None:
            return self._pass(keep, lambda _: nullcontext())
        return self._pass(keep, lambda router: self.prefix.replaying(router, row, len(keep)))

    def _pass(self, keep: Tensor, around: Callable[[Router], Any]) -> Tensor:
        loaded, kept = self._loaded, keep.to(self._loaded.device)

        def change(site: AttentionSite, z: Tensor) -> Tensor:
            own = kept[:, site.row, : site.n_heads, None, None]
            if self._means is None:
                return z * own.to(z)
            ordinary, special = (
                means[site.row].to(z)[:, None]
                for means in (self._means.ordinary, self._means.special)
            )
            return torch.where(own, z, torch.where(self._content[site.stack], ordinary, special))

        batch = padded([self._row] * len(keep), loaded.pad_id, loaded.device)
        select = select_mask([self._example], len(keep))
        with intervene(loaded, z=change) as router:
            with around(router):
                hidden, logits = loaded.run(*batch.inputs, **batch.decoder_inputs, select=select)
            router.check_calls()
        return vectors(loaded, self._example.kind, batch, hidden, logits)


@dataclass(frozen=True)
class Found:
    """What a greedy search came to."""

    places: tuple[Place, ...]  # In the order of their choice
    margins: tuple[float, ...]  # With all heads, and after each choice
    reversed: bool


def search(versions: Versions, heads: Sequence[Place], most: int) -> Found:
    """Remove the head that lowers the margin most, again and again, until it is below zero.

    All heads are tried at first; then those that lowered it most, a third of all but 12 at least.
    """
    chosen: list[Place] = []
    tried, margins = list(heads), [float(versions.margins([()])[0])]
    while margins[-1] >= 0 and len(chosen) < min(most, len(heads)):
        rest = [place for place in tried if place not in chosen]
        without = versions.margins([(*chosen, place) for place in rest], tuple(chosen))
        order = np.argsort(without, kind="stable")
        if not chosen:
            tried = [rest[i] for i in order[: max(12, len(heads) // 3)]]
        chosen.append(rest[int(order[0])])
        # Checked in a whole run of its own: it is this number that decides.
        margins.append(float(versions.margins([tuple(chosen)])[0]))
    return Found(tuple(chosen), tuple(margins), margins[-1] < 0)


def random_reversals(
    versions: Versions, heads: Sequence[Place], size: int, draws: int, seed: int
) -> int:
    """Count how many of ``draws`` random sets of so many heads turn the margin below zero."""
    rng = np.random.default_rng(seed)
    sets = [
        [heads[i] for i in rng.choice(len(heads), size=size, replace=False)] for _ in range(draws)
    ]
    return int((versions.margins(sets, ()) < 0).sum())
