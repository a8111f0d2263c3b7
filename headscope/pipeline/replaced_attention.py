"""Run a model with something else in place of its attention, and see how near it stays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from torch import Tensor

from headscope.data.plain import PlainText
from headscope.measures.accumulator import Array
from headscope.measures.pooling import cosine
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Mechanism, Router, routed
from headscope.pipeline.texts import check_measured, line_batches


def last_states(
    loaded: LoadedModel,
    batches: Iterable[tuple[Tensor, Tensor]],
    mechanism: Mechanism | None,
    keep: Callable[[Tensor, Tensor], Tensor],
) -> list[Tensor]:
    """Run padded batches; return what ``keep`` makes of each one's last states and mask.

    ``mechanism`` runs at every site, the model's own attention without it.
    """
    kept = []
    with routed(
        loaded.model, Router(loaded.sites, others=loaded.others, mechanism=mechanism)
    ) as router:
        for ids, mask in batches:
            router.begin()
            hidden = loaded.forward(ids, mask)
            router.check_calls()
            kept.append(keep(hidden, mask))
    return kept


class PooledStates:
    """A model's embeddings of a text's lines, which a changed model's are compared with.

    The mean cosine is the fidelity of the change.
    """

    def __init__(self, loaded: LoadedModel, text: PlainText, limit: int | None = None) -> None:
        self._loaded = loaded
        self._batches = [loaded.pad(batch) for _, batch in line_batches(loaded, text, limit)]
        self.lines = sum(len(ids) for ids, _ in self._batches)
        self.skipped = min(text.n_lines, limit or text.n_lines) - self.lines
        check_measured(text, self.lines)
        self._original = last_states(loaded, self._batches, None, loaded.pooling.embed)

    def cosines(
        self,
        mechanism: Mechanism,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Array:
        """Return the cosine of every line, (lines,), with ``mechanism`` at every site.

        ``around`` makes a context in which all passes run, to watch the sites' inputs, say.
        """
        with around():
            embed = self._loaded.pooling.embed
            changed = last_states(self._loaded, self._batches, mechanism, embed)
        pairs = zip(changed, self._original, strict=True)
        return np.concatenate([cosine(ours, theirs).cpu().numpy() for ours, theirs in pairs])
