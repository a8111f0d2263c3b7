"""What the classifier of a fine-tuning reads: embeddings by a model that changes, or does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from headscope.data.batches import buckets
from headscope.data.token_rows import Row, pad_rows
from headscope.measures.rounding import ROUNDING
from headscope.models.loaded import LoadedModel
from headscope.pipeline.transfer.labelled import Part

__all__ = ["Frozen", "Reader", "Tuned", "in_buckets"]


class Reader(Protocol):
    """Turns examples into what the classifier reads."""

    def __call__(self, part: Part, places: Sequence[int]) -> Tensor:
        """Return (len(places), d)."""


class Tuned:
    """Embeddings by a model whose parameters may change, in fixed units.

    Parameters
    ----------
    loaded : LoadedModel
        The model; in eval mode, so without dropout.
    centre, scale : Tensor, (d,), or float
        Subtracted, then divided by.
    """

    def __init__(
        self, loaded: LoadedModel, centre: Tensor | float = 0.0, scale: Tensor | float = 1.0
    ) -> None:
        self.loaded, self._centre, self._scale = loaded, centre, scale

    def __call__(self, part: Part, places: Sequence[int]) -> Tensor:
        """Run the model over some examples."""
        rows = [part.rows[i] for i in places]
        batch = pad_rows(rows, self.loaded.pad_id, self.loaded.device)
        hidden, _ = self.loaded.run(*batch.inputs)
        embedded = self.loaded.pooling.embed(hidden, batch.hidden_mask)
        return (embedded - self._centre) / self._scale


class Frozen:
    """Embeddings by a model as it is, each text once; in units of the training examples.

    Parameters
    ----------
    loaded : LoadedModel
        Not changed.
    train : Part
        Whose embeddings get mean 0 and standard deviation 1 in every dimension.
    known : dict
        What has been embedded so far, by token ids; added to. One for each model.
    """

    def __init__(self, loaded: LoadedModel, train: Part, known: dict[object, Tensor]) -> None:
        self._raw, self._known = Tuned(loaded), known
        own = self._of(train, range(len(train)))
        self.centre, spread = own.mean(dim=0), own.std(dim=0, correction=0)
        # A dimension that differs by rounding alone says nothing, and its noise stays small.
        rounding = ROUNDING * own.abs().max().clamp(min=1e-12)
        unit = spread.max() if spread.max() > rounding else rounding / ROUNDING
        self.scale = torch.where(spread <= torch.maximum(rounding, 1e-6 * unit), unit, spread)

    def __call__(self, part: Part, places: Sequence[int]) -> Tensor:
        """Look up some examples."""
        return (self._of(part, places) - self.centre) / self.scale

    def _of(self, part: Part, places: Sequence[int]) -> Tensor:
        keys = {i: (part.rows[i].ids, part.rows[i].types) for i in places}
        new = [i for i, key in keys.items() if key not in self._known]
        with torch.no_grad():
            for at in in_buckets(part, new):
                for i, embedded in zip(at, self._raw(part, at), strict=True):
                    self._known[keys[i]] = embedded
        return torch.stack([self._known[keys[i]] for i in places])


def in_buckets(part: Part, places: Sequence[int]) -> Iterator[list[int]]:
    """Yield batches of similar lengths."""
    rows: list[Row] = [dataclasses.replace(part.rows[i], index=i) for i in places]
    for batch in buckets(rows):
        yield [row.index for row in batch]
