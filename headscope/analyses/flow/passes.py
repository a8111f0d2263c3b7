"""Two passes over a corpus: fit and choose on the first half, measure on the second."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.flow.graph import Clustered, HubSums, WordNodes, nodes_of
from headscope.analyses.flow.recovery import (
    ERRORS,
    FOLDS,
    LayerChunk,
    LayerMaps,
    LayerSpaces,
    LayerSums,
    explained,
)
from headscope.analyses.flow.trees import GoldTrees, TreeSearch
from headscope.attention import CHUNK_ENTRIES
from headscope.core.accumulator import Array
from headscope.core.activations import Activations
from headscope.core.errors import CorpusError
from headscope.core.memory import give_back
from headscope.core.progress import Progress
from headscope.data.corpus import Corpus
from headscope.data.files import ROOT, Sentence
from headscope.data.pieces import EncodedSentence, encode_words, placed, readable_pieces
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

    @property
    def trees(self) -> bool:
        """Whether there are gold trees; in a decoder the head of a word may be out of sight."""
        return self.corpus.has_trees and not self.causal

    def batches(self, half: int) -> Iterator[tuple[int, list[EncodedSentence]]]:
        """Yield (sentences seen so far, next batch) of one half: 0 first, then 1."""
        self.repeated = self.skipped = self.left_out = 0
        encoded = encode_words(self.loaded, placed(self._chosen()))
        return counted_batches(self._of_half(half, item) for item in encoded)

    def _chosen(self) -> Iterator[Sentence]:
        """Yield the sentences that are read, in the order of the corpus."""
        n, total = self.n_sentences, self.corpus.n_sentences if self.spread else self.n_sentences
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
    nodes: WordNodes  # their words and special tokens
    graph: Tensor  # (batch, heads of all layers, nodes, nodes): attention between these
    #: (batch, 3, targets, 2, heads of all layers): as :meth:`LayerMaps.errors`, where maps are
    #: measured.
    errors: Tensor


#: Looks at a chunk of one layer: the batch, the chunk, its heads among those of all layers, and
#: the states (batch, pos, d_in) that the layer's values are made from.
Visit = Callable[[Batch, Activations, slice, Tensor], None]


class _Observer(SiteObserver):
    """Turns the patterns of a pass into graphs of words, and shows each chunk to a function."""

    def __init__(self, visit: Visit, first: Array) -> None:
        self._visit, self._first = visit, first
        self.batch: Batch

    def see(self, site: AttentionSite, inputs: AttentionInput) -> None:
        """Keep the states that a layer's values are computed from."""
        self._x = inputs.x_v

    def observe(self, site: Activations) -> None:
        """Fold one chunk of patterns, and show it."""
        start = int(self._first[site.row])
        heads = slice(start + site.heads.start, start + site.heads.stop)
        self.batch.graph[site.rows, heads] = self.batch.nodes.fold(site.pattern, site.rows)
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

    def spell(token: int) -> str:
        return readable_pieces(loaded.tokenizer, [token])[0]

    with routed(loaded.model, router), watch_inputs(loaded.sites, observer.see):
        for seen, sentences in reader.batches(half):
            nodes = nodes_of(sentences, spell, random, causal=reader.causal, device=loaded.device)
            size, heads = len(sentences), int(first[-1])
            graph = torch.zeros(size, heads, nodes.size, nodes.size, device=loaded.device)
            errors = torch.zeros(size, *ERRORS, heads, dtype=torch.float64)
            observer.batch = Batch(sentences, nodes, graph, errors)
            ids, mask = loaded.pad([item.ids.tolist() for item in sentences])
            router.run(functools.partial(loaded.forward, ids, mask))
            yield observer.batch
            give_back()  # what lies between blocks in use grows with every batch
            what = f"{name}, {'measuring' if half else 'choosing'}"
            reader.progress(what, seen, reader.n_sentences)


@dataclass(frozen=True)
class Sums:
    """Sums over both halves of the corpus."""

    tokens: int  # of words that the maps were fitted on
    r2: dict[str, Clustered]  # of the maps on the second half, by target: one number a head
    chosen: HubSums  # hubs on the first half, and on the second
    hubs: HubSums
    search: TreeSearch | None  # None without gold trees


def measure(
    reader: Reader, loaded: LoadedModel, seed: int, name: str, *, every_tree: bool = True
) -> Sums:
    """Run a model over both halves."""
    layers: list[LayerSums] = []
    for site in loaded.sites:  # each layer has different random directions
        of_layer = int(np.random.default_rng([seed % 2**63, site.row]).integers(2**63))
        layers.append(LayerSums(LayerSpaces.of(site.weights().W_V.detach().cpu(), of_layer)))
    search = TreeSearch(seed, reader.n_sentences // 2, every=every_tree) if reader.trees else None
    chosen, tokens = HubSums(), 0

    def fit(batch: Batch, site: Activations, heads: slice, x: Tensor) -> None:
        layer, folds = layers[site.row], reader.folds(batch.sentences[site.rows])
        layer.update(LayerChunk(site, x, batch.nodes, layer.spaces), folds)

    for batch in _read(reader, loaded, 0, seed, name, fit):
        tokens += int(batch.nodes.content.sum())
        chosen.update(batch.graph, batch.nodes)
        _count_trees(search, batch)
    if not chosen.top:
        raise CorpusError(
            f"None of the sentences of {reader.corpus.name} that heads are chosen on (every other "
            "one, from the first on) could be read: each is longer than the model's limit, or the "
            "tokenizer makes no piece of its words."
        )
    maps: list[LayerMaps] = []
    while layers:  # the sums of a layer are dropped as soon as its maps are fitted
        maps.append(layers.pop(0).solve())
        give_back()
    if search is not None:
        search.choose()
    hubs = HubSums()
    errors = [torch.zeros(0, *ERRORS, sum(site.n_heads for site in loaded.sites))]

    def judge(batch: Batch, site: Activations, heads: slice, x: Tensor) -> None:
        chunk = LayerChunk(site, x, batch.nodes, maps[site.row].spaces)
        batch.errors[site.rows, ..., heads] = maps[site.row].errors(chunk).cpu()

    for batch in _read(reader, loaded, 1, seed, name, judge):
        hubs.update(batch.graph, batch.nodes)
        errors.append(batch.errors)
        _count_trees(search, batch)
    maps.clear()
    give_back()
    return Sums(tokens, explained(torch.cat(errors).numpy()), chosen, hubs, search)


def _has_tree(sentence: Sentence) -> bool:
    """Whether words hang from a root: a single word does not, and the root may be left out."""
    return len(sentence.words) > 1 and ROOT in (sentence.heads or ())


def _count_trees(search: TreeSearch | None, batch: Batch) -> None:
    """Hand over the attention between the words of a batch, where trees are searched."""
    rows = [i for i, item in enumerate(batch.sentences) if _has_tree(item.sentence)]
    if search is None or not rows:
        return
    items, device = [batch.sentences[row] for row in rows], batch.graph.device
    swapped = {
        i: item.swapped
        for i, item in enumerate(items)
        if item.swapped is not None and _has_tree(item.swapped)
    }
    search.update(
        batch.nodes.between_words(batch.graph, rows),
        GoldTrees.of([item.sentence for item in items], device),
        (list(swapped), GoldTrees.of(list(swapped.values()), device)) if swapped else None,
    )
