"""Processes that share a run: meetings at the store, and windows of a corpus taken in turn.

All in this process; tests/cli/test_processes.py has real ones.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import pytest
from torch.distributed import TCPStore

from headscope.core import process_group
from headscope.core.errors import LostProcessError
from headscope.core.process_group import Group
from headscope.core.processes import Processes, shared_by
from headscope.data.batches import buckets
from headscope.session import texts
from headscope.session.texts import process_batches


@pytest.fixture(autouse=True)
def _looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "_PULSE_CHECK", 0.05)


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


def test_processes_that_have_come_apart_or_failed_end():
    with pair() as (first, second):
        second._store.set("meeting 1 1", "b")
        with pytest.raises(LostProcessError, match="process 1 is at 'a' and process 2 at 'b'"):
            first.meet("a")
        second.fail("no more memory")
        with pytest.raises(LostProcessError, match=r"Process 2 of 2, on .*: no more memory"):
            first.meet("a")
        assert first.claim_report()
        assert not second.claim_report()


def test_a_slow_process_is_waited_for_and_a_silent_one_is_not():
    with pair(patience=0.3) as (first, second):
        late = threading.Timer(0.5, lambda: second.meet("a"))
        late.start()
        first.meet("a")
        late.join()
        second._leaving.set()
        with pytest.raises(LostProcessError, match="Process 2 of 2 has given no sign of life"):
            first.meet("the sums")


Row = tuple[int, ...]  # A sentence: its number, as often as it has tokens.


class Process(Processes):
    """One of several, all of which are played in turn."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size


def read(tokens: Sequence[int]) -> Iterator[Row]:
    return ((number,) * n for number, n in enumerate(tokens))


@pytest.mark.parametrize("n", [100, 64, 7, 1])
def test_processes_share_the_batches_of_one(n, monkeypatch):
    monkeypatch.setattr(texts, "WINDOW", 8)
    monkeypatch.setattr(texts, "BATCH_TOKENS", 40)
    tokens = np.random.default_rng(0).integers(3, 20, n).tolist()
    skipped = {number for number in range(n) if number % 9 == 4}
    n_windows = -(-n // 8)
    #: The oracle, without windows of rows that are read on and left out.
    windows = [[row for row in read(tokens) if row[0] // 8 == w] for w in range(n_windows)]
    one = []
    for window in windows:
        one += buckets([row for row in window if row[0] not in skipped], 40 // 2)
    for k in (1, 2, 3, 5, 16):
        batches = []
        done = []
        encoded = []
        for rank in range(k):
            checked = []

            def encode(
                rows: list[Row], first: bool, checked: list[int] = checked, encoded=encoded
            ) -> Iterator[Row | None]:
                if first:
                    checked.append(rows[0][0])
                encoded.append(rows[0][0] // 8)
                return (None if row[0] in skipped else row for row in rows)

            with shared_by(Process(rank, k)):
                own_share = list(process_batches(read(tokens), n, encode))
            assert checked in ([], [0]), "only the first window of all is the first"
            assert own_share == [batch for batch in own_share if batch[1] in one], (
                "in the order of one process"
            )
            places = [one.index(batch) for _, batch in own_share]
            assert places == sorted(places)
            batches += places
            done.append(own_share[-1][0] if own_share else 0.0)
        assert sorted(batches) == list(range(len(one)))
        assert sum(done) == pytest.approx(n)
        # Each has as many whole windows, and of each further one its share or a batch more.
        assert max(done) - min(done) <= 8 * (n_windows % k)
        shared = n_windows % k
        assert len(encoded) == n_windows - shared + k * shared
