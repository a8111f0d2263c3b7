"""How the result of a command looks: its :class:`View`, in the terminal, on pages and in files.

Most commands describe their result as blocks and make their view by :func:`view`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headscope.commands import COMMANDS
from headscope.core.safe_text import visible
from headscope.show.blocks import TERMINAL, Text
from headscope.show.cells import frame_csv, to_csv
from headscope.show.command_lines import following
from headscope.show.folders import folder_files
from headscope.stats.estimate import Estimate

if TYPE_CHECKING:
    import pandas
    from rich.console import RenderableType

    from headscope.show.blocks import Block, Details
    from headscope.show.page.parts import Card, Place, Scale


R = TypeVar("R")
_NO_NUMBER = Estimate(None)
NOT_TESTABLE = "not testable"  # In place of a count, where a corpus cannot show a role


@dataclass(frozen=True)
class KeyNumber:
    """A number that a reader wants to see first."""

    what: str  # What is measured, in words that are the same for every model
    text: str  # This model's value, with its interval
    control: str = "-"  # The value of the control, such as random weights; "-" if there is none
    number: Estimate = _NO_NUMBER  # The value itself, if ``text`` is about a number
    #: The role that heads are counted of, with its stack (``cross:sharp``); empty for others.
    role: str = ""


@dataclass(frozen=True)
class View(Generic[R]):
    """What people see of a result of class ``R``; every part is a function of the result."""

    # The command's own run
    human: Callable[[R], Iterable[RenderableType]]  # Tables and sentences for the terminal
    files: Callable[[R], Mapping[str, bytes]]  # Files of a result folder by name; the JSON apart
    csv: Callable[[R], str] = to_csv  # The main table as CSV; by default the result's ``to_frame``
    brief: Callable[[R], R] = lambda result: result  # What --format json prints without --verbose
    #: Names of files that not every run writes. Those that an earlier run has left in the folder
    #: are deleted, not to be taken for this run's.
    stale: tuple[str, ...] = ()

    # A report's page, and report.md
    #: What the page says of single heads: a card each, with what this command knows of it. The
    #: second argument lists the heads, as (layer, head), that the page has from other commands.
    cards: Callable[[R, Sequence[Place]], Iterable[Card]] = lambda result, places: ()
    scales: tuple[Scale, ...] = ()  # Numbers on those cards by which the page can colour heads
    #: Further blocks, folded up, for what not every run measures.
    more: Callable[[R], Iterable[Details]] = lambda result: ()
    #: The few numbers that a report leads with, each with its control.
    key_numbers: Callable[[R], Iterable[KeyNumber]] = lambda result: ()
    #: Numbers that ``headscope compare`` shows before the key numbers; a report has them elsewhere.
    compared: Callable[[R], Iterable[KeyNumber]] = lambda result: ()
    title: str = ""  # On the page: the question that it answers
    term: str = ""  # What the field calls it, in grey behind the title
    blocks: Callable[[R], Iterable[Block]] | None = None  # The result as blocks


def view(
    title: str,
    blocks: Callable[[R], Iterable[Block]],
    frames: Mapping[str, Callable[[R], pandas.DataFrame]],
    page: str = "",
    more: Callable[[R], Iterable[Details]] = lambda result: (),
    **fields: Any,
) -> View[R]:
    """Make the view of a result that ``blocks`` describes.

    ``frames`` make its CSV files, by name; one that returns a frame without columns, of what was
    not measured, makes no file. If ``page`` is given, a folder of results has a page of this name,
    too. ``fields`` are further fields of :class:`View`.
    """

    def human(result: R) -> Iterable[RenderableType]:
        """Draw the blocks in the terminal."""
        from headscope.show.terminal import terminal

        return terminal([*blocks(result), *more(result)])

    def files(result: R) -> Mapping[str, bytes]:
        """Write the tables, the figures, and the page if there is one."""
        from headscope.show.figures import figures_of

        tables = {}
        for name, frame_of in frames.items():
            frame = frame_of(result)
            if len(frame.columns):
                tables[name] = frame_csv(frame)
        all_blocks = list(blocks(result))
        for details in more(result):
            all_blocks += details.blocks
        files = folder_files(tables, dict(figures_of(all_blocks)))
        if page:
            from headscope.show.page.template import page_of

            files[f"{page}.html"] = page_of(title, blocks(result), result).encode()
        return files

    return View(human, files, more=more, title=title, blocks=blocks, **fields)


def next_step(result: Any, why: str, command: str, *, without: Collection[str] = ()) -> Text:
    """End a command's screen with one command to try on the same model, task and data.

    ``{}`` in ``command`` is the model: ``"classify {} --ablate"``. What it shares with the command
    that was run is added, but the options ``without``.
    """
    model = shlex.quote(visible(str(result.provenance["model"]["id"])))
    line = following(result.provenance.get("command", ""), command.format(model), without=without)
    return Text(f"Next: {why} headscope {visible(line)}", on=TERMINAL)


def view_of(section: str) -> View[Any]:
    """Return the view of a command, by the command's name."""
    view: View[Any] = COMMANDS[section].view
    return view
