"""Sharing of work and meetings at the store, without further processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import TCPStore

from headscope.analyses.classify.syntactic import Syntactic
from headscope.core.accumulator import Array
from headscope.core.errors import InputError, LostProcessError
from headscope.core.process_group import Group, launched
from headscope.core.processes import (
    Processes,
    alone,
    current,
    in_order,
    merged,
    own_file,
    share,
    shared_by,
    summed,
)


class Recorded(Processes):
    """A process beside others, of which is known what they will say."""

    def __init__(self, rank: int, others: Mapping[int, Mapping[str, Array]]) -> None:
        self.rank, self.size, self._others = rank, len(others) + 1, others

    def gather(self, arrays: Mapping[str, Array], what: str) -> list[dict[str, Array]]:
        return [
            dict(arrays) if rank == self.rank else dict(self._others[rank])
            for rank in range(self.size)
        ]


def test_every_item_belongs_to_one_process():
    shares = []
    for rank in range(3):
        with shared_by(Recorded(rank, {other: {} for other in {0, 1, 2} - {rank}})):
            shares.append(list(share("abcdefg")))
    assert shares == [["a", "d", "g"], ["b", "e"], ["c", "f"]]
    assert current().size == 1
    assert list(share("abc")) == ["a", "b", "c"]


def test_one_process_gets_its_own_things_back_and_files_have_its_name():
    part, path = torch.ones(2), Path("out/.classify.state.safetensors")
    assert summed("x", part)[0] is part
    assert own_file(path) == path
    with shared_by(Recorded(1, {0: {}})):
        assert own_file(path) == Path("out/.classify.state.2-of-2.safetensors")
        with alone():
            assert current().size == 1
            assert list(share("ab")) == ["a", "b"]
        assert current().size == 2


def syntactic(**trials: int) -> Syntactic:
    """Sums of some relations, in the order in which they were seen."""
    sums = Syntactic(1, 1)
    place = sums.relations.indices((0, name, "dep->head") for name in trials)
    sums._grow()
    sums.trials[place] = list(trials.values())
    return sums


def test_tensors_are_added_in_the_order_of_ranks():
    # The order decides about the last bit: (1e16 + 1) - 1e16 is 0, (1e16 - 1e16) + 1 is 1.
    others = {0: {"0": np.array([1e16])}, 2: {"0": np.array([-1e16])}}
    with shared_by(Recorded(1, others)):
        (total,) = summed("x", torch.tensor([1.0], dtype=torch.float64))
    assert total.tolist() == [0.0]


def test_sums_with_names_are_merged_by_name():
    class Named:
        """Syntactic sums whose state holds the names too."""

        def __init__(self, sums: Syntactic) -> None:
            self.sums = sums

        def state(self) -> dict[str, Array]:
            names = [name for _, name, _ in self.sums.relations.names]
            return {name: self.sums.trials[i : i + 1] for i, name in enumerate(names)}

        def load_state(self, state: dict[str, Array]) -> None:
            self.sums = syntactic(**{name: int(array[0]) for name, array in state.items()})

        def merge(self, other: Named) -> None:
            self.sums.merge(other.sums)

    with shared_by(Recorded(0, {1: {"obj": np.array([4]), "nsubj": np.array([10])}})):
        found = merged(Named(syntactic(nsubj=1, det=2)), lambda: Named(Syntactic(1, 1)), "x")
    sums = {name: int(array[0]) for name, array in found.state().items()}
    assert sums == {"nsubj": 11, "det": 2, "obj": 4}


def test_batches_come_back_in_their_order():
    with shared_by(Recorded(0, {1: {"1": np.array([1.0]), "10": np.array([10.0])}})):
        parts = in_order("x", {0: np.array([0.0]), 2: np.array([2.0])})
        assert [float(part) for (part,) in parts] == [0.0, 1.0, 2.0, 10.0]


@contextmanager
def pair(patience: float = 60.0) -> Iterator[tuple[Group, Group]]:
    """Two processes of one run; the patience is that of both."""
    first = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    second = TCPStore("127.0.0.1", first.port, is_master=False, timeout=timedelta(seconds=5))
    groups = Group(first, 0, 2, patience), Group(second, 1, 2, patience)
    try:
        yield groups
    finally:
        for group in reversed(groups):
            group.leave()


def test_processes_that_have_come_apart_end():
    with pair() as (first, second):
        second._store.set("meeting 1 1", "b")
        with pytest.raises(LostProcessError, match="process 1 is at 'a' and process 2 at 'b'"):
            first.meet("a")


def test_a_failure_or_silence_reaches_whoever_waits():
    with pair() as (first, second):
        second.fail("no more memory")
        with pytest.raises(LostProcessError, match=r"Process 2 of 2, on .*: no more memory"):
            first.meet("a")
        assert first.speak()
        assert not second.speak()
    with pair(patience=0.3) as (first, second):
        second._leaving.set()
        with pytest.raises(LostProcessError, match="Process 2 of 2 has given no sign of life"):
            first.meet("the sums")


def test_a_slow_process_is_waited_for():
    with pair(patience=0.3) as (first, second):
        late = threading.Timer(0.8, lambda: second.meet("a"))
        late.start()
        first.meet("a")
        late.join()


def test_what_a_launcher_must_say(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert launched() == 1
    for name, value in (("WORLD_SIZE", "3"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="MASTER_ADDR and MASTER_PORT cannot be found"):
        launched()
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")):
        monkeypatch.setenv(name, value)
    assert launched() == 3
