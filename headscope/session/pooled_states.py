"""How near the embeddings of a changed model are to the unchanged one's: the cosine of each text.

The mean cosine is the fidelity of the change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from headscope.core.accumulator import Array
from headscope.models.run.formulas import Factors
from headscope.models.run.intervene import intervene
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.pooling import cosine
from headscope.models.run.routing import Mechanism
from headscope.stats.estimate import Estimate
from headscope.stats.metrics import mean_of
from headscope.stats.paired_change import interval_of


class PooledStates:
    """A model's embeddings of padded batches, which a changed model's are compared with."""

    def __init__(self, loaded: LoadedModel, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Run the unchanged model; ``batches`` are (token ids, attention mask)."""
        self._loaded = loaded
        self._batches = batches
        self._original = self._embeddings()

    def cosines(
        self, attention: Mechanism | None = None, *, scores: Factors | None = None
    ) -> list[Array]:
        """Return the cosine of every example, by batch, with another attention at every site.

        Instead of the attention only the factors of its scores may be replaced (``scores``).
        """
        changed = self._embeddings(attention, scores)
        return [
            cosines_of(embeddings, original)
            for embeddings, original in zip(changed, self._original, strict=True)
        ]

    def _embeddings(
        self, attention: Mechanism | None = None, scores: Factors | None = None
    ) -> list[Tensor]:
        """Run the model, changed or not, and return the embeddings of every batch."""
        loaded = self._loaded
        with intervene(loaded, attention=attention, scores=scores) as router:
            return [
                loaded.pooling.embed(router.checked(loaded.forward, ids, mask), mask)
                for ids, mask in self._batches
            ]


def cosines_of(embeddings: Tensor, original: Tensor) -> Array:
    """Return the cosine of every row of two batches of embeddings."""
    return cosine(embeddings, original).cpu().numpy().clip(-1.0, 1.0)


def bootstrapped_mean(values: Array, seed: int) -> Estimate:
    """Return the mean of values with its bootstrap interval, None where there is no value."""
    if not len(values):
        return Estimate(None)
    mean = interval_of(mean_of("x"), {"x": values}, seed=seed)
    return mean if np.isfinite(float(mean)) else Estimate(None)
