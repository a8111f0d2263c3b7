"""What the stacks of a model read, and one pass over it on which all sums are taken."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple

from headscope.analyses.classify.cross import CrossHeads, LabelledHeads
from headscope.analyses.classify.labels import judge, judge_swapped, untestable
from headscope.analyses.classify.result import HeadResult, StackCorpus, SwappedControl
from headscope.analyses.classify.rows import RowReducer
from headscope.analyses.classify.sums import HeadMeasures, StackSums
from headscope.analyses.classify.syntactic import kernel_hits
from headscope.core.errors import CorpusError, HeadscopeError, InputError
from headscope.core.memory import give_back
from headscope.core.processes import current, merged
from headscope.core.progress import Progress
from headscope.core.roles import Thresholds
from headscope.data.batches import Batch, Item, collate, collate_pairs
from headscope.data.corpus import Corpus, Pair
from headscope.data.cross_pairs import check_characters, collate_labelled, encode_labelled
from headscope.data.frequencies import Frequencies
from headscope.data.token_rows import PairRow, encode_pairs, with_swapped_sources
from headscope.data.word_pieces import EncodedSentence, Placed, encode_words, placed
from headscope.models.run.loaded import LoadedModel, ends_of
from headscope.models.run.routing import Router, SiteObserver, routed
from headscope.models.run.side_by_side import side_by_side
from headscope.session.resume import RunState
from headscope.session.texts import Raw, own_batches

#: A corpus of at most so many sentences is kept in memory as padded batches, about 3 kB each.
KEPT_SENTENCES = 4096
_NO_SENTENCE = "is longer than the model's limit, or the tokenizer makes no piece of its words"
Addition = Callable[[], None]  # Adds one batch to the sums.
_Read = tuple[int, list[Addition]]  # Rows done so far, and what a batch adds to the sums.
_NO_PAIR = "has a side that is longer than the model's limit, or that yields no token"


def stacks_for(loaded: LoadedModel, stack: str | None, *, pairs: bool) -> tuple[str, ...]:
    """Return the stacks that are measured: by default all that the corpus exercises.

    ``loaded`` is the model, or a view of one stack: that one is measured by default. ``stack`` is
    ``encoder``, ``decoder``, ``cross`` or ``all``.
    """
    full_model = loaded.whole or loaded
    if not full_model.sites:
        raise HeadscopeError(f"{loaded.name} has no attention that headscope recognises.")
    if stack is not None:
        chosen = full_model.only(stack).stacks
    elif loaded.whole is None and full_model.encoder_decoder and not pairs:
        chosen = ("encoder",)
    else:
        chosen = loaded.stacks
    if full_model.encoder_decoder and not pairs and chosen != ("encoder",):
        raise InputError(
            f"The decoder and the cross-attention of {loaded.name} read pairs of source and "
            "target, and the corpus has sentences: give a table of pairs (.tsv, .csv or .jsonl), "
            "or choose the stack encoder."
        )
    return chosen


@dataclass
class Batches(Generic[Raw, Item]):
    """The batches of a corpus, the same ones every time: this process's share of them.

    A small corpus is read, encoded and padded only once; a larger one is read again in each pass.
    """

    n_items: int
    read: Callable[[], Iterable[Raw]]  # Starts a new pass.
    #: Encodes a window, given whether it is the first; None for a row that is too long
    encode: Callable[[Sequence[Raw], bool], Iterable[Item | None]]
    collate: Callable[[Sequence[Item]], Batch]
    _cached: list[tuple[int, Batch]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return the rows of this process: about an equal share of all."""
        return max(1, round(self.n_items / current().size))

    def after(self, done: int) -> Iterator[tuple[int, Batch]]:
        """Yield (rows done so far, batch), leaving out the first ``done`` batches."""
        if self._cached:
            yield from self._cached[done:]
            return
        made = []
        batches = own_batches(self.read(), self.n_items, self.encode)
        for index, (seen, items) in enumerate(batches):
            if index >= done:
                made.append((min(round(seen), self.size), self.collate(items)))
                yield made[-1]
            if self.n_items > KEPT_SENTENCES:
                made.clear()
        if done == 0:
            self._cached = made


@dataclass(frozen=True)
class Run:
    """What all passes of one run share."""

    stacks: tuple[str, ...]  # What is measured
    thresholds: Thresholds
    progress: Progress  # Gets (pass, rows done, rows) of this process's share
    state: RunState[StackSums]  # Where the sums are saved
    labelled: bool = False  # Whether sources and targets come with a user's pairs of words

    def measure(
        self, loaded: LoadedModel, stacks: Sequence[str], batches: Batches[Any, Any], name: str
    ) -> StackSums:
        """Stream a corpus through some stacks of a whole model once; sums of all processes."""
        blank = partial(blank_sums, loaded, self.stacks, self.labelled)
        done, sums = self.state.load(blank(), name)
        labelled = sums.labelled if "cross" in stacks else None

        @contextmanager
        def reading(replica: LoadedModel) -> Iterator[Callable[[tuple[int, Batch]], _Read]]:
            additions: list[Addition] = []
            parts: list[RowReducer | LabelledHeads] = []
            for stack in stacks:
                part = sums.by_stack[stack]
                view = loaded.only(stack)
                # Batches of a copy of the model are added later, in the order of the corpus.
                later = partial(_add_later, additions, part)
                parts.append(RowReducer(view.n_layers, view.n_heads, later, stack))
            if labelled is not None:
                parts.append(labelled)
            sites = [site for site in replica.sites if site.stack in stacks]
            others = [site for site in replica.sites if site.stack not in stacks]
            observers: Sequence[SiteObserver] = parts
            with routed(replica.model, Router(sites, observers, others=others)) as router:

                def read(item: tuple[int, Batch]) -> _Read:
                    seen, on_host = item
                    batch = on_host.to(replica.device)
                    for part in parts:
                        part.start(batch)
                    router.run(partial(replica.forward, *batch.inputs))
                    added = additions.copy()
                    additions.clear()
                    return seen, added

                yield read

        # Of an interrupted run the first batches are already in the sums; a user's pairs are added
        # to them at once.
        index = done
        alone = labelled is not None
        read = side_by_side(loaded, batches.after(done), reading, alone=alone)
        for index, (seen, additions) in enumerate(read, start=done + 1):
            for add in additions:
                add()
            self.state.note(name, index, sums)
            self.progress(name, seen, batches.size)
            if index % 16 == 0:
                give_back()  # what lies between blocks in use grows with the corpus
        total = merged(sums, blank, f"the sums of {name}")
        if index:  # where nothing could be read there is nothing to resume
            self.state.note(name, index, sums, final=True)
        return total


def _add_later(additions: list[Addition], part: HeadMeasures | CrossHeads, *batch: Any) -> None:
    additions.append(partial(part.update, *batch))


def blank_sums(loaded: LoadedModel, stacks: Sequence[str], labelled: bool = False) -> StackSums:
    """Make the empty sums of one pass."""
    views = {stack: loaded.only(stack) for stack in stacks}
    shapes = {stack: (view.n_layers, view.n_heads) for stack, view in views.items()}
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

    def label(self, loaded: LoadedModel, run: Run, name: str) -> Iterator[StackLabels]:
        """Measure a whole model and label the heads of these stacks.

        The controls with swapped trees and swapped sources are run on the model itself only.
        """
        sums = run.measure(loaded, self.stacks, self.batches, name + self.name)
        skipped = self.batches.n_items - self._measured(sums)
        thresholds = run.thresholds
        for stack in self.stacks:
            part = sums.by_stack[stack]
            sites = loaded.only(stack).sites
            ids = [tuple(site.head_ids) for site in sites]
            labels = self.corpus.labels_of(stack)
            edges: HeadMeasures | LabelledHeads | None = None  # What holds the sums on edges
            kernel = swapped_edges = swapped_sources = None
            if isinstance(part, CrossHeads):
                queries = int(part.queries[part.quantities.index("confidence")])
                # Pairs that are too short to show an order are skipped, too.
                read = StackCorpus(stack, int(part.units), skipped + int(part.skipped), queries)
                if name == "model" and self.swapped is not None:
                    other = run.measure(loaded, ["cross"], self.swapped, "swapped sources")
                    swapped_sources = other.by_stack[stack]
                edges = sums.labelled
            else:
                queries = int(part.positional.content)
                left_out = int(part.profile.left_out)
                read = StackCorpus(stack, int(part.profile.units), skipped, queries, left_out)
                if stack == "encoder" and (self.corpus.has_trees or labels):
                    edges = part
            if edges is not None:
                counted = edges.syntactic, edges.swapped
                again = (batch for _, batch in self.batches.after(0))
                kernel, of_swapped = kernel_hits(edges.kernel.means(), counted, again)
                swapped_edges = judge_swapped(edges.swapped, of_swapped, thresholds, ids)
            scored = edges.syntactic if edges is not None else None
            heads = judge(
                part,
                thresholds,
                ids,
                stack,
                kernel=kernel,
                swapped=swapped_sources,
                edges=scored,
                labels=labels,
            )
            heads = tuple(dataclasses.replace(h, layer=sites[h.layer].layer) for h in heads)
            reasons = untestable(part, thresholds, edges=scored, labels=labels, stack=stack)
            yield StackLabels(heads, reasons, read, swapped_edges)

    def _measured(self, sums: StackSums) -> int:
        """Return how many sentences or pairs could be read; none is an error."""
        part = sums.by_stack[self.stacks[0]]
        total = part.units + part.skipped if isinstance(part, CrossHeads) else part.profile.units
        if not total:
            what, why = ("sentences", _NO_SENTENCE) if self.swapped is None else ("pairs", _NO_PAIR)
            raise CorpusError(
                f"None of the {self.batches.n_items} {what} of {self.corpus.name} could be "
                f"measured: each {why}."
            )
        return int(total)


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
        return [_sentences(loaded, stacks[0], corpus, words, limit)]
    deep = tuple(stack for stack in stacks if stack != "encoder")
    texts: list[Reading] = []
    if "encoder" in stacks:
        sources = _sentences(loaded, "encoder", corpus.sources, words, limit)
        texts.append(dataclasses.replace(sources, name=", sources") if deep else sources)
    if not deep:
        return texts
    n = min(corpus.n_pairs, limit or corpus.n_pairs)
    ends = ends_of(loaded)

    def read() -> Iterator[Pair]:
        assert corpus.pairs is not None
        return itertools.islice(corpus.pairs(), n)

    def encode(pairs: Iterable[Pair], check: bool = True) -> Iterator[PairRow | None]:
        first, second = itertools.tee(pairs)
        sources = (source for source, _ in first)
        targets = (target for _, target in second)
        for row in encode_pairs(loaded, sources, targets, ends, check=check):
            # A target without a token has no query.
            yield row if row is not None and row.decoder_content else None

    padded = partial(collate_pairs, pad_id=loaded.pad_id)
    batches: Batches[Any, Any] = Batches(n, read, encode, padded)
    if (labelled := corpus.labelled) is not None:
        # As above, with a user's pairs of words.
        batches = Batches(
            n,
            read=lambda: itertools.islice(labelled(), n),
            encode=lambda texts, check: encode_labelled(loaded, texts, ends, check=check),
            collate=partial(collate_labelled, pad_id=loaded.pad_id),
        )
    # Another source is found by its tokens, so every process encodes all pairs.
    swapped = Batches(n, lambda: with_swapped_sources(encode(read())), lambda rows, _: rows, padded)
    return [*texts, Reading(deep, corpus, batches, ", pairs", swapped)]


def _sentences(
    loaded: LoadedModel, stack: str, corpus: Corpus, words: Frequencies, limit: int | None
) -> Reading:
    n = min(corpus.n_sentences, limit or corpus.n_sentences)

    def encode(window: Iterable[Placed], check: bool) -> Iterator[EncodedSentence | None]:
        encoded = list(encode_words(loaded, window, words, check=check))
        if corpus.characters and check:
            check_characters(loaded, (sentence for sentence in encoded if sentence is not None))
        return iter(encoded)

    def padded(sentences: Sequence[EncodedSentence]) -> Batch:
        batch = collate(sentences, loaded.pad_id)
        if stack == "encoder":
            return batch
        # No trees for a decoder: the head of a word may come later, where the word cannot look.
        return dataclasses.replace(batch, causal=True, edges=None, swapped=None)

    def read() -> Iterator[Placed]:
        return placed(itertools.islice(iter(corpus), n))

    batches = Batches(n, read, encode, padded)
    return Reading((stack,), corpus, batches)
