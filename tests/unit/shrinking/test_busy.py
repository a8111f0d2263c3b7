"""Speeds on a machine that another program shares for a part of the run, by a clock of the test.

Torch suffers most from another program. So what is timed while one runs seems fastest beside torch.
"""

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from shrinking_models import measured_model

from headscope.data.token_rows import Row
from headscope.removal import times as module
from headscope.removal.times import timed_in_turns, timed_together, times
from headscope.shrinking.bench import timed_fields
from headscope.shrinking.ladder import Ladder
from headscope.shrinking.result import Target, unsteady
from headscope.shrinking.serving import FORMS, TORCH, Form
from headscope.stats.estimate import Estimate

FAST = Form("onnxruntime", "int8 dynamic")
SLOWER = Form("openvino", "int8")
#: Milliseconds a text on a quiet machine.
MS = dict.fromkeys(FORMS, 2.0) | {TORCH: 4.0, SLOWER: 1.0, FAST: 0.8}
#: How many times as long a pass takes beside another program.
SUFFERS = dict.fromkeys(FORMS, 1.05) | {TORCH: 1.7}


class Machine:
    """A machine on which another program runs while some forms are timed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, busy: set[str]) -> None:
        """``busy``: the timings, in words as ``openvino int8, 1``, that are disturbed."""
        self.now = 0.0
        self.timings: dict[str, Estimate] = {}  # Speeds, by the words of their timing
        self._busy = busy
        self._is_busy = False
        self._rng = np.random.default_rng(0)
        by_this_clock = functools.partial(timed_in_turns, clock=lambda: self.now)
        monkeypatch.setattr(module, "timed_in_turns", by_this_clock)
        monkeypatch.setattr(module, "_run_batch", self._run)
        monkeypatch.setattr(
            module, "padded", lambda rows, pad_id, device: SimpleNamespace(ids=list(rows))
        )
        model = SimpleNamespace(pad_id=0, device="cpu", tokenizer=None)
        self._rows = [Row(i, tuple(range(3 + i % 5)), None, ()) for i in range(40)]
        self._torch = (model, TORCH, self._rows)

    def _run(self, form: Any, batch: Any) -> None:
        suffers = SUFFERS[form] if self._is_busy else 1.0
        noise = np.exp(0.01 * self._rng.normal())
        self.now += MS[form] / 1e3 * len(batch.ids) * suffers * noise

    def _timing(self, name: str) -> str:
        """Begin a timing: ``openvino int8, 2`` is the second of that form."""
        count = sum(words.startswith(name) for words in self.timings)
        words = f"{name}, {count + 1}"
        self._is_busy = words in self._busy
        return words

    def times(self, model: Any, form: Form, longer: int = 1) -> Any:
        words = self._timing(str(form))
        cut = None if form == TORCH else (model, form, self._rows)
        timed = times(self._torch, cut, batch_size=8, longer=longer)
        self.timings[words] = timed.speed
        return timed.of_whole() if form == TORCH else timed

    def times_together(self, forms: list[Form]) -> Any:
        self._timing("together")
        model, _, rows = self._torch
        return timed_together(self._torch, [(model, form, rows) for form in forms], batch_size=8)

    def ladder(self, target: Target | None = None) -> Ladder:
        def measured(files, form, times, *_, **__):
            return measured_model(
                runtime=form.runtime, precision=form.precision, **timed_fields(times)
            )

        bench = SimpleNamespace(
            files_of_whole=SimpleNamespace(served=lambda form: form, release=lambda: None),
            full_model=self._torch[0],
            task=SimpleNamespace(metric="spearman"),
            distance=lambda model, served: 0.01,
            times=self.times,
            times_together=self.times_together,
            measured=measured,
            elsewhere=lambda model, served: (),
        )
        return Ladder(
            bench,
            ("onnxruntime", "openvino"),
            target=target,
            max_drop=None,
            minutes=0.0,
            tell=lambda *step: None,
        )


EVERY = {f"{form}, {count}" for form in FORMS for count in (1, 2)}


@pytest.mark.parametrize(
    ("busy", "confirmed"),
    [
        (set(), True),
        ({f"{SLOWER}, 1"}, True),  # timed again when the other program has ended
        ({f"{SLOWER}, 1", f"{SLOWER}, 2"}, True),  # in turns with the other form it has ended
        (EVERY | {"together, 1"}, True),  # a machine that is equally busy all the time
        ({f"{SLOWER}, 1", f"{SLOWER}, 2", "together, 1"}, False),  # it comes and goes
    ],
    ids=["quiet", "once", "twice", "always", "again and again"],
)
def test_what_was_timed_beside_another_program_does_not_lead(busy, confirmed, monkeypatch):
    machine = Machine(monkeypatch, busy)
    climbing = machine.ladder(Target("speed", 4.5))
    climbing.climb()
    if f"{SLOWER}, 1" in busy and f"{FAST}, 1" not in busy:  # so it would have led
        first_of_slower = machine.timings[f"{SLOWER}, 1"].value
        assert first_of_slower == pytest.approx(4 * 1.7 / 1.05, rel=0.05)
        assert first_of_slower > machine.timings[f"{FAST}, 1"].value
    whole = climbing.whole
    assert whole.forms[0] == FAST
    assert (whole.lead.first, whole.lead.second) == (str(FAST), str(SLOWER))
    assert whole.lead.known
    assert whole.lead.speed.value == pytest.approx(1.25, abs=0.02)
    assert bool(unsteady(whole.models)) is not confirmed
    assert climbing.reached is confirmed
    if not confirmed:
        assert "but torch itself took" in climbing.stopped
        assert climbing.stopped.endswith("Run it again when nothing else runs.")


def test_the_pace_of_every_pair_is_kept(monkeypatch):
    machine = Machine(monkeypatch, {f"{SLOWER}, 1", f"{SLOWER}, 2", "together, 1"})
    climbing = machine.ladder()
    climbing.climb()
    paces = {model.form: model.ms_of_whole.value for model in climbing.models}
    for form in FORMS:
        disturbed = form in (FAST, SLOWER)  # which took turns with each other last
        assert paces[str(form)] == pytest.approx(4.0 * (1.7 if disturbed else 1.0), rel=0.02)
