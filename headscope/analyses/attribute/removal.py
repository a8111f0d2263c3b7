"""Measure an output without some heads, in batches: one mechanism for everything that removes.

A removed head leaves zeros, its mean over calibration text, or what it puts out elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.attribute.measure import Example, margin_of, select_read, value_of, vectors
from headscope.core.accumulator import Array
from headscope.core.progress import Progress
from headscope.core.widest import exact
from headscope.data.token_rows import Padded, PairRow, Row, filled, padded
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.intervene import Means, gated, intervene, sums_of_z
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.replay import Recorded, Replay

AT_ONCE = 4096  # Tokens of a batch
TOGETHER = 12  # Versions of a text in a batch: a layer of heads in most models.
LOGITS = 20_000_000  # Entries of the logits of a batch.
DONORS = 1024  # Tokens of calibration text that these are drawn from.
Place = tuple[int, int]  # Row of the site, and index of the head in it.
Heads = Sequence[Place]
#: Makes what takes the place of removed heads in a text; None in its place stands for zeros.
Replacement = Callable[[LoadedModel, Row], Means]
#: Ways of removing heads, by name: the effect of each is the mean over its replacements.
Ways = Mapping[str, Sequence[Replacement | None]]


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


class Donors(NamedTuple):
    """What every head puts out at single positions of calibration text."""

    #: At ordinary and at special tokens, (tokens, n_heads, d_head) each, by row of the site; a kind
    #: that no position has is represented by the other.
    z: dict[int, tuple[Tensor, Tensor]]
    seed: int

    def drawn(self, number: int) -> Replacement:
        """Return a draw: at each position of a text z of a random position of the same kind.

        All heads of a stack take it from the same position.
        """

        def at_tokens(loaded: LoadedModel, row: Row) -> Means:
            rng = np.random.default_rng([abs(self.seed), number, *row.ids])
            content = {stack: content_of([row], stack, "cpu")[0] for stack in loaded.stacks}
            shares = {stack: torch.tensor(rng.random(len(of))) for stack, of in content.items()}
            replaced = {}
            for site in loaded.sites:
                ordinary, special = (
                    z[(shares[site.stack] * len(z)).long()] for z in self.z[site.row]
                )
                z = torch.where(content[site.stack][:, None, None], ordinary, special)
                replaced[site.row] = z.transpose(0, 1)[None]
            return replaced

        return at_tokens


def _batches(
    loaded: LoadedModel, rows: Sequence[Row]
) -> Iterator[tuple[Padded, dict[str, tuple[Tensor, Tensor]]]]:
    """Pad texts, with masks of their ordinary and of their special tokens by stack."""
    for start in range(0, len(rows), 32):
        part = rows[start : start + 32]
        batch, masks = padded(part, loaded.pad_id, loaded.device), {}
        for stack in loaded.stacks:
            content = content_of(part, stack, loaded.device)
            real = batch.queries_of(stack).bool()
            masks[stack] = (real & content, real & ~content)
        yield batch, masks


def mean_outputs(loaded: LoadedModel, rows: Sequence[Row]) -> MeanZ:
    """Average every head's z over the positions of some texts, special tokens apart."""
    sums, counts = sums_of_z(loaded, _batches(loaded, rows), kinds=2)
    ordinary, special = {}, {}
    for row, total in sums.items():
        count = counts[row]
        shared = 1 if count[1] else 0
        ordinary[row] = total[0] / count[0].clamp(min=1)
        special[row] = total[shared] / count[shared].clamp(min=1)
    return MeanZ(ordinary, special, sum(len(row.ids) for row in rows))


def donors(loaded: LoadedModel, rows: Sequence[Row], seed: int) -> Donors:
    """Keep every head's z at the positions of the first texts, special tokens apart."""
    ends = np.cumsum([len(row) for row in rows])
    seen: dict[int, tuple[list[Tensor], list[Tensor]]] = {s.row: ([], []) for s in loaded.sites}

    masks: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(site: AttentionSite, z: Tensor) -> Tensor:
        for kept, mask in zip(seen[site.row], masks[site.stack], strict=True):
            kept.append(z.transpose(1, 2)[mask].cpu())
        return z

    with intervene(loaded, z=keep) as router:
        run: Callable[..., object] = loaded.run
        few = rows[: max(1, int((ends <= DONORS).sum()))]
        for batch, of_batch in _batches(loaded, few):
            masks = of_batch
            router.run(partial(run, *batch.inputs, **batch.decoder_inputs))
    z = {}
    for row, kinds in seen.items():
        ordinary, special = map(torch.cat, kinds)
        z[row] = (ordinary if len(ordinary) else special, special if len(special) else ordinary)
    return Donors(z, seed)


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

    def values(self, sets: Sequence[Heads], left: Replacement | None = None) -> Array:
        """Return the output without each set of heads, (sets,); ``left`` takes their place."""
        return self._read(sets, value_of, frozenset(), left)

    def margins(
        self, sets: Sequence[Heads], base: Heads = (), left: Replacement | None = None
    ) -> Array:
        """Return the margin of a comparison, or of a prediction, without each set, (sets,).

        Sets that are not measured with ``left`` contain ``base``.
        """
        return self._read(sets, margin_of, frozenset(base), left)

    def _read(
        self,
        sets: Sequence[Heads],
        read: Callable[[Example, Tensor], Tensor],
        base: frozenset[Place],
        left: Replacement | None,
    ) -> Array:
        if self._base != base:
            self._without_base = [text.record(list(base)) for text in self._texts]
            self._base = base
        of_texts = [
            (text, None if left is None else left(self._loaded, text.row)) for text in self._texts
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


def read_alone(loaded: LoadedModel, example: Example, rows: Sequence[Row]) -> Array:
    """Return the vectors (rows, d) that an output like the example's is read from."""
    vectors = [_Text(loaded, example, row).record(()) for row in rows]
    return exact(torch.cat(vectors)).cpu().numpy()


def remove_each(
    loaded: LoadedModel,
    examples: Sequence[Example],
    heads: Heads,
    ways: Ways,
    progress: Progress,
) -> dict[str, Array]:
    """Run every example without each head in turn, removed in each way.

    Returns the output minus the output without, (examples, heads) by way, mean over replacements.
    """
    effects = {way: np.zeros((len(examples), len(heads))) for way in ways}
    for i, example in enumerate(examples):
        versions = Versions(loaded, example)
        for way, replacements in ways.items():
            for left in replacements:
                output, *without = versions.values([(), *((head,) for head in heads)], left)
                effects[way][i] += (output - np.array(without)) / len(replacements)
        progress("heads removed", i + 1, len(examples))
    return effects
