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

    def gather(self, arrays: Mapping[str, Array], subject: str) -> list[dict[str, Array]]:
        """Return the arrays of every process, by rank; every process has to call it.

        ``subject`` is what errors call the arrays, in every process the same.
        """
        return [dict(arrays)]

    def meet(self, subject: str) -> None:
        """Wait until every process is at this point; ``subject`` is what errors call it."""


S = TypeVar("S", bound=Accumulator)
_ROW_INDEX = "row index"  # Name of the indices among the arrays that are exchanged
_current = Processes()


def current() -> Processes:
    """Return the processes that share this run."""
    return _current


@contextmanager
def shared_by(processes: Processes) -> Iterator[Processes]:
    """Let some processes share what runs in the block."""
    global _current
    processes_before = _current
    _current = processes
    try:
        yield processes
    finally:
        _current = processes_before


@contextmanager
def alone() -> Iterator[None]:
    """Let this process do everything in the block itself; the others are not waited for."""
    with shared_by(Processes()):
        yield


def share(items: Iterable[T]) -> Iterator[T]:
    """Yield this process's share of the items: every ``size``-th, beginning at its rank."""
    return islice(items, _current.rank, None, _current.size)


def of_each(sums: S, blank: Callable[[], S], subject: str) -> list[S]:
    """Return the sums of every process, by rank; ``blank`` makes sums of nothing to load into."""
    if _current.size == 1:
        return [sums]
    by_rank = []
    for state in _current.gather(sums.state(), subject):
        sums_of_rank = blank()
        sums_of_rank.load_state(state)
        by_rank.append(sums_of_rank)
    return by_rank


def merged(sums: S, blank: Callable[[], S], subject: str) -> S:
    """Add up the sums of all processes, in the order of their ranks."""
    total, *later_ranks = of_each(sums, blank, subject)
    for sums_of_rank in later_ranks:
        total.merge(sums_of_rank)
    return total


def summed(subject: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Add up tensors of equal shapes over all processes, in the order of their ranks."""
    if _current.size == 1:
        return tensors
    import torch

    arrays = {str(i): tensor.detach().numpy() for i, tensor in enumerate(tensors)}
    totals = [torch.zeros_like(tensor) for tensor in tensors]
    for arrays_of_rank in _current.gather(arrays, subject):
        for i, total in enumerate(totals):
            total += torch.from_numpy(arrays_of_rank[str(i)])
    return tuple(totals)


def in_order(subject: str, arrays: Mapping[int, Array]) -> list[Array]:
    """Collect one array of each batch (or row) from all processes, in the order of the batches."""
    by_name = {str(i): array for i, array in arrays.items()}
    collected: dict[int, Array] = {}
    for arrays_of_rank in _current.gather(by_name, subject):
        collected |= {int(i): array for i, array in arrays_of_rank.items()}
    return [collected[i] for i in sorted(collected)]


def joined_rows(
    subject: str, row_indices: Sequence[Array], rows: Mapping[str, Sequence[Array]], n_rows: int
) -> dict[str, Array]:
    """Join the rows of all processes, (n_rows, ...) by name, each at its index.

    ``row_indices`` and ``rows`` are those of each batch of this process.
    """
    of_process = {name: np.concatenate(batches) for name, batches in rows.items()}
    of_process[_ROW_INDEX] = np.concatenate([np.zeros(0, dtype=np.int64), *row_indices])
    joined: dict[str, Array] = {}
    for of_rank in _current.gather(of_process, subject):
        indices = of_rank.pop(_ROW_INDEX)
        for name, values in of_rank.items():
            if name not in joined:
                joined[name] = np.zeros((n_rows, *values.shape[1:]), dtype=values.dtype)
            joined[name][indices] = values
    return joined


def own_file(path: Path) -> Path:
    """Return this process's own version of a path; the first process has the path itself."""
    if _current.rank == 0:
        return path
    return path.with_name(f"{path.stem}.{_current.rank + 1}-of-{_current.size}{path.suffix}")
