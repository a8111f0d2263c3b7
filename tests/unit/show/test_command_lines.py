"""The command that is offered next keeps the experiment of the one that was run."""

import re
import shlex

import pytest
import typer

from headscope.cli.app import click_command
from headscope.commands import COMMANDS
from headscope.show.command_lines import following, was_given


@pytest.mark.parametrize(
    ("run", "offered", "expected"),
    [
        # Another command: what it shares of the experiment, and nothing of how it was measured.
        (
            "linear m --task similarity --data d.csv --limit 60 --no-control -o out",
            "symmetric m",
            "symmetric m --task similarity --data d.csv --limit 60",
        ),
        ("classify m --treebank 'a b.conllu' --ablate", "explain m 'A b.'", "explain m 'A b.'"),
        (
            "flow m --treebank=t.conllu",
            "classify m --ablate",
            "classify m --ablate --treebank=t.conllu",
        ),
        ("validate m --dtype float64", "classify m", "classify m --dtype float64"),
        (
            "spectrum m --text t.txt -n 64 --config c.toml",
            "linear m",
            "linear m --text t.txt --config c.toml",
        ),
        # The same command again: all of it, but for what the offered one says itself.
        (
            "prune m --task rerank --data d --calibration c --fraction 0.3 --method fisher -q",
            "prune m --save smaller --fraction 0.3",
            "prune m --save smaller --fraction 0.3 --task rerank --data d --calibration c "
            "--method fisher",
        ),
        (
            "prune m --step 0.1 --max-drop 0.02",
            "prune m --save s",
            "prune m --save s --max-drop 0.02",
        ),
        (
            "explain m 'A b.' --head L0H2",
            "explain m 'A b.' --verbose",
            "explain m 'A b.' --verbose --head L0H2",
        ),
        (
            "classify m --control --no-validate",
            "classify m --verbose",
            "classify m --verbose --control --no-validate",
        ),
        # Nothing is known of a run from Python, nor of a command that measures nothing.
        ("", "rank m", "rank m"),
    ],
)
def test_the_experiment_is_kept(run, offered, expected):
    line = f"headscope {run}" if run else "headscope.rank"
    assert following(line, offered, without=("step",)) == expected
    assert following("headscope serve m --text t", offered) == offered


def test_whether_an_option_was_given():
    assert was_given("headscope prune m --max-drop 0.02", "max_drop")
    assert was_given("headscope shrink m --text=t", "text")
    assert not was_given("headscope prune m --data max-drop", "max_drop")
    assert not was_given("headscope.prune", "max_drop")


@pytest.mark.parametrize("name", [row.name for row in COMMANDS.values() if row.measures])
def test_every_flag_of_a_command_is_known(name):
    """Against the flags that click reads: each alone is kept, with its value if it has one."""
    command = click_command(name)
    context = typer.Context(command)
    for parameter in command.get_params(context):
        if parameter.param_type_name == "argument" or parameter.name in ("help", "help_all"):
            continue
        for flag in [*parameter.opts, *parameter.secondary_opts]:
            if parameter.name in ("output", "format", "figures", "verbose", "quiet", "debug"):
                continue
            words = [flag] if parameter.is_flag else [flag, "1"]
            line = shlex.join(["headscope", name, "m", *words])
            again = following(line, f"{name} m")
            unseen = parameter.name == "resume"
            assert again == (f"{name} m" if unseen else f"{name} m {shlex.join(words)}"), flag
            assert re.match(rf"{name} m( |$)", again)
