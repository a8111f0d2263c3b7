"""Meetings at the store, by groups that live in one process; gather needs real ones."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from headscope.errors import InputError, LostProcessError
from headscope.processes.group import Group, launched


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
        second._pulse.stop()
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
