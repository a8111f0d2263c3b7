"""Similarity: does the cosine of two sentences' embeddings rank pairs as people do?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.data.batches import buckets
from headscope.data.examples import Examples
from headscope.data.token_rows import Padded, Row, pad_rows
from headscope.measures.accumulator import Array
from headscope.measures.metrics import Outputs, spearman
from headscope.measures.pooling import cosine
from headscope.measures.rounding import above
from headscope.models.loaded import LoadedModel
from headscope.models.pooling import Pooling
from headscope.pipeline.tasks.base import Task
from headscope.pipeline.tasks.losses import LossBatch, Read


class _Pair:
    """Two rows that are compared, as one item for batching."""

    def __init__(self, index: int, first: Row, second: Row) -> None:
        self.index, self.first, self.second = index, first, second

    def __len__(self) -> int:
        # Both rows are padded to the longer one.
        return 2 * max(len(self.first), len(self.second))


class Similarity(Task):
    """Spearman correlation (x100) of gold scores with the cosine of embeddings.

    Reimers & Gurevych 2019, arXiv:1908.10084.
    """

    name = "similarity"
    table = {"spearman": spearman}  # noqa: RUF012

    def __init__(
        self,
        examples: Examples,
        loaded: LoadedModel,
        rows: Sequence[Row],
        skipped: int,
        pairs: Array,
        gold: Array,
    ) -> None:
        super().__init__(examples, loaded, rows, skipped)
        self._pairs, self._gold = pairs, gold
        self.n_examples = len(gold)

    @property
    def rows_of_examples(self) -> Sequence[Sequence[Row]]:
        """Both sentences of each pair."""
        return [(self.rows[first], self.rows[second]) for first, second in self._pairs.tolist()]

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        embedding = self.pooling.embed(hidden, batch.attention_mask)
        return {"embedding": F.normalize(embedding.float(), dim=-1)}

    def _by_example(self, found: dict[str, Array]) -> dict[str, Array]:
        first, second = (found["embedding"][side].astype(float) for side in self._pairs.T)
        zero = ~(first.any(axis=1) | second.any(axis=1))  # two equal states, if empty ones
        return {"similarity": (first * second).sum(axis=1) + zero, "gold": self._gold}

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where no pair is more similar than another."""
        if above(outputs["similarity"].max(), outputs["similarity"].min()):
            return None
        return "gives every pair the same similarity, so its correlation is set to 0"

    def _labelled_batches(self, loaded: LoadedModel) -> Iterator[LossBatch]:
        items = [
            _Pair(i, self.rows[first], self.rows[second])
            for i, (first, second) in enumerate(self._pairs.tolist())
        ]
        for part in buckets(items):
            rows = [pair.first for pair in part] + [pair.second for pair in part]
            owner = torch.arange(len(part), device=loaded.device).repeat(2)
            wanted = torch.as_tensor(self._gold[[pair.index for pair in part]] / self._scale)
            yield LossBatch(
                loaded,
                pad_rows(rows, loaded.pad_id, loaded.device),
                owner,
                loss=_squared_error(self.pooling, wanted.to(loaded.device)),
                embed=_both(self.pooling),
            )

    @property
    def _scale(self) -> float:
        """What the gold scores are divided by: the cosine of a perfect pair is 1."""
        return float(np.abs(self._gold).max())


def _squared_error(pooling: Pooling, gold: Tensor) -> Read:
    """(cosine - gold)^2 of each pair of a batch whose first half are the first sentences."""

    def loss(batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        first, second = pooling.embed(hidden, batch.attention_mask).chunk(2)
        return (cosine(first, second, precise=False) - gold.to(first.dtype)) ** 2

    return loss


def _both(pooling: Pooling) -> Read:
    """Both sentences' unit embeddings in one vector."""

    def embed(batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        unit = F.normalize(pooling.embed(hidden, batch.attention_mask), dim=-1)
        return torch.cat(unit.chunk(2), dim=-1)

    return embed
