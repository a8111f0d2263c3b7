"""From options to arguments: one mapping, for the commands and for the sections of a report."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import typer

from headscope.cli.settings import THRESHOLDS, given, options_by_command, thresholds_of
from headscope.errors import InputError

#: Options that a report sets for all its sections at once, or that keep something.
_FOR_ALL_SECTIONS = {
    *("output", "device", "revision", "allow_pickle", "no_validate", "pooling"),
    *("resume", "save", "save_dense", "benchmark", "standalone", "export", "quantize"),
}
#: What a command on several sections measures them on.
_INPUTS = ("treebank", "text", "limit")
#: Options that concern the command line alone, or that a command makes something else of.
_NO_ARGUMENTS = ("model", "format", "config", "quiet", "debug")
_NO_ARGUMENTS_OF = {
    "depth": ("log",),
    "insights": ("treebank", "text"),
    "report": (*_INPUTS, "fresh"),
}


class OptionError(Exception):
    """One option whose value cannot be read, and why; or two of which only one may be given.

    Whoever reads options says where they stand: on the command line or in a table.
    """

    def __init__(self, *options: str, why: str = "") -> None:
        super().__init__(*options, why)
        self.options, self.why = options, why

    def on_command_line(self) -> typer.BadParameter:
        """Return it as a usage error that names the flags."""
        flags = [f"--{option.replace('_', '-')}" for option in self.options]
        if self.why:
            return typer.BadParameter(self.why, param_hint=f"'{flags[0]}'")
        return typer.BadParameter(f"give {' or '.join(flags)}, not both")

    def in_table(self, name: str) -> InputError:
        """Return it as a known failure that names the table of the config file."""
        if self.why:
            return InputError(f"[{name}] {self.options[0]}: {self.why}.")
        return InputError(f"[{name}] sets {' and '.join(self.options)}; give one of them.")


def arguments(command: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn options into keyword arguments of the command's function.

    What concerns the command line alone, such as ``format``, is left out, and so is an option that
    is None: the function has its default. ``thresholds`` is a table of a config file.

    Raises
    ------
    OptionError
        For options that do not fit together, or text that cannot be read.
    InputError
        For a threshold or a file that cannot be used.
    """
    none = (*_NO_ARGUMENTS, *_NO_ARGUMENTS_OF.get(command, ()))
    left = {name: v for name, v in values.items() if v is not None and name not in none}
    found = _thresholds(command, left) | _roles(left) | _state(command, left)
    if command in ("classify", "flow"):
        found |= _corpus(left)
    for option, value in left.items():
        name, convert = _CONVERTED.get(option, (option, _plain))
        found[name] = convert(value)
    return found


def _thresholds(command: str, left: dict[str, Any]) -> dict[str, Any]:
    """Build the thresholds of the table and the flags; flags win."""
    table, flags = left.pop("thresholds", {}), left.pop("threshold", [])
    kind = thresholds_of(command)
    if kind is None or not (table or flags):
        return {}
    from headscope.results.thresholds import parse_pairs

    pairs = parse_pairs(flags, example=THRESHOLDS[command][1])
    return {"thresholds": kind.parse({**table, **pairs})}


def _roles(left: dict[str, Any]) -> dict[str, Any]:
    if not left.pop("no_roles", False):
        return {}
    if "roles" in left:
        raise OptionError("roles", "no_roles")
    return {"roles": False}


def _state(command: str, left: dict[str, Any]) -> dict[str, Any]:
    """Name the file that an interrupted run goes on from, where the command can."""
    output = left.pop("output", None)
    if output is None and left.get("resume"):
        raise InputError("There is nothing to resume from: name the folder of the run (-o DIR).")
    if output is None or "resume" not in left:
        return {}
    from headscope.show.files import state_name

    return {"state": output / state_name(command)}


def _corpus(left: dict[str, Any]) -> dict[str, Any]:
    if "treebank" in left and "text" in left:
        raise OptionError("treebank", "text")
    if not left.keys() & {"treebank", "text"}:
        return {}
    from headscope.data.corpus import open_text, open_treebank

    treebank = left.pop("treebank", None)
    return {"corpus": open_treebank(treebank) if treebank else open_text(left.pop("text"))}


def _plain(value: Any) -> Any:
    """Return an enumeration's member as its value, alone or in a list."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, enum.Enum) else value


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _role_names(text: str) -> list[str]:
    """Read ``positional,syntactic``; an empty list is a slip, not a wish."""
    if names := _names(text):
        return names
    raise OptionError("keep_roles", why="name a role, such as positional")


def _widths(text: str) -> tuple[int, ...]:
    """Read ``48,96,192``."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        why = f"{text!r} is not a list of widths; write them as 48,96,192"
        raise OptionError("share_projections", why=why) from None


def _sizes(text: str) -> list[int]:
    """Read ``64,256``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        why = f"{text!r} is not a list of sizes; write them as 64,256"
        raise OptionError("sizes", why=why) from None


_CONVERTED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "no_validate": ("validate", operator.not_),
    "biases": ("biases", lambda value: value == "include"),
    "share_projections": ("share_projections", _widths),
    "method": ("methods", _plain),
    "repair": ("repairs", _plain),
    "fraction": ("fractions", _plain),
    "keep_roles": ("keep_roles", _role_names),
    "only": ("only", _names),
    "skip": ("skip", _names),
    "sizes": ("sizes", _sizes),
    "variants": ("variants", _names),
    "random": ("random", _names),
}


def table_arguments(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a table of a config file into arguments; :func:`arguments` says how."""
    import headscope
    from headscope.cli.made import made_arguments

    options = getattr(getattr(headscope, name), "options", None)
    try:
        if options is not None:
            return made_arguments(options, table)
        return arguments(name, table)
    except OptionError as slip:
        raise slip.in_table(name) from None


def section_settings(
    context: typer.Context, sections: Iterable[str], flags: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return each section's arguments: what its table in the config file sets, then the flags.

    Of the flags ``treebank``, ``text`` and ``limit`` count, for every section that is measured on a
    text and has them.
    """
    known, found = options_by_command(context), {}
    inputs = {name: flags[name] for name in _INPUTS if flags[name] is not None}
    for name in sections:
        # What depth measures falls below the rounding of float32: it alone has a type of its own.
        common = _FOR_ALL_SECTIONS | (set() if name == "depth" else {"dtype"})
        table = {key: value for key, value in given(context, name).items() if key not in common}
        if "text" in known[name]:
            table = _overlaid(table, {key: v for key, v in inputs.items() if key in known[name]})
        found[name] = table_arguments(name, table)
    return found


def _overlaid(table: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """Lay flags over a table; a treebank takes the place of a text, and the other way round."""
    if "treebank" in flags:
        flags = {name: value for name, value in flags.items() if name != "text"}
    if flags.keys() & {"treebank", "text"}:
        table = {name: v for name, v in table.items() if name not in ("treebank", "text")}
    return table | flags
