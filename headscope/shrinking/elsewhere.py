"""How near a smaller model stays to the whole one on text of another kind than the evaluation data.

Embeddings are compared by their cosine and by their nearest neighbours among these texts; classes
by the share of texts with the same one; independent labels by the share of texts with the same set
of labels; scores by their rank correlation. Models with other heads are not compared.

A model is compared as it is *served*: itself where torch runs it, else a file that another runtime
has opened; :func:`as_model` lets such a file stand in the model's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from headscope.core.accumulator import numpy
from headscope.data.batches import buckets
from headscope.data.token_rows import Row, padded
from headscope.models.run.head_outputs import HeadOutputs, head_outputs
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.products import fast_products
from headscope.shrinking.distil import output_of
from headscope.shrinking.result import Elsewhere
from headscope.shrinking.serving import Served
from headscope.shrinking.text import Texts
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.metrics import mean_of, spearman
from headscope.stats.paired_change import interval_of

NEIGHBOURS = 10  # Nearest neighbours of each text that asks
QUERIES = 1000  # Texts that ask for their neighbours, at most
FEWEST_TEXTS = 100  # Among fewer texts no neighbours are looked for


class OtherText:
    """Compares models with the whole one on one text, and keeps the whole one's outputs."""

    def __init__(self, full_model: LoadedModel, texts: Texts, *, seed: int) -> None:
        self._full_model = full_model
        self._texts = texts
        self._seed = seed
        self._expected: Tensor | None = None  # The whole model's outputs
        self._expected_neighbours: Tensor | None = None

    def compare(
        self, model: LoadedModel, served: Served, teacher: LoadedModel
    ) -> tuple[Elsewhere, ...]:
        """Compare a model as it is served with the whole one.

        ``teacher`` computes the whole model's outputs: that model, or a file that is as exact.
        Returns one comparison, or none where there is no other text or no way to compare.
        """
        text = self._texts.other
        head = self._full_model.task_head
        comparable = (
            head in (None, "causal", "classification") and not self._full_model.encoder_decoder
        )
        if text is None or not comparable:
            return ()
        rows = self._texts.other_rows(self._full_model)
        if self._expected is None:
            self._expected = _outputs(teacher, rows)
        outputs = _outputs(as_model(model, served), rows)
        neighbours = UNKNOWN
        if head == "classification":
            compared, nearness = self._head_nearness(outputs, self._expected)
        else:
            compared = "cosine"
            nearness = self._mean((outputs * self._expected).sum(-1))
            if len(rows) >= FEWEST_TEXTS:
                neighbours = self._shared_neighbours(outputs, self._expected)
        comparison = Elsewhere(
            text=text.name,
            texts=len(rows),
            of=compared,
            nearness=nearness,
            neighbours=neighbours,
        )
        return (comparison,)

    def _shared_neighbours(self, embeddings: Tensor, expected: Tensor) -> Estimate:
        """Return the share of the whole model's nearest neighbours that a model finds too.

        Both embeddings are (texts, d_model).
        """
        if self._expected_neighbours is None:
            self._expected_neighbours = nearest(expected)
        # every neighbour that is expected is looked for among those that the model finds
        expected_neighbours = self._expected_neighbours[:, None, :]  # [queries, 1, neighbours]
        neighbours = nearest(embeddings)[:, :, None]  # [queries, neighbours, 1]
        found_too = (neighbours == expected_neighbours).any(dim=2)  # [queries, neighbours]
        return self._mean(found_too.double().mean(dim=1))

    def _head_nearness(self, logits: Tensor, expected: Tensor) -> tuple[str, Estimate]:
        """Say what is compared of a head's logits (texts, outputs), and how alike they are."""
        kind = head_outputs(self._full_model)
        if kind is HeadOutputs.CHOICE:
            return "classes", self._mean(logits.argmax(-1) == expected.argmax(-1))
        if kind is HeadOutputs.LABELS:
            return "labels", self._mean(((logits > 0) == (expected > 0)).all(-1))
        return "scores", self._rank_correlation(logits, expected)

    def _rank_correlation(self, scores: Tensor, expected: Tensor) -> Estimate:
        """Return Spearman's correlation of each output; of several the mean, without interval."""
        by_output = numpy(scores.double()).T
        expected_by_output = numpy(expected.double()).T
        correlations: list[Estimate] = []
        for values, gold in zip(by_output, expected_by_output, strict=True):
            outputs = {"similarity": values, "gold": gold}
            correlations.append(interval_of(spearman, outputs, seed=self._seed))
        # the metric is 100 times the correlation
        if len(correlations) > 1:
            return Estimate(fmean(float(correlation) for correlation in correlations) / 100)
        correlation = correlations[0]
        if correlation.interval is None:
            return Estimate(float(correlation) / 100)
        low, high = correlation.interval
        return Estimate(float(correlation) / 100, low / 100, high / 100)

    def _mean(self, values: Tensor) -> Estimate:
        """Return the mean of a value of each text, at most 1, with its interval."""
        outputs = {"value": values.double().clamp(max=1.0).numpy()}
        return interval_of(mean_of("value"), outputs, seed=self._seed)


def as_model(model: LoadedModel, served: Served) -> LoadedModel:
    """Return a model that is run by the file that serves it; itself where torch serves it."""
    if isinstance(served, LoadedModel):
        return model
    return _RunByFile(model, served)  # type: ignore[return-value]


class _RunByFile:
    """A model whose ``run`` is a file's; everything else, such as pooling, is the model's own."""

    def __init__(self, model: LoadedModel, served: Served) -> None:
        self._model = model
        self.run = served

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _outputs(model: LoadedModel, rows: Sequence[Row]) -> Tensor:
    """Return the embedding or the logits of every text, (texts, outputs), in their order."""
    by_text: dict[int, Tensor] = {}
    with torch.no_grad(), fast_products(model.network):
        for bucket in buckets(rows):  # of similar lengths
            batch = padded(bucket, model.pad_id, model.device)
            for i, output in zip(batch.index, output_of(model, batch), strict=True):
                by_text[int(i)] = output
    return torch.stack([by_text[i] for i in range(len(rows))])


def nearest(embeddings: Tensor) -> Tensor:
    """Return the indices of the nearest neighbours of the first texts, (queries, neighbours).

    ``embeddings`` (texts, d_model) are unit vectors. The texts are in random order
    (:meth:`Texts.other_rows`), so the first ones are random ones.
    """
    similarity = embeddings[:QUERIES] @ embeddings.T
    similarity.fill_diagonal_(-torch.inf)
    return similarity.topk(min(NEIGHBOURS, len(embeddings) - 1), dim=1).indices
