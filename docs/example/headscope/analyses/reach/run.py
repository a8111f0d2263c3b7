"""``headscope reach``: how far each head looks, from one pass over a text."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.reach import HeadReach, ReachOptions, ReachResult
from headscope.core.accumulator import Accumulator, Array, numpy
from headscope.core.activations import Activations
from headscope.core.serialise import SCHEMA
from headscope.data.corpus import as_plain
from headscope.models.run.routing import Router, routed
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.texts import check_measured, line_batches
from headscope.session.validate import require_valid


class Reach(Accumulator):
    """Mean of ``sum_k P[q, k] |q - k|`` over queries, and the same for evenly spread attention."""

    _sums = ("queries", "distance", "even")

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.queries: Array = np.zeros((n_layers, n_heads))
        self.distance: Array = np.zeros((n_layers, n_heads))
        self.even: Array = np.zeros((n_layers, n_heads))

    def start(self, real: Tensor) -> None:
        """Say which positions of the batch are real, (batch, pos), before its pass."""
        self._real = real

    def observe(self, site: Activations) -> None:
        """Add one chunk of patterns; the router shows every chunk of every layer."""
        real = self._real[site.examples].double()  # (examples, pos)
        position = torch.arange(real.shape[1], device=real.device, dtype=real.dtype)
        gap = (position[:, None] - position[None, :]).abs()  # (query_pos, key_pos)
        even = (real @ gap) / real.sum(1, keepdim=True)  # (examples, query_pos)
        distance = (site.pattern.double() * gap).sum(-1)  # (examples, heads, query_pos)
        heads = site.row, site.heads
        self.queries[heads] += float(real.sum())
        self.even[heads] += float((even * real).sum())
        self.distance[heads] += numpy((distance * real[:, None]).sum((0, 2)))

    def finish(self, stack: str, layer: int) -> None:
        """Do nothing: every chunk is added at once."""


def run(model: Model, options: ReachOptions) -> ReachResult:
    """Measure how far each head looks."""
    source = as_plain(options.text)
    loaded = open_model(model, **options.loading)
    need_tokenizer(loaded, "reach")
    validation = require_valid(loaded, options.validate)
    sums = Reach(loaded.n_layers, loaded.n_heads)
    lines = 0
    most = min(source.n_sentences, options.limit or source.n_sentences)
    with routed(
        loaded.model, Router(loaded.sites, [sums], unmeasured_sites=loaded.unmeasured_sites)
    ) as router:
        for seen, batch in line_batches(loaded, source, options.limit):
            ids, mask = loaded.pad(batch)
            sums.start(mask)
            router.checked(loaded.forward, ids, mask)
            lines += len(batch)
            options.tell("lines", seen, most)
    check_measured(source, lines)
    distance = sums.distance / sums.queries
    even = sums.even / sums.queries
    reaches: list[HeadReach] = []
    for site in loaded.sites:
        for index, head in enumerate(site.head_ids):  # numbers from before any pruning
            where = site.row, index
            reaches.append(
                HeadReach(
                    site.layer,
                    head,
                    distance=float(distance[where]),
                    even=float(even[where]),
                    stack=site.stack,
                )
            )
    return ReachResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=options.command, seed=options.seed, data=source),
        validation=validation,
        reaches=tuple(reaches),
        tokens=int(sums.queries.max()),
    )
