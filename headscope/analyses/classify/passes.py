"""One pass over a corpus takes all sums; from them the heads of each stack are labelled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from headscope.analyses.classify.corpus_batches import (
    Batches,
    pair_batches,
    sentence_batches,
    swapped_batches,
)
from headscope.analyses.classify.cross import CrossHeads, LabelledHeads
from headscope.analyses.classify.evidence import Evidence
from headscope.analyses.classify.labels import HeadIds, existing, judge, judge_swapped, untestable
from headscope.analyses.classify.result import StackCorpus, SwappedControl
from headscope.analyses.classify.roles import Thresholds
from headscope.analyses.classify.rows import RowReducer
from headscope.analyses.classify.scores import HeadResult
from headscope.analyses.classify.sums import HeadMeasures, StackSums
from headscope.analyses.classify.syntactic import kernel_hits
from headscope.core.accumulator import Array
from headscope.core.errors import CorpusError
from headscope.core.memory import release_memory
from headscope.core.processes import merged
from headscope.core.progress import Progress
from headscope.data.batches import Batch
from headscope.data.corpus import Corpus
from headscope.data.frequencies import Frequencies
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router, routed
from headscope.models.run.side_by_side import side_by_side
from headscope.session.resume import RunState

Addition = Callable[[], None]  # Adds one batch to the sums.
_ReadBatch = tuple[int, list[Addition]]  # Rows done so far, and what a batch adds to the sums.


@dataclass(frozen=True)
class Passes:
    """What all passes of one run share."""

    stacks: tuple[str, ...]  # What is measured
    thresholds: Thresholds
    progress: Progress  # Gets (pass, rows done, rows) of this process's share
    state: RunState[StackSums]  # Where the sums are saved
    labelled: bool = False  # Whether sources and targets come with a user's pairs of words

    def measure(
        self, loaded: LoadedModel, stacks: Sequence[str], batches: Batches[Any, Any], name: str
    ) -> StackSums:
        """Stream a corpus through some stacks of a whole model once; sums of all processes.

        ``name`` is that of the pass, for its progress and its saved state.
        """
        blank = partial(blank_sums, loaded, self.stacks, self.labelled)
        n_done, sums = self.state.load(blank(), name)
        labelled = sums.labelled if "cross" in stacks else None
        # Of an interrupted run the first batches are already in the sums.
        results = side_by_side(
            loaded,
            batches.after(n_done),
            lambda replica: _reading(replica, loaded, stacks, sums),
            alone=labelled is not None,  # a user's pairs are added to the sums at once
        )
        n_read = n_done
        for n_read, (rows_seen, additions) in enumerate(results, start=n_done + 1):
            for add in additions:
                add()
            self.state.note(name, n_read, sums)
            self.progress(name, rows_seen, batches.size)
            if n_read % 16 == 0:
                release_memory()  # what lies between blocks in use grows with the corpus
        total = merged(sums, blank, f"the sums of {name}")
        if n_read:  # where nothing could be read there is nothing to resume
            self.state.note(name, n_read, sums, final=True)
        return total


@contextmanager
def _reading(
    replica: LoadedModel, loaded: LoadedModel, stacks: Sequence[str], sums: StackSums
) -> Iterator[Callable[[tuple[int, Batch]], _ReadBatch]]:
    """Yield a function that runs a batch through a copy of the model and returns what it adds."""
    additions: list[Addition] = []

    def add_later(stack_sums: HeadMeasures | CrossHeads, *summary: Any) -> None:
        additions.append(partial(stack_sums.update, *summary))

    observers: list[RowReducer | LabelledHeads] = []
    for stack in stacks:
        view = loaded.only(stack)
        # Batches of a copy of the model are added later, in the order of the corpus.
        hand_over = partial(add_later, sums.by_stack[stack])
        observers.append(RowReducer(view.n_layers, view.n_heads, hand_over, stack))
    if sums.labelled is not None and "cross" in stacks:
        observers.append(sums.labelled)
    sites = [site for site in replica.sites if site.stack in stacks]
    unmeasured = [site for site in replica.sites if site.stack not in stacks]
    with routed(replica.model, Router(sites, observers, unmeasured_sites=unmeasured)) as router:

        def read(numbered_batch: tuple[int, Batch]) -> _ReadBatch:
            rows_seen, on_host = numbered_batch
            batch = on_host.to(replica.device)
            for observer in observers:
                observer.start(batch)
            router.run(partial(replica.forward, *batch.inputs))
            added = additions.copy()
            additions.clear()
            return rows_seen, added

        yield read


def blank_sums(loaded: LoadedModel, stacks: Sequence[str], labelled: bool = False) -> StackSums:
    """Make the empty sums of one pass."""
    shapes = {}
    for stack in stacks:
        view = loaded.only(stack)
        shapes[stack] = (view.n_layers, view.n_heads)
    return StackSums(shapes, labelled=labelled)


class StackLabels(NamedTuple):
    """The labelled heads of one stack, and what they were measured on."""

    heads: tuple[HeadResult, ...]
    untestable: dict[str, str]
    corpus: StackCorpus
    swapped: SwappedControl | None = None


@dataclass(frozen=True)
class Reading:
    """The texts that some stacks of a model read in one pass."""

    stacks: tuple[str, ...]
    corpus: Corpus
    batches: Batches[Any, Any]
    name: str = ""  # Added to the name of the pass
    swapped: Batches[Any, Any] | None = None  # Every target with the source of another pair

    def label(self, loaded: LoadedModel, passes: Passes, name: str) -> Iterator[StackLabels]:
        """Measure a whole model and label the heads of these stacks.

        The controls with swapped trees and swapped sources are run on the model itself only:
        ``name`` is then ``model``.
        """
        sums = passes.measure(loaded, self.stacks, self.batches, name + self.name)
        skipped = self.batches.n_items - self._measured(sums)
        for stack in self.stacks:
            swapped_sources = None
            if stack == "cross" and name == "model" and self.swapped is not None:
                other = passes.measure(loaded, ["cross"], self.swapped, "swapped sources")
                swapped_sources = other.by_stack[stack]
            yield self._label_stack(loaded, passes, stack, sums, swapped_sources, skipped)

    def _label_stack(
        self,
        loaded: LoadedModel,
        passes: Passes,
        stack: str,
        sums: StackSums,
        swapped_sources: HeadMeasures | CrossHeads | None,
        skipped: int,
    ) -> StackLabels:
        """Judge the heads of one stack by its sums, and give layers their original numbers."""
        stack_sums = sums.by_stack[stack]
        sites = loaded.only(stack).sites
        head_ids = [tuple(site.head_ids) for site in sites]
        means = stack_sums if isinstance(stack_sums, CrossHeads) else stack_sums.profile
        edge_sums = self._edge_sums(stack, sums)
        hits_of_kernels: Array | None = None
        swapped_control: SwappedControl | None = None
        if edge_sums is not None:
            hits_of_kernels, swapped_control = self._kernels(edge_sums, passes.thresholds, head_ids)
        evidence = Evidence(
            stack=stack,
            sums=stack_sums,
            exists=existing(means.sums.shape[:2], head_ids),
            thresholds=passes.thresholds,
            swapped=swapped_sources if isinstance(swapped_sources, CrossHeads) else None,
            edges=None if edge_sums is None else edge_sums.syntactic,
            labels=self.corpus.labels_of(stack),
            kernel_hits=hits_of_kernels,
        )
        heads = judge(evidence, head_ids)
        return StackLabels(
            heads=tuple(dataclasses.replace(h, layer=sites[h.layer].layer) for h in heads),
            untestable=untestable(evidence),
            corpus=_corpus_of(stack, stack_sums, skipped),
            swapped=swapped_control,
        )

    def _edge_sums(self, stack: str, sums: StackSums) -> HeadMeasures | LabelledHeads | None:
        """Return the sums on trees, or on a user's pairs; None where the stack has neither."""
        if stack == "cross":
            return sums.labelled
        stack_sums = sums.by_stack[stack]
        has_edges = self.corpus.has_trees or self.corpus.labels_of(stack)
        if stack == "encoder" and has_edges and isinstance(stack_sums, HeadMeasures):
            return stack_sums
        return None

    def _kernels(
        self, edge_sums: HeadMeasures | LabelledHeads, thresholds: Thresholds, head_ids: HeadIds
    ) -> tuple[Array, SwappedControl]:
        """Count what the heads' kernels hit, and the labels of the control with swapped trees."""
        hits, swapped_hits = kernel_hits(
            edge_sums.kernel.means(),
            [edge_sums.syntactic, edge_sums.swapped],
            (batch for _, batch in self.batches.after(0)),
        )
        return hits, judge_swapped(edge_sums.swapped, swapped_hits, thresholds, head_ids)

    def _measured(self, sums: StackSums) -> int:
        """Return how many sentences or pairs could be read; none is an error."""
        stack_sums = sums.by_stack[self.stacks[0]]
        if isinstance(stack_sums, CrossHeads):
            total = int(stack_sums.units + stack_sums.skipped)
        else:
            total = int(stack_sums.profile.units)
        if not total:
            rows = "sentences"
            why = "is longer than the model's limit, or the tokenizer makes no piece of its words"
            if self.swapped is not None:
                rows = "pairs"
                why = "has a side that is longer than the model's limit, or that yields no token"
            raise CorpusError(
                f"None of the {self.batches.n_items} {rows} of {self.corpus.name} could be "
                f"measured: each {why}."
            )
        return total


def _corpus_of(stack: str, stack_sums: HeadMeasures | CrossHeads, skipped: int) -> StackCorpus:
    """Count what a stack has read."""
    if isinstance(stack_sums, CrossHeads):
        return StackCorpus(
            stack=stack,
            sentences=int(stack_sums.units),
            # Pairs that are too short to show an order are skipped, too.
            skipped=skipped + int(stack_sums.skipped),
            queries=int(stack_sums.queries[stack_sums.quantities.index("confidence")]),
        )
    return StackCorpus(
        stack=stack,
        sentences=int(stack_sums.profile.units),
        skipped=skipped,
        queries=int(stack_sums.positional.content),
        words_left_out=int(stack_sums.profile.left_out),
    )


def readings(
    loaded: LoadedModel,
    stacks: tuple[str, ...],
    corpus: Corpus,
    words: Frequencies,
    limit: int | None,
) -> list[Reading]:
    """Prepare the first ``limit`` rows of a corpus for the stacks of a whole model.

    Of pairs, an encoder reads the sources as sentences, and the other stacks read both sides.
    """
    if not corpus.n_pairs:
        batches = sentence_batches(loaded, stacks[0], corpus, words, limit)
        return [Reading((stacks[0],), corpus, batches)]
    of_both_sides = tuple(stack for stack in stacks if stack != "encoder")
    texts: list[Reading] = []
    if "encoder" in stacks:
        sources = corpus.sources
        batches = sentence_batches(loaded, "encoder", sources, words, limit)
        name = ", sources" if of_both_sides else ""
        texts.append(Reading(("encoder",), sources, batches, name))
    if of_both_sides:
        n = min(corpus.n_pairs, limit or corpus.n_pairs)
        texts.append(
            Reading(
                stacks=of_both_sides,
                corpus=corpus,
                batches=pair_batches(loaded, corpus, n),
                name=", pairs",
                swapped=swapped_batches(loaded, corpus, n),
            )
        )
    return texts
