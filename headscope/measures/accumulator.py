"""What all accumulators share: arrays of sums that add up across batches, processes and runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Accumulator", "Array", "Keys", "numpy"]

Array = NDArray[Any]


def numpy(tensor: Tensor) -> Array:
    """Move a tensor to NumPy in the process's memory."""
    array: Array = tensor.detach().cpu().numpy()
    return array


class Keys:
    """Names in the order in which they were first seen; each has an index."""

    def __init__(self, names: list[Any] | None = None) -> None:
        self.names: list[Any] = []
        self._index: dict[Any, int] = {}
        for name in names or []:
            self.index(tuple(name))

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: Any) -> int:
        """Return the index of ``name``, adding it at the end if it is new."""
        if name not in self._index:
            self._index[name] = len(self.names)
            self.names.append(name)
        return self._index[name]

    def indices(self, names: tuple[Any, ...]) -> NDArray[np.int64]:
        """Return the indices of several names."""
        return np.array([self.index(name) for name in names], dtype=np.int64)

    def known(self, names: Iterable[Any]) -> list[int]:
        """Return the indices of those names that have been seen."""
        return [self._index[name] for name in names if name in self._index]


class Accumulator:
    """Sums over the corpus, as named arrays.

    Subclasses list their arrays in ``_sums`` (all additive). Those that also have growing name
    tables override :meth:`merge`.
    """

    _sums: tuple[str, ...] = ()

    def state(self) -> dict[str, Array]:
        """Return the sums by name; enough to go on from."""
        return {name: getattr(self, name) for name in self._sums}

    def load_state(self, state: dict[str, Array]) -> None:
        """Go on from a state that :meth:`state` gave."""
        for name in self._sums:
            setattr(self, name, state[name].copy())

    def merge(self, other: Self) -> None:
        """Add the sums of another accumulator of the same model."""
        for name in self._sums:
            setattr(self, name, getattr(self, name) + getattr(other, name))
