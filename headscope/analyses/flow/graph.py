"""Attention as a directed graph of the words and special tokens of a sentence, and its hubs.

The weight *to* a word is the sum over its pieces, the weight *from* a word the mean over its
pieces, as everywhere in headscope; a special token is one node. The in-degree of a node is
what it receives from all words but itself. Evenly spread attention gives more to words of many
pieces, so every number is compared with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headscope.core.accumulator import Array, numpy
from headscope.core.rounding import above, first_largest, tied
from headscope.core.widest import widest
from headscope.data.pieces import EncodedSentence
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import FEWEST_UNITS, effective_units, finite, ratio, t_half_width


@dataclass(frozen=True)
class WordNodes:
    """The nodes of a padded batch of sentences."""

    node: Tensor  # (batch, pos): node of each position, in the order of the text; -1 at padding
    content: Tensor  # (batch, pos): positions of words
    #: (batch, pos): for each position of a word another position of a word that it may see, drawn
    #: at random (the same may be drawn).
    other: Tensor
    names: tuple[tuple[str, ...], ...]  # of the nodes of each sentence
    causal: bool = False  # whether a position sees only itself and what stands before it

    @property
    def size(self) -> int:
        """The largest number of nodes in a sentence."""
        return max(map(len, self.names))

    @cached_property
    def belongs(self) -> Tensor:
        """1 where a position belongs to a node, (batch, pos, nodes)."""
        nodes = torch.arange(self.size, device=self.node.device)
        return (self.node[:, :, None] == nodes).float()

    @cached_property
    def share(self) -> Tensor:
        """1 / pieces where a position belongs to a node, (batch, nodes, pos)."""
        return (self.belongs / self.belongs.sum(1, keepdim=True).clamp(min=1)).mT

    @cached_property
    def is_word(self) -> Tensor:
        """Whether each node is a word, (batch, nodes)."""
        return torch.einsum("bpn,bp->bn", self.belongs, self.content.float()) > 0

    def between_words(self, graph: Tensor, rows: Sequence[int]) -> Tensor:
        """Return the weights between the words of some sentences, padded to the longest.

        Shapes: ``graph`` (batch, n_heads, nodes, nodes); returns (rows, n_heads, words, words).
        """
        word = pad_sequence([self.is_word[row].nonzero()[:, 0] for row in rows], True, 0)[:, None]
        graph = graph[rows].take_along_dim(word[..., None], 2)
        return graph.take_along_dim(word[:, :, None], 3)

    def fold(self, pattern: Tensor, rows: slice = slice(None)) -> Tensor:
        """Turn patterns (rows, heads, pos, pos) into weights between nodes."""
        pattern = pattern.to(self.belongs.dtype)
        return self.share[rows, None] @ (pattern @ self.belongs[rows, None])

    @cached_property
    def even(self) -> Tensor:
        """Weights between nodes where attention is spread evenly, (batch, nodes, nodes)."""
        real = self.node >= 0
        visible = (real[:, None, :] & real[:, :, None]).float()
        if self.causal:
            visible = visible.tril()
        pattern = visible / visible.sum(-1, keepdim=True).clamp(min=1)
        return self.fold(pattern[:, None])[:, 0]


def nodes_of(
    sentences: Sequence[EncodedSentence],
    spell: Callable[[int], str],
    random: np.random.Generator,
    *,
    causal: bool = False,
    device: torch.device | str = "cpu",
) -> WordNodes:
    """Make nodes of a batch of sentences; ``spell`` names a special token."""
    nodes, others, names = [], [], []
    for s in sentences:
        starts = s.word_of < 0  # every special token starts a node, and so does every new word
        starts[1:] |= s.word_of[1:] != s.word_of[:-1]
        starts[:1] = True
        nodes.append(np.cumsum(starts) - 1)
        at = np.flatnonzero(s.word_of >= 0)
        visible = np.arange(1, len(at) + 1) if causal else np.full(len(at), len(at))
        others.append(np.zeros(len(s), dtype=np.int64))
        others[-1][at] = at[(random.random(len(at)) * visible).astype(np.int64)]
        names.append(
            tuple(
                spell(int(s.ids[p])) if s.word_of[p] < 0 else s.sentence.words[s.word_of[p]].lower()
                for p in np.flatnonzero(starts)
            )
        )

    def padded(rows: Sequence[Array], fill: float) -> Tensor:
        return pad_sequence([torch.from_numpy(row) for row in rows], True, fill).to(device)

    content = padded([s.word_of >= 0 for s in sentences], False)
    return WordNodes(padded(nodes, -1), content, padded(others, 0), tuple(names), causal)


@dataclass(frozen=True)
class Clustered:
    """Numbers that are smooth functions of sums over sentences."""

    value: Array  # (n,). The numbers; NaN where nothing was counted.
    #: (sentences, n). How much each sentence pulls at each number, in units of a mean over
    #: sentences: the standard error of a number is that of the mean of its column. Columns of
    #: numbers that were measured on the same sentences may be added and subtracted, row by row.
    influence: Array
    #: (n,). The effective number of sentences behind each; 0 where too few for an interval count.
    units: Array

    @classmethod
    def ratio(cls, part: Array, total: Array) -> Clustered:
        """Make sum(part) / sum(total) over sentences, both (sentences, n) or broadcast to it.

        Cochran 1977, Sampling Techniques, section 6.4.
        """
        part, total = np.broadcast_arrays(
            np.asarray(part, dtype=float), np.asarray(total, dtype=float)
        )
        value = ratio(part.sum(0), total.sum(0))
        with np.errstate(invalid="ignore", divide="ignore"):
            influence = (part - value * total) / (total.sum(0) / max(1, len(total)))
        units = effective_units(total.sum(0), np.square(total).sum(0))
        enough = np.count_nonzero(total, axis=0) >= FEWEST_UNITS
        return cls(value, influence, np.where(enough, units, 0.0))

    @classmethod
    def mean_of(cls, rows: Sequence[Array], n: int) -> Clustered:
        """Average (n,) numbers of every sentence; there may be no sentence."""
        return cls.ratio(np.asarray(rows).reshape(len(rows), n), np.ones((len(rows), 1)))

    def rest(self) -> Clustered:
        """Return 1 minus each number."""
        return Clustered(1.0 - self.value, -self.influence, self.units)

    def unknown(self) -> Clustered:
        """Return numbers as unknown (NaN), with the same shapes."""
        return Clustered(self.value * np.nan, self.influence * np.nan, self.units)

    def mean(self) -> Clustered:
        """Return the mean of the finite numbers, as one number."""
        known = np.isfinite(self.value)
        if not known.any():
            nothing = np.full((len(self.influence), 1), np.nan)
            return Clustered(np.full(1, np.nan), nothing, np.zeros(1))
        return Clustered(
            self.value[known].mean(keepdims=True),
            self.influence[:, known].mean(1, keepdims=True),
            self.units[known].min(keepdims=True),
        )

    def __sub__(self, other: Clustered) -> Clustered:
        units = np.minimum(self.units, other.units)
        return Clustered(self.value - other.value, self.influence - other.influence, units)

    def half_width(self) -> Array:
        """Return half of each 95% interval (Student's t); infinite where sentences are too few."""
        n, units = len(self.influence), np.maximum(self.units, 1.5)
        error = self.influence.std(axis=0) / np.sqrt(max(n, 1)) * np.sqrt(units / (units - 1))
        return np.where(self.units > 0, t_half_width(error, units, fewest=1), np.inf)

    def estimates(self) -> list[Estimate]:
        """Return each number with its interval; what is not finite is None."""
        pairs = zip(self.value, self.half_width(), strict=True)
        return [Estimate.around(finite(value), finite(half)) for value, half in pairs]

    def estimate(self) -> Estimate:
        """Return the only number with its interval."""
        (only,) = self.estimates()
        return only


#: The share of a sentence's nodes whose part of the attention is counted, rounded up to a node.
TOP = 0.1


def in_degree(graph: Tensor, nodes: WordNodes) -> tuple[Tensor, Tensor]:
    """Sum the attention that each node receives from other words, and the same of even attention.

    Shapes: ``graph`` (batch, n_heads, nodes, nodes); returns (batch, n_heads, nodes) and (batch,
    nodes).
    """
    asks = nodes.is_word.to(graph.dtype)[:, :, None]
    asks = asks * (1 - torch.eye(graph.shape[-1], dtype=graph.dtype, device=graph.device))
    received = torch.einsum("bhij,bij->bhj", graph, asks)
    return widest(received), widest((nodes.even * asks).sum(1))


def top_share(received: Tensor, sizes: Tensor) -> Tensor:
    """Share of all that is received by the tenth of a sentence's nodes that receives most.

    Shapes: ``received`` (batch, n_heads, nodes), ``sizes`` (batch,); returns (batch, n_heads).
    """
    count = (TOP * sizes).ceil().long().clamp(min=1)
    sums = received.sort(dim=-1, descending=True).values.cumsum(-1)
    most = sums.gather(-1, (count - 1)[:, None, None].expand(-1, sums.shape[1], 1))[..., 0]
    return most / sums[..., -1].clamp(min=torch.finfo(sums.dtype).tiny)


class HubSums:
    """Sums over sentences: attention received by node name, each head's hub, and the top share."""

    def __init__(self) -> None:
        self._sentences: list[tuple[str, ...]] = []  # Names of the nodes of each sentence
        self._hubs: list[list[str]] = []  # The node that receives most, by head
        #: Of every sentence: (n_heads,), and one number of even attention.
        self.top: list[Array] = []
        self.even: list[Array] = []
        #: By name and number of the sentence: in-degree (mean over heads), even, occurrences.
        self._names: dict[str, dict[int, Array]] = {}

    def update(self, graph: Tensor, nodes: WordNodes) -> None:
        """Add one batch."""
        received, even = in_degree(graph, nodes)
        sizes = torch.tensor(list(map(len, nodes.names)), device=graph.device)
        self.top += list(numpy(top_share(received, sizes)))
        self.even += list(numpy(top_share(even[:, None], sizes)))
        largest = numpy(first_largest(received)[1])  # (batch, n_heads)
        mean, fair = numpy(received.mean(1)), numpy(even)
        for row, names in enumerate(nodes.names):
            for name, x, y in zip(names, mean[row], fair[row], strict=False):
                of_name = self._names.setdefault(name, {})
                before = of_name.get(len(self._sentences), np.zeros(3))
                of_name[len(self._sentences)] = before + np.array([x, y, 1.0])
            self._hubs.append([names[i] for i in largest[row]])
            self._sentences.append(names)

    def most_frequent(self) -> list[str]:
        """Return the node that is most often each head's hub; ties go to the first by name."""
        counts = map(Counter, zip(*self._hubs, strict=True))
        return [min(c, key=lambda name: (-c[name], name)) for c in counts]

    def rates(self, hubs: Sequence[str]) -> tuple[Clustered, Clustered]:
        """Return how often each head's hub is its entry in ``hubs``, and a random node's rate."""
        every = self._sentences
        hit = [np.equal(names, hubs) for names in self._hubs]
        chance = [np.array([names.count(hub) / len(names) for hub in hubs]) for names in every]
        return Clustered.mean_of(hit, len(hubs)), Clustered.mean_of(chance, len(hubs))

    def most(self, count: int, least: int) -> list[str]:
        """Name the nodes that clearly receive more than even attention gives them, most first.

        They are ordered by the lower end of the ratio's interval, which must be above 1. Only names
        that occur in ``least`` sentences or more are considered.
        """
        lowest = {}
        for name, sentences in self._names.items():
            if len(sentences) >= least and (numbers := self.of(name)):
                ratio = numbers[2]
                lowest[name] = float((ratio.value - ratio.half_width())[0])
        names = sorted(name for name, low in lowest.items() if above(low, 1.0))
        order = np.argsort(-tied([lowest[name] for name in names]), kind="stable")
        return [names[i] for i in order[:count]]

    def of(self, name: str) -> tuple[float, float, Clustered, int] | None:
        """Return (in-degree, even, their ratio, occurrences) of a name, the first two a mean each.

        None where it did not occur, or only in sentences without another word.
        """
        numbers = np.zeros((len(self._sentences), 3))
        for sentence, of_sentence in self._names.get(name, {}).items():
            numbers[sentence] = of_sentence
        received, even, count = numbers.sum(0).tolist()
        if not even:
            return None
        ratio = Clustered.ratio(numbers[:, :1], numbers[:, 1:2])
        return received / count, even / count, ratio, int(count)
