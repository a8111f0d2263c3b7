"""How the processes of one run share its work: each takes some batches, then sums are added.

A single process is the usual case: it takes every batch, and adding up changes nothing, not even
the last bit. Every process runs the same program, and whatever is decided from sums is decided in
each of them, from the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from headscope.core.accumulator import Accumulator, Array

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Processes:
    """The processes that share a run; this class stands for a single process."""

    rank: int = 0  # Number of this process, from 0. Process 0 writes and prints.
    size: int = 1  # How many there are.

    def gather(self, arrays: Mapping[str, Array], what: str) -> list[dict[str, Array]]:
        """Return the arrays of every process, by rank; every process has to call it."""
        return [dict(arrays)]

    def meet(self, what: str) -> None:
        """Wait until every process is at this point."""


S = TypeVar("S", bound=Accumulator)
_current = Processes()


def current() -> Processes:
    """Return the processes that share this run."""
    return _current


@contextmanager
def shared_by(processes: Processes) -> Iterator[Processes]:
    """Let some processes share what runs in the block."""
    global _current
    before, _current = _current, processes
    try:
        yield processes
    finally:
        _current = before


@contextmanager
def alone() -> Iterator[None]:
    """Let this process do everything in the block itself; the others are not waited for."""
    with shared_by(Processes()):
        yield


def share(items: Iterable[T]) -> Iterator[T]:
    """Yield this process's share of the items: every ``size``-th, beginning at its rank."""
    return islice(items, _current.rank, None, _current.size)


def of_each(sums: S, blank: Callable[[], S], what: str) -> list[S]:
    """Return the sums of every process, by rank."""
    if _current.size == 1:
        return [sums]
    parts = []
    for arrays in _current.gather(sums.state(), what):
        parts.append(blank())
        parts[-1].load_state(arrays)
    return parts


def merged(sums: S, blank: Callable[[], S], what: str) -> S:
    """Add up the sums of all processes, in the order of their ranks."""
    total, *others = of_each(sums, blank, what)
    for part in others:
        total.merge(part)
    return total


def summed(what: str, *parts: Tensor) -> tuple[Tensor, ...]:
    """Add up tensors of equal shapes over all processes, in the order of their ranks."""
    if _current.size == 1:
        return parts
    import torch

    local = {str(i): part.detach().numpy() for i, part in enumerate(parts)}
    total = [torch.zeros_like(part) for part in parts]
    for arrays in _current.gather(local, what):
        for i, tensor in enumerate(total):
            tensor += torch.from_numpy(arrays[str(i)])
    return tuple(total)


def in_order(what: str, local: Mapping[int, Array]) -> list[Array]:
    """Collect one array of each batch (or row) from all processes, in the order of the batches."""
    parts = _current.gather({str(i): array for i, array in local.items()}, what)
    arrays = {int(i): array for part in parts for i, array in part.items()}
    return [arrays[i] for i in sorted(arrays)]


def joined_rows(
    what: str, index: Sequence[Array], rows: Mapping[str, Sequence[Array]], n_rows: int
) -> dict[str, Array]:
    """Join the rows of all processes, (n_rows, ...) by name, each at its index."""
    mine = {name: np.concatenate(parts) for name, parts in rows.items()}
    mine["place"] = np.concatenate([np.zeros(0, dtype=np.int64), *index])
    joined: dict[str, Array] = {}
    for part in _current.gather(mine, what):
        at = part.pop("place")
        for name, values in part.items():
            blank = np.zeros((n_rows, *values.shape[1:]), dtype=values.dtype)
            joined.setdefault(name, blank)[at] = values
    return joined


def own_file(path: Path) -> Path:
    """Return this process's own version of a path; the first process has the path itself."""
    if _current.rank == 0:
        return path
    return path.with_name(f"{path.stem}.{_current.rank + 1}-of-{_current.size}{path.suffix}")
