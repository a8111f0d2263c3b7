"""Run a model with something else in place of its attention, and see how near it stays."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from torch import Tensor

from headscope.data.plain import PlainText
from headscope.measures.accumulator import Array
from headscope.measures.pooling import cosine
from headscope.models.intervene import Factors, intervene
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Mechanism
from headscope.session.texts import check_measured, line_batches


def last_states(
    loaded: LoadedModel,
    batches: Iterable[tuple[Tensor, Tensor]],
    attention: Mechanism | None,
    keep: Callable[[Tensor, Tensor], Tensor],
    *,
    scores: Factors | None = None,
) -> list[Tensor]:
    """Run padded batches; return what ``keep`` makes of each one's last states and mask.

    ``attention`` or ``scores`` hold at every site, as :func:`intervene` takes them.
    """
    with intervene(loaded, attention=attention, scores=scores) as router:
        return [keep(router.checked(loaded.forward, ids, mask), mask) for ids, mask in batches]


class PooledStates:
    """A model's embeddings of a text's lines, which a changed model's are compared with.

    The mean cosine is the fidelity of the change. The lines are held in memory as padded token ids.
    """

    def __init__(self, loaded: LoadedModel, text: PlainText, limit: int | None = None) -> None:
        self._loaded = loaded
        self._batches = [loaded.pad(batch) for _, batch in line_batches(loaded, text, limit)]
        self.lines = sum(len(ids) for ids, _ in self._batches)
        # Longer than the model's limit.
        self.skipped = min(text.n_lines, limit or text.n_lines) - self.lines
        check_measured(text, self.lines)
        self._original = last_states(loaded, self._batches, None, loaded.pooling.embed)

    def cosines(
        self, attention: Mechanism | None = None, *, scores: Factors | None = None
    ) -> Array:
        """Return the cosine of every line, (lines,), with another attention at every site."""
        embed = self._loaded.pooling.embed
        changed = last_states(self._loaded, self._batches, attention, embed, scores=scores)
        pairs = zip(changed, self._original, strict=True)
        return np.concatenate([cosine(ours, theirs).cpu().numpy() for ours, theirs in pairs])
