"""How the processes of one run share its work: each takes some batches, then sums are added.

A single process is the usual case: it takes every batch, and adding up changes nothing, not even
the last bit. Every process runs the same program, and whatever is decided from sums is decided in
each of them, from the same numbers. Of three processes, that of rank 1 takes the batches 1, 4, 7,
... (:func:`share`).

In functions that exchange arrays, ``subject`` is what errors call the arrays, such as "the sums of
the model"; every process has to call the function, with the same subject. An ``Accumulator`` is a
set of sums over batches: ``state()`` are its arrays by name, ``load_state`` takes them,
``merge`` adds another one to it.
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
S = TypeVar("S", bound=Accumulator)
_ROW_INDEX = "row index"  # Name under which :func:`gathered_rows` sends the rows' indices


class Processes:
    """The processes that share a run: of this class, a single one.

    :class:`headscope.core.process_group.Group` is several.
    """

    rank: int = 0  # Number of this process, from 0. Process 0 writes and prints.
    size: int = 1  # Number of processes

    def gather(self, arrays: Mapping[str, Array], subject: str) -> list[dict[str, Array]]:
        """Return the arrays of every process, by rank."""
        return [dict(arrays)]

    def meet(self, subject: str) -> None:
        """Wait until every process is at this point."""


_current = Processes()  # Those that share this run


def current() -> Processes:
    """Return the processes that share this run."""
    return _current


@contextmanager
def shared_by(processes: Processes) -> Iterator[Processes]:
    """Let these processes share what runs in the block."""
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


def sums_by_rank(sums: S, blank: Callable[[], S], subject: str) -> list[S]:
    """Return the sums of every process, by rank; ``blank`` makes empty sums to load them into."""
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
    total, *later_ranks = sums_by_rank(sums, blank, subject)
    for sums_of_rank in later_ranks:
        total.merge(sums_of_rank)
    return total


def summed(subject: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Add up tensors of equal shapes over all processes, in the order of their ranks."""
    if _current.size == 1:
        return tensors
    import torch

    arrays = {str(i): tensor.detach().numpy() for i, tensor in enumerate(tensors)}
    totals = tuple(torch.zeros_like(tensor) for tensor in tensors)
    for arrays_of_rank in _current.gather(arrays, subject):
        for i, total in enumerate(totals):
            total += torch.from_numpy(arrays_of_rank[str(i)])
    return totals


def gathered_in_order(subject: str, arrays: Mapping[int, Array]) -> list[Array]:
    """Return one array for each batch (or row), from all processes, in the order of the batches.

    ``arrays`` are those of this process, by the number of the batch: of two processes, {0: a, 2: c}
    of one and {1: b} of the other -> [a, b, c] in both.
    """
    by_name = {str(number): array for number, array in arrays.items()}
    by_number: dict[int, Array] = {}
    for arrays_of_rank in _current.gather(by_name, subject):
        for name, array in arrays_of_rank.items():
            by_number[int(name)] = array
    return [by_number[number] for number in sorted(by_number)]


def gathered_rows(
    subject: str, row_indices: Sequence[Array], rows: Mapping[str, Sequence[Array]], n_rows: int
) -> dict[str, Array]:
    """Return the rows from all processes, (n_rows, ...) by name, each at its index.

    ``row_indices`` and ``rows`` are those of this process, an array for each of its batches: with
    row_indices [[4, 0], [2]] and rows {"loss": [[0.1, 0.2], [0.3]]}, row 4 has the loss 0.1.
    """
    arrays = {name: np.concatenate(batches) for name, batches in rows.items()}
    no_index = np.zeros(0, dtype=np.int64)  # so that a process without any batch has an array, too
    arrays[_ROW_INDEX] = np.concatenate([no_index, *row_indices])
    gathered: dict[str, Array] = {}
    for arrays_of_rank in _current.gather(arrays, subject):
        indices = arrays_of_rank.pop(_ROW_INDEX)
        for name, values in arrays_of_rank.items():
            if name not in gathered:
                gathered[name] = np.zeros((n_rows, *values.shape[1:]), dtype=values.dtype)
            gathered[name][indices] = values
    return gathered


def process_file(path: Path) -> Path:
    """Return the path of this process's own file: ``state.2-of-4.json``; of the first, ``path``."""
    if _current.rank == 0:
        return path
    return path.with_name(f"{path.stem}.{_current.rank + 1}-of-{_current.size}{path.suffix}")
