"""One pass over a corpus takes all sums; from them the heads of each stack are labelled.

:func:`plan_passes` makes a :class:`TextPass` for each pass, :func:`label_stacks` goes through them.
In each a :class:`PassRunner` streams the batches through the model and adds up what the heads do in
:class:`StackSums`, and :meth:`TextPass.label` judges the heads by these sums. The runner comes
first in this file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from headscope.analyses.classify.corpus_batches import (
    Batches,
    first_replaced,
    pair_batches,
    sentence_batches,
    swapped_batches,
)
from headscope.analyses.classify.cross import CrossHeads, LabelledHeads
from headscope.analyses.classify.evidence import Evidence
from headscope.analyses.classify.kernel import kernel_hits
from headscope.analyses.classify.labels import HeadIds, existing, judge, judge_swapped, untestable
from headscope.analyses.classify.repeats import Repeats, RepeatScores
from headscope.analyses.classify.result import StackCorpus, SwappedControl
from headscope.analyses.classify.roles import Thresholds
from headscope.analyses.classify.rows import RowReducer, RowSummary
from headscope.analyses.classify.scores import HeadResult
from headscope.analyses.classify.sums import HeadMeasures, Profile, StackSums
from headscope.core.accumulator import Array
from headscope.core.errors import CorpusError
from headscope.core.memory import release_memory
from headscope.core.processes import merged
from headscope.core.progress import Progress
from headscope.data.batches import Batch
from headscope.data.corpus import Corpus
from headscope.data.frequencies import Frequencies
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.products import MOST_PACKED_IN_A_PASS
from headscope.models.run.routing import Router, routed
from headscope.models.run.side_by_side import side_by_side
from headscope.session.resume import RunState

Addition = Callable[[], None]  # Adds one batch to the sums of one stack.
#: Sentences or pairs seen so far, and what a batch adds to the sums.
_ReadBatch = tuple[int, list[Addition]]


@dataclass(frozen=True)
class PassRunner:
    """Runs passes over a corpus: what all passes of one run share."""

    stacks: tuple[str, ...]  # All that the run measures
    thresholds: Thresholds
    #: Gets (pass, done, all): sentences or pairs of this process's share
    progress: Progress
    state: RunState[StackSums]  # Where the sums are saved
    labelled: bool = False  # Whether sources and targets come with a user's pairs of words
    repeats: Repeats | None = None  # Random tokens that come twice, where heads are scored on them

    def measure(
        self, loaded: LoadedModel, stacks: Sequence[str], batches: Batches[Any, Any], name: str
    ) -> StackSums:
        """Stream batches through some stacks of a model once; return the sums of all processes.

        ``name`` is the pass's, for its progress and its saved state.
        """
        # Of an interrupted run the first batches are already in the saved sums.
        blank = partial(blank_sums, loaded, self.stacks, self.labelled)
        n_done, sums = self.state.load(blank(), name)
        # Several copies of the model (replicas) read a batch each, where processors allow it.
        # Labelled pairs are added to the sums inside the model's run, so then it runs alone.
        results = side_by_side(
            loaded,
            batches.after(n_done),
            lambda replica: _batch_reader(replica, loaded, stacks, sums),
            alone=sums.labelled is not None and "cross" in stacks,
        )
        n_read = n_done
        for n_read, (n_examples, additions) in enumerate(results, start=n_done + 1):
            for add in additions:
                add()
            self.state.note(name, n_read, sums)
            self.progress(name, n_examples, batches.size)
            if n_read % 16 == 0:
                release_memory()  # what lies between blocks in use grows with the corpus
        total = merged(sums, blank, f"the sums of {name}")
        if n_read:  # where nothing could be read there is nothing to resume
            self.state.note(name, n_read, sums, final=True)
        return total


@contextmanager
def _batch_reader(
    replica: LoadedModel, loaded: LoadedModel, stacks: Sequence[str], sums: StackSums
) -> Iterator[Callable[[tuple[int, Batch]], _ReadBatch]]:
    """Yield a function that runs a batch through ``replica``, a copy of the model.

    It returns what the batch adds to ``sums``. Several copies run at a time, so additions are not
    made at once: the caller makes them in the order of the corpus. Only :attr:`StackSums.labelled`
    observes the model itself.
    """
    additions: list[Addition] = []

    def add_later(stack_sums: HeadMeasures | CrossHeads, rows: RowSummary, batch: Batch) -> None:
        additions.append(partial(stack_sums.update, rows, batch))

    observers: list[RowReducer | LabelledHeads] = []
    for stack in stacks:
        view = loaded.only(stack)
        hand_over = partial(add_later, sums.by_stack[stack])
        observers.append(RowReducer(view.n_layers, view.n_heads, hand_over, stack))
    if sums.labelled is not None and "cross" in stacks:
        observers.append(sums.labelled)
    sites = [site for site in replica.sites if site.stack in stacks]
    unmeasured = [site for site in replica.sites if site.stack not in stacks]
    router = Router(sites, observers, unmeasured_sites=unmeasured)
    with routed(replica.model, router, most_packed=MOST_PACKED_IN_A_PASS):

        def read(numbered_batch: tuple[int, Batch]) -> _ReadBatch:
            n_examples, on_host = numbered_batch
            batch = on_host.to(replica.device)
            for observer in observers:
                observer.start(batch)
            router.run(partial(replica.forward, *batch.inputs))
            additions_of_batch = additions.copy()
            additions.clear()
            return n_examples, additions_of_batch

        yield read


def blank_sums(loaded: LoadedModel, stacks: Sequence[str], labelled: bool = False) -> StackSums:
    """Make the empty sums of one pass; ``labelled``: with those on a user's pairs of words."""
    shapes = {}
    for stack in stacks:
        view = loaded.only(stack)
        shapes[stack] = (view.n_layers, view.n_heads)
    return StackSums(shapes, labelled=labelled)


class StackLabels(NamedTuple):
    """The labelled heads of one stack, and what they were measured on."""

    heads: tuple[HeadResult, ...]
    untestable: dict[str, str]  # Roles that the corpus cannot show, each with the reason
    corpus: StackCorpus
    swapped: SwappedControl | None = None  # Labels on other sentences' trees; None without trees


@dataclass(frozen=True)
class TextPass:
    """One pass over a text: its batches, and the stacks of a model that read them."""

    stacks: tuple[str, ...]
    corpus: Corpus
    batches: Batches[Any, Any]
    suffix: str = ""  # Added to the name of the pass: ``model, sources``
    #: The control of cross-attention: every target with the source of another pair
    swapped: Batches[Any, Any] | None = None
    #: The control of first-token sinks: some of the texts with another first token
    first_replaced: Batches[Any, Any] | None = None

    def label(self, loaded: LoadedModel, runner: PassRunner, name: str) -> Iterator[StackLabels]:
        """Measure a model, and label the heads of these stacks.

        ``name`` is ``model``, or ``control`` for random weights. The control with swapped sources
        is run on the model itself only.
        """
        sums = runner.measure(loaded, self.stacks, self.batches, name + self.suffix)
        skipped = self.batches.n_items - self._count_measured(sums)
        for stack in self.stacks:
            swapped_sources = None
            if stack == "cross" and name == "model" and self.swapped is not None:
                swapped_sums = runner.measure(
                    loaded, ["cross"], self.swapped, "model, swapped sources"
                )
                swapped_sources = swapped_sums.by_stack[stack]
            first_replaced = None
            if stack == "decoder" and name == "model" and self.first_replaced is not None:
                other_sums = runner.measure(
                    loaded, [stack], self.first_replaced, "model, first tokens"
                )
                first_replaced = other_sums.by_stack[stack]
            repeats = None
            if runner.repeats is not None and runner.repeats.stack == stack:
                repeats = runner.repeats.scores(loaded)
            yield self._label_stack(
                loaded,
                stack,
                sums,
                swapped_sources=swapped_sources,
                first_replaced=first_replaced,
                repeats=repeats,
                skipped=skipped,
                thresholds=runner.thresholds,
            )

    def _label_stack(
        self,
        loaded: LoadedModel,
        stack: str,
        sums: StackSums,
        *,
        swapped_sources: HeadMeasures | CrossHeads | None,
        first_replaced: HeadMeasures | CrossHeads | None,
        repeats: RepeatScores | None,
        skipped: int,
        thresholds: Thresholds,
    ) -> StackLabels:
        """Judge the heads of one stack by its sums, and give layers their original numbers."""
        stack_sums = sums.by_stack[stack]
        sites = loaded.only(stack).sites
        head_ids = [tuple(site.head_ids) for site in sites]  # original numbers of the heads left
        means = stack_sums if isinstance(stack_sums, CrossHeads) else stack_sums.profile
        edge_sums = self._edge_sums(stack, sums)
        hits_of_kernels: Array | None = None
        swapped_control: SwappedControl | None = None
        if edge_sums is not None:
            hits_of_kernels, swapped_control = self._kernels(edge_sums, thresholds, head_ids)
        evidence = Evidence(
            stack=stack,
            sums=stack_sums,
            exists=existing(means.sums.shape[:2], head_ids),
            thresholds=thresholds,
            reads_targets=loaded.encoder_decoder and stack == "decoder",
            swapped=swapped_sources if isinstance(swapped_sources, CrossHeads) else None,
            edges=None if edge_sums is None else edge_sums.syntactic,
            labels=self.corpus.labels_of(stack),
            kernel_hits=hits_of_kernels,
            first_replaced=_profile(first_replaced),
            repeats=repeats,
        )
        heads = judge(evidence, head_ids)
        return StackLabels(
            heads=tuple(dataclasses.replace(head, layer=sites[head.layer].layer) for head in heads),
            untestable=untestable(evidence),
            corpus=_stack_corpus(stack, stack_sums, skipped),
            swapped=swapped_control,
        )

    def _edge_sums(self, stack: str, sums: StackSums) -> HeadMeasures | LabelledHeads | None:
        """Return the sums on trees, or on a user's pairs; None where the stack has neither."""
        if stack == "cross":
            return sums.labelled
        stack_sums = sums.by_stack[stack]
        has_edges = self.corpus.has_trees or self.corpus.labels_of(stack)
        if has_edges and isinstance(stack_sums, HeadMeasures):
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

    def _count_measured(self, sums: StackSums) -> int:
        """Count the sentences or pairs that could be read; none is an error."""
        stack_sums = sums.by_stack[self.stacks[0]]
        if isinstance(stack_sums, CrossHeads):
            total = int(stack_sums.units + stack_sums.skipped)
        else:
            total = int(stack_sums.profile.units)
        if total == 0:
            unit = "sentences"
            why = "is longer than the model's limit, or the tokenizer makes no piece of its words"
            if self.swapped is not None:
                unit = "pairs"
                why = "has a side that is longer than the model's limit, or that yields no token"
            raise CorpusError(
                f"None of the {self.batches.n_items} {unit} of {self.corpus.name} could be "
                f"measured: each {why}."
            )
        return total


def _profile(sums: HeadMeasures | CrossHeads | None) -> Profile | None:
    """Return the means over queries of a stack of self-attention; None where there are none."""
    return sums.profile if isinstance(sums, HeadMeasures) else None


def _stack_corpus(stack: str, stack_sums: HeadMeasures | CrossHeads, skipped: int) -> StackCorpus:
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
        asked_edges=_asked_edges(stack_sums) if stack == "decoder" else {},
    )


def _asked_edges(stack_sums: HeadMeasures) -> dict[str, float]:
    """Return the share of the trees' edges that trials ask for, by direction; empty without."""
    syntactic = stack_sums.syntactic
    n_edges = int(stack_sums.profile.tree_edges)
    n_asked: dict[str, int] = {}
    # A trial has a pair for each of its targets, and each pair is an edge at one offset.
    for name, n_pairs in zip(syntactic.offsets.names, syntactic.offset_trials, strict=True):
        _, _, direction, _ = name
        n_asked[direction] = n_asked.get(direction, 0) + int(n_pairs)
    return {direction: n / n_edges for direction, n in sorted(n_asked.items())}


def plan_passes(
    loaded: LoadedModel,
    stacks: tuple[str, ...],
    corpus: Corpus,
    frequencies: Frequencies,
    limit: int | None,
    seed: int,
) -> list[TextPass]:
    """Prepare the passes in which these stacks of a model read the first ``limit`` rows.

    Of sentences there is one pass. Of pairs there are two: an encoder reads the sources as
    sentences, and the other stacks read sources and targets.
    """
    if not corpus.n_pairs:
        batches = sentence_batches(loaded, stacks[0], corpus, frequencies, limit)
        other_first = first_replaced(batches, seed) if stacks[0] == "decoder" else None
        return [TextPass((stacks[0],), corpus, batches, first_replaced=other_first)]
    pair_stacks = tuple(stack for stack in stacks if stack != "encoder")
    passes: list[TextPass] = []
    if "encoder" in stacks:
        sources = corpus.sources
        batches = sentence_batches(loaded, "encoder", sources, frequencies, limit)
        suffix = ", sources" if pair_stacks else ""
        passes.append(TextPass(("encoder",), sources, batches, suffix))
    if pair_stacks:
        n_pairs = min(corpus.n_pairs, limit or corpus.n_pairs)
        batches = pair_batches(loaded, corpus, n_pairs)
        passes.append(
            TextPass(
                stacks=pair_stacks,
                corpus=corpus,
                batches=batches,
                suffix=", pairs",
                swapped=swapped_batches(loaded, corpus, n_pairs),
                first_replaced=first_replaced(batches, seed),
            )
        )
    return passes


def label_stacks(
    loaded: LoadedModel, passes: Sequence[TextPass], runner: PassRunner, name: str
) -> list[StackLabels]:
    """Measure a model in every pass; ``name`` is ``model``, or ``control`` for random weights."""
    by_stack: list[StackLabels] = []
    for text_pass in passes:
        by_stack += text_pass.label(loaded, runner, name)
    return by_stack
