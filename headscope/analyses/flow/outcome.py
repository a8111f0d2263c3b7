"""From the sums of a run to the values of its result."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.flow.hubs import HubSums
from headscope.analyses.flow.node_batches import gold_trees, nodes_of
from headscope.analyses.flow.recovery import (
    FOLDS,
    TARGETS,
    Clustered,
    HeldOut,
    LayerSpaces,
    RecoverySums,
)
from headscope.analyses.flow.result import (
    ChosenTrees,
    FlowControl,
    FlowSentences,
    Graph,
    HeadFlow,
    HeadGraph,
    HeadTrees,
    Hub,
    Recovery,
    Trees,
)
from headscope.analyses.flow.tree_search import BASELINES, TreeSearch
from headscope.analyses.flow.trees import DIRECTIONS, GoldTrees
from headscope.analyses.flow.word_graph import WordNodes
from headscope.core.accumulator import Array
from headscope.core.activations import Activations
from headscope.core.heads import head_name
from headscope.data.corpus import Corpus
from headscope.data.encode import EncodedSentence, Encoder, placed
from headscope.data.sentence import Sentence
from headscope.models.intervene import watch_inputs
from headscope.models.layouts import AttentionInput, AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router, routed
from headscope.session.progress import Progress
from headscope.session.texts import counted_batches
from headscope.stats.estimate import Estimate
from headscope.stats.ranks import MatrixRank
from headscope.stats.statistics import finite, t_half_width

#: Tokens that a ridge map is fitted on, at least, for each number that it reads.
TOKENS_PER_PREDICTOR = 20
#: Where random weights surely explain less than this, maps follow what they were fitted on.
COLLAPSED = -0.05
#: Hubs that are listed, at most, and the sentences that one must stand in to be chosen.
HUBS, HUB_SENTENCES = 12, 8


def sentences(reader: Reader, found: Found) -> FlowSentences:
    """Say what was read."""
    return FlowSentences(
        name=reader.corpus.name,
        chosen_on=len(found.chosen.top),
        measured_on=len(found.hubs.top),
        repeated=reader.repeated,
        skipped=reader.skipped,
        note=reader.corpus.note,
        tokens=found.tokens,
    )


def not_measured(found: Found, other: Found | None, width: int) -> dict[str, str]:
    """Say which R^2 the text is too short for, and why; ``width`` is the largest d_head."""
    needed = TOKENS_PER_PREDICTOR * width
    if found.tokens < needed:
        enough = math.ceil(needed / max(found.tokens, 1) * 2 * len(found.chosen.top))
        reason = (
            f"the maps are fitted on {found.tokens:,} tokens and need {TOKENS_PER_PREDICTOR} for "
            f"each of the {width} numbers that they read; give about {enough:,} sentences"
        )
        return dict.fromkeys(TARGETS, reason)
    if other is None:
        return {}
    theirs = {target: _one(other.held.explained(target).mean()) for target in TARGETS}
    return {
        target: f"with random weights it is {r2.value:.2f}, surely below {COLLAPSED}: the maps "
        "follow what they were fitted on; give more sentences"
        for target, r2 in theirs.items()
        if r2.high is not None and r2.high < COLLAPSED
    }


def estimated(found: Clustered) -> list[Estimate]:
    """Turn numbers with their intervals into values; what is not finite is None."""
    pairs = zip(found.value, found.half_width(), strict=True)
    return [Estimate.around(finite(value), finite(half)) for value, half in pairs]


def _one(found: Clustered) -> Estimate:
    (only,) = estimated(found)
    return only


# --- heads --------------------------------------------------------------------------------------


def heads(
    sites: Sequence[AttentionSite],
    spectra: Sequence[Mapping[str, Sequence[MatrixRank]]],
    found: Found,
    left_out: Container[str],
) -> tuple[HeadFlow, ...]:
    """Put together what is known of every head, without the R^2 that are not measured."""
    recovery = {
        target: estimated(found.held.explained(target))
        for target in TARGETS
        if target not in left_out
    }
    penalties = {target: found.held.penalties(target) for target in recovery}
    unknown = {target: Estimate(None) for target in TARGETS}
    names = found.chosen.most_frequent()
    n = len(names)
    top, hit, chance = (
        estimated(_mean_over_sentences(rows, n))
        for rows in (found.hubs.top, found.hubs.hit, found.hubs.chance)
    )
    graphs = [HeadGraph(top[i], name, hit[i], chance[i].value) for i, name in enumerate(names)]
    of_trees = _trees_by_head(found.search, len(graphs))
    rows: list[HeadFlow] = []
    for site, matrices in zip(sites, spectra, strict=True):
        for i, head in enumerate(site.head_ids):
            place = len(rows)
            rows.append(
                HeadFlow(
                    layer=site.layer,
                    head=head,
                    stack=site.stack,
                    d_head=len(matrices["w_v"][i].singular_values),
                    w_v=matrices["w_v"][i],
                    ov=matrices["ov"][i],
                    recovery=Recovery(
                        **unknown | {name: found[place] for name, found in recovery.items()}
                    ),
                    graph=graphs[place],
                    trees=of_trees[place],
                    penalties={name: float(found[place]) for name, found in penalties.items()},
                )
            )
    return tuple(rows)


def _mean_over_sentences(rows: Sequence[Array], n: int) -> Clustered:
    """Average (n,) numbers of every sentence; there may be no sentence."""
    return Clustered.ratio(np.reshape(rows, (len(rows), n)), np.ones((len(rows), 1)))


def _trees_by_head(search: TreeSearch | None, n_heads: int) -> list[HeadTrees | None]:
    if search is None or not search.counts.words:
        return [None] * n_heads
    scores = [
        estimated(search.counts.attachment("heads", punctuation=punctuation))
        for punctuation in (True, False)
    ]
    first = search.first.total("heads")
    return [
        HeadTrees(
            DIRECTIONS[int(first[head + n_heads] > first[head])],
            *(
                {name: uas[head + k * n_heads] for k, name in enumerate(DIRECTIONS)}
                for uas in scores
            ),
        )
        for head in range(n_heads)
    ]


# --- the model ----------------------------------------------------------------------------------


def mean_recovery(held: HeldOut, left_out: Container[str] = ()) -> Recovery:
    """Average over heads."""
    return Recovery(
        **{
            target: Estimate(None) if target in left_out else _one(held.explained(target).mean())
            for target in TARGETS
        }
    )


def over(held: HeldOut, target: str, random: str, left_out: Container[str]) -> Estimate:
    """Subtract from what z recovers what random directions do, mean over heads.

    Each head has random directions of its own, so the spread over heads counts as well.
    """
    if target in left_out or random in left_out:
        return Estimate(None)
    mine, theirs = held.explained(target), held.explained(random)
    return _with_spread(mine.mean() - theirs.mean(), mine.value - theirs.value)


def graph(found: Found) -> Graph:
    """Average the heads' shares, and list the hubs."""
    names = found.hubs.names
    listed = []
    for name in found.chosen.names.most(HUBS, HUB_SENTENCES):
        received, even, ratio, error, count = names.of(name)
        if count:
            half = t_half_width(error, np.array(names.sentences))
            value = Estimate.around(finite(ratio), finite(float(half)))
            listed.append(Hub(name, received, even, value, count))
    return Graph(
        top_share=_top_share(found),
        even_top_share=_one(_mean_over_sentences(found.hubs.even, 1)).value,
        hubs=tuple(listed),
    )


def _top_share(found: Found) -> Estimate:
    n_heads = len(found.chosen.most_frequent())
    return _one(_mean_over_sentences(found.hubs.top, n_heads).mean())


def trees(sites: Sequence[AttentionSite], search: TreeSearch | None) -> Trees | None:
    """Say what was chosen on the first half and what it is worth on the second."""
    if search is None or not search.chosen or not search.counts.words:
        return None
    names = [head_name(s.layer, head, s.stack) for s in sites for head in s.head_ids]
    named = [(name, direction) for direction in DIRECTIONS for name in names]
    plain = {name: _one(search.baseline(name)) for name in BASELINES}
    return Trees(
        best=_chosen(search, (named[search.best],), "best"),
        combination=_chosen(search, tuple(named[c] for c in search.chosen), "combination"),
        baselines=plain,
        baselines_no_punct={
            name: _one(search.baseline(name, punctuation=False)) for name in BASELINES
        },
        offset=search.offset.removeprefix("offset "),
        strongest=search.strongest,
    )


def _chosen(search: TreeSearch, chosen: tuple[tuple[str, str], ...], name: str) -> ChosenTrees:
    uas = search.counts.attachment(name)
    swapped = Estimate(None)
    if search.swapped.words:
        swapped = _one(search.swapped.attachment(name))
    return ChosenTrees(
        heads=chosen,
        uas=_one(uas),
        uas_no_punct=_one(search.counts.attachment(name, punctuation=False)),
        over_baseline=_one(uas - search.baseline(search.strongest)),
        swapped=swapped,
    )


def control(found: Found, other: Found, seed: int, left_out: Container[str]) -> FlowControl:
    """Hold the model against random weights, sentence by sentence."""
    best = combination = None
    search = other.search
    if search is not None and search.chosen and search.counts.words:
        best = _one(search.counts.attachment("best"))
        combination = _one(search.counts.attachment("combination"))
    gain = {
        target: Estimate(None) if target in left_out else _gain(found.held, other.held, target)
        for target in TARGETS
    }
    return FlowControl(
        seed=seed,
        recovery=mean_recovery(other.held),
        gain=Recovery(**gain),
        top_share=_top_share(other),
        best_uas=best,
        combination_uas=combination,
    )


def _gain(mine: HeldOut, other: HeldOut, target: str) -> Estimate:
    """Subtract the control's mean over heads from the model's.

    The control's heads are draws of random weights, so the spread between them counts as well.
    """
    theirs = other.explained(target)
    return _with_spread(mine.explained(target).mean() - theirs.mean(), theirs.value)


def _with_spread(gap: Clustered, drawn: Array) -> Estimate:
    """Make an interval of a gap wider by that of the mean of what was drawn at random."""
    value, half = float(gap.value[0]), float(gap.half_width()[0])
    known = drawn[np.isfinite(drawn)]
    if len(known) < 2:
        return Estimate.around(finite(value))
    error = float(known.std(ddof=1)) / math.sqrt(len(known))
    spread = float(t_half_width(error, np.array(len(known))))
    return Estimate.around(finite(value), finite(math.hypot(half, spread)))


#: Pattern entries that exist at a time: few, as every one is multiplied with whole states.
_CHUNK = 1 << 16


@dataclass
class Reader:
    """Reads a corpus for one model, half by half, and counts what it had to leave out."""

    loaded: LoadedModel  # Whose tokenizer and limit count.
    corpus: Corpus  # What is read.
    limit: int | None  # Only the first sentences.
    progress: Progress  # Told (pass, sentences done, sentences).
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
    """What was found on the two halves."""

    tokens: int  # Tokens of words that the maps were fitted on.
    held: HeldOut  # Errors of the maps on the second half.
    chosen: HubSums  # Hubs on the first half, and on the second.
    hubs: HubSums
    search: TreeSearch | None  # Trees; None without gold ones.


def measure(
    reader: Reader, loaded: LoadedModel, seed: int, name: str, *, every_tree: bool = True
) -> Found | None:
    """Run a model over both halves; None if the first is empty."""
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
