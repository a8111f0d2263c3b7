"""A command to run next, which keeps the experiment of the command that was run.

Who has measured a model by a task, on data of their own, wants the next command on them too: its
data, task, calibration, limits and how the model is opened are carried over, as far as the next
command has such options.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from headscope.commands import COMMANDS, Command
from headscope.core.options import Declared, options_of

#: Options that say what is measured and on what, by the names of their flags. Those that a command
#: shares with the next one are carried over.
_EXPERIMENT = {
    "treebank",
    "text",
    "task",
    "data",
    "calibration",
    "limit",
    "calibration_limit",
    "sentences",
    "language",
    "frequencies",
    "stack",
    "pooling",
    "seed",
    "dtype",
    "device",
    "revision",
    "source_language",
    "target_language",
    "config",
}
#: Options that say what is shown or written, and how a run begins.
_NOT_MEASURED = {"output", "format", "figures", "verbose", "quiet", "debug", "resume"}


@dataclass(frozen=True)
class _Given:
    """An option that was given on a command line."""

    name: str  # As the command line has it: ``calibration_limit``
    words: tuple[str, ...]  # ("--calibration-limit", "64")


def following(command_line: str, next_command: str, *, without: Collection[str] = ()) -> str:
    """Return ``next_command`` with what it shares with the command that was run.

    The same command again keeps all that is measured. Options that ``next_command`` names itself,
    and those of ``without``, are not carried over. Both lines begin with the command's name
    ("classify MODEL --ablate"); ``command_line`` has "headscope" before it, and is anything else
    where the command was run from Python.
    """
    words = _words(command_line)
    name = next_command.split()[0]
    if words[:1] != ["headscope"] or words[1:2] == [] or words[1] not in COMMANDS:
        return next_command
    command = COMMANDS[words[1]]
    if not command.measures:
        return next_command
    named = {given.name for given in _given(COMMANDS[name], shlex.split(next_command)[1:])}
    kept: list[str] = []
    for given in _given(command, words[2:]):
        belongs = given.name not in _NOT_MEASURED
        if name != command.name:
            shared = given.name == "config" or given.name in _flags_by_name(COMMANDS[name])
            belongs = given.name in _EXPERIMENT and shared
        if belongs and given.name not in (*named, *without):
            kept += given.words
    return " ".join([next_command, shlex.join(kept)]).strip()


def was_given(command_line: str, name: str) -> bool:
    """Whether an option was given on a command line, by the name of its flag."""
    words = _words(command_line)
    if words[:1] != ["headscope"] or words[1:2] == [] or words[1] not in COMMANDS:
        return False
    return any(given.name == name for given in _given(COMMANDS[words[1]], words[2:]))


def _words(command_line: str) -> list[str]:
    """Split a command line into words; a saved result may hold one that is none."""
    try:
        return shlex.split(command_line)
    except ValueError:  # a quotation without an end
        return []


def _given(command: Command, words: list[str]) -> Iterator[_Given]:
    """Yield the options among the words of a command line, each with its value."""
    names = {flag: name for name, flags in _flags_by_name(command).items() for flag in flags}
    switches = _switches(command)
    rest = iter(words)
    for word in rest:
        flag, equals, _ = word.partition("=")
        name = names.get(flag, "config" if flag == "--config" else None)
        if name is None:
            continue
        if equals or flag in switches:
            yield _Given(name, (word,))
        else:
            yield _Given(name, (word, next(rest, "")))


def _flags_by_name(command: Command) -> dict[str, tuple[str, ...]]:
    """Return the flags of every option that a command measures by: {"length": ("--length", "-n")}.

    Arguments have none.
    """
    flags = {}
    for option in _declared(command):
        if not option.marker.argument:
            flags[option.spelled_as] = _spellings(option)
    return flags


def _switches(command: Command) -> set[str]:
    """Return the flags that take no value."""
    switches: set[str] = set()
    for option in _declared(command):
        is_switch = option.inverted or (option.kind is bool and not option.marker.choices)
        if is_switch:
            switches.update(_spellings(option))
    return switches


def _spellings(option: Declared) -> tuple[str, ...]:
    """Return the ways to write an option; a switch has one to turn it off too."""
    spelled = f"--{option.spelled_as.replace('_', '-')}"
    turned_off = f"--no-{option.spelled_as.replace('_', '-')}"
    return tuple(dict.fromkeys([*option.marker.flags, spelled, turned_off]))


def _declared(command: Command) -> Iterator[Declared]:
    """Yield the options of a command that the command line has, those of several flags one by one.

    Commands that measure nothing have none here.
    """
    if not command.measures:
        return
    classes: list[Any] = [command.options]
    if command.options.flags is not None:
        classes.append(command.options.flags)
    for options_class in classes:
        for option in options_of(options_class).values():
            if option.marker.flag_class is not None:
                yield from options_of(option.marker.flag_class).values()
            elif not option.marker.python_only:
                yield option
