"""Two passes over a corpus: fit and choose on the first half, measure on the second."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.flow.graph import HubSums, WordNodes, nodes_of
from headscope.analyses.flow.recovery import FOLDS, HeldOut, LayerSpaces, RecoverySums
from headscope.analyses.flow.trees import GoldTrees, SameLength, TreeSearch
from headscope.core.activations import Activations
from headscope.core.errors import CorpusError
from headscope.core.memory import give_back
from headscope.core.progress import Progress
from headscope.data.corpus import Corpus
from headscope.data.pieces import EncodedSentence, encode_words, placed
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput
from headscope.models.run.intervene import watch_inputs
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router, routed
from headscope.models.run.side_by_side import side_by_side
from headscope.session.texts import counted_batches

_Half = TypeVar("_Half", RecoverySums, HeldOut)  # The sums of the first or the second half


@dataclass
class Reader:
    """Reads a corpus for one model, half by half, and counts what it had to leave out."""

    loaded: LoadedModel  # whose tokenizer and limit count
    corpus: Corpus
    limit: int | None  # only the first sentences
    progress: Progress
    #: Sentences of the second half that stand in the first; those that cannot be read.
    repeated: int = 0
    skipped: int = 0
    _first: dict[tuple[str, ...], int] = field(default_factory=dict)

    @property
    def causal(self) -> bool:
        """Whether a word sees only what stands before it."""
        return any(site.causal for site in self.loaded.sites)

    @property
    def trees(self) -> bool:
        """Whether there are gold trees; in a decoder the head of a word may be out of sight."""
        return self.corpus.has_trees and not self.causal

    @property
    def n_sentences(self) -> int:
        """Sentences of both halves, those that cannot be read included."""
        return min(self.corpus.n_sentences, self.limit or self.corpus.n_sentences)

    def batches(self, half: int) -> Iterator[tuple[int, list[EncodedSentence]]]:
        """Yield (sentences seen so far, next batch) of one half: 0 first, then 1."""
        self.repeated, self.skipped = 0, 0
        sentences = itertools.islice(iter(self.corpus), self.n_sentences)
        encoded = encode_words(self.loaded, placed(sentences))
        return counted_batches(self._of(half, item) for item in encoded)

    def folds(self, batch: Sequence[EncodedSentence]) -> list[int]:
        """Deal sentences of the first half to the folds of a cross-validation.

        In the order of the corpus; a sentence that is repeated stays in one fold.
        """
        return [self._first[_words(item)] % FOLDS for item in batch]

    def _of(self, half: int, item: EncodedSentence | None) -> EncodedSentence | None:
        self.skipped += item is None
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
class Sums:
    """What both halves add up to."""

    tokens: int  # of words that the maps were fitted on
    held: HeldOut  # errors of the maps on the second half
    chosen: HubSums  # hubs on the first half, and on the second
    hubs: HubSums
    search: TreeSearch | None  # None without gold trees


def measure(
    reader: Reader, loaded: LoadedModel, seed: int, name: str, *, every_tree: bool = True
) -> Sums:
    """Run a model over both halves."""
    spaces = []
    for site in loaded.sites:  # every layer has random directions of its own
        own = int(np.random.default_rng([seed % 2**63, site.row]).integers(2**63))
        spaces.append(LayerSpaces.of(site.weights().W_V.detach().cpu(), own))
    sums, chosen = RecoverySums(spaces), HubSums()
    del spaces  # the sums have them, until maps are fitted
    search = TreeSearch(seed, reader.n_sentences // 2, every=every_tree) if reader.trees else None
    for batch, graph in _run(reader, loaded, sums, 0, seed, name):
        chosen.update(graph, batch.nodes)
        if search is not None:
            _count_trees(search, batch, graph)
    if not chosen.top:
        raise CorpusError(
            f"None of the sentences of {reader.corpus.name} that heads are chosen on (every other "
            "one, from the first on) could be read: each is longer than the model's limit or has "
            "a word that yields no piece."
        )
    held, hubs = sums.fitted(), HubSums(chosen.most_frequent())
    for number, (batch, graph) in enumerate(_run(reader, loaded, held, 1, seed, name)):
        if search is not None and number == 0:
            search.choose()  # while the next batches are read
        hubs.update(graph, batch.nodes)
        if search is not None:
            _count_trees(search, batch, graph)
    held.forget_maps()
    give_back()
    return Sums(sums.tokens, held, chosen, hubs, search)


class _Batch(NamedTuple):
    """Sentences of one half with their nodes (partly random) and their folds."""

    seen: int  # Sentences of the corpus that have been read by then.
    sentences: list[EncodedSentence]
    nodes: WordNodes
    folds: list[int]  # The fold of each sentence; empty where nothing is fitted.


#: A batch and its weights between nodes, (batch, heads of all layers, nodes, nodes).
_Seen = tuple[_Batch, Tensor]


def _run(
    reader: Reader, loaded: LoadedModel, recovery: _Half, half: int, seed: int, name: str
) -> Iterator[_Seen]:
    """Yield the graphs of every batch of one half, and add the batch to ``recovery``.

    Batches run in parallel and are added up in their order, so that sums do not depend on the
    number of threads.
    """
    random = np.random.default_rng([seed % 2**63, half])

    def spell(token: int) -> str:
        return str(loaded.tokenizer.convert_ids_to_tokens(token))

    def drawn() -> Iterator[_Batch]:
        for seen, batch in reader.batches(half):
            nodes = nodes_of(batch, spell, random, causal=reader.causal).to(loaded.device)
            yield _Batch(seen, batch, nodes, [] if half else reader.folds(batch))

    @contextmanager
    def reading(own: LoadedModel) -> Iterator[Callable[[_Batch], tuple[_Seen, _Half]]]:
        observer = _Observer(own, recovery)
        router = Router(own.sites, [observer], others=own.others)
        with routed(own.model, router), watch_inputs(own.sites, observer.see):
            yield functools.partial(observer.read, router)

    what = f"{name}, {'measuring' if half else 'choosing'}"
    for seen, added in side_by_side(loaded, drawn(), reading, alone=recovery.alone):
        recovery.add(added)
        del added
        yield seen
        reader.progress(what, seen[0].seen, reader.n_sentences)


class _Observer(Generic[_Half]):
    """Turns the patterns of a pass into graphs of words, and hands the states to the maps."""

    def __init__(self, loaded: LoadedModel, recovery: _Half) -> None:
        self._loaded = loaded
        self._all: _Half = recovery
        self._first = np.cumsum([0, *(site.n_heads for site in loaded.sites)])

    def read(self, router: Router, batch: _Batch) -> tuple[_Seen, _Half]:
        """Run the model on a batch; return its graphs, and what it adds to the sums."""
        nodes = self._nodes = batch.nodes
        ids, mask = self._loaded.pad([s.ids.tolist() for s in batch.sentences])
        shape = (len(batch.sentences), int(self._first[-1]), nodes.size, nodes.size)
        self._graph = torch.zeros(shape, device=nodes.node.device)
        self._recovery: _Half = self._all.of_batch(nodes, batch.folds)
        router.run(functools.partial(self._loaded.forward, ids, mask))
        return (batch, self._graph), self._recovery

    def see(self, site: AttentionSite, inputs: AttentionInput) -> None:
        """Keep the states that a layer's values are computed from."""
        self._x = inputs.x_v

    def observe(self, site: Activations) -> None:
        """Fold one chunk of patterns, and compare what it passes on with what it read."""
        start = int(self._first[site.row])
        heads = slice(start + site.heads.start, start + site.heads.stop)
        self._graph[site.rows, heads] = self._nodes.fold(site.pattern, site.rows)
        self._recovery.update(site, self._x, self._nodes)

    def finish(self, stack: str, layer: int) -> None:
        """Nothing is held back between chunks."""


def _count_trees(search: TreeSearch, batch: _Batch, graph: Tensor) -> None:
    """Hand over the attention between the words of a batch, sentences of one length at a time."""
    sentences, nodes = batch.sentences, batch.nodes
    by_length: dict[int, list[int]] = {}
    for row, item in enumerate(sentences):
        if len(item.sentence.words) > 1:  # a single word is the root
            by_length.setdefault(len(item.sentence.words), []).append(row)
    groups = []
    for n, rows in by_length.items():
        word = torch.stack([nodes.is_word[row].nonzero()[:n, 0] for row in rows])
        at = torch.arange(len(rows), device=word.device)[:, None, None, None]
        heads = torch.arange(graph.shape[1], device=word.device)[:, None, None]
        words = graph[rows][at, heads, word[:, None, :, None], word[:, None, None, :]]
        own = [sentences[row] for row in rows]
        swapped = [(i, tree) for i, item in enumerate(own) if (tree := item.swapped) is not None]
        others = None
        if swapped:
            indices, trees = zip(*swapped, strict=True)
            others = list(indices), GoldTrees.of(trees, graph.device)
        gold = GoldTrees.of([s.sentence for s in own], graph.device)
        groups.append(SameLength(words, gold, others))
    if groups:
        search.update(groups)
