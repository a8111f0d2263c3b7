"""How near the embeddings of a changed model are to the unchanged one's: the cosine of each text.

The mean cosine is the fidelity of the change. What changes the model is a function that runs in the
place of its attention (a ``Mechanism``), or other factors of its scores (``Factors``: two tensors
for each layer, in place of W_Q and W_K). Both run under :func:`intervene`; ``router.checked`` is
one run of the model there, which has to reach every layer.
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
    """Compares the embeddings of a changed model with the unchanged model's, on padded batches."""

    def __init__(self, loaded: LoadedModel, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Run the unchanged model; ``batches`` are (token ids, attention mask), (batch, pos)."""
        self._loaded = loaded
        self._batches = batches
        self._original = self._embeddings()

    def cosines(
        self, attention: Mechanism | None = None, *, scores: Factors | None = None
    ) -> list[Array]:
        """Return the cosine of every text, batch by batch, of the model changed in every layer.

        Either its ``attention`` is another function, or only the factors of its ``scores`` are
        other ones.
        """
        changed = self._embeddings(attention, scores)
        batches = zip(changed, self._original, strict=True)
        return [cosines_of(embeddings, original) for embeddings, original in batches]

    def _embeddings(
        self, attention: Mechanism | None = None, scores: Factors | None = None
    ) -> list[Tensor]:
        """Run the model, changed or not, and return the embeddings of every batch."""
        loaded = self._loaded
        embeddings = []
        with intervene(loaded, attention=attention, scores=scores) as router:
            for ids, mask in self._batches:
                states = router.checked(loaded.forward, ids, mask)
                embeddings.append(loaded.pooling.embed(states, mask))
        return embeddings


def cosines_of(embeddings: Tensor, original: Tensor) -> Array:
    """Return the cosine of each text's two embeddings, both (texts, d_model) -> (texts,)."""
    return cosine(embeddings, original).cpu().numpy().clip(-1.0, 1.0)


def bootstrapped_mean(values: Array, seed: int) -> Estimate:
    """Return the mean of values with its bootstrap interval; unknown without values or with NaN."""
    if not len(values):
        return Estimate(None)
    mean = interval_of(mean_of("cosine"), {"cosine": values}, seed=seed)
    return mean if np.isfinite(float(mean)) else Estimate(None)
