"""Hubs: which words and special tokens the words of a sentence attend to.

Attention is a directed graph; the in-degree of a node is what it receives from all words but
itself. Evenly spread attention gives more to words of many pieces, and so stands beside everything.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.flow.word_graph import WordNodes
from headscope.core.accumulator import Array, numpy
from headscope.core.rounding import above, first_largest, tied
from headscope.core.widest import widest
from headscope.stats.statistics import Z95, ratio, ratio_error

__all__ = ["HubSums", "InDegree", "NameSums", "in_degree"]

#: The share of a sentence's nodes whose part of the attention is counted, rounded up to a node.
TOP = 0.1


@dataclass(frozen=True)
class InDegree:
    """What the nodes of a batch receive."""

    #: (batch, n_heads, nodes). In-degree of every node: attention of all other words.
    received: Tensor
    even: Tensor  # (batch, nodes). The same where attention is spread evenly.


def in_degree(graph: Tensor, nodes: WordNodes) -> InDegree:
    """Sum the attention that each node receives.

    Shapes: ``graph`` (batch, n_heads, nodes, nodes).
    """
    asks = nodes.is_word.to(graph.dtype)[:, :, None]
    asks = asks * (1 - torch.eye(graph.shape[-1], dtype=graph.dtype, device=graph.device))
    received = torch.einsum("bhij,bij->bhj", graph, asks)
    return InDegree(widest(received), widest((nodes.even * asks).sum(1)))


def top_share(received: Tensor, sizes: Tensor) -> Tensor:
    """Share of all that is received by the tenth of a sentence's nodes that receives most.

    Shapes: ``received`` (batch, n_heads, nodes), ``sizes`` (batch,); returns (batch, n_heads).
    """
    count = (TOP * sizes).ceil().long().clamp(min=1)
    sums = received.sort(dim=-1, descending=True).values.cumsum(-1)
    most = sums.gather(-1, (count - 1)[:, None, None].expand(-1, sums.shape[1], 1))[..., 0]
    return most / sums[..., -1].clamp(min=torch.finfo(sums.dtype).tiny)


class NameSums:
    """What nodes of each name receive, mean over heads, beside even attention."""

    def __init__(self) -> None:
        #: By name: in-degree, even, their squares and product (by sentence), occurrences, sentences
        self._sums: dict[str, Array] = {}
        self.sentences = 0

    def update(self, found: InDegree, nodes: WordNodes) -> None:
        """Add one batch."""
        received, even = numpy(found.received.mean(1)), numpy(found.even)
        for row, names in enumerate(nodes.names):
            self.sentences += 1
            here: dict[str, Array] = {}
            for place, name in enumerate(names):
                here.setdefault(name, np.zeros(3))
                here[name] += received[row, place], even[row, place], 1.0
            for name, (got, fair, count) in here.items():
                sums = self._sums.setdefault(name, np.zeros(7))
                sums += got, fair, got * got, fair * fair, got * fair, count, 1.0

    def most(self, count: int, least: int) -> list[str]:
        """Name what receives most beside even attention, and surely more than that.

        By the lower end of the ratio's interval, which has to be above 1; only names that stand in
        ``least`` sentences or more.
        """
        common = (name for name, sums in self._sums.items() if sums[6] >= least)
        lowest = {name: self.of(name)[2] - Z95 * self.of(name)[3] for name in common}
        found = sorted(name for name, low in lowest.items() if above(low, 1.0))
        order = np.argsort(-tied([lowest[name] for name in found]), kind="stable")
        return [found[place] for place in order[:count]]

    def of(self, name: str) -> tuple[float, float, float, float, int]:
        """Return (in-degree, even, their ratio, its standard error, occurrences) of a name.

        The first two are means over occurrences; all are NaN for a name that did not occur.
        """
        got, fair, got2, fair2, both, count, _ = self._sums.get(name, np.zeros(7))
        if not fair:
            return np.nan, np.nan, np.nan, np.nan, 0
        error = ratio_error(got, got2, both, fair, fair2, self.sentences)
        means = float(got / count), float(fair / count)
        return *means, float(ratio(got, fair)), float(error), int(count)


class HubSums:
    """The largest hub of each head in each sentence, and the share of the largest tenth."""

    def __init__(self, hubs: list[str] | None = None) -> None:
        self._hubs = hubs
        self._counts: list[Counter[str]] = []
        self.names = NameSums()
        #: Of every sentence: (n_heads,), and one number of even attention.
        self.top: list[Array] = []
        self.even: list[Array] = []
        self.hit: list[Array] = []
        self.chance: list[Array] = []

    def update(self, graph: Tensor, nodes: WordNodes) -> None:
        """Add one batch."""
        found = in_degree(graph, nodes)
        self.names.update(found, nodes)
        sizes = torch.tensor(list(map(len, nodes.names)), device=graph.device)
        self.top += list(numpy(top_share(found.received, sizes)))
        self.even += list(numpy(top_share(found.even[:, None], sizes))[:, 0])
        winners = numpy(first_largest(found.received)[1])  # (batch, n_heads)
        self._counts = self._counts or [Counter() for _ in range(winners.shape[1])]
        for names, places in zip(nodes.names, winners, strict=True):
            won = [names[place] for place in places]
            for counter, name in zip(self._counts, won, strict=True):
                counter[name] += 1
            if self._hubs is not None:
                share = {name: names.count(name) / len(names) for name in set(self._hubs)}
                hits = [name == hub for name, hub in zip(won, self._hubs, strict=True)]
                self.hit.append(np.array(hits, dtype=float))
                self.chance.append(np.array([share[hub] for hub in self._hubs]))

    def most_frequent(self) -> list[str]:
        """Return the node that is most often each head's hub; the first by name where several."""
        return [min(c, key=lambda name: (-c[name], name)) for c in self._counts]
