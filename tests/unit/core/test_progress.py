"""Which step of how many a run is at, whatever it tells and in whatever order."""

from headscope.core.progress import Steps, part_of


def test_a_line_of_a_log_says_which_step_of_how_many_and_how_much_is_done():
    steps = Steps(["model", "control", "removing heads"])
    say = steps.sentence
    assert say() == "step 1 of 4: opening and checking the model"
    steps.tell("model", 1, 4)
    assert say() == "step 2 of 4: model, 25%"
    steps.tell("removing heads", 0, 4)  # the control was not needed
    assert say() == "step 4 of 4: removing heads, 0%"
    steps.tell("unforeseen, task", 1, 1)
    assert say() == "step 5 of 5: unforeseen: task, 100%"
    steps.tell("model", 4, 4)  # one that comes again has its old number
    assert say() == "step 2 of 5: model, 100%"
    steps.tell("another", 0, 0)  # has its place behind the one before it
    assert say() == "step 3 of 6: another, 0%"


def test_what_a_part_tells_counts_as_that_part_unless_it_has_a_name():
    steps = Steps(["model, choosing", "model, measuring", "prune"])
    steps.tell("model, measuring", 1, 2)
    assert steps.sentence() == "step 3 of 4: model: measuring, 50%"
    part_of("prune", steps.tell)("the measured model, task", 3, 4)
    assert steps.sentence() == "step 4 of 4: prune: the measured model, task, 75%"
    assert steps.share == 0.75
