"""One bar over all steps: its time left is near the truth, whatever the pace, and never zero."""

import pytest

from headscope.core.progress import SECONDS, STEPS, Overall, clock_text


class Run:
    """A run whose clock is moved by hand; it notes what was promised and when."""

    def __init__(self, expected):
        self.now = 0.0
        self.overall = Overall(expected, lambda: self.now)
        self.promised, self.shares = [], []

    def step(self, name, seconds, parts=20):
        for done in range(1, parts + 1):
            self.now += seconds / parts
            self.overall.tell(name, done, parts)
            self.promised.append((self.now, self.overall.left()))
            self.shares.append(self.overall.share())

    def check(self, within):
        """Each promise is near what came, from a tenth of the run on; shares only rise."""
        assert self.shares == sorted(self.shares)
        assert self.shares[-1] <= 1
        for at, left in self.promised:
            true = self.now - at
            if left is None:
                assert at < 0.2 * self.now
            elif at > 0.1 * self.now:
                assert true - within * self.now <= left <= true + within * self.now + 1


@pytest.mark.parametrize("pace", [0.5, 1.0, 20.0])
def test_steps_that_take_what_was_expected(pace):
    expected = {"model": 10.0, "control": 20.0, "removing heads": 70.0}
    run = Run(expected)
    for name, seconds in expected.items():
        run.step(name, pace * seconds)
    run.check(within=0.1)


def test_steps_that_are_passed_over_or_have_no_name_yet():
    run = Run({"model": 10.0, "control": 100.0, "*0": 10.0, "*1": 10.0, "all": 10.0})
    run.step("model", 10.0)
    assert run.overall.left() > 90, "the control is expected"
    for name in ("9 random heads", "18 random heads", "all"):
        run.step(name, 10.0)
        assert run.overall.left() < 50, "it did not come"
    run = Run({})
    run.step("runs", 40.0)
    run.check(within=0.1)


def test_what_a_part_says_of_itself_counts():
    """prune prices its steps: in a report the rest is judged by the pace, prune by its word."""
    run = Run({"classify, model": 10.0, "prune, seconds": 100.0, "insights, random heads": 20.0})
    run.step("classify, model", 10.0)
    run.overall.tell("prune, measured", 1, 2)
    assert run.overall.step == "prune: measured"
    run.overall.tell(f"prune, {SECONDS}", 0, 400)
    run.now += 100
    run.overall.tell(f"prune, {SECONDS}", 100, 400)
    assert 300 <= run.overall.left() <= 400
    run.now += 290
    assert run.overall.left() < 120


def test_a_late_run_has_something_left():
    run = Run({SECONDS: 100.0})
    run.overall.tell(SECONDS, 395, 400)
    assert run.overall.left() == 5
    run.now += 300
    assert run.overall.left() == 30
    assert [clock_text(value) for value in (None, 5, 400, 3690)] == [
        *("", "about 0:05", "about 6:40", "about 1:01:30")
    ]


def test_a_line_of_a_log_says_which_step_of_how_many_and_how_much_is_done():
    run = Run({"model": 10.0, "control": 10.0, "*0": 10.0, "*1": 10.0})
    say = run.overall.sentence
    assert say() == "step 1 of 5, opening and checking the model"
    run.step("model", 10.0)
    assert say() == "step 2 of 5, model, 25%, about 0:30 left"
    run.step("random weights 1 of 2", 10.0, parts=1)  # the control was not needed
    assert say().startswith("step 4 of 5, random weights 1 of 2, ")
    run.step("unforeseen, task", 10.0, parts=1)
    assert say().startswith("step 5 of 5, unforeseen: task, ")
    run.step("another", 10.0, parts=1)
    assert say().startswith("step 6 of 6, another, ")
    run.step("model", 1.0)  # one that comes again has its old number
    assert say().startswith("step 2 of 6, model, ")


def test_a_run_that_counts_its_steps_is_believed_but_in_a_report_it_is_one_step():
    alone, within = Overall({SECONDS: 1.0}), Overall({"prune, seconds": 1.0, "files": 1.0})
    for overall, section in ((alone, ""), (within, "prune, ")):
        overall.tell(f"{section}{STEPS}", 3, 7)
        overall.tell(f"{section}{SECONDS}", 30, 60)
        overall.tell(f"{section}measuring a model", 0, 1)
    assert alone.sentence() == "step 3 of 7, measuring a model, 0%, about 0:30 left"
    assert within.sentence().startswith("step 2 of 3, prune: measuring a model")
