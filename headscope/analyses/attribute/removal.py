"""Measure an output without some heads, in batches.

A removed head's z is replaced by zeros, by its mean over calibration text or by its z elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.attribute.measure import Example, select_read, value_of, vectors
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
HeadIndex = tuple[int, int]  # Row of the site, and index of the head in it.
Heads = Sequence[HeadIndex]
#: What replaces the removed heads' z in a text, (1, n_heads, pos, d_head) by row of the site;
#: where there is no replacement z is zero.
Replacement = Callable[[Row], Means]
#: Ways of removing heads, by name: the effect of each is the mean over its replacements.
Ways = Mapping[str, Sequence[Replacement | None]]
#: Reads an example's output, or its margin, from the vectors of its rows.
Read = Callable[[Example, Tensor], Tensor]


def _ordinary(rows: Sequence[Row], stack: str) -> Tensor:
    """Return which of a stack's queries are ordinary tokens, not special ones: (batch, pos)."""
    marks = []
    for row in rows:
        length = len(row.ids)
        content = row.content
        if stack != "encoder" and isinstance(row, PairRow):
            length = len(row.labels)
            content = row.decoder_content
        marks.append([int(position in content) for position in range(length)])
    return filled(marks, 0).bool()


def _batches(
    loaded: LoadedModel, rows: Sequence[Row]
) -> Iterator[tuple[Padded, dict[str, tuple[Tensor, Tensor]]]]:
    """Pad texts, with masks of their ordinary and of their special tokens by stack."""
    for start in range(0, len(rows), 32):
        part = rows[start : start + 32]
        batch = padded(part, loaded.pad_id, loaded.device)
        masks = {}
        for stack in loaded.stacks:
            ordinary = _ordinary(part, stack).to(loaded.device)
            real = batch.queries_of(stack).bool()
            masks[stack] = (real & ordinary, real & ~ordinary)
        yield batch, masks


def mean_outputs(loaded: LoadedModel, rows: Sequence[Row]) -> Replacement:
    """Average every head's z over the positions of some texts, special tokens apart."""
    sums, counts = sums_of_z(loaded, _batches(loaded, rows), kinds=2)
    means = {}
    for row, total in sums.items():
        special = 1 if counts[row][1] else 0  # the ordinary mean where no token is special
        both = [total[i] / counts[row][i].clamp(min=1) for i in (0, special)]
        means[row] = (both[0][:, None], both[1][:, None])  # (n_heads, 1, d_head)

    def at_tokens(text: Row) -> Means:
        kinds = {stack: _ordinary([text], stack)[:, None, :, None] for stack in loaded.stacks}
        both = ((site, *means[site.row]) for site in loaded.sites)
        return {site.row: torch.where(kinds[site.stack], at, mark) for site, at, mark in both}

    return at_tokens


def donors(loaded: LoadedModel, rows: Sequence[Row], seed: int) -> Callable[[int], Replacement]:
    """Record every head's z in the first texts, at ordinary and at special tokens.

    Returns a function from a number to a random replacement: each position of a text takes z from
    a random position of the same kind, which is the same position for all heads of a stack.
    """
    ends = np.cumsum([len(row) for row in rows])
    seen: dict[int, tuple[list[Tensor], list[Tensor]]] = {s.row: ([], []) for s in loaded.sites}
    masks: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(site: AttentionSite, z: Tensor) -> Tensor:
        for pool, mask in zip(seen[site.row], masks[site.stack], strict=True):
            pool.append(z.transpose(1, 2)[mask].cpu())
        return z

    with intervene(loaded, z=keep) as router:
        run: Callable[..., object] = loaded.run
        for batch, of_batch in _batches(loaded, rows[: max(1, int((ends <= DONORS).sum()))]):
            masks = of_batch
            router.run(partial(run, *batch.inputs, **batch.decoder_inputs))
    #: (tokens, n_heads, d_head) of ordinary and special ones; a kind without any has the other's.
    both = {row: [torch.cat(kind) for kind in kinds] for row, kinds in seen.items()}
    pools = {row: [a if len(a) else b, b if len(b) else a] for row, (a, b) in both.items()}

    def drawn(number: int) -> Replacement:
        def at_tokens(text: Row) -> Means:
            rng = np.random.default_rng([abs(seed), number, *text.ids])
            ordinary = {stack: _ordinary([text], stack)[0] for stack in loaded.stacks}
            shares = {stack: torch.tensor(rng.random(len(of))) for stack, of in ordinary.items()}
            replaced = {}
            for site in loaded.sites:
                plain, special = (z[(shares[site.stack] * len(z)).long()] for z in pools[site.row])
                mixed = torch.where(ordinary[site.stack][:, None, None], plain, special)
                replaced[site.row] = mixed.transpose(0, 1)[None]
            return replaced

        return at_tokens

    return drawn


class Versions:
    """One example, run with many sets of heads removed at a time, each text without padding.

    All sets contain the heads ``base``. One run without just those is recorded; for each set, the
    layers before its first further head are replayed from that run.
    """

    def __init__(self, loaded: LoadedModel, example: Example, read: Read = value_of) -> None:
        self._loaded = loaded
        self._example = example
        self._read = read
        self._replay = Replay(loaded)
        self._base = frozenset[HeadIndex]()
        self._recorded: list[Recorded] = []  # Of each text, without the heads ``base``
        self._without_base = torch.empty(0)
        longest = max(map(len, example.rows))
        most = min(TOGETHER, AT_ONCE // longest)
        if example.kind == "target":
            most = min(most, LOGITS // (longest * loaded.vocab_size))
        self._at_once = max(1, most)

    def vectors(self, base: Heads = ()) -> Tensor:
        """Run without some heads; return the vectors that the output is read from, (texts, d)."""
        if not self._recorded or self._base != frozenset(base):
            self._recorded = []
            self._base = frozenset(base)
            rows: list[Tensor] = []
            for row in self._example.rows:
                with self._replay.recording() as recorded:
                    rows.append(self._run(row, [base], Recorded(), 0, None))
                self._recorded.append(recorded)
            self._without_base = torch.cat(rows)
        return self._without_base

    def measure(
        self, sets: Sequence[Heads], left: Replacement | None = None, base: Heads = ()
    ) -> Array:
        """Read the example without each set of heads, (sets,); ``left`` replaces their z.

        Sets that are not measured with ``left`` contain ``base``.
        """
        without_base = self.vectors(base)
        texts = self._example.rows
        means = [None if left is None else left(row) for row in texts]
        before = partial(Recorded.before, self._recorded[0])
        further = [[row for row, head in heads if (row, head) not in self._base] for heads in sets]
        first = {
            i: min(rows, key=lambda row: before(self._loaded.sites[row]))
            for i, rows in enumerate(further)
            if rows
        }
        results = np.full(len(sets), float(self._read(self._example, without_base[None])[0]))
        # All batches have one size, since matrix products are compiled for each shape.
        order = sorted(first, key=lambda i: before(self._loaded.sites[first[i]]))
        size = self._at_once
        for start in range(0, len(order), size):
            part = order[start : start + size]
            filled_up = part + part[-1:] * (size - len(part) if len(order) > size else 0)
            without = [sets[i] for i in filled_up]
            rows = [
                self._run(text, without, recorded, first[part[0]], at_tokens)
                for text, recorded, at_tokens in zip(texts, self._recorded, means, strict=True)
            ]
            values = exact(self._read(self._example, torch.stack(rows, 1)))
            results[part] = values[: len(part)].cpu().numpy()
        return results

    def _run(
        self, text: Row, sets: Sequence[Heads], recorded: Recorded, row: int, means: Means | None
    ) -> Tensor:
        """Return the vector without each set of heads, (sets, d); ``means`` replace their z.

        Layers before the site of this row are played back from the recorded run.
        """
        loaded = self._loaded
        gates = torch.ones(len(sets), loaded.n_layers, loaded.n_heads)
        for i, heads in enumerate(sets):
            for head in heads:
                gates[(i, *head)] = 0.0
        batch = padded([text] * len(sets), loaded.pad_id, loaded.device)
        select = select_read(loaded, [self._example], len(sets))
        playing = self._replay.playing(recorded, row, len(sets))
        with gated(loaded, gates.to(loaded.device), means=means) as run, playing:
            hidden, logits = run(*batch.inputs, **batch.decoder_inputs, select=select)
        return vectors(loaded, self._example.kind, batch, hidden, logits)


def remove_each(
    loaded: LoadedModel, examples: Sequence[Example], heads: Heads, ways: Ways, progress: Progress
) -> dict[str, Array]:
    """Run every example without each head in turn, removed in each way.

    Returns the output minus the output without, (examples, heads) by way, mean over replacements.
    """
    effects = {way: np.zeros((len(examples), len(heads))) for way in ways}
    for i, example in enumerate(examples):
        versions = Versions(loaded, example)
        for way, replacements in ways.items():
            for left in replacements:
                output, *without = versions.measure([(), *((head,) for head in heads)], left)
                effects[way][i] += (output - np.array(without)) / len(replacements)
        progress("heads removed", i + 1, len(examples))
    return effects
