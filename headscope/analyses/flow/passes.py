"""Two passes over a corpus: fit and choose on the first half, measure on the second."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from headscope.analyses.flow.graph import HubSums, WordNodes, nodes_of
from headscope.analyses.flow.recovery import FOLDS, HeldOut, LayerSpaces, RecoverySums
from headscope.analyses.flow.rollout import Rollout, RolloutSums
from headscope.analyses.flow.trees import GoldTrees, SameLength, TreeSearch
from headscope.core.activations import Activations
from headscope.core.errors import CorpusError
from headscope.core.progress import Progress
from headscope.data.corpus import Corpus
from headscope.data.encode import EncodedSentence, Encoder, placed
from headscope.models.intervene import watch_inputs
from headscope.models.layouts import AttentionInput, AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router, routed
from headscope.session.texts import counted_batches

#: Pattern entries that exist at a time: few, as every one is multiplied with whole states.
_CHUNK = 1 << 16


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

    def batches(self, half: int, name: str) -> Iterator[list[EncodedSentence]]:
        """Yield batches of the sentences of one half: 0 first, then 1."""
        self.repeated, self.skipped = 0, 0
        sentences = itertools.islice(iter(self.corpus), self.n_sentences)
        encoded = Encoder(self.loaded).encode(placed(sentences))
        for seen, batch in counted_batches(self._of(half, item) for item in encoded):
            yield batch
            what = f"{name}, {'measuring' if half else 'choosing'}"
            self.progress(what, seen, self.n_sentences)

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
    rollout: RolloutSums  # on the second half


def measure(
    reader: Reader, loaded: LoadedModel, seed: int, name: str, *, every_tree: bool = True
) -> Sums:
    """Run a model over both halves."""
    spaces = []
    for site in loaded.sites:  # every layer has random directions of its own
        own = int(np.random.default_rng([seed % 2**63, site.row]).integers(2**63))
        spaces.append(LayerSpaces.of(site.weights().W_V.detach().cpu(), own))
    sums, chosen = RecoverySums(spaces), HubSums()
    search = TreeSearch(seed, reader.n_sentences // 2, every=every_tree) if reader.trees else None
    observer = _Observer(loaded, sums)
    for nodes, sentences in observer.run(reader, 0, seed, name):
        chosen.update(observer.graph, nodes)
        if search is not None:
            _count_trees(search, observer, nodes, sentences)
    if not chosen.top:
        raise CorpusError(
            f"None of the sentences of {reader.corpus.name} that heads are chosen on (every other "
            "one, from the first on) could be read: each is longer than the model's limit or has "
            "a word that yields no piece."
        )
    held, hubs = sums.fitted(), HubSums(chosen.most_frequent())
    if search is not None:
        search.choose()
    observer, rollout = _Observer(loaded, held), RolloutSums()
    for nodes, sentences in observer.run(reader, 1, seed, name):
        held.finish()
        hubs.update(observer.graph, nodes)
        rollout.update(observer.rollout, nodes)
        if search is not None:
            _count_trees(search, observer, nodes, sentences)
    return Sums(sums.tokens, held, chosen, hubs, search, rollout)


class _Observer:
    """Turns the patterns of a pass into graphs of words, and hands the states to the maps."""

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
            nodes = nodes_of(batch, self._spell, random, causal=reader.causal).to(loaded.device)
            shape = (len(batch), int(self._first[-1]), nodes.size, nodes.size)
            self._nodes, self.graph = nodes, torch.zeros(shape, device=nodes.node.device)
            self._rollout = Rollout(nodes)
            if isinstance(self._recovery, HeldOut):
                self._recovery.start(len(batch))
            else:
                self._recovery.start(reader.folds(batch), nodes)
            with routed(loaded.model, router), watch_inputs(loaded.sites, self._see):
                router.run(functools.partial(loaded.forward, ids, mask))
            self.rollout = self._rollout.graph()
            yield nodes, batch

    def _spell(self, token: int) -> str:
        return str(self._loaded.tokenizer.convert_ids_to_tokens(token))

    def _see(self, site: AttentionSite, inputs: AttentionInput) -> None:
        self._x = inputs.x_v

    def observe(self, site: Activations) -> None:
        """Fold one chunk of patterns, and compare what it passes on with what it read."""
        start = int(self._first[site.row])
        heads = slice(start + site.heads.start, start + site.heads.stop)
        self.graph[site.rows, heads] = self._nodes.fold(site.pattern, site.rows)
        self._recovery.update(site, self._x, self._nodes)
        self._rollout.observe(site)

    def finish(self, stack: str, layer: int) -> None:
        """Let the rollout go through the layer."""
        self._rollout.finish()


def _count_trees(
    search: TreeSearch, seen: _Observer, nodes: WordNodes, sentences: list[EncodedSentence]
) -> None:
    """Hand over the attention between the words of a batch, sentences of one length at a time."""
    by_length: dict[int, list[int]] = {}
    for row, item in enumerate(sentences):
        if len(item.sentence.words) > 1:  # a single word is the root
            by_length.setdefault(len(item.sentence.words), []).append(row)
    graph, groups = torch.cat([seen.graph, seen.rollout.to(seen.graph)], dim=1), []
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
        groups.append(SameLength(words[:, :-2], gold, others, words[:, -2:]))
    if groups:
        search.update(groups)
