"""What the stacks of a model read, and what is found about their heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headscope.data.corpus import Corpus
from headscope.data.frequencies import Frequencies
from headscope.data.pair_corpus import PairCorpus
from headscope.models.loaded import LoadedModel
from headscope.pipeline.classify.paired import Pairs
from headscope.pipeline.classify.passes import Found, Run
from headscope.pipeline.classify.sentences import Sentences


@dataclass(frozen=True)
class Parts:
    """What the stacks of a model read: some read sentences, some pairs."""

    sentences: Sentences | None
    pairs: Pairs | None


def parts_for(
    loaded: LoadedModel,
    stacks: tuple[str, ...],
    corpus: Corpus | PairCorpus,
    words: Frequencies,
    limit: int | None,
) -> Parts:
    """Prepare the first ``limit`` sentences or pairs for the stacks that read them."""
    if isinstance(corpus, Corpus):
        return Parts(Sentences.of(loaded, corpus, words, limit, stacks[0]), None)
    sources, deep = None, tuple(stack for stack in stacks if stack != "encoder")
    if "encoder" in stacks:
        sources = Sentences.of(loaded, corpus.sources, words, limit)
    return Parts(sources, Pairs.of(loaded, corpus, limit, deep) if deep else None)


def found_in(loaded: LoadedModel, run: Run, parts: Parts, name: str = "model") -> Iterator[Found]:
    """Measure a model, stack by stack; only the model itself has further controls."""
    if parts.sentences is not None:
        yield parts.sentences.find(loaded, run, f"{name}, sources" if parts.pairs else name)
    if parts.pairs is not None:
        swapped = "swapped sources" if name == "model" else ""
        yield from parts.pairs.find(loaded, run, f"{name}, pairs", swapped)
