"""How the result of a command looks: one value for each section, found by the section's name."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headscope.commands import COMMANDS
from headscope.core.safe_text import visible
from headscope.show.blocks import TERMINAL, Text
from headscope.show.cells import frame_csv, to_csv
from headscope.show.folders import folder_files
from headscope.stats.estimate import Estimate

if TYPE_CHECKING:
    import pandas
    from rich.console import RenderableType

    from headscope.show.blocks import Block, Details
    from headscope.show.page.parts import Card, Place, Scale


R = TypeVar("R")
_WORDS = Estimate(None)  # The number of a key number that is given in words.


@dataclass(frozen=True)
class KeyNumber:
    """A number that a reader wants to see first."""

    what: str  # What is measured, in words that are the same for every model
    text: str  # This model's value, with its interval.
    control: str = "-"  # The controls' values; "-" where there is none.
    #: The value itself and its 95% interval, without any where ``text`` says no number.
    number: Estimate = _WORDS


@dataclass(frozen=True)
class View(Generic[R]):
    """What people see of a result of class ``R``; every part is a function of the result.

    A report's page and report.md ask every section that was run for ``facts`` to ``key_numbers``.
    """

    #: Tables and sentences for the terminal.
    human: Callable[[R], Iterable[RenderableType]]
    #: Name and content of every file of a result folder but the JSON.
    files: Callable[[R], Mapping[str, bytes]]
    csv: Callable[[R], str] = to_csv  # The main table as CSV: by default the result's ``to_frame``.
    brief: Callable[[R], R] = lambda result: result  # What stdout's JSON has without --verbose.
    #: Names of files that not every run writes: one that an earlier run left must not be taken for
    #: this run's.
    stale: tuple[str, ...] = ()
    #: What the page says of single heads: cards that fill in what this section knows. The second
    #: argument lists the (layer, head) that samples and sections before this one know.
    facts: Callable[[R, Sequence[Place]], Iterable[Card]] = lambda result, places: ()
    #: The numbers on those cards that the map of heads can be coloured by.
    scales: tuple[Scale, ...] = ()
    #: Further parts of the page, and of report.md, for what not every run measures.
    more: Callable[[R], Iterable[Details]] = lambda result: ()
    #: The few numbers that a report leads with, each with its control.
    key_numbers: Callable[[R], Iterable[KeyNumber]] = lambda result: ()
    #: What ``headscope compare`` shows for several models before the key numbers, because a report
    #: shows it elsewhere.
    compared: Callable[[R], Iterable[KeyNumber]] = lambda result: ()
    #: Where the result is described as blocks: its title on the page, and what is shown.
    title: str = ""
    blocks: Callable[[R], Iterable[Block]] | None = None


def view(
    title: str,
    blocks: Callable[[R], Iterable[Block]],
    frames: Mapping[str, Callable[[R], pandas.DataFrame]],
    page: str = "",
    more: Callable[[R], Iterable[Details]] = lambda result: (),
    **fields: Any,
) -> View[R]:
    """Make the view of a result that ``blocks`` describes; ``frames`` are its CSV files by name.

    A frame without columns, of what was not measured, is no file. ``page`` names a separate page
    (``page``.html) with every detail open. ``fields`` are those of :class:`View`.
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
        with_figures = list(blocks(result))
        for details in more(result):
            with_figures += details.blocks
        files = folder_files(tables, dict(figures_of(with_figures)))
        if page:
            from headscope.show.page.template import page_of

            files[f"{page}.html"] = page_of(title, blocks(result), result).encode()
        return files

    return View(human, files, more=more, title=title, blocks=blocks, **fields)


def next_step(result: Any, why: str, command: str) -> Text:
    """End a command's screen with one command to try on the same model."""
    model = shlex.quote(visible(str(result.provenance["model"]["id"])))
    return Text(f"Next: {why} headscope {command.format(model)}", on=TERMINAL)


def view_of(section: str) -> View[Any]:
    """Return the view of a command: ``VIEW`` in the module ``view`` of its package."""
    view: View[Any] = COMMANDS[section].view
    return view
