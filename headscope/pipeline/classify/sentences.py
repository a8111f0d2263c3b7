"""Heads of an encoder, or of a model that is nothing but a decoder, on sentences."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from headscope.core.errors import CorpusError
from headscope.data.batches import collate
from headscope.data.corpus import Corpus
from headscope.data.encode import EncodedSentence, Encoder
from headscope.data.frequencies import Frequencies
from headscope.data.places import placed
from headscope.measures.batch import Batch
from headscope.measures.classify.kernel import kernel_argmax
from headscope.measures.classify.labels import judge, judge_swapped
from headscope.measures.classify.stack_sums import StackSums
from headscope.measures.classify.sums import HeadMeasures
from headscope.measures.classify.syntactic import KernelHits
from headscope.measures.classify.testable import untestable
from headscope.models.loaded import LoadedModel
from headscope.pipeline.classify.passes import Batches, Found, Run, Watch, head_ids
from headscope.results import SwappedControl
from headscope.results.classify import StackCorpus
from headscope.session.texts import counted_batches


@dataclass(frozen=True)
class Sentences:
    """A corpus as one stack reads it.

    Attributes
    ----------
    stack : str
        ``encoder`` or ``decoder``.
    corpus : Corpus
        What is read.
    batches : Batches
        Its sentences as the model reads them.
    """

    stack: str
    corpus: Corpus
    batches: Batches[EncodedSentence, Batch]

    @classmethod
    def of(
        cls,
        loaded: LoadedModel,
        corpus: Corpus,
        words: Frequencies,
        limit: int | None,
        stack: str = "encoder",
    ) -> Sentences:
        """Prepare the first ``limit`` sentences of a corpus for a model."""
        n = min(corpus.n_sentences, limit or corpus.n_sentences)
        encoder = Encoder(loaded, words)

        def groups() -> Iterator[tuple[int, list[EncodedSentence]]]:
            sentences, again = itertools.tee(itertools.islice(iter(corpus), n))
            return counted_batches(placed(again, encoder.encode(sentences)))

        pad = functools.partial(_padded, loaded.pad_id, stack == "decoder")
        return cls(stack, corpus, Batches(n, groups, pad))

    def find(self, loaded: LoadedModel, run: Run, name: str) -> Found:
        """Measure a whole model and judge the heads of this stack."""
        sums = run.measure(loaded, [self.stack], self.batches, self._watch, self._check, name)
        mine = sums.reading[self.stack]
        mine.skipped = self.batches.n_items - int(mine.profile.sentences)
        ids = head_ids(loaded, self.stack)
        trees = self.corpus.has_trees and self.stack == "encoder"
        kernel, hits = self._kernel_hits(mine) if self.stack == "encoder" else (None, None)
        swapped: SwappedControl | None = None
        if trees and hits is not None:
            swapped = judge_swapped(mine, hits, run.thresholds, ids)
        return Found(
            judge(mine, kernel, run.thresholds, ids, self.stack),
            untestable(mine, run.thresholds, trees=trees, stack=self.stack),
            read_by(self.stack, mine),
            swapped,
        )

    def _watch(self, sums: StackSums) -> Watch[Batch]:
        reducer = sums.reading[self.stack].reducer()
        return Watch(reducer.start, [reducer])

    def _check(self, sums: StackSums) -> None:
        if not sums.reading[self.stack].profile.sentences:
            raise CorpusError(
                f"None of the {self.batches.n_items} sentences of {self.corpus.name} could be "
                "measured: each is longer than the model's limit or has a word that yields no "
                "piece."
            )

    def _kernel_hits(self, sums: HeadMeasures) -> tuple[KernelHits, KernelHits]:
        """Count what the heads' distance kernels hit: of the gold trees, and of the swapped ones.

        The kernels are known only after the pass. This second one needs words and trees, not the
        model.
        """
        gold, swapped = KernelHits(sums.syntactic), KernelHits(sums.swapped)
        if self.corpus.has_trees:
            kernel = torch.from_numpy(sums.kernel.means()).flatten(0, 1)
            for _, batch in self.batches.after(0):
                looks_at = kernel_argmax(kernel, batch)
                gold.update(looks_at, batch)
                swapped.update(looks_at, batch)
            gold.add_up("what kernels hit")
            swapped.add_up("what kernels hit on swapped trees")
        return gold, swapped


def read_by(stack: str, sums: HeadMeasures) -> StackCorpus:
    """Say what a stack of self-attention has read."""
    measured, queries = int(sums.profile.sentences), int(sums.positional.content)
    return StackCorpus(stack, measured, sums.skipped, queries)


def _padded(pad_id: int, causal: bool, sentences: Sequence[EncodedSentence]) -> Batch:
    batch = collate(sentences, pad_id)
    if not causal:
        return batch
    # Trees say nothing of a decoder: the head of a word may stand where it cannot look.
    return dataclasses.replace(batch, causal=True, edges=None, swapped=None)
