"""All of classify's accumulators together: one set of sums for one pass over a corpus."""

from __future__ import annotations

import json

import numpy as np

from headscope.measures.accumulator import Array, Keys
from headscope.measures.classify.kernel import Kernel
from headscope.measures.classify.positional import Positional
from headscope.measures.classify.profile import Profile
from headscope.measures.classify.rare import Rare
from headscope.measures.classify.rows import RowMeasure, RowReducer
from headscope.measures.classify.syntactic import Syntactic

#: Tables of names that belong to sums.
_NAMED = [(part, table) for part in ("syntactic", "swapped") for table in ("relations", "offsets")]


class HeadMeasures:
    """Positional, syntactic, kernel, rare-word and profile sums of every head.

    Attributes
    ----------
    positional, syntactic, swapped, kernel, rare, profile : RowMeasure
        ``swapped`` counts as ``syntactic`` does, against other sentences' trees.
    skipped : int
        Sentences that could not be measured.
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.positional = Positional(n_layers, n_heads)
        self.syntactic = Syntactic(n_layers, n_heads)
        self.swapped = Syntactic(n_layers, n_heads, swapped=True)
        self.kernel = Kernel(n_layers, n_heads)
        self.rare = Rare(n_layers, n_heads)
        self.profile = Profile(n_layers, n_heads)
        self.skipped = 0

    def reducer(self, stack: str | None = None) -> RowReducer:
        """Return the observer that feeds these sums, from the sites of one stack if it is given."""
        places = self.positional.hits.shape[:2]
        return RowReducer(*places, *self._parts.values(), stack=stack)

    @property
    def _parts(self) -> dict[str, RowMeasure]:
        return {name: part for name, part in vars(self).items() if isinstance(part, RowMeasure)}

    def merge(self, other: HeadMeasures) -> None:
        """Add the sums of another pass over other sentences with the same model."""
        for name, part in self._parts.items():
            part.merge(other._parts[name])
        self.skipped += other.skipped

    def state(self) -> dict[str, Array]:
        """Return all sums as named arrays; names of relations and offsets as the bytes of JSON."""
        arrays = {
            f"{name}.{key}": np.array(array, order="C")
            for name, part in self._parts.items()
            for key, array in part.state().items()
        }
        names = {f"{p}.{table}": getattr(self._parts[p], table).names for p, table in _NAMED}
        text = json.dumps({**names, "skipped": self.skipped})
        return arrays | {"names": np.frombuffer(text.encode(), dtype=np.uint8)}

    def load_state(self, arrays: dict[str, Array]) -> None:
        """Go on from what :meth:`state` gave."""
        for name, part in self._parts.items():
            part.load_state({key: arrays[f"{name}.{key}"] for key in part.state()})
        known = json.loads(arrays["names"].tobytes())
        for p, table in _NAMED:
            setattr(self._parts[p], table, Keys(map(tuple, known[f"{p}.{table}"])))
        self.skipped = known["skipped"]
