"""What all accumulators share: arrays of sums that add up across batches, processes and runs.

An :class:`Accumulator` keeps its sums as attributes that are NumPy arrays, so that saving, loading
and adding them need no code of its own. :class:`Keys` numbers names as they come;
:class:`Parts` is several accumulators in one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]
Name = TypeVar("Name", bound=Hashable)


def numpy(tensor: Tensor) -> Array:
    """Copy a tensor to the CPU as a NumPy array."""
    array: Array = tensor.detach().cpu().numpy()
    return array


def zeros(count: int, *shape: int, dtype: DTypeLike = np.float64) -> tuple[Array, ...]:
    """Make ``count`` arrays of zeros, each of its own memory."""
    return tuple(np.zeros(shape, dtype=dtype) for _ in range(count))


class Keys(dict[Name, int]):
    """Names, each with its index, in the order in which they were first seen.

    ``Keys(["a", "b"]).indices(["b", "c"])`` is [1, 2], and "c" is known from then on.
    """

    def __init__(self, names: Iterable[Name] = ()) -> None:
        super().__init__()
        self.indices(names)

    @property
    def names(self) -> list[Name]:
        """The names, by index."""
        return list(self)

    def index(self, name: Name) -> int:
        """Return the index of ``name``, adding it at the end if it is new."""
        return self.setdefault(name, len(self))

    def indices(self, names: Iterable[Name]) -> NDArray[np.int64]:
        """Return the indices of several names, adding those that are new."""
        return np.array([self.index(name) for name in names], dtype=np.int64)

    def known(self, names: Iterable[Name]) -> list[int]:
        """Return the indices of those names that have been seen."""
        return [self[name] for name in names if name in self]


class Accumulator:
    """Sums over a corpus: each attribute of a subclass that is a NumPy array is such a sum.

    The sums of two halves of a corpus are therefore added entry by entry. A subclass whose arrays
    grow with a table of names overrides :meth:`merge`.
    """

    def state(self) -> dict[str, Array]:
        """Return the sums by name: all that is needed to resume."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def load_state(self, state: dict[str, Array]) -> None:
        """Load a state that :meth:`state` returned."""
        for name in self.state():
            setattr(self, name, state[name].copy())

    def merge(self, other: Self) -> None:
        """Add the sums of another accumulator of the same model."""
        sums = self.state()
        for name, array in other.state().items():
            sums[name] += array


class Parts(Accumulator):
    """Several accumulators by name, added up as one; by default a subclass's attributes."""

    def parts(self) -> Mapping[str, Any]:
        """Return the accumulators."""
        return vars(self)

    def state(self) -> dict[str, Array]:
        """Return the sums of all accumulators, as ``accumulator.name``."""
        sums: dict[str, Array] = {}
        for name, accumulator in self.parts().items():
            for key, array in accumulator.state().items():
                sums[f"{name}.{key}"] = np.array(array, order="C")
        return sums

    def load_state(self, state: dict[str, Array]) -> None:
        """Load a state that :meth:`state` returned."""
        for name, accumulator in self.parts().items():
            accumulator.load_state({key: state[f"{name}.{key}"] for key in accumulator.state()})

    def merge(self, other: Self) -> None:
        """Add the sums of another accumulator of the same model."""
        to_add = other.parts()
        for name, accumulator in self.parts().items():
            accumulator.merge(to_add[name])
