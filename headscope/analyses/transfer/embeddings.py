"""What the classifier of a fine-tuning reads: embeddings, in units of the training examples.

In each dimension the mean over the training examples is subtracted, and the rest is divided by
their standard deviation. A :class:`Split` holds tokenised examples with their labels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from headscope.analyses.transfer.labelled import Split
from headscope.core.rounding import ROUNDING
from headscope.data.batches import buckets
from headscope.data.token_rows import padded
from headscope.models.run.loaded import LoadedModel

#: Takes examples and some of their indices; returns what the classifier reads, (indices, d).
Embed = Callable[[Split, Sequence[int]], Tensor]


class FrozenEmbeddings:
    """Embeddings by a model as it is, in units of the training examples; called as an ``Embed``.

    Each text is run once. ``cache`` holds its embedding, before the change of units, by its token
    ids and types; runs of the same weights may share one.
    """

    def __init__(self, loaded: LoadedModel, train: Split, cache: dict[object, Tensor]) -> None:
        self._loaded = loaded
        self._cache = cache
        embedded = self._embedded(train, range(len(train)))
        self.centre = embedded.mean(dim=0)
        deviations = embedded.std(dim=0, correction=0)  # (d,)
        # A dimension that varies by rounding alone is not divided by its own tiny deviation, but
        # by the largest one, so that its noise stays small. If all vary by rounding alone (equal
        # texts), by the largest absolute value.
        largest_value = embedded.abs().max().clamp(min=1e-12)
        rounding = ROUNDING * largest_value
        largest = deviations.max()
        if largest <= rounding:
            largest = rounding / ROUNDING
        is_noise = deviations <= torch.maximum(rounding, 1e-6 * largest)
        self.scale = torch.where(is_noise, largest, deviations)

    def __call__(self, examples: Split, indices: Sequence[int]) -> Tensor:
        """Look up the embeddings of some examples, (indices, d)."""
        return (self._embedded(examples, indices) - self.centre) / self.scale

    def in_units(self, tuned: LoadedModel) -> Embed:
        """Return an ``Embed`` by a model whose parameters may change, in the same units."""

        def embed(examples: Split, indices: Sequence[int]) -> Tensor:
            return (_embed(tuned, examples, indices) - self.centre) / self.scale

        return embed

    def _embedded(self, examples: Split, indices: Sequence[int]) -> Tensor:
        """Look up embeddings before the change of units; compute those of new texts."""
        keys = {i: (examples.rows[i].ids, examples.rows[i].types) for i in indices}
        new = [i for i, key in keys.items() if key not in self._cache]
        with torch.no_grad():
            for batch in length_buckets(examples, new):
                for i, embedding in zip(batch, _embed(self._loaded, examples, batch), strict=True):
                    self._cache[keys[i]] = embedding
        return torch.stack([self._cache[keys[i]] for i in indices])


def _embed(loaded: LoadedModel, examples: Split, indices: Sequence[int]) -> Tensor:
    """Run the model over some examples; return their embeddings, (indices, d)."""
    batch = padded([examples.rows[i] for i in indices], loaded.pad_id, loaded.device)
    hidden, _ = loaded.run(*batch.inputs)
    return loaded.pooling.embed(hidden, batch.hidden_mask)


def length_buckets(examples: Split, indices: Sequence[int]) -> Iterator[list[int]]:
    """Yield the indices in batches of texts of similar lengths."""
    rows = [dataclasses.replace(examples.rows[i], index=i) for i in indices]
    for bucket in buckets(rows):
        yield [row.index for row in bucket]
