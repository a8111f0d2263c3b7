"""What an output is without some heads, all versions in batched runs, and sets that reverse it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from headscope.data.token_rows import Row, pad_rows
from headscope.models.intervene import intervene
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel

AT_ONCE = 4096  # Tokens of a batch, padding included.
Place = tuple[int, int]  # Row of the site, and place of the head in it.


@dataclass(frozen=True)
class MeanZ:
    """What each head puts out on average, (n_heads, d_head) by row of the site."""

    ordinary: dict[int, Tensor]
    special: dict[int, Tensor]  # At special tokens; the ordinary mean where there are none
    tokens: int  # Positions read


def mean_outputs(loaded: LoadedModel, rows: Sequence[Row]) -> MeanZ:
    """Average every head's z over the positions of some texts, special tokens apart."""
    sums = {
        site.row: torch.zeros(2, site.n_heads, site.d_head, dtype=torch.float64)
        for site in loaded.sites
    }
    counts, tokens = torch.zeros(2, dtype=torch.float64), 0
    for start in range(0, len(rows), 32):
        part = rows[start : start + 32]
        batch = pad_rows(part, loaded.pad_id, loaded.device)
        content = content_of(part, batch.input_ids)
        real = batch.attention_mask.bool()
        masks = (real & content, real & ~content)

        def add(site: AttentionSite, z: Tensor, masks: Sequence[Tensor] = masks) -> Tensor:
            for i, mask in enumerate(masks):
                sums[site.row][i] += exact(z.transpose(1, 2)[mask]).sum(0).cpu()
            return z

        with intervene(loaded, z=add) as router:
            router.checked(loaded.run, *batch.inputs, select=lambda hidden: hidden[:, :1])
        counts += torch.tensor([int(mask.sum()) for mask in masks])
        tokens += int(real.sum())
    shared = 1 if counts[1] else 0
    return MeanZ(
        {row: total[0] / counts[0].clamp(min=1) for row, total in sums.items()},
        {row: total[shared] / counts[shared].clamp(min=1) for row, total in sums.items()},
        tokens,
    )


def content_of(rows: Sequence[Row], like: Tensor) -> Tensor:
    """Say which positions hold ordinary tokens, (batch, pos)."""
    content = torch.zeros_like(like, dtype=torch.bool)
    for i, row in enumerate(rows):
        content[i, list(row.content)] = True
    return content


class Versions:
    """One example, run with many sets of heads removed at a time."""

    def __init__(self, loaded: LoadedModel, example: Example, means: MeanZ | None = None) -> None:
        self._loaded, self._example, self._means = loaded, example, means
        self._batch = pad_rows(example.rows, loaded.pad_id, loaded.device)
        self._content = content_of(example.rows, self._batch.input_ids)

    def values(self, sets: Sequence[Sequence[Place]]) -> Array:
        """Return the output without each set of heads, (sets,)."""
        return self._read(sets, value_of)

    def margins(self, sets: Sequence[Sequence[Place]]) -> Array:
        """Return the margin of a comparison, or of a prediction, without each set, (sets,)."""
        return self._read(sets, margin_of)

    def _read(
        self, sets: Sequence[Sequence[Place]], read: Callable[[Example, Tensor], Tensor]
    ) -> Array:
        rows, pos = self._batch.input_ids.shape
        at_once = max(1, AT_ONCE // (rows * pos))
        found = []
        for start in range(0, len(sets), at_once):
            part = sets[start : start + at_once]
            keep = torch.ones(len(part), self._loaded.n_layers, self._loaded.n_heads)
            for i, heads in enumerate(part):
                for place in heads:
                    keep[(i, *place)] = 0
            found.append(exact(read(self._example, self._run(keep.bool()))).cpu().numpy())
        return np.concatenate(found)

    def _run(self, keep: Tensor) -> Tensor:
        """Return the rows' vectors, (versions, rows, d), with the heads that ``keep`` leaves."""
        n, rows = len(keep), len(self._batch.input_ids)
        every = keep.repeat_interleave(rows, 0).to(self._loaded.device)
        content = self._content.repeat(n, 1)

        def change(site: AttentionSite, z: Tensor) -> Tensor:
            own = every[:, site.row, : site.n_heads, None, None]
            if self._means is None:
                return z * own.to(z)
            ordinary, special = (
                means[site.row].to(z)[:, None]
                for means in (self._means.ordinary, self._means.special)
            )
            return torch.where(own, z, torch.where(content[:, None, :, None], ordinary, special))

        repeated = pad_rows(self._example.rows * n, self._loaded.pad_id, self._loaded.device)
        select = select_mask([self._example] * rows, n)
        with intervene(self._loaded, z=change) as router:
            hidden, logits = router.checked(self._loaded.run, *repeated.inputs, select=select)
        found = vectors(self._loaded, self._example.kind, repeated, hidden, logits)
        return found.reshape(n, rows, -1)


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
        without = versions.margins([(*chosen, place) for place in rest])
        order = np.argsort(without, kind="stable")
        if not chosen:
            tried = [rest[i] for i in order[: max(12, len(heads) // 3)]]
        chosen.append(rest[int(order[0])])
        # Checked in a run of its own: it is this number that decides.
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
    return int((versions.margins(sets) < 0).sum())
