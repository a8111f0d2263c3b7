"""What the classifier of a fine-tuning reads: embeddings, in units of the training examples."""

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

#: Turns some examples, by index, into what the classifier reads: (indices, d).
Embed = Callable[[Split, Sequence[int]], Tensor]


class FrozenEmbeddings:
    """Embeddings by a model as it is, each text once; in units of the training examples.

    From each dimension the mean over the training examples is taken, and the rest is divided by
    their standard deviation. ``cache`` is filled, and may be shared by runs of the same weights.
    """

    def __init__(self, loaded: LoadedModel, train: Split, cache: dict[object, Tensor]) -> None:
        self._loaded = loaded
        self._cache = cache
        embedded = self._embedded(train, range(len(train)))
        self.centre = embedded.mean(dim=0)
        spread = embedded.std(dim=0, correction=0)
        # A dimension that varies by rounding alone is not scaled up, so that its noise stays small.
        rounding = ROUNDING * embedded.abs().max().clamp(min=1e-12)
        unit = spread.max() if spread.max() > rounding else rounding / ROUNDING
        self.scale = torch.where(spread <= torch.maximum(rounding, 1e-6 * unit), unit, spread)

    def __call__(self, examples: Split, indices: Sequence[int]) -> Tensor:
        """Look up some examples."""
        return (self._embedded(examples, indices) - self.centre) / self.scale

    def in_units(self, tuned: LoadedModel) -> Embed:
        """Embed by a model whose parameters may change, in the same units."""

        def embed(examples: Split, indices: Sequence[int]) -> Tensor:
            return (_embed(tuned, examples, indices) - self.centre) / self.scale

        return embed

    def _embedded(self, examples: Split, indices: Sequence[int]) -> Tensor:
        """Look up embeddings as the model makes them; compute those that are new."""
        keys = {i: (examples.rows[i].ids, examples.rows[i].types) for i in indices}
        new = [i for i, key in keys.items() if key not in self._cache]
        with torch.no_grad():
            for batch in length_buckets(examples, new):
                for i, embedding in zip(batch, _embed(self._loaded, examples, batch), strict=True):
                    self._cache[keys[i]] = embedding
        return torch.stack([self._cache[keys[i]] for i in indices])


def _embed(loaded: LoadedModel, examples: Split, indices: Sequence[int]) -> Tensor:
    """Run the model over some examples."""
    batch = padded([examples.rows[i] for i in indices], loaded.pad_id, loaded.device)
    hidden, _ = loaded.run(*batch.inputs)
    return loaded.pooling.embed(hidden, batch.hidden_mask)


def length_buckets(examples: Split, indices: Sequence[int]) -> Iterator[list[int]]:
    """Yield batches of similar lengths."""
    for batch in buckets([dataclasses.replace(examples.rows[i], index=i) for i in indices]):
        yield [row.index for row in batch]
