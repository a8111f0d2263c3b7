"""Heads of a decoder and of its cross-attention, on pairs of source and target."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from headscope.core.errors import CorpusError
from headscope.data.pair_batches import TaughtBatch, taught
from headscope.data.pair_corpus import PairCorpus
from headscope.data.pair_rows import Ends, PairRow, encode_pairs
from headscope.data.swapped_sources import with_swapped_sources
from headscope.measures.classify.cross import CROSS_QUANTITIES, CrossHeads
from headscope.measures.classify.cross_labels import judge_cross
from headscope.measures.classify.labels import judge
from headscope.measures.classify.stack_sums import StackSums
from headscope.measures.classify.testable import untestable, untestable_cross
from headscope.models.loaded import LoadedModel
from headscope.models.routing import SiteObserver
from headscope.pipeline.classify.passes import Batches, Found, Run, Watch, head_ids
from headscope.pipeline.classify.sentences import read_by
from headscope.results.classify import StackCorpus
from headscope.session.texts import counted_batches
from headscope.tasks.seq2seq import ends_of


@dataclass(frozen=True)
class Pairs:
    """Pairs as a decoder and its cross-attention read them.

    Attributes
    ----------
    name : str
        Of the corpus.
    stacks : tuple of str
        ``decoder``, ``cross`` or both.
    batches, swapped : Batches
        The pairs, and every target with the source of another one.
    """

    name: str
    stacks: tuple[str, ...]
    batches: Batches[PairRow, TaughtBatch]
    swapped: Batches[PairRow, TaughtBatch]

    @classmethod
    def of(
        cls,
        loaded: LoadedModel,
        corpus: PairCorpus,
        limit: int | None,
        stacks: tuple[str, ...],
    ) -> Pairs:
        """Prepare the first ``limit`` pairs of a corpus for a model."""
        n = min(corpus.n_pairs, limit or corpus.n_pairs)
        ends = ends_of(loaded)

        def batches(
            change: Callable[[Iterable[PairRow | None]], Iterable[PairRow | None]],
        ) -> Batches[PairRow, TaughtBatch]:
            def groups() -> Iterator[tuple[int, list[PairRow]]]:
                return counted_batches(change(_rows(loaded, corpus, n, ends)))

            return Batches(n, groups, functools.partial(taught, pad_id=loaded.pad_id))

        return cls(corpus.name, stacks, batches(iter), batches(with_swapped_sources))

    def find(self, loaded: LoadedModel, run: Run, name: str, swapped: str = "") -> Iterator[Found]:
        """Measure a whole model and judge the heads of these stacks.

        The control with swapped sources takes another pass, which has the name ``swapped``; without
        a name there is none.
        """
        sums = run.measure(
            loaded, self.stacks, self.batches, self._watch(self.stacks), self._measured, name
        )
        measured = self._measured(sums)
        skipped, t = self.batches.n_items - measured, run.thresholds
        if "decoder" in sums.reading and "decoder" in self.stacks:
            mine = sums.reading["decoder"]
            mine.skipped = skipped
            yield Found(
                judge(mine, None, t, head_ids(loaded, "decoder"), "decoder"),
                untestable(mine, t, trees=False, stack="decoder"),
                read_by("decoder", mine),
            )
        if sums.cross is not None:
            cross = sums.cross
            other = self._swapped(loaded, run, swapped) if swapped else None
            yield Found(
                judge_cross(cross, other, t, head_ids(loaded, "cross")),
                untestable_cross(cross),
                _read_by_cross(cross, skipped),
            )

    def _swapped(self, loaded: LoadedModel, run: Run, name: str) -> CrossHeads | None:
        watch = self._watch(("cross",))
        return run.measure(loaded, ["cross"], self.swapped, watch, _nothing, name).cross

    def _watch(self, stacks: Sequence[str]) -> Callable[[StackSums], Watch[TaughtBatch]]:
        return functools.partial(_watch, stacks)

    def _measured(self, sums: StackSums) -> int:
        """Return how many pairs could be read."""
        if "decoder" in self.stacks:
            measured = int(sums.reading["decoder"].profile.sentences)
        else:
            measured = int(sums.cross.pairs + sums.cross.skipped) if sums.cross else 0
        if measured == 0:
            raise CorpusError(
                f"None of the {self.batches.n_items} pairs of {self.name} could be measured: each "
                "has a side that is longer than the model's limit, or that yields no token."
            )
        return measured


def _nothing(sums: StackSums) -> None:
    """Check nothing: no two sources may be of one length."""


def _read_by_cross(sums: CrossHeads, skipped: int) -> StackCorpus:
    """Say what was read: pairs that are too short to show an order are skipped, too."""
    queries = int(sums.queries[CROSS_QUANTITIES.index("confidence")])
    return StackCorpus("cross", int(sums.pairs), skipped + int(sums.skipped), queries)


def _watch(stacks: Sequence[str], sums: StackSums) -> Watch[TaughtBatch]:
    observers = list[SiteObserver]()
    starts = list[Callable[[TaughtBatch], None]]()
    if "decoder" in stacks:
        reducer = sums.reading["decoder"].reducer("decoder")
        observers.append(reducer)
        starts.append(lambda batch: reducer.start(batch.target))
    cross = sums.cross
    if "cross" in stacks and cross is not None:
        observers.append(cross)
        starts.append(lambda batch: cross.start(batch.pairs))

    def start(batch: TaughtBatch) -> None:
        for one in starts:
            one(batch)

    return Watch(start, observers)


def _rows(loaded: LoadedModel, corpus: PairCorpus, n: int, ends: Ends) -> Iterator[PairRow | None]:
    """Encode the first ``n`` pairs; None where one cannot be read whole, or holds no token."""
    first, second = itertools.tee(itertools.islice(iter(corpus), n))
    sources, targets = (source for source, _ in first), (target for _, target in second)
    for row in encode_pairs(loaded, sources, targets, ends):
        yield row if row is not None and row.decoder_content else None
