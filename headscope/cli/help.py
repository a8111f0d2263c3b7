"""Help and usage errors: ``--help`` shows the usual options, ``--help-all`` all of them.

An option that only ``--help-all`` shows is *hidden*, in typer's own sense.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

HELP_ALL = "--help-all"


class HelpCommand(TyperCommand):
    """A command that shows its usual options first, and explains wrong arguments."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option ``--help``, whose own help says how many options it hides."""
        hidden = sum(getattr(param, "hidden", False) for param in self.params)
        switch = super().get_help_option(ctx)
        if switch is not None:
            more = f"; {HELP_ALL} shows {hidden} more options" if hidden else " and exit"
            switch.help = f"Show this message{more}."
            switch.metavar = ""  # a switch has no type
        return switch

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line; explain those that belong to nothing."""
        ctx.meta[HELP_ALL] = HELP_ALL in args
        ctx.allow_extra_args = True
        args = ["--help"] if HELP_ALL in args else args
        self._refuse_repeated(ctx, args)
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = _shortened(error.message)
            raise
        if ctx.args:
            words = " ".join(ctx.args)
            raise typer.BadParameter(
                f"{words!r} is too much; put a sentence, or a path with spaces, in quotes", ctx
            )
        return rest

    def _refuse_repeated(self, ctx: Any, args: list[str]) -> None:
        """Refuse an option that is given twice though it takes one value, and opposite switches.

        Click would take the last one, and say nothing of the others.
        """
        _, _, given = self.make_parser(ctx).parse_args(args=[*args])
        for param in dict.fromkeys(given):
            if given.count(param) < 2 or param.param_type_name == "argument":
                continue
            written = [word.partition("=")[0] for word in args]
            flag = next((word for word in written if word in param.opts), param.opts[0])
            is_switch = getattr(param, "is_flag", False)
            if not is_switch and not param.multiple:
                raise typer.BadParameter(
                    f"{flag} is given {given.count(param)} times and takes one value; give it once",
                    ctx,
                )
            turned_on = [word for word in args if word in param.opts]
            turned_off = [word for word in args if word in param.secondary_opts]
            if turned_on and turned_off:
                raise typer.BadParameter(
                    f"{turned_on[0]} and {turned_off[0]} exclude each other; give one of them", ctx
                )

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help; for a switch that is off, leave out the flag that turns it off."""
        options: list[Any] = [param for param in self.params if hasattr(param, "hidden")]
        before = [(option.hidden, option.secondary_opts) for option in options]
        for option in options:  # ``secondary_opts`` turn a switch off
            option.hidden = option.hidden and not ctx.meta[HELP_ALL]
            option.secondary_opts = option.secondary_opts if option.default else []
        try:
            super().format_help(ctx, formatter)
        finally:  # a program may run several commands
            for option, (hidden, secondary) in zip(options, before, strict=True):
                option.hidden = hidden
                option.secondary_opts = secondary


def _shortened(message: str) -> str:
    """Shorten pydantic's message about a number: leave out the words of a program's inside."""
    why = message.removeprefix("Value error, ").partition(", unable to parse")[0]
    return why.replace("Input should be", "it should be", 1)


class HelpGroup(TyperGroup):
    """A group of commands."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option ``--help``, without a type."""
        switch = super().get_help_option(ctx)
        if switch is not None:
            switch.metavar = ""
        return switch
