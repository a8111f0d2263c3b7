"""The sums of one pass, by stack: of self-attention and of cross-attention."""

from __future__ import annotations

from collections.abc import Mapping

from headscope.measures.accumulator import Array
from headscope.measures.classify.cross import CrossHeads
from headscope.measures.classify.sums import HeadMeasures


class StackSums:
    """Sums of every stack that a run measures; those of stacks that a pass does not run stay 0.

    Parameters
    ----------
    shapes : mapping of str to (int, int)
        Layers, and heads of the layer that has most, by stack.

    Attributes
    ----------
    reading : dict of str to HeadMeasures
        Of the encoder's and the decoder's self-attention.
    cross : CrossHeads or None
        Of cross-attention, where it is measured.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        self.reading = {s: HeadMeasures(*shape) for s, shape in shapes.items() if s != "cross"}
        self.cross = CrossHeads(*shapes["cross"]) if "cross" in shapes else None

    def state(self) -> dict[str, Array]:
        """Return all sums as named arrays."""
        return {
            f"{stack}.{name}": array
            for stack, part in self._parts().items()
            for name, array in part.state().items()
        }

    def load_state(self, arrays: dict[str, Array]) -> None:
        """Go on from what :meth:`state` gave."""
        for stack, part in self._parts().items():
            prefix = f"{stack}."
            mine = ((name, array) for name, array in arrays.items() if name.startswith(prefix))
            part.load_state({name.removeprefix(prefix): array for name, array in mine})

    def merge(self, other: StackSums) -> None:
        """Add the sums of another pass over other sentences with the same model."""
        for stack, part in other.reading.items():
            self.reading[stack].merge(part)
        if self.cross is not None and other.cross is not None:
            self.cross.merge(other.cross)

    def _parts(self) -> dict[str, HeadMeasures | CrossHeads]:
        return self.reading | ({} if self.cross is None else {"cross": self.cross})
