"""Two passes over a corpus: maps are fitted on the first half and judged on the second."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.flow.clustered import Clustered
from headscope.analyses.flow.recovery import (
    ERRORS,
    FOLDS,
    LayerChunk,
    LayerMaps,
    LayerSpaces,
    LayerSums,
    WordPositions,
    explained,
    word_positions,
)
from headscope.attention import CHUNK_ENTRIES
from headscope.core.accumulator import Array
from headscope.core.activations import Activations
from headscope.core.errors import CorpusError
from headscope.core.memory import give_back
from headscope.core.progress import Progress
from headscope.data.corpus import Corpus
from headscope.data.files import Sentence
from headscope.data.word_pieces import EncodedSentence, encode_words, placed
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput
from headscope.models.run.intervene import watch_inputs
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router, SiteObserver, routed
from headscope.session.texts import counted_batches


@dataclass
class Reader:
    """Reads a corpus for one model, half by half, and counts what it had to leave out."""

    loaded: LoadedModel  # whose tokenizer and limit count
    corpus: Corpus
    n_sentences: int  # of both halves, those that cannot be read included
    spread: bool  # evenly over the corpus; else the first ones
    progress: Progress
    #: Sentences of the second half that stand in the first; those that cannot be read.
    repeated: int = 0
    skipped: int = 0
    left_out: int = 0  # Words without a piece
    _first: dict[tuple[str, ...], int] = field(default_factory=dict)

    @property
    def causal(self) -> bool:
        """Whether a word sees only earlier words."""
        return any(site.causal for site in self.loaded.sites)

    def batches(self, half: int) -> Iterator[tuple[int, list[EncodedSentence]]]:
        """Yield (sentences seen so far, next batch) of one half: 0 first, then 1."""
        self.repeated = self.skipped = self.left_out = 0
        encoded = encode_words(self.loaded, placed(self._chosen()))
        return counted_batches(self._of_half(half, item) for item in encoded)

    def _chosen(self) -> Iterator[Sentence]:
        """Yield the sentences that are read, in the order of the corpus."""
        n = self.n_sentences
        total = self.corpus.n_sentences if self.spread else self.n_sentences
        places = {i * total // n for i in range(n)}
        return (s for i, s in enumerate(itertools.islice(self.corpus, total)) if i in places)

    def folds(self, batch: Sequence[EncodedSentence]) -> Tensor:
        """Deal sentences of the first half to the folds of a cross-validation.

        In the order of the corpus; a sentence that is repeated stays in one fold.
        """
        return torch.tensor([self._first[_words(item)] % FOLDS for item in batch])

    def _of_half(self, half: int, item: EncodedSentence | None) -> EncodedSentence | None:
        self.skipped += item is None
        self.left_out += 0 if item is None else item.left_out
        if item is None or item.half != half:
            return None
        words = _words(item)
        if half == 0:
            self._first.setdefault(words, len(self._first))
        elif words in self._first:
            self.repeated += 1
            return None
        return item


def _words(item: EncodedSentence) -> tuple[str, ...]:
    return tuple(word.lower() for word in item.sentence.words)


@dataclass(frozen=True)
class Batch:
    """Sentences of one half, and what a pass of the model fills in."""

    sentences: list[EncodedSentence]
    words: WordPositions
    #: (batch, 3, targets, 2, heads of all layers): as :meth:`LayerMaps.errors`, where maps are
    #: measured.
    errors: Tensor


#: Looks at a chunk of one layer: the batch, the chunk, its heads among those of all layers, and
#: the states (batch, pos, d_in) that the layer's values are made from.
Visit = Callable[[Batch, Activations, slice, Tensor], None]


class _Observer(SiteObserver):
    """Shows each chunk of a pass to a function, with the states that its layer read."""

    def __init__(self, visit: Visit, first: Array) -> None:
        self._visit = visit
        self._first = first
        self.batch: Batch

    def see(self, site: AttentionSite, inputs: AttentionInput) -> None:
        """Keep the states that a layer's values are computed from."""
        self._x = inputs.x_v

    def observe(self, site: Activations) -> None:
        """Show one chunk."""
        start = int(self._first[site.row])
        heads = slice(start + site.heads.start, start + site.heads.stop)
        self._visit(self.batch, site, heads, self._x)


def _read(
    reader: Reader, loaded: LoadedModel, half: int, seed: int, name: str, visit: Visit
) -> Iterator[Batch]:
    """Run a model over one half; yield every batch when all layers have been visited."""
    random = np.random.default_rng([seed % 2**63, half])
    first = np.cumsum([0, *(site.n_heads for site in loaded.sites)])
    observer = _Observer(visit, first)
    # What is made of a chunk, in float64, is several times as large as its patterns.
    few = CHUNK_ENTRIES // 4
    router = Router(loaded.sites, [observer], others=loaded.others, chunk_entries=few)

    with routed(loaded.model, router), watch_inputs(loaded.sites, observer.see):
        for seen, sentences in reader.batches(half):
            words = word_positions(sentences, random, causal=reader.causal, device=loaded.device)
            errors = torch.zeros(len(sentences), *ERRORS, int(first[-1]), dtype=torch.float64)
            observer.batch = Batch(sentences, words, errors)
            ids, mask = loaded.pad([item.ids.tolist() for item in sentences])
            router.run(functools.partial(loaded.forward, ids, mask))
            yield observer.batch
            give_back()  # what lies between blocks in use grows with every batch
            what = f"{name}, {'measuring' if half else 'choosing'}"
            reader.progress(what, seen, reader.n_sentences)


@dataclass(frozen=True)
class Sums:
    """What both halves of the corpus gave."""

    tokens: int  # Tokens of words that the maps were fitted on
    fitted_on: int  # Sentences of the first half
    judged_on: int  # Sentences of the second half
    r2: dict[str, Clustered]  # Of the maps on the second half, by target: one number a head


def measure(reader: Reader, loaded: LoadedModel, seed: int, name: str) -> Sums:
    """Run a model over both halves: fit the maps on the first, judge them on the second."""
    layers: list[LayerSums] = []
    for site in loaded.sites:  # each layer has different random directions
        layer_seed = int(np.random.default_rng([seed % 2**63, site.row]).integers(2**63))
        layers.append(LayerSums(LayerSpaces.of(site.weights().W_V.detach().cpu(), layer_seed)))

    def fit(batch: Batch, site: Activations, heads: slice, x: Tensor) -> None:
        layer = layers[site.row]
        folds = reader.folds(batch.sentences[site.rows])
        layer.update(LayerChunk(site, x, batch.words, layer.spaces), folds)

    tokens = 0
    fitted_on = 0
    for batch in _read(reader, loaded, 0, seed, name, fit):
        tokens += int(batch.words.content.sum())
        fitted_on += len(batch.sentences)
    if not fitted_on:
        raise CorpusError(
            f"None of the sentences of {reader.corpus.name} that maps are fitted on (every other "
            "one, from the first on) could be read: each is longer than the model's limit, or the "
            "tokenizer makes no piece of its words."
        )
    maps: list[LayerMaps] = []
    while layers:  # the sums of a layer are dropped as soon as its maps are fitted
        maps.append(layers.pop(0).solve())
        give_back()

    def judge(batch: Batch, site: Activations, heads: slice, x: Tensor) -> None:
        chunk = LayerChunk(site, x, batch.words, maps[site.row].spaces)
        batch.errors[site.rows, ..., heads] = maps[site.row].errors(chunk).cpu()

    errors = [torch.zeros(0, *ERRORS, sum(site.n_heads for site in loaded.sites))]
    errors += [batch.errors for batch in _read(reader, loaded, 1, seed, name, judge)]
    maps.clear()
    give_back()
    judged = torch.cat(errors).numpy()
    return Sums(tokens, fitted_on, len(judged), explained(judged))
