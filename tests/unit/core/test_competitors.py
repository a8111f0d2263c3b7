"""What other programs use of the processor, from counts that the test writes."""

import pytest

from headscope.core import competitors as module
from headscope.core.competitors import Competitors


def test_the_processor_time_of_others_is_that_of_all_less_our_own(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    monkeypatch.setattr(module, "_STAT", stat)
    monkeypatch.setattr(module.os, "sysconf", lambda name: 100)
    own = iter([5.0, 15.0])  # 10 of our own seconds
    monkeypatch.setattr(module, "_own_seconds", lambda: next(own))
    now = iter([0.0, 8.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now))
    # user nice system idle iowait irq softirq steal guest: in hundredths of a second
    stat.write_text("cpu  1000 100 200 9000 50 0 0 10 777\ncpu0 1 1 1 1\n")
    watched = Competitors()
    stat.write_text("cpu  2000 300 200 9100 90 0 0 210 999\ncpu0 1 1 1 1\n")
    assert watched.cores() == pytest.approx((10 + 2 + 2 - 10) / 8)


def test_a_system_that_does_not_tell_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_STAT", tmp_path / "none")
    assert Competitors().cores() is None
