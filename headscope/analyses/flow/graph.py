"""Attention as a directed graph of the words and special tokens of a sentence, and its hubs.

The weight *to* a word is the sum over its pieces, the weight *from* a word the mean over its
pieces, as everywhere in headscope; a special token is a node of its own. The in-degree of a node is
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
from headscope.stats.statistics import Z95, ratio_error


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
    def even_pattern(self) -> Tensor:
        """Attention that is spread evenly over the tokens in sight, (batch, pos, pos)."""
        real = self.node >= 0
        visible = (real[:, None, :] & real[:, :, None]).float()
        if self.causal:
            visible = visible.tril()
        return visible / visible.sum(-1, keepdim=True).clamp(min=1)

    @cached_property
    def even(self) -> Tensor:
        """Weights between nodes where attention is spread evenly, (batch, nodes, nodes)."""
        return self.fold(self.even_pattern[:, None])[:, 0]


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
    """What nodes of each name receive, the largest hub of each head, and the share of the top."""

    def __init__(self, hubs: list[str] | None = None) -> None:
        self._hubs = hubs  # of each head, chosen before; None while they are chosen
        self._winners: list[Counter[str]] = []
        #: By name, of each sentence: in-degree (mean over heads), even, occurrences.
        self._names: dict[str, list[Array]] = {}
        #: Of every sentence: (n_heads,), and one number of even attention.
        self.top: list[Array] = []
        self.even: list[Array] = []
        self.hit: list[Array] = []
        self.chance: list[Array] = []

    def update(self, graph: Tensor, nodes: WordNodes) -> None:
        """Add one batch."""
        received, even = in_degree(graph, nodes)
        sizes = torch.tensor(list(map(len, nodes.names)), device=graph.device)
        self.top += list(numpy(top_share(received, sizes)))
        self.even += list(numpy(top_share(even[:, None], sizes))[:, 0])
        largest = numpy(first_largest(received)[1])  # (batch, n_heads)
        self._winners = self._winners or [Counter() for _ in range(largest.shape[1])]
        mean, fair = numpy(received.mean(1)), numpy(even)
        for row, names in enumerate(nodes.names):
            here: dict[str, Array] = {}
            for name, x, y in zip(names, mean[row], fair[row], strict=False):
                here[name] = here.get(name, np.zeros(3)) + np.array([x, y, 1.0])
            for name, numbers in here.items():
                self._names.setdefault(name, []).append(numbers)
            won = [names[i] for i in largest[row]]
            for counter, name in zip(self._winners, won, strict=True):
                counter[name] += 1
            if self._hubs is not None:
                hits = [name == hub for name, hub in zip(won, self._hubs, strict=True)]
                self.hit.append(np.array(hits, dtype=float))
                self.chance.append(np.array([names.count(h) / len(names) for h in self._hubs]))

    def most_frequent(self) -> list[str]:
        """Return the node that is most often each head's hub; ties go to the first by name."""
        return [min(c, key=lambda name: (-c[name], name)) for c in self._winners]

    def most(self, count: int, least: int) -> list[str]:
        """Name the nodes that clearly receive more than even attention gives them, most first.

        They are ordered by the lower end of the ratio's interval, which must be above 1. Only names
        that occur in ``least`` sentences or more are considered.
        """
        lowest = {}
        for name, sentences in self._names.items():
            if len(sentences) >= least:
                _, _, value, error, _ = self.of(name)
                lowest[name] = value - Z95 * error
        names = sorted(name for name, low in lowest.items() if above(low, 1.0))
        order = np.argsort(-tied([lowest[name] for name in names]), kind="stable")
        return [names[i] for i in order[:count]]

    def of(self, name: str) -> tuple[float, float, float, float, int]:
        """Return (in-degree, even, their ratio, its standard error, occurrences) of a name.

        The first two are means over occurrences; all are NaN for a name that did not occur.
        """
        x, y, counts = np.reshape(self._names.get(name, []), (-1, 3)).T
        if not y.any():
            return np.nan, np.nan, np.nan, np.nan, 0
        received, even, count = float(x.sum()), float(y.sum()), int(counts.sum())
        error = ratio_error(received, x @ x, x @ y, even, y @ y, len(self.top))
        return received / count, even / count, received / even, float(error), count
