"""Meetings at the store, without further processes; tests/cli/test_processes.py has real ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from headscope.core.errors import LostProcessError
from headscope.core.process_group import Group


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
    with pair(patience=0.2) as (first, second):
        second._leaving.set()
        with pytest.raises(LostProcessError, match="Process 2 of 2 has given no sign of life"):
            first.meet("the sums")


def test_a_slow_process_is_waited_for():
    with pair(patience=0.2) as (first, second):
        late = threading.Timer(0.4, lambda: second.meet("a"))
        late.start()
        first.meet("a")
        late.join()
