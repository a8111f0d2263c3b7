"""The two halves of a corpus: what is chosen on the first is measured on the second."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from headscope.data.corpus import Corpus
from headscope.data.encode import EncodedSentence, Encoder, placed
from headscope.data.node_batches import gold_trees, nodes_of
from headscope.data.sentence import Sentence
from headscope.measures.activations import Activations
from headscope.measures.flow.hubs import HubSums
from headscope.measures.flow.recovery import HeldOut, LayerSpaces, RecoverySums
from headscope.measures.flow.ridge import FOLDS
from headscope.measures.flow.tree_search import TreeSearch
from headscope.measures.flow.trees import GoldTrees
from headscope.measures.flow.word_graph import WordNodes
from headscope.models.intervene import watch_inputs
from headscope.models.layouts import AttentionInput, AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router, routed
from headscope.session.progress import Progress
from headscope.session.texts import counted_batches

__all__ = ["Found", "Reader", "measure"]

#: Pattern entries that exist at a time: few, as every one is multiplied with whole states.
_CHUNK = 1 << 16


@dataclass
class Reader:
    """Reads a corpus for one model, half by half, and counts what it had to leave out.

    Attributes
    ----------
    loaded : LoadedModel
        Whose tokenizer and limit count.
    corpus : Corpus
        What is read.
    limit : int or None
        Only the first sentences.
    progress : callable
        Told (pass, sentences done, sentences).
    repeated, skipped : int
        Sentences of the second half that stand in the first; those that cannot be read.
    """

    loaded: LoadedModel
    corpus: Corpus
    limit: int | None
    progress: Progress
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

    def batches(self, half: int, name: str) -> Iterator[list[EncodedSentence]]:
        """Yield batches of the sentences of one half: 0 first, then 1."""
        n = self.n_sentences
        self.repeated, self.skipped = 0, 0
        sentences, again = itertools.tee(itertools.islice(iter(self.corpus), n))
        encoded = placed(again, Encoder(self.loaded).encode(sentences))
        for seen, batch in counted_batches(self._of(half, item) for item in encoded):
            yield batch
            self.progress(f"{name}, {'measuring' if half else 'choosing'}", seen, n)

    def folds(self, batch: Sequence[EncodedSentence]) -> list[int]:
        """Deal sentences of the first half to the folds of a cross-validation.

        In the order of the corpus; a sentence that is repeated stays in one fold.
        """
        return [self._first[_words(item)] % FOLDS for item in batch]

    def _of(self, half: int, item: EncodedSentence | None) -> EncodedSentence | None:
        if item is None:
            self.skipped += 1
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
class Found:
    """What was found on the two halves.

    Attributes
    ----------
    tokens : int
        Tokens of words that the maps were fitted on.
    held : HeldOut
        Errors of the maps on the second half.
    chosen, hubs : HubSums
        Hubs on the first half, and on the second.
    search : TreeSearch or None
        Trees; None without gold ones.
    """

    tokens: int
    held: HeldOut
    chosen: HubSums
    hubs: HubSums
    search: TreeSearch | None


def measure(
    reader: Reader, loaded: LoadedModel, seed: int, name: str, *, every_tree: bool = True
) -> Found | None:
    """Run a model over both halves; None if the first is empty.

    Parameters
    ----------
    reader : Reader
        What is read.
    loaded : LoadedModel
        The model, or one with its tokenizer and random weights.
    seed : int
        Of the random directions, words and trees.
    name : str
        Of the pass, for its progress.
    every_tree : bool
        Measure the trees of all heads on the second half, not only those that are chosen.
    """
    sums = RecoverySums([_spaces(site, seed) for site in loaded.sites])
    chosen = HubSums()
    search = TreeSearch(seed, reader.n_sentences // 2, every=every_tree) if reader.trees else None
    observer = _Observer(loaded, sums)
    for nodes, sentences in observer.run(reader, 0, seed, name):
        chosen.update(observer.graph, nodes)
        _show_trees(search, observer.graph, nodes, sentences)
    if not chosen.top:
        return None
    held, hubs = sums.fitted(), HubSums(chosen.most_frequent())
    if search is not None:
        search.choose()
    observer = _Observer(loaded, held)
    for nodes, sentences in observer.run(reader, 1, seed, name):
        held.finish()
        hubs.update(observer.graph, nodes)
        _show_trees(search, observer.graph, nodes, sentences)
    return Found(sums.tokens, held, chosen, hubs, search)


def _spaces(site: AttentionSite, seed: int) -> LayerSpaces:
    own = np.random.default_rng([seed % 2**63, site.row])  # every layer has directions of its own
    return LayerSpaces.of(site.weights().W_V.detach().cpu(), int(own.integers(2**63)))


class _Observer:
    """Turns the patterns of a pass into graphs of words, and shows what values are made from."""

    def __init__(self, loaded: LoadedModel, recovery: RecoverySums | HeldOut) -> None:
        self._loaded = loaded
        self._recovery = recovery
        self._first = np.cumsum([0, *(site.n_heads for site in loaded.sites)])

    def run(
        self, reader: Reader, half: int, seed: int, name: str
    ) -> Iterator[tuple[WordNodes, list[EncodedSentence]]]:
        """Yield the nodes and the sentences of every batch once the model has read it."""
        loaded, random = self._loaded, np.random.default_rng([seed % 2**63, half])
        router = Router(loaded.sites, [self], others=loaded.others, chunk_entries=_CHUNK)
        for batch in reader.batches(half, name):
            ids, mask = loaded.pad([s.ids.tolist() for s in batch])
            nodes = nodes_of(batch, self._spell, random, causal=reader.causal)
            self._start(nodes.to(loaded.device), reader.folds(batch) if half == 0 else [])
            with routed(loaded.model, router), watch_inputs(loaded.sites, self._see):
                router.run(functools.partial(loaded.forward, ids, mask))
            yield self._nodes, batch

    def _spell(self, token: int) -> str:
        return str(self._loaded.tokenizer.convert_ids_to_tokens(token))

    def _start(self, nodes: WordNodes, folds: list[int]) -> None:
        self._nodes = nodes
        shape = (len(nodes.names), int(self._first[-1]), nodes.size, nodes.size)
        self.graph = torch.zeros(shape, device=nodes.node.device)
        if isinstance(self._recovery, HeldOut):
            self._recovery.start(len(nodes.names))
        else:
            self._recovery.start(folds, nodes)

    def _see(self, site: AttentionSite, inputs: AttentionInput) -> None:
        self._x = inputs.x_v

    def observe(self, site: Activations) -> None:
        """Fold one chunk of patterns, and hold what it passes on against what it read."""
        start = int(self._first[site.row])
        heads = slice(start + site.heads.start, start + site.heads.stop)
        self.graph[site.rows, heads] = self._nodes.fold(site.pattern, site.rows)
        self._recovery.update(site, self._x, self._nodes)

    def finish(self, stack: str, layer: int) -> None:
        """Nothing is held back between chunks."""


def _show_trees(
    search: TreeSearch | None, graph: Tensor, nodes: WordNodes, sentences: list[EncodedSentence]
) -> None:
    """Show the trees of a batch, grouped by the number of words."""
    if search is None:
        return
    by_length: dict[int, list[int]] = {}
    for row, item in enumerate(sentences):
        if len(item.sentence.words) > 1:  # a single word is the root
            by_length.setdefault(len(item.sentence.words), []).append(row)
    for n, rows in by_length.items():
        place = torch.stack([nodes.is_word[row].nonzero()[:n, 0] for row in rows])
        words = _between(graph[rows], place)
        trees = gold_trees([sentences[row].sentence for row in rows], graph.device)
        search.update(words, trees, _swapped(sentences, rows, graph.device))


def _between(graph: Tensor, place: Tensor) -> Tensor:
    """Keep the weights from word to word, (sentences, n_heads, words, words)."""
    n_heads, n = graph.shape[1], place.shape[1]
    rows = graph.gather(2, place[:, None, :, None].expand(-1, n_heads, -1, graph.shape[3]))
    return rows.gather(3, place[:, None, None, :].expand(-1, n_heads, n, -1))


def _swapped(
    sentences: Sequence[EncodedSentence], rows: Sequence[int], device: torch.device
) -> tuple[list[int], GoldTrees] | None:
    """Return the places in ``rows`` that have another sentence's tree, and those trees."""
    trees: list[tuple[int, Sentence]] = []
    for i, row in enumerate(rows):
        if (tree := sentences[row].swapped) is not None:
            trees.append((i, tree))
    if not trees:
        return None
    return [i for i, _ in trees], gold_trees([tree for _, tree in trees], device)
