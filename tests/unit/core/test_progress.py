"""Which step of how many a run is at, whatever it tells and in whatever order."""

from headscope.core.progress import Steps, listening, part_of, say


def test_a_line_of_a_log_says_which_step_of_how_many_and_how_much_is_done():
    steps = Steps(["model", "control", "removing heads"])
    sentence = steps.sentence
    assert (sentence(), steps.share) == ("loading PyTorch and transformers", None)
    steps.say("loading all-MiniLM-L6-v2")
    assert sentence() == "loading all-MiniLM-L6-v2"
    steps.tell("model", 1, 4)
    assert sentence() == "step 1 of 3: measuring the model, 25%"
    steps.say("checking attention against the model")  # beside the first step, on another thread
    assert sentence() == "step 1 of 3: measuring the model, 25%"
    steps.tell("removing heads", 0, 4)  # the control was not needed
    assert sentence() == "step 3 of 3: removing heads, 0%"
    steps.tell("unforeseen, task", 1, 1)
    assert sentence() == "step 4 of 4: unforeseen: task, 100%"
    steps.tell("model", 4, 4)  # one that comes again has its old number
    assert sentence() == "step 1 of 4: measuring the model, 100%"
    steps.tell("another", 0, 0)  # has its place behind the one before it
    assert sentence() == "step 2 of 5: another, 0%"
    alone = Steps([])
    alone.tell("heads removed", 1, 2)
    assert alone.sentence() == "step 1 of 1: heads removed, 50%"


def test_what_a_part_tells_counts_as_that_part_unless_it_has_a_name():
    steps = Steps(["model, choosing", "model, measuring", "prune"])
    steps.tell("model, measuring", 1, 2)
    assert steps.sentence() == "step 2 of 3: measuring the model: measuring, 50%"
    part_of("prune", steps.tell)("the measured model, task", 3, 4)
    assert steps.sentence() == "step 3 of 3: prune: the measured model, task, 75%"
    assert steps.share == 0.75


def test_what_is_said_is_heard_inside_of_the_block_alone():
    heard: list[str] = []
    say("to nobody")
    with listening(heard.append):
        say("loading a model")
    say("to nobody")
    assert heard == ["loading a model"]
